"""What egglog's matcher yields that is no match: docs/egglog-matches.md, held against a naive join."""

from __future__ import annotations

import random
import re
from importlib.metadata import version
from pathlib import Path

from eqsat.egraph.library import bindings
from tests.naive import Atom, Join, Row

PAGE = Path(__file__).parents[1] / "docs" / "egglog-matches.md"
(PROGRAM,) = re.findall(r"```egg\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.DOTALL)
SQUARES: list[Atom] = [(sides, tuple(sides)) for sides in ("ab", "ax", "by", "cx", "cd", "dy", "xy")]
NAMES = "abcdxy"


def found(program: str) -> set[Row]:
    graph = bindings().EGraph()
    graph.run_program(*graph.parse_program(program))
    rows = graph.freeze().functions["found"].rows
    return {tuple(map(graph.value_to_i64, row.inputs)) for row in rows}


def program_of(tables: dict[str, set[Row]], query: list[Atom]) -> str:
    lines = [f"(relation {name} (i64 i64))" for name, _ in SQUARES]
    lines.append(f"(relation found ({'i64 ' * len(NAMES)}))")
    facts = " ".join(f"({name} {' '.join(args)})" for name, args in query)
    lines.append(f"(rule ({facts}) ((found {' '.join(NAMES)})))")
    lines += [f"({name} {' '.join(map(str, row))})" for name, rows in tables.items() for row in sorted(rows)]
    return "\n".join([*lines, "(run 1)"])


def wanted(tables: dict[str, set[Row]]) -> set[Row]:
    return {tuple(match[name] for name in NAMES) for match in Join(tables).matches(SQUARES)}


def test_the_row_that_is_no_match() -> None:
    """If this fails, egglog has changed: see docs/egglog-matches.md, and whether ``holds`` is still needed."""
    tables: dict[str, set[Row]] = {}
    for name, one, other in re.findall(r"\(([a-z]{2}) (\d) (\d)\)", PROGRAM):
        tables.setdefault(name, set()).add((int(one), int(other)))
    assert wanted(tables) == set()
    rows = found(PROGRAM)
    assert rows == {(2, 2, 2, 1, 1, 2)}, (
        f"egglog {version('egglog')} no longer joins what does not belong together here, but yields {rows or 'none'}: "
        "say in docs/egglog-matches.md from which version on; rows need not be confirmed if no older one is supported"
    )


def test_no_row_of_a_join_with_cycles_is_missing() -> None:
    more = matches = 0
    for seed in range(400):
        dice = random.Random(seed)
        largest = dice.randint(1, 4)
        tables = {
            name: {(dice.randint(0, largest), dice.randint(0, largest)) for _ in range(dice.randint(1, 5))}
            for name, _ in SQUARES
        }
        query = dice.sample(SQUARES, len(SQUARES))
        rows, right = found(program_of(tables, query)), wanted(tables)
        assert not right - rows
        more += len(rows - right)
        matches += len(right)
    assert matches > 50
    assert more, f"egglog {version('egglog')} yields no row that is no match: see the other test"
