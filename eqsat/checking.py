"""The command ``eqsat rules check``: verdicts on rules."""

from __future__ import annotations

import difflib
import json
import traceback
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from rich.console import Console

from eqsat import rules
from eqsat.egraph.verdict import SECONDS, check
from eqsat.errors import RuleError
from eqsat.rules import Rule
from eqsat.rules.registry import unique

__all__ = ["SECONDS", "check_rules"]


def check_rules(names: Sequence[str], seconds: float, imported: Callable[[str], Any], *, as_json: bool = False) -> int:
    """Print verdicts on rules by id, on those that modules hold, or on all that are installed; 1 if one is wrong,
    or cannot be checked.

    ``imported`` finds a module by what the user calls it. ``as_json``: a list of ids, verdicts and reports, at the end.
    ``ValueError`` for what is neither, or holds no rewrite.
    """
    if not seconds > 0:
        raise ValueError(f"--seconds is more than 0, not {seconds:g}")
    counts: Counter[str] = Counter()
    console = Console(soft_wrap=True, markup=False, highlight=False)
    asked = _asked(names, imported)
    found: list[dict[str, str]] = []
    for rule in asked:
        try:
            verdict = check(rule, seconds=seconds)
            word, report = verdict.word, str(verdict)
        except RuleError as error:
            word, report = "wrong", str(error)
        except Exception as error:  # of a stranger's pattern: the other rules are checked
            word = "unchecked"
            report = f"rule {rule.id!r} ({rule.file}:{rule.line}) cannot be checked: {type(error).__name__}: {error}"
        counts[word] += 1
        found.append({"id": rule.id, "verdict": word, "report": report})
        if not as_json:
            console.print(f"{report}\n")
    if as_json:
        print(json.dumps(found, indent=1))
    else:
        console.print(f"{len(asked)} rules: {', '.join(f'{n} {word}' for word, n in sorted(counts.items()))}")
    return 1 if counts["wrong"] or counts["unchecked"] else 0


def _asked(names: Sequence[str], imported: Callable[[str], Any]) -> list[Rule]:
    installed = {rule.id: rule for rule in rules.list()}
    asked = [] if names else [rule for rule in installed.values() if rule.ways]
    for name in names:
        if name in installed:
            given: list[Any] = [installed[name]]
        else:
            module = _imported(name, imported, installed)
            listed = getattr(module, "RULES", ())
            if not isinstance(listed, Iterable):
                raise ValueError(f"RULES of module {name} is to be rules, not {listed!r}")
            given = [*vars(module).values(), *listed]
        found = [rule for rule in given if isinstance(rule, Rule)]
        if not any(rule.ways for rule in found):
            raise ValueError(f"{name} is no rewrite: {found[0].doc}" if found else f"module {name} holds no rules")
        asked += [rule for rule in found if rule.ways]
    return list(unique(asked))


def _imported(name: str, imported: Callable[[str], Any], installed: Iterable[str]) -> Any:
    """A module, whose own code may do anything when it is imported."""
    try:
        return imported(name)
    except ModuleNotFoundError as error:
        if error.name is not None and name != error.name and not name.startswith(f"{error.name}."):
            raise ValueError(f"{name} cannot be imported: {error}{_at(error)}") from None
        near = difflib.get_close_matches(name, installed)
        hint = f"; there is {', '.join(near)}" if near else ""
        raise ValueError(f"there is no rule and no module {name!r} ({error}){hint}") from None
    except SyntaxError as error:
        raise ValueError(f"{name} is no Python module: {error}") from None
    except (Exception, SystemExit) as error:
        raise ValueError(f"{name} cannot be imported: {type(error).__name__}: {error}{_at(error)}") from None


def _at(error: BaseException) -> str:
    """Where it was raised, if that is in no part of Python's own importing."""
    frames = [f for f in traceback.extract_tb(error.__traceback__) if not f.filename.startswith("<frozen")]
    return f" ({frames[-1].filename}:{frames[-1].lineno})" if frames else ""
