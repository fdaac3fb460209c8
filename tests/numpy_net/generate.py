"""Whole programs: statements of all families, then structure for arguments and results, and options."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import numpy as np

from tests.numpy_net import arrays, elementwise, idioms, reducing, shaping
from tests.numpy_net.draft import MOST, Draft
from tests.numpy_net.program import Program, bounded_memory

FAMILIES: tuple[tuple[Callable[[Draft], str], float], ...] = (
    (elementwise.unary, 10),
    (elementwise.binary, 12),
    (elementwise.operator, 16),
    (elementwise.bitwise, 4),
    (elementwise.other, 14),
    (shaping.move, 18),
    (shaping.index, 18),
    (reducing.reduction, 16),
    (reducing.other, 14),
    (idioms.idiom, 12),
    (idioms.large, 0.6),
)
TRIES = 12


def generate(seed: int, number: int) -> Program:
    """Program ``number`` of a sweep: the same one for the same ``seed`` at any time."""
    with bounded_memory():
        return _generate(seed, number)


def _generate(seed: int, number: int) -> Program:
    rng = random.Random(f"{seed}/{number}")
    draft = Draft(rng.getrandbits(64), special=rng.random() < 0.15)
    wanted = rng.choice((1, 1, 2, 2, 3, 3, 4, 5, 6, 8))
    makers = [f for f, _ in FAMILIES]
    weights = [w for _, w in FAMILIES]
    state = np.random.get_state()
    for _ in range(wanted):
        for _ in range(TRIES):
            if draft.write(rng.choices(makers, weights)[0](draft)):
                break
    np.random.set_state(state)
    result = _result(draft, rng)
    program = draft.done(f"{seed}/{number}", result=result, tags=("special",) if draft.special else ())
    program = _arguments(program, draft, rng)
    return program.but(options=_options(program, rng), other_sizes=_other_sizes(program, rng))


def _result(draft: Draft, rng: random.Random) -> str:
    """What to return: what was made last, with other values, in any nesting."""
    made = [n for n in draft.names if n.startswith(("v", "t")) and _whole(draft.values[n])]
    others = [n for n in draft.names if _whole(draft.values[n])]
    if not others:
        return rng.choice(("3", "None", "np.float32(2.5)", "np.arange(3)", "(1, 2.5, None)"))
    last = made[-1] if made else others[-1]
    chosen = [last, *rng.sample(made, min(len(made), rng.choice((0, 0, 1, 2))))]
    r = rng.random()
    if r < 0.08:
        chosen.append(rng.choice(others))  # perhaps an argument as it came
    if r < 0.04:
        chosen.append(rng.choice(("3", "2.5", "None", "True", "'text'", "np.int32(4)", "np.arange(3)", "()")))
    if len(chosen) == 1:
        one = chosen[0]
        ways = [one] * 8 + [f"({one},)", f"[{one}]", f"{{'out': {one}}}", f"({one}, {one})", f"{one}.T", f"+{one}"]
        if draft.values[one].dtype.kind == "b":
            ways.pop()
        return rng.choice(ways)
    both = ", ".join(chosen)
    ways = [f"({both})"] * 4 + [f"[{both}]", f"{{'a': {chosen[0]}, 'b': [{', '.join(chosen[1:])}]}}"]
    ways += [f"(({chosen[0]},), {{'rest': ({', '.join(chosen[1:])},)}})", f"Pair({chosen[0]}, ({both}))"]
    return rng.choice(ways)


def _whole(value: Any) -> bool:
    return isinstance(value, np.ndarray | np.generic) and value.size <= MOST


def _arguments(program: Program, draft: Draft, rng: random.Random) -> Program:
    """Inputs as parameters: plain, by keyword, nested in containers, the same one twice, or numbers."""
    names = [n for n, _ in program.inputs]
    arguments: list[tuple[str, str]] = []
    unpack: list[str] = []
    keywords: list[str] = []
    rest = list(names)
    if len(rest) >= 2 and rng.random() < 0.3:
        group = [rest.pop() for _ in range(rng.randint(2, min(3, len(rest))))]
        form = rng.choice(("tuple", "list", "dict", "Layer", "Pair", "nested"))
        if form in ("Layer", "Pair") and len(group) != 2:
            form = "dict"
        packed, paths = _pack(form, group)
        arguments.append(("packed", packed))
        unpack += [f"{n} = packed{path}" for n, path in zip(group, paths, strict=True)]
    arguments = [(n, n) for n in rest] + arguments
    if rest and rng.random() < 0.15:
        keywords.append(rest[-1])
    if names and rng.random() < 0.05:
        arguments.append(("again", names[0]))
    if rng.random() < 0.06:
        arguments.append(("number", rng.choice(("2", "0.5", "None", "'mode'", "True", "(1, 2)"))))
    return program.but(arguments=tuple(arguments), unpack=tuple(unpack), keywords=tuple(keywords))


def _pack(form: str, group: list[str]) -> tuple[str, list[str]]:
    numbered = [f"[{k}]" for k in range(len(group))]
    match form:
        case "tuple":
            return f"({', '.join(group)},)", numbered
        case "list":
            return f"[{', '.join(group)}]", numbered
        case "dict":
            return "{" + ", ".join(f"'k{k}': {n}" for k, n in enumerate(group)) + "}", [
                f"['k{k}']" for k in range(len(group))
            ]
        case "Layer":
            return f"Layer({', '.join(group)})", [".w", ".b"]
        case "Pair":
            return f"Pair({', '.join(group)})", [".first", ".second"]
        case _:
            return f"{{'x': [{group[0]}, ({', '.join(group[1:])},)]}}", [
                "['x'][0]",
                *(f"['x'][1][{k}]" for k in range(len(group) - 1)),
            ]


def _options(program: Program, rng: random.Random) -> dict[str, Any]:
    """Options of every kind; most programs have a few that are not the defaults."""
    options: dict[str, Any] = {}
    special = "special" in program.tags
    options["numerics"] = rng.choices(
        ("exact", "reassociates", "approximates"), (50, 45, 5) if special else (30, 45, 25)
    )[0]
    if rng.random() < 0.5:
        options["threads"] = rng.choice((1, 2))
    if rng.random() < 0.2:
        options["backend"] = "numpy"
    if rng.random() < 0.35:
        options["cache"] = False
    if rng.random() < 0.08:
        options["budget"] = rng.choice((0.001, 0.05, 1.0))
    if rng.random() < 0.25:
        options["verify"] = False
    if program.arguments and rng.random() < 0.25:
        names = [n for n, _ in program.arguments if n not in ("number", "again")]
        options["const"] = tuple(sorted(rng.sample(names, rng.randint(1, len(names))))) if names else ()
    return options


def _other_sizes(program: Program, rng: random.Random) -> dict[str, int]:
    """Other sizes of the same inputs, for a quarter of the programs."""
    if rng.random() > 0.25:
        return {}
    return {n: rng.choice(arrays.SIZES) for n in program.sizes}
