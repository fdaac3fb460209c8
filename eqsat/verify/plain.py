"""The user's function itself, run by NumPy: the second reference.

The first reference is the trace, which may be another program than the function: arguments written to, floating-point
errors that NumPy is told to raise, drawn numbers, tests of what a traced array is. The function is run on the caller's
own arguments, which it may read and not write, and its results are held against the trace's.
"""

from __future__ import annotations

import functools
import logging
import secrets
import time
import traceback
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from types import BuiltinFunctionType, CodeType, FunctionType, MethodType
from typing import Any

import numpy as np

from eqsat.contents import UnknownContent, content_digest
from eqsat.errors import EqsatError, TraceDiffersError
from eqsat.frontends.creation import plainly
from eqsat.frontends.pytree import ArgSpec, Branch, Leaf, Static, Tree, is_tensor, static_key, statics, tree_of
from eqsat.frontends.trace import Traced, trace
from eqsat.ir.complexes import as_real
from eqsat.ir.node import Source
from eqsat.ir.repeats import astype, base_of, copy_of
from eqsat.ir.types import is_floating
from eqsat.verify.effects import effect

log = logging.getLogger("eqsat")

_PACKAGES = (str(Path(__file__).parent.parent), str(Path(np.__file__).parent))


@dataclass(frozen=True)
class Plain:
    """A function and the arguments it was first called with."""

    fn: Callable[..., Any]
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    spec: ArgSpec

    def results(self, traced: Traced) -> list[np.ndarray] | None:
        """The results' arrays, one per output of the trace; None, with a word in the log, where it does not run.

        Raises ``TraceDiffersError`` where it does what a compiled program does not, or returns another structure, other
        shapes or element types than its trace.
        """
        _, raw = self._leaves()
        given = _given(raw, traced)
        try:
            result = self._run(given)
        except FloatingPointError as error:
            raise _raised(error) from None
        except RuntimeWarning as error:
            raise _raised(error) from None
        except TraceDiffersError:
            raise
        except Exception as error:
            again = self._on_copies(raw, traced, error) if "read-only" in str(error) else None
            if again is None:
                level = logging.INFO if isinstance(error, EqsatError) else logging.WARNING
                log.log(
                    level, "the function itself does not run on NumPy arrays (%r): verified by its trace alone", error
                )
                return None
            result, given = again
        return _checked(_outputs(result, given, traced), traced)

    def in_double(self, traced: Traced, first: Sequence[np.ndarray]) -> list[np.ndarray] | None:
        """The results' arrays where the arguments' floats are float64; None where it does not run on them, or returns
        other ones than the ``first`` when it runs again."""
        if self.differs_from_run_to_run(first, traced):
            return None
        _, raw = self._leaves()
        try:
            given = _given([_in_double(leaf) for leaf in raw], traced)
            found = [as_real(array) for array in _outputs(self._run(given), given, traced)]
        except MemoryError:
            raise
        except Exception as error:
            log.debug("the function does not run on float64 (%r)", error)
            return None
        alike = all(a.shape == node.shape for a, node in zip(found, traced.graph.outputs, strict=True))
        return found if alike else None

    @contextmanager
    def runs(self, traced: Traced) -> Iterator[tuple[Callable[[], object], list[Any]]]:
        """The function as it stands, on the caller's arguments: it may write to copies of those that it changes.

        With it, tensors for a program that is run in its place. Inside, NumPy's warnings are unsaid: to say so for each
        run takes as long as small functions do.
        """
        trees, raw = self._leaves()
        args, kwargs = self.spec.call_with(trees, _given(raw, traced))
        with _quiet():
            yield partial(self.fn, *args, **kwargs), _given(raw, traced)

    def differs_from_run_to_run(self, first: Sequence[np.ndarray], traced: Traced) -> bool:
        """Whether a second run gives other numbers: the function draws some, or depends on what it changes."""
        second = self.results(traced)
        return second is not None and not all(
            np.array_equal(a, b, equal_nan=is_floating(a)) for a, b in zip(first, second, strict=True)
        )

    def reduced(self) -> Plain | None:
        """The same call on the first elements of every axis, equal extents to equal ones; None if it is no smaller."""
        trees, raw = self._leaves()
        arrays = [np.asarray(leaf) for leaf in raw]
        large = sorted({n for a in arrays for n in a.shape if n > 16})
        if not large:
            return None
        small = {n: 16 + at for at, n in enumerate(large)}
        leaves = [a[tuple(slice(0, small.get(n, n)) for n in a.shape)] for a in arrays]
        args, kwargs = self.spec.call_with(trees, leaves)
        return Plain(self.fn, args, kwargs, self.spec)

    def seconds(self, traced: Traced, repeat: int = 5, most: float = 1.0) -> float:
        """Seconds of a call, the median of ``repeat`` or of as many as take ``most`` seconds together."""
        _, raw = self._leaves()
        changed = {w.leaf for w in traced.written}
        trees, _ = self._leaves()
        times: list[float] = []
        with _quiet(), plainly():
            while len(times) < repeat and sum(times) < most:
                given = [np.array(leaf, order="K") if i in changed else leaf for i, leaf in enumerate(raw)]
                args, kwargs = self.spec.call_with(trees, given)
                start = time.perf_counter()
                self.fn(*args, **kwargs)
                times.append(time.perf_counter() - start)
        return float(np.median(times))

    def effect(self) -> str:
        """What the function may do besides computing, as far as its code shows; empty if nothing."""
        ends = [end for tree in self._leaves()[0] for end in statics(tree)]
        return effect(self.fn, ends)

    def trace(self, *, guarded: bool = False) -> Traced:
        return trace(self.fn, self.args, self.kwargs, spec=self.spec, guarded=guarded)

    def arrays(self) -> list[np.ndarray]:
        """The arguments' tensors, in native byte order; the base of one that repeats what it holds."""
        leaves, _ = self.spec.flatten(self.args, self.kwargs)
        return [np.asarray(as_real(base_of(a)), as_real(a).dtype.newbyteorder("=")) for a in leaves]

    def leaves(self) -> Sequence[Any]:
        """The arguments' tensors, as a program takes them."""
        return self.spec.flatten(self.args, self.kwargs)[0]

    def _leaves(self) -> tuple[list[Tree], list[Any]]:
        """The arguments' trees, and their tensors as given."""
        leaves: list[Any] = []
        trees = [tree_of(v, leaves, is_tensor) for v in self.spec.bind(self.args, self.kwargs)]
        return trees, leaves

    def _run(self, leaves: Sequence[Any]) -> Any:
        trees, _ = self._leaves()
        args, kwargs = self.spec.call_with(trees, leaves)
        before: list[Any] = []
        shape = [tree_of(v, before, _is_array) for v in (*args, *kwargs.values())]
        with _quiet(), plainly():
            result = self.fn(*args, **kwargs)
        after: list[Any] = []
        same = shape == [tree_of(v, after, _is_array) for v in (*args, *kwargs.values())]
        if not same or any(a is not b for a, b in zip(before, after, strict=False)):
            raise TraceDiffersError(
                "the function changes a list, dict or dataclass among its arguments; the compiled one leaves it as it "
                "is. Fix: return the new value instead"
            )
        return result

    def _on_copies(self, raw: Sequence[Any], traced: Traced, error: Exception) -> tuple[Any, list[Any]] | None:
        """The result, and the arguments after it, of a function that writes to one that its trace does not: no element.

        None if it writes to an array that is read-only anyway; raises if it changes one.
        """
        copies = [copy_of(leaf) if isinstance(leaf, np.ndarray) else leaf for leaf in raw]
        changed = {w.leaf for w in traced.written}
        try:
            result = self._run(copies)
        except Exception:
            return None
        for leaf, (name, old, new) in enumerate(zip(traced.graph.names, raw, copies, strict=True)):
            a, b = base_of(np.asarray(old)), base_of(np.asarray(new))
            if leaf not in changed and not np.array_equal(a, b, equal_nan=is_floating(a) or a.dtype.kind == "c"):
                raise _writes(name, user_line_of(error)) from None
        return result, copies


