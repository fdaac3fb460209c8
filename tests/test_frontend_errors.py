"""What traced arrays refuse: the right class, what was wrong, what to do instead, and the user's line."""

from __future__ import annotations

import math
import operator
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import eqsat
from eqsat import errors, nn
from eqsat.errors import (
    BoundsError,
    ConcretizationError,
    EqsatError,
    ShapeError,
    UnsupportedDTypeError,
    UnsupportedOpError,
)
from eqsat.frontends.trace import trace

X = np.arange(12.0).reshape(3, 4)


def failure(fn: Callable[..., Any], *args: Any, marker: str = "") -> EqsatError:
    """The error of tracing ``fn``, which names this file and the line that holds ``marker``."""
    with pytest.raises(EqsatError) as caught:
        trace(fn, args or (X,), {})
    error = caught.value
    assert error.where is not None and error.where.file == __file__
    assert str(error).endswith(f"at {error.where}")
    assert error.where.text and (not marker or marker in error.where.text)
    return error


def branch(x: Any) -> Any:
    y = x.sum() * 2
    if y > 3:  # the branch
        return x
    return -x


VALUES: dict[str, tuple[Callable[[Any], Any], str]] = {
    "if": (branch, "np.where"),
    "while": (lambda x: [0 for _ in iter(lambda: bool(x[0, 0] > 1), True)], "np.where"),
    "and": (lambda x: (x[0, 0] > 1) and x, "np.logical_and"),
    "assert": (lambda x: not (x > 0).all(), "np.where"),
    "max": (lambda x: max(x[0, 0], x[0, 1], key=abs), "np.minimum/maximum"),
    "int": (lambda x: int(x[0, 0]), "astype"),
    "float": (lambda x: float(x.sum()), "np. functions"),
    "math": (lambda x: math.sqrt(x[0, 0]), "instead of math."),
    "range": (lambda x: list(range(x.astype(int)[0, 0])), "Python int"),
    "index": (lambda x: [1, 2][x.astype(int)[0, 0]], "eqsat.asarray"),
    "table": (lambda x: np.frombuffer(bytes(24))[x.astype(int)], "eqsat.asarray"),
    "in": (lambda x: 3 in x, "any()"),
    "item": (lambda x: x.sum().item(), "0-d array"),
    "tolist": (lambda x: x.tolist(), "outside"),
    "format": (lambda x: f"{x.sum():.2f}", "outside"),
    "reshape": (lambda x: x.reshape(x.astype(int)[0, 0]), "Python int"),
    "split": (lambda x: np.split(x, x.astype(int)[0]), "shapes"),
}


@pytest.mark.parametrize("name", VALUES)
def test_values_are_not_known(name: str) -> None:
    fn, advice = VALUES[name]
    error = failure(fn)
    assert isinstance(error, ConcretizationError) and isinstance(error, TypeError)
    assert advice in str(error)


def test_the_line_is_the_users() -> None:
    error = failure(branch, marker="# the branch")
    assert error.where is not None and error.where.line == branch.__code__.co_firstlineno + 2


