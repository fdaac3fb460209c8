"""Functions that have no kernel, called on traced arrays: opaque steps of the program.

What such a function returns is learned by running it on the values that its arguments have in the call that is being
compiled: the program traced so far is evaluated for them.
"""

from __future__ import annotations

import functools
import sys
import time
from collections.abc import Callable
from typing import Any, TypeVar

import numpy as np

from eqsat.contents import UnknownContent, content_digest
from eqsat.errors import UnsupportedOpError
from eqsat.frontends.convert import foreign_meaning, known_dtype, lift
from eqsat.frontends.guards import told
from eqsat.frontends.registry import full_name
from eqsat.frontends.source import user_line
from eqsat.frontends.tracer import TracedArray, TracedNumber
from eqsat.frontends.tracing import CURRENT, Trace, Unsized
from eqsat.frontends.value_shapes import Fitted, shapes_code
from eqsat.ir.complexes import as_complex, as_real, joined, of_parts
from eqsat.ir.evaluate import evaluate_nodes
from eqsat.ir.node import LINE, topological
from eqsat.ir.opaque import Call, Result, Slot, call_key, is_result, known_call, put_together, take_apart
from eqsat.ir.table import make
from eqsat.ir.types import TensorType, is_floating

Function = TypeVar("Function", bound=Callable[..., Any])

QUICK = 1e-3
"""Seconds below which a function is run again to be measured: the first run of one is often slower."""
_NUMBERS = (bool, int, float, complex)
_PLAIN = (type(None), *_NUMBERS, str, bytes, type(...))


def opaque(function: Function) -> Function:
    """A function that runs as it is inside of optimized ones, between their kernels: one step of the program.

    For functions of other libraries, which take NumPy arrays and return new ones, with shapes and element types that
    depend on those of the arguments alone. It must be pure: equal calls are made once, and a call whose arguments are
    known when the program is compiled is made then. Outside of optimized functions nothing changes.

    >>> cholesky = eqsat.opaque(scipy.linalg.cholesky)
    >>> @eqsat.optimize
    ... def f(a, b):
    ...     return cholesky(a @ a.T + np.eye(len(a)), lower=True) @ b
    """

    @functools.wraps(function)
    def run(*args: Any, **kwargs: Any) -> Any:
        if CURRENT.get() is not None and holds_traced((args, kwargs)):
            return step(function, args, kwargs, full_name(function))
        return function(*args, **kwargs)

    return run  # type: ignore[return-value]


def holds_traced(value: Any) -> bool:
    """Whether there is a traced array in a nest of tuples, lists and dicts."""
    if isinstance(value, (list, tuple)):
        return any(map(holds_traced, value))
    if isinstance(value, dict):
        return any(map(holds_traced, value.values()))
    return isinstance(value, (TracedArray, Unsized))


def step(
    function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any], name: str, *, sized: bool = False
) -> Any:
    """The result of a function on traced arrays, as a node for each array in it.

    ``sized``: the shapes of its results depend on values; the trace is for calls in which they are the same
    (:mod:`eqsat.frontends.value_shapes`). Raises what the function itself raises on the values of the call that is
    compiled; ``UnsupportedOpError`` where it writes to its arguments or returns something else than numbers and arrays.
    """
    before = LINE.set(user_line())
    try:
        return _step(function, args, kwargs, name, sized)
    finally:
        LINE.reset(before)


