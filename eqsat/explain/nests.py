"""A loop nest as text to read, one line a loop."""

from __future__ import annotations

from eqsat.ir.nest import Loop, Nest, Pack, Seq, TileOp


def listing(nest: Nest) -> list[str]:
    """The nest's lines, outermost first, each indented below what it is in.

    A loop says which part of its axis it walks and in which steps; its last step may be shorter. Axes are named as in
    :mod:`eqsat.ir.nest`.
    """
    match nest:
        case Loop(axis, block, step, body, parallel):
            head = (
                f"for {axis} in 0..{block}" + (f" by {step}" if step > 1 else "") + (", parallel" if parallel else "")
            )
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