SHAPES: dict[str, tuple[Callable[[Any], Any], str]] = {
    "add": (lambda x: x + np.ones(5), r"add: shapes \(3, 4\), \(5,\) do not broadcast"),
    "matmul": (lambda x: x @ x, r"matmul: shapes \(3, 4\) and \(3, 4\) do not fit: 4 columns against 3 rows"),
    "stacks": (lambda x: np.stack([x, x]) @ np.ones((3, 4, 5)), r"stacks \(2,\) and \(3,\) .*do not broadcast"),
    "0-d matmul": (lambda x: x @ x.sum(), "at least one axis"),
    "reshape": (lambda x: x.reshape(5, -1), r"cannot reshape array of shape \(3, 4\) and size 12 into shape \(5, -1\)"),
    "reshape twice": (lambda x: x.reshape(-1, -1), "one unknown"),
    "axis": (lambda x: x.sum(axis=2), "axis 2 is out of bounds for array of dimension 2"),
    "axes": (lambda x: x.sum(axis=(0, -2)), "duplicate"),
    "transpose": (lambda x: x.transpose(0, 0), "axes"),
    "concatenate": (lambda x: np.concatenate([x, x.T]), r"concatenate: shapes \(3, 4\), \(4, 3\) differ off axis 0"),
    "stack": (lambda x: np.stack([x, x[0]]), r"stack: all arrays must have the same shape"),
    "split": (lambda x: np.split(x, 2), r"split: axis 0 of shape \(3, 4\)"),
    "where": (lambda x: np.where(x[0] > 0, x, x.T), "where: shapes"),
    "einsum": (lambda x: np.einsum("ij,ij->ij", x, x.T), r"einsum 'ij,ij->ij' of shapes \(3, 4\), \(4, 3\)"),
    "einsum labels": (lambda x: np.einsum("ijk->i", x), "'ijk' does not fit an operand with 2 axes"),
    "einsum result": (lambda x: np.einsum("ij->k", x), "repeats a label, or has one that no operand has"),
    "tensordot": (lambda x: np.tensordot(x, x, 1), r"tensordot: shapes \(3, 4\) and \(3, 4\)"),
    "broadcast_to": (lambda x: np.broadcast_to(x, (2, 4)), r"shape \(3, 4\) does not broadcast to \(2, 4\)"),
    "squeeze": (lambda x: x.squeeze(0), "its size is not 1"),
    "empty max": (lambda x: x[:0].max(), "zero-size"),
    "index arrays": (lambda x: x[[0, 1], [0, 1, 2]], r"index arrays of shapes \(2,\) \(3,\) do not broadcast"),
    "layer_norm": (lambda x: nn.layer_norm(x, np.ones(3)), r"layer_norm"),
    "in place": (lambda x: (x[0] + 0).__iadd__(x), "in place"),
}


@pytest.mark.parametrize("name", SHAPES)
def test_shapes_that_do_not_fit(name: str) -> None:
    fn, message = SHAPES[name]
    error = failure(fn)
    assert isinstance(error, ShapeError) and isinstance(error, ValueError)
    import re

    assert re.search(message, str(error)), str(error)


OPS: dict[str, tuple[Callable[[Any], Any], str]] = {
    "unique": (lambda x: np.unique(x), "shape of its result depends on values"),
    "nonzero": (lambda x: np.nonzero(x), "np.where(condition, a, b)"),
    "where": (lambda x: np.where(x > 0), "np.where(condition, a, b)"),
    "mask": (lambda x: x[x > 0], "np.where(mask, x, other)"),
    "assignment to chosen elements": (lambda x: x.__setitem__(x > 0, np.ones(3)), "np.where(mask, x, other)"),
    "out": (lambda x: np.exp(x, out=np.frombuffer(bytearray(96)).reshape(3, 4)), "new array"),
    "place": (lambda x: np.place(x, x > 0, [1.0]), "np.where"),
    "repeat": (lambda x: np.repeat(x, x[0].astype(int), axis=0), "depends on values"),
}


@pytest.mark.parametrize("name", OPS)
def test_unsupported_functions(name: str) -> None:
    fn, advice = OPS[name]
    error = failure(fn)
    assert isinstance(error, UnsupportedOpError)
    assert advice in str(error), str(error)


def test_scipy_functions_that_do_not_dispatch() -> None:
    from scipy import interpolate

    error = str(failure(lambda x: interpolate.pchip_interpolate(np.arange(4.0), x[0], 0.5)))
    assert "pchip_interpolate = eqsat.opaque(pchip_interpolate)" in error


TYPES: dict[str, tuple[Callable[[Any], Any], str]] = {
    "object": (lambda x: x + np.array([None] * 4), "object|not supported"),
    "string": (lambda x: np.add(x, np.array(["a"])), "add|not supported"),
    "extended": (lambda x: x.astype(np.longdouble), "longdouble|float128"),
    "bool minus": (lambda x: (x > 0) - (x > 1), "subtract"),
    "minus bool": (lambda x: -(x > 0), "negative"),
    "float bits": (lambda x: x & x, "bitwise_and"),
    "float shift": (lambda x: x << 1, "left_shift"),
    "float index": (lambda x: np.take(x, x[0]), "integers"),
    "in place": (lambda x: x.astype(int).__iadd__(1.5), "same_kind"),
}