def _step(function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any], name: str, sized: bool) -> Any:
    if isinstance(function, np.ufunc) and kwargs.get("where", True) is not True:
        raise UnsupportedOpError(
            f"{name}(where=…) leaves elements as they were: use np.where on its result", LINE.get()
        )
    kwargs = dict(kwargs)
    out = kwargs.pop("out", None)
    given: list[Any] = []
    trace = CURRENT.get()
    assert trace is not None
    function, (args, kwargs) = trace.original(function), _originals((args, kwargs), trace)
    arguments = take_apart((args, kwargs), _is_argument, given)
    lifted = [lift(value) for value in given]
    complex_ = frozenset(n for n, node in enumerate(lifted) if node.dtype.kind == "complex")
    nodes = [joined(node) for node in lifted]
    operands = tuple(node.type for node in nodes)
    bound = trace.values
    if any(node.op == "input" for node in topological(nodes, bound)):
        raise UnsupportedOpError(
            f"{name} in the body of eqsat.scan, fori_loop or while_loop, where no values are known to learn from what "
            "it returns: write the loop in Python, or call it outside",
            LINE.get(),
        )
    values = evaluate_nodes(nodes, bound, deadline=trace.deadline)
    shown = [as_complex(np.ascontiguousarray(v)) if n in complex_ else v for n, v in enumerate(values)]
    result, arrays, seconds = _tried(function, arguments, shown, name)
    parts, lasting = _content(function, name)
    if sized:
        shapes = [np.shape(array) for array in arrays]
        function, result = Fitted(function, shapes), (result, Slot(len(arrays)))
        arrays = [*arrays, np.int64(shapes_code(shapes))]
        parts.append("sized")
    types = tuple(TensorType(a.shape, known_dtype(a.dtype)) for a in map(as_real, map(np.asarray, arrays)))
    said, known = _text(arguments)
    shape, _ = _text(result)
    key = call_key([*parts, said, shape, str(sorted(complex_))], operands, types)
    lasting = lasting and known
    call = known_call(
        Call(function, name, arguments, operands, result, types, key, lasting, seconds, complex_, LINE.get())
    )
    made = []
    for number, array in enumerate(arrays):
        node = make("opaque", nodes, Result(call, number), label=name)
        bound[node] = np.asarray(as_real(np.asarray(array)), node.dtype.numpy)
        value = of_parts(node) if np.iscomplexobj(array) else node
        made.append(TracedNumber(value) if type(array) in _NUMBERS else TracedArray(value))
        _place(made[-1], array, [(g, v) for g, v in zip(given, shown, strict=True) if isinstance(g, TracedArray)])
    found = put_together(result, made)
    if sized:
        found, code = found
        what = f"results of {name} of the shape {' and '.join(map(str, dict.fromkeys(shapes)))}"
        if told(trace, code.node, int, what) is None:
            raise UnsupportedOpError(
                f"{name}: the shape of its result depends on values, as too many before", LINE.get()
            )
    return found if out is None else _stored(found, out, name)


def _originals(nest: Any, trace: Trace) -> Any:
    """Arguments with the user's own functions for their copies, which are for tracing, and arrays of known size."""
    if type(nest) in (list, tuple):
        return type(nest)(_originals(part, trace) for part in nest)
    if type(nest) is dict:
        return {key: _originals(part, trace) for key, part in nest.items()}
    return nest.array() if isinstance(nest, Unsized) else trace.original(nest)


def _place(made: TracedArray, array: Any, given: list[tuple[TracedArray, np.ndarray]]) -> None:
    """Note what is known of the memory in which NumPy has a result: it may be an argument's."""
    trace = CURRENT.get()
    assert trace is not None
    if isinstance(array, np.ndarray) and array.ndim:
        for argument, value in given:
            if np.may_share_memory(array, value):
                made.memory.doubt(argument.memory)
        made.memory.orderly &= array.flags.c_contiguous and all(argument.ordered() for argument, _ in given)
        trace.disorderly |= not made.memory.orderly
    elif isinstance(array, np.ndarray):
        made.is_scalar = False


def _is_argument(value: Any) -> bool:
    if isinstance(value, TracedArray):
        return True
    if isinstance(value, np.ndarray):
        if type(value) is not np.ndarray and (problem := foreign_meaning(value)):
            raise UnsupportedOpError(f"an argument {problem}", LINE.get())
        return value.dtype.kind in "fiubc" or is_floating(value)
    return False


