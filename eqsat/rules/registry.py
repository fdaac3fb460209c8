"""Finding rules: the installed rule libraries, choosing among them by numerics and id."""

from __future__ import annotations

import itertools
import warnings
from collections.abc import Iterable, Sequence
from functools import cache, lru_cache
from importlib import import_module
from importlib.metadata import EntryPoint
from importlib.util import find_spec
from pkgutil import resolve_name
from types import ModuleType

from eqsat.errors import EqsatWarning, RuleError
from eqsat.forks import IMPORTING
from eqsat.installed import entry_points
from eqsat.ir.table import OPS
from eqsat.rules.rule import NUMERICS, Numerics, Rule, spread
from eqsat.tracebacks import at_users_line

_added: dict[str, tuple[Rule, int]] = {}
"""Rules given to ``add``, each with the number of its adding: no other rule of this process has it."""
_adding = itertools.count()

_CHECK = "eqsat.egraph.check:require"
"""What ``add`` has rules checked by, found when it is needed: the e-graph is built on rules."""


def collect(*modules: ModuleType) -> tuple[Rule, ...]:
    """Every rule assigned at the top level of the modules, in order of definition; duplicate ids are refused."""
    return unique(value for module in modules for value in vars(module).values() if isinstance(value, Rule))


def unique(rules: Iterable[Rule]) -> tuple[Rule, ...]:
    """The rules, each once. ``RuleError`` if two different ones share an id."""
    found: dict[str, Rule] = {}
    for rule in rules:
        other = found.setdefault(rule.id, rule)
        if other is not rule:
            raise RuleError(f"rule id {rule.id!r} is used at {other.file}:{other.line} and {rule.file}:{rule.line}")
    return tuple(found.values())


@cache
def _libraries() -> tuple[tuple[Rule, ...], tuple[str, ...]]:
    """The rules of the installed libraries, and the modules that they are from.

    Another package's library that cannot be imported, holds no rules, or has an id that is taken is left out, with a
    warning: programs are compiled without it.
    """
    rules: tuple[Rule, ...] = ()
    modules = []
    for point in sorted(entry_points("eqsat.rules"), key=lambda point: not _is_own(point)):
        try:
            with IMPORTING:
                library = point.load()
            found = tuple(getattr(library, "RULES", library))
            strange = next((rule for rule in found if not isinstance(rule, Rule)), None)
            if strange is not None:
                raise RuleError(f"RULES holds {strange!r}, which is no rule")
            rules = unique([*rules, *found])
        except (Exception, SystemExit) as error:  # the library's own code: it may raise anything
            if _is_own(point):
                raise
            warnings.warn(
                f"the rule library {point.name!r} ({point.value}) is left out: {type(error).__name__}: {error}",
                EqsatWarning,
                stacklevel=2,
            )
        else:
            modules.append(point.module)
    return rules, tuple(modules)


def _is_own(point: EntryPoint) -> bool:
    return point.dist is not None and point.dist.name == "eqsat"


def _installed() -> tuple[Rule, ...]:
    return _libraries()[0]


def submodules(name: str) -> list[str]:
    """The modules of this name in the libraries that are packages, in order."""
    return [f"{module}.{name}" for module in sorted(set(_libraries()[1])) if _is_module(f"{module}.{name}")]


@at_users_line
def add(*rules: Rule, check: bool = True) -> None:
    """Let programs compiled from now on use these rules, in place of any added before under the same ids.

    Each is tried on random programs first, for about half a second (``check=False`` leaves that out; it is less than a
    proof). ``RuleError`` with the counterexample for one that is found wrong, or of a stricter class than it is, with
    the place for one whose functions raise or do not return, and for an id that is a library's or occurs twice; then
    none of them is added. A rule that fired on no program is added with a warning.
    """
    for rule in rules:
        if not isinstance(rule, Rule):
            raise RuleError(f"add takes rules, as rewrite makes them, not {rule!r}")
    unique([*_installed(), *rules])
    if check:
        vouch = resolve_name(_CHECK)
        for rule in rules:
            vouch(rule)
    for rule in rules:
        _added[rule.id] = rule, next(_adding)