def _is_array(value: Any) -> bool:
    return isinstance(value, (np.ndarray, np.generic))


def _given(leaves: Sequence[Any], traced: Traced) -> list[Any]:
    """Arguments for the function: copies of what it may write to, in the order of elements that was traced."""
    changed = {w.leaf for w in traced.written}
    return [np.array(leaf, order="C") if i in changed else _locked(leaf) for i, leaf in enumerate(leaves)]


def _in_double(leaf: Any) -> Any:
    """A tensor as float64, or complex128, if it is one of narrower floats or complex numbers."""
    array = np.asarray(leaf)
    if array.dtype.kind != "c" and not is_floating(array):
        return leaf
    return astype(array, np.dtype(np.complex128 if array.dtype.kind == "c" else np.float64))


def _locked(leaf: Any) -> Any:
    """A view of an array that cannot be written through."""
    if isinstance(leaf, np.generic):
        return leaf
    view = leaf.view() if isinstance(leaf, np.ndarray) else np.asarray(leaf).view()
    view.flags.writeable = False
    return view


@contextmanager
def _quiet() -> Iterator[None]:
    """NumPy's floating-point warnings unsaid, except where the caller may have made some of them errors."""
    loud = {"raise", "call", "warn"} if _warnings_may_raise() else {"raise", "call"}
    state = {name: mode if mode in loud else "ignore" for name, mode in np.geterr().items()}
    with np.errstate(**state):  # type: ignore[arg-type]
        yield


