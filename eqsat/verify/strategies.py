"""Hypothesis strategies for random whole programs.

A program is drawn as a list of self-contained records (an operator and a few small ints) that
:class:`~eqsat.verify.drafts.Draft` turns into steps. Any record may be dropped and any int lowered and the
list still makes a program, so that Hypothesis shrinks it well. Needs the development dependency
``hypothesis``, imported on use.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from eqsat.verify.drafts import DTYPES, MAX_SIZE, Draft
from eqsat.verify.operators import OPERATORS
from eqsat.verify.programs import Input, Program, random_expression

if TYPE_CHECKING:
    from hypothesis.strategies import SearchStrategy

EXTENTS = (2, 3, 5, 4, 1, 7, 8, 16, 17, 33, 40, 0)
TAPE = 24
RETRIES = 5
FALLBACK = ("neg", "logical", "tanh", "mul", "reshape", "maximum", "index", "sub", "cast")


def _input_expression(shape: tuple[int, ...], dtype: str, seed: int, flavour: int) -> str:
    """Data of an input: moderate values; for floats sometimes small integers, or a few NaN or inf; for small integers
    sometimes any."""
    if not dtype.startswith(("float", "complex")):
        if flavour and np.dtype(dtype).itemsize < 4 and dtype != "bool":
            limits = np.iinfo(dtype)
            return random_expression(shape, dtype, seed, int(limits.min), int(limits.max))
        return random_expression(shape, dtype, seed, -6, 6)
    if flavour == 1:
        whole = random_expression(shape, "int64", seed, -6, 6)
        return f"np.asarray({whole}, np.{dtype})"
    plain = random_expression(shape, dtype, seed, -2, 2)
    if flavour in (2, 3) and dtype.startswith("float"):
        bad = ("np.nan", "np.inf", "-np.inf")[seed % 3] if flavour == 3 else "np.nan"
        return f"np.where(np.random.default_rng({seed + 100}).random({shape}) < 0.05, np.{dtype}({bad}), {plain})"
    return plain


def build(
    extents: Sequence[int],
    inputs: Sequence[tuple[str, Sequence[int], int, bool]],
    records: Sequence[tuple[str, Sequence[int]]],
) -> Program:
    """The program of drawn records; every int is read modulo the number of choices there.

    ``inputs``: element type, axes (0 an extent of 1, n the n-th of ``extents``), flavour of the data, captured.
    """
    draft = Draft()
    for number, (dtype, axes, flavour, captured) in enumerate(inputs):
        shape = tuple(1 if a == 0 else extents[(a - 1) % len(extents)] for a in axes)
        while int(np.prod(shape)) > MAX_SIZE // 4:
            shape = shape[1:]
        expression = _input_expression(shape, dtype, number, flavour)
        draft.add_input(Input(f"v{number}", expression, captured and number > 0))
    for op, tape in records:
        # Where the operands that the tape names do not fit, other readings of it may.
        readings = [tape[shift:] for shift in range(RETRIES)]
        turn = tape[0] % len(FALLBACK) if tape else 0
        attempts = [(op, reading) for reading in readings]
        attempts += [(other, tape) for other in FALLBACK[turn:] + FALLBACK[:turn]]
        for name, reading in attempts:
            draft.load(reading)
            if draft.add(name, OPERATORS[name]):
                break
    return draft.program()


def programs(min_ops: int = 3, max_ops: int = 30, operators: Sequence[str] | None = None) -> SearchStrategy[Program]:
    """Random programs of ``min_ops`` to ``max_ops`` steps from the whole operator table, or the operators named.

    Element types ``DTYPES``, most of them float32; ranks 0 to 4; extents with 0, 1, odd and beyond
    one vector. ``ImportError`` without Hypothesis, ``ValueError`` for an operator that has no builder.
    """
    try:
        from hypothesis import strategies as st
    except ImportError:
        raise ImportError("random programs need the development dependency: pip install hypothesis") from None

    names = tuple(operators or OPERATORS)
    unknown = [n for n in names if n not in OPERATORS]
    if unknown:
        raise ValueError(f"no builder for {', '.join(unknown)}; there are {', '.join(sorted(OPERATORS))}")

    dtype = st.sampled_from(("float32",) * 12 + ("float64",) * 4 + DTYPES + ("int8", "uint8", "float16"))
    axes = st.lists(st.integers(0, 4), max_size=4).map(tuple)
    flavour = st.sampled_from((0,) * 9 + (1, 1, 2, 3))
    inputs = st.lists(st.tuples(dtype, axes, flavour, st.booleans()), min_size=1, max_size=4)
    extents = st.lists(st.sampled_from(EXTENTS), min_size=1, max_size=3)
    record = st.tuples(st.sampled_from(names), st.binary(min_size=TAPE, max_size=TAPE))
    # Lists as drawn are short on average: further blocks make long programs as likely, and still shrink well.
    first = st.lists(record, min_size=min_ops, max_size=max_ops)
    further = st.lists(st.lists(record, max_size=max_ops), max_size=4)
    records = st.tuples(first, further).map(
        lambda drawn: [*drawn[0], *(r for block in drawn[1] for r in block)][:max_ops]
    )
    maker: Callable[..., Program] = build
    drawn: SearchStrategy[Any] = st.builds(maker, extents, inputs, records)
    return drawn


def coverage(program: Program) -> list[str]:
    """Names of the functions, methods and Python operators in the program's steps, as often as they occur."""
    import ast

    found = []
    for step in program.steps:
        for node in ast.walk(ast.parse(step.text)):
            if isinstance(node, ast.Call):
                called = node.func
                found.append(called.attr if isinstance(called, ast.Attribute) else ast.unparse(called))
            elif isinstance(node, ast.BinOp):
                found.append(type(node.op).__name__)
            elif isinstance(node, ast.Compare):
                found.append(type(node.ops[0]).__name__)
            elif isinstance(node, ast.Subscript):
                found.append("indexing" if isinstance(node.ctx, ast.Load) else "assignment")
            elif isinstance(node, ast.AugAssign):
                found.append(f"{type(node.op).__name__} in place")
            elif isinstance(node, ast.For):
                found.append("for")
    return found