def remove(id: str) -> None:
    """Forget a rule given to ``add``. ``KeyError`` if there is none, listing those there are."""
    if id not in _added:
        raise KeyError(
            f"no rule {id!r} was added; there are {', '.join(_added) or 'none'} (disable= leaves others out)"
        )
    del _added[id]


@lru_cache(maxsize=4)
def _spread(rules: tuple[Rule, ...], operators: tuple[object, ...]) -> tuple[Rule, ...]:
    return spread(rules)


def _of_operators(rules: tuple[Rule, ...]) -> tuple[Rule, ...]:
    """The rules, those for each operator of a trait with all that users defined by now."""
    return _spread(rules, tuple((row.name, row.attrs, row.traits) for row in OPS.values() if row.traits))


def listed(numerics: Numerics | None = None) -> tuple[Rule, ...]:
    """The rules of the installed libraries (entry-point group ``eqsat.rules``) and those given to ``add``.

    With ``numerics``, those at most that loose; ``ValueError`` for another class.
    """
    if numerics is not None and numerics not in NUMERICS:
        raise ValueError(f"numerics is one of {', '.join(NUMERICS)}, not {numerics!r}")
    rules = _of_operators((*_installed(), *(rule for rule, _ in _added.values())))
    if numerics is None:
        return rules
    return tuple(r for r in rules if NUMERICS.index(r.numerics) <= NUMERICS.index(numerics))


@cache
def _other_libraries() -> tuple[str, ...]:
    points = (*entry_points("eqsat.rules"), *entry_points("eqsat.backends"))
    return tuple(point.name for point in points if not _is_own(point))


def strangers() -> tuple[str, ...]:
    """What did not come with eqsat: ids of rules given to ``add``, names of other packages' rule libraries and
    backends."""
    return (*_other_libraries(), *_added)


def get(id: str) -> Rule:
    """The rule of this id. ``KeyError`` listing the ids there are."""
    for rule in listed():
        if rule.id == id:
            return rule
    raise KeyError(f"no rule {id!r}; {suggest(id)}")


def suggest(id: str) -> str:
    """Which ids there are, the likeliest first."""
    from difflib import get_close_matches

    ids = [*(rule.id for rule in listed()), *sorted(_loop_rules())]
    close = get_close_matches(id, ids, 5)
    rest = [i for i in ids if i not in close]
    return (f"did you mean {', '.join(close)}? " if close else "") + f"the ids are {', '.join(close + rest)}"


@cache
def _loop_rules() -> frozenset[str]:
    """Ids of the libraries' rules over loop nests (``LOOP_RULES`` of a submodule ``loops``), disabled alike."""
    names = submodules("loops")
    with IMPORTING:
        return frozenset(rule.id for name in names for rule in import_module(name).LOOP_RULES)


def _is_module(name: str) -> bool:
    try:
        return find_spec(name) is not None
    except ModuleNotFoundError:  # a library of one file has no submodules
        return False


def select(
    numerics: Numerics = "reassociates", disable: Sequence[str] = (), rules: Sequence[Rule] | None = None
) -> tuple[Rule, ...]:
    """The rules a compilation may use: those at most as loose as ``numerics``, without the disabled ids.

    Raises ``ValueError`` for an unknown numerics class, or an unknown id, with the valid ones.
    """
    if numerics not in NUMERICS:
        raise ValueError(f"numerics is one of {', '.join(NUMERICS)}, not {numerics!r}")
    given = listed() if rules is None else _of_operators(unique(rules))
    ids = {rule.id for rule in given} | _loop_rules()
    for id in disable:
        if id not in ids:
            raise ValueError(f"disable: no rule {id!r}; {suggest(id)}")
    limit = NUMERICS.index(numerics)
    return tuple(r for r in given if r.id not in disable and NUMERICS.index(r.numerics) <= limit)