def _warnings_may_raise() -> bool:
    """Whether a warning filter makes an error of some ``RuntimeWarning``: the first that matches its text and place."""
    for action, message, kind, module, line in warnings.filters:
        if issubclass(RuntimeWarning, kind):
            if action == "error":
                return True
            if message is None and module is None and not line:
                return False
    return False


def user_line_of(error: BaseException) -> Source | None:
    """The innermost line of an exception that is neither NumPy's nor eqsat's."""
    for frame in reversed(traceback.extract_tb(error.__traceback__)):
        if not frame.filename.startswith(_PACKAGES):
            return Source(frame.filename, frame.lineno or 0, frame.line or "")
    return None


def _raised(error: Exception) -> TraceDiffersError:
    return TraceDiffersError(
        f"the function raises {type(error).__name__}: {error}, as NumPy is told to (np.errstate, np.seterr, a warning "
        "filter); a compiled program raises no floating-point errors. Fix: test for such values with np.isfinite, or "
        "leave np.errstate out",
        where=user_line_of(error),
    )


def _writes(name: str, line: Source | None) -> TraceDiffersError:
    return TraceDiffersError(
        f"the function writes to its argument {name!r} where its trace does not, so the compiled one leaves the array "
        "as it is. Fix: write to it with NumPy's functions and operators, whatever the type of the array",
        where=line,
    )


def _outputs(result: Any, given: Sequence[Any], traced: Traced) -> list[np.ndarray]:
    """An array for each output of the trace: of the result, the arguments that were written to, and the guards."""
    own = {output for output, _ in traced.own}
    changes = (given[w.leaf] for w in traced.written if w.output not in own)
    told = (np.asarray(guard.value, guard.node.dtype.numpy) for guard in traced.guards)
    return [*_arrays(result, traced), *changes, *told]


def _arrays(result: Any, traced: Traced) -> list[np.ndarray]:
    """The tensors of a result that has the trace's structure; ``TraceDiffersError`` for another."""
    leaves: list[Any] = []
    tree = tree_of(result, leaves, _is_array)
    arrays = []
    for path, want, got in _pairs(traced.output, tree, "result"):
        if isinstance(want, Leaf) and want.index in traced.numbers and isinstance(got, Static):
            arrays.append(np.asarray(got.value))
        elif _words(want) != _words(got):
            raise _other(f"{path} is {_words(got)} when NumPy runs the function, {_words(want)} when it is traced")
        elif isinstance(got, Leaf):
            arrays.append(np.asarray(leaves[got.index]))
    return arrays