def _tried(
    function: Callable[..., Any], arguments: Any, values: list[np.ndarray], name: str
) -> tuple[Any, list[Any], float]:
    """The structure of the function's result on these values, its arrays, and how long it takes."""
    best, first = float("inf"), None
    for _ in range(3):
        locked = [np.asarray(value).view() for value in values]
        for view in locked:
            view.flags.writeable = False
        positional, named = put_together(arguments, locked)
        start = time.perf_counter()
        tracing = CURRENT.set(None)  # it runs as it will between kernels
        try:
            found = function(*positional, **named)
        except ValueError as error:
            if "read-only" not in str(error):
                raise
            raise UnsupportedOpError(
                f"{name} writes to its argument: only functions that leave their arguments as they are can be steps "
                "of a program; use its result, or a function that returns a new array",
                LINE.get(),
            ) from None
        finally:
            CURRENT.reset(tracing)
        best = min(best, time.perf_counter() - start)
        arrays: list[Any] = []
        result = take_apart(found, is_result, arrays)
        # A function that is made while tracing sees known arrays for NumPy's.
        arrays = [a.known if isinstance(a, TracedArray) and a.known is not None else a for a in arrays]
        if not arrays or any(_has_meaning(array) for array in arrays) or not _text(result)[1]:
            raise UnsupportedOpError(
                f"{name} returns {type(found).__name__}: only functions that return arrays, and tuples, lists and "
                "dicts of arrays, can be steps of a program; call it outside the optimized function",
                LINE.get(),
            )
        if first is None:
            first = result, arrays
        elif not all(_same(a, b) for a, b in zip(first[1], arrays, strict=False)):
            raise UnsupportedOpError(
                f"{name} returns other values each time: it draws random numbers, or depends on something that it "
                "changes; call it outside the optimized function and pass its result",
                LINE.get(),
            )
        if best > QUICK:
            break
    assert first is not None
    return (*first, best)


def _same(a: Any, b: Any) -> bool:
    x, y = np.asarray(a), np.asarray(b)
    return x.shape == y.shape and x.dtype == y.dtype and x.tobytes() == y.tobytes()


def _has_meaning(array: Any) -> bool:
    return isinstance(array, np.ndarray) and type(array) is not np.ndarray and bool(foreign_meaning(array))


def _stored(found: Any, out: Any, name: str) -> Any:
    """``out=``: the results go where they are told."""
    from eqsat.frontends.ufuncs import into

    if isinstance(out, tuple) and len(out) == 1:
        (out,) = out
    if not isinstance(found, TracedArray) or not isinstance(out, TracedArray):
        raise UnsupportedOpError(f"{name}(out=…) of several results, or into an array from outside", LINE.get())
    return into(out, found)


def _content(function: Callable[..., Any], name: str) -> tuple[list[str], bool]:
    """What tells a function apart, and whether other processes know it by that too."""
    module = sys.modules.get(getattr(function, "__module__", None) or "")
    found: Any = module
    for part in getattr(function, "__qualname__", getattr(function, "__name__", "?")).split("."):
        found = getattr(found, part, None)
    if isinstance(function, np.ufunc) or (found is function and module is not None):
        try:
            return [name, content_digest(function)], True
        except UnknownContent:
            pass
    if name.startswith("numpy."):  # methods of ufuncs, made anew each time; NumPy's version is in every plan's key
        return [name, np.__version__], True
    return [name, f"object {id(function)}"], False  # which lives as long as the call that has this key


def _text(nest: Any) -> tuple[str, bool]:
    """A nest of arguments as text, and whether it says all that there is to know of them in any process."""
    if isinstance(nest, Slot):
        return f"#{nest.number}", True
    if isinstance(nest, (tuple, list)):
        parts = [_text(part) for part in nest]
        return f"{type(nest).__qualname__}({', '.join(t for t, _ in parts)})", all(known for _, known in parts)
    if isinstance(nest, dict):
        parts = [_text(part) for pair in nest.items() for part in pair]
        return f"dict({', '.join(t for t, _ in parts)})", all(known for _, known in parts)
    if type(nest) in _PLAIN:
        return f"{type(nest).__name__} {nest!r}", True
    if isinstance(nest, np.generic):
        return f"{nest.dtype.name} {nest.tobytes().hex()}", True
    if isinstance(nest, np.dtype):
        return f"dtype {nest.str} {nest.name}", not nest.hasobject
    if isinstance(nest, slice):
        text, known = _text((nest.start, nest.stop, nest.step))
        return f"slice {text}", known
    try:
        return f"{type(nest).__qualname__} {content_digest(nest)}", True
    except UnknownContent:
        return f"object {id(nest)}", False