@pytest.mark.parametrize("name", TYPES)
def test_element_types(name: str) -> None:
    fn, message = TYPES[name]
    error = failure(fn)
    assert isinstance(error, UnsupportedDTypeError) and isinstance(error, TypeError)
    import re

    assert re.search(message, str(error)), str(error)


BOUNDS: list[Callable[[Any], Any]] = [
    lambda x: x[3],
    lambda x: x[:, -5],
    lambda x: x[[0, 3]],
    lambda x: x[0, 0, 0],
    lambda x: x[..., ...],
    lambda x: np.take(x, 12),
    lambda x: x["a"],
    lambda x: x[1.0],
    lambda x: x[np.array([True, False])],
]


@pytest.mark.parametrize("number", range(len(BOUNDS)))
def test_bad_indices(number: int) -> None:
    error = failure(BOUNDS[number])
    assert isinstance(error, BoundsError) and isinstance(error, IndexError)


def test_what_may_or_may_not_share_memory_is_not_read_after_a_write() -> None:
    """In NumPy ``x.T + 1`` lies in memory as ``x.T`` does, of which the order depends on the caller's array."""

    def f(x: Any) -> Any:
        y = x.T + 1
        flat = y.reshape(-1)
        y += 1  # the write
        return flat + 1

    error = failure(f)
    assert isinstance(error, UnsupportedOpError)
    assert "share memory" in str(error) and "# the write" in str(error) and "copy" in str(error)
    # Negative control: a copy is not shared, and the view that was written itself is fine.
    trace(lambda x: [y := x.T + 1, flat := y.reshape(-1).copy(), y.__iadd__(1), flat + 1][-1], (X,), {})
    trace(lambda x: [y := (x.T + 1).reshape(-1), y.__iadd__(1), y + 1][-1], (X,), {})


def test_integers_that_do_not_fit() -> None:
    x = np.arange(3, dtype="i4")
    with pytest.raises(OverflowError):
        trace(lambda x: x + 2**40, (x,), {})
    graph = trace(lambda x: x < 2**40, (x,), {}).graph
    assert graph.outputs[0].dtype.name == "bool"
    with pytest.raises(ValueError, match="negative integer powers"):
        trace(lambda x: x**-1, (x,), {})


def test_the_users_own_errors_pass() -> None:
    def f(x: Any) -> Any:
        raise KeyError("mine")

    with pytest.raises(KeyError, match="mine"):
        trace(f, (X,), {})


def test_every_error_has_an_example_and_a_mend() -> None:
    classes = [c for c in vars(errors).values() if isinstance(c, type) and issubclass(c, EqsatError)]
    assert len(classes) >= 9
    for cls in classes:
        assert cls.__doc__ and ">>>" in cls.__doc__


def test_a_scalar_is_not_changed_in_place_to_another_type_or_shape() -> None:
    """NumPy's scalars take the promoted type, its 0-d arrays keep theirs: which one a traced value is, is not known."""

    def promotes(x: np.ndarray) -> np.ndarray:
        total = x.sum()
        total += np.float64(0.1)
        return total

    def grows(x: np.ndarray) -> np.ndarray:
        total = x.sum()
        total += x
        return total

    def keeps(x: np.ndarray) -> np.ndarray:
        total = x.sum()
        total += 0.5
        total *= x[0]
        return total

    x = np.arange(3, dtype=np.float32)
    for function in (promotes, grows):
        with pytest.raises(UnsupportedOpError, match=r"y = y \+ …"):
            eqsat.optimize(function, strict=True)(x)
    assert eqsat.optimize(keeps)(x) == keeps(x)
    zero_d = np.array(1.5, np.float32)
    assert eqsat.optimize(lambda x: operator.iadd(x * 1, np.float32(2)))(zero_d).dtype == np.float32