def _checked(arrays: Sequence[np.ndarray], traced: Traced) -> list[np.ndarray]:
    """The arrays in native byte order, if they are of the outputs' shapes and types."""
    arrays = [as_real(array) for array in arrays]
    for number, (array, node) in enumerate(zip(arrays, traced.graph.outputs, strict=True)):
        dtype = array.dtype.newbyteorder("=")
        if array.shape != node.shape or dtype != node.dtype.numpy:
            shape = ",".join(map(str, array.shape))
            raise _other(
                f"output {number} is {dtype}[{shape}] when NumPy runs the function, {node.type} when it is traced"
            )
    return [a if a.dtype.isnative else a.astype(a.dtype.newbyteorder("=")) for a in arrays]


def _other(what: str) -> TraceDiffersError:
    return TraceDiffersError(
        f"{what}. Does the function look at what a traced array does not share with an array, such as type(x) or "
        "x.flags? Fix: branch on shapes, element types and Python arguments only"
    )


def _pairs(want: Tree, got: Tree, path: str) -> Iterator[tuple[str, Tree, Tree]]:
    """Every part of two trees, while they are alike."""
    yield path, want, got
    if isinstance(want, Branch) and isinstance(got, Branch):
        for number, (a, b) in enumerate(zip(want.children, got.children, strict=False)):
            key = want.keys[number] if want.keys else number
            yield from _pairs(a, b, f"{path}[{key!r}]")


def _words(tree: Tree) -> str:
    match tree:
        case Leaf():
            return "an array"
        case Static(value):
            kind, *_ = static_key(value) if isinstance(value, float) else (type(value), value)  # type: ignore[misc]
            return f"the {kind.__name__} {value!r}"
        case Branch(kind, keys, children):
            return f"a {kind.__name__} of {list(keys) if keys else len(children)}"


def wrong_values(number: int, random: bool) -> TraceDiffersError:
    """The error for results whose values are not the trace's."""
    if random:
        return TraceDiffersError(
            f"output {number} differs from run to run when NumPy runs the function: it draws random numbers, or "
            "depends on something that it changes. A compiled program keeps what was there when it was traced. Fix: "
            "draw the numbers outside and pass them as arguments"
        )
    return _other(f"output {number} has other values when NumPy runs the function than when it is traced")


def function_digest(fn: Callable[..., Any]) -> str:
    """A hash of a function's code, and of the functions and constants that it refers to, the same in every process.

    Other objects count by their type: what the trace took from them is in the trace. A function of which that cannot be
    told has another digest each time.
    """
    code = type(fn).__call__ if isinstance(_code_of(fn), str) else fn
    if not isinstance(_code_of(code), (tuple, *_CODE)):  # a class, or an object called by C
        return secrets.token_hex(16)
    try:
        return content_digest(code, _code_of)
    except UnknownContent:
        return secrets.token_hex(16)


_CODE = (FunctionType, BuiltinFunctionType, CodeType, np.ufunc)
_CONSTANTS = (bool, int, float, complex, str, bytes, tuple, frozenset, type(None), type(...))


def _code_of(value: object) -> object:
    """What stands for an object that a function refers to."""
    if isinstance(value, functools.partial):
        return value.func, value.args, tuple(value.keywords.items())
    if isinstance(value, MethodType):
        return value.__func__
    if isinstance(value, _CODE) or type(value) in _CONSTANTS:
        return value
    inner = getattr(value, "__wrapped__", None) if callable(value) and not isinstance(value, type) else None
    if isinstance(inner, FunctionType):
        return inner
    kind = value if isinstance(value, type) else type(value)
    return f"{kind.__module__}.{kind.__qualname__}"
