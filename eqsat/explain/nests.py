"""A loop nest as text to read, one line a loop."""

from __future__ import annotations

from eqsat.ir.kernel import KernelGroup, Stage
from eqsat.ir.nest import Loop, Nest, Pack, Seq, TileOp
from eqsat.schedule.domain import bounds_of, column_of, needed


def listing(nest: Nest) -> list[str]:
    """The nest's lines, outermost first, each indented below what it is in.

    A loop says which part of its axis it walks and in which steps; its last step may be shorter. Axes are named as in
    :mod:`eqsat.ir.nest`.
    """
    match nest:
        case Loop(axis, block, step, body, parallel):
            head = f"for {axis} in 0..{block}" + f" by {step}" * (step > 1)
            head += ", parallel" * parallel + ", peeled at guards" * nest.peel
            return [f"{head}:", *_below(body)]
        case Pack(operand, body):
            name, _, stage = operand.partition("@")
            return [f"pack {name}" + (f" of stage {stage}:" if stage else ":"), *_below(body)]
        case Seq(bodies):
            return [line for body in bodies for line in listing(body)]
        case TileOp(name, sizes, stage):
            return [" ".join([f"stage {stage}: {name}", *(f"{axis}={size}" for axis, size in sizes)])]


def _below(nest: Nest) -> list[str]:
    return ["  " + line for line in listing(nest)]


def part_needed(group: KernelGroup, stage: Stage) -> float:
    """The part of a stage's points that count, on average over rows, where none may be left out all of them."""
    column = column_of(stage.kernel, group.shared) if group.unless else None
    if column is None:
        return 1.0
    extents = stage.kernel.extents
    return needed(bounds_of(stage.kernel, group.shared), extents[: group.shared], extents[column], 1)


def limits(group: KernelGroup) -> list[str]:
    """What a block of rows takes of the axis that a mask bounds, in words; nothing where none does."""
    stage = next((s for s in group.stages if group.unless and column_of(s.kernel, group.shared) is not None), None)
    if stage is None:
        return []
    column = column_of(stage.kernel, group.shared)
    assert column is not None
    found = []
    for bound in bounds_of(stage.kernel, group.shared):
        terms = [f"{s} * row" if s != 1 else "row" for s in bound.strides if s]
        terms += [f"{'-' if bound.offset < 0 else '+'} {abs(bound.offset)}"] if bound.offset and terms else []
        found.append(f"column {'<' if bound.upper else '>='} {' '.join(terms) or bound.offset}")
    extent = stage.kernel.extents[column]
    return [f"a row needs {part_needed(group, stage):.0%} of {extent} columns: {', '.join(found)}"]
