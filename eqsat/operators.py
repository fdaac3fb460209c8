"""Operators of one's own that rules can name.

    @eqsat.elementwise(odd=True, increasing=True)
    def softsign(x):
        return np.sign(x) * (1 - 1 / (1 + np.abs(x)))

    @eqsat.op(name="correlate")                            # x: (n,), w: (k,)
    def correlate(x, w): …

Each is a row of the op table, equal to what its function traces to: from that come its types, kernel, cost and
reference. It is called on arrays, in optimized functions, on pattern variables, and on nodes in a rule's right side.
"""

from __future__ import annotations

import functools
import inspect
import keyword
import secrets
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from eqsat.contents import UnknownContent, content_digest
from eqsat.errors import EqsatError, OptionError
from eqsat.frontends.convert import lift, promote
from eqsat.frontends.registry import located
from eqsat.frontends.source import user_line
from eqsat.frontends.trace import run_by_reference, trace
from eqsat.frontends.tracer import TracedArray
from eqsat.frontends.tracing import CURRENT
from eqsat.frontends.ufuncs import UFUNCS, of_reals
from eqsat.ir import build, views
from eqsat.ir.composite import without_composites
from eqsat.ir.defined import Applied, Definition, Lowered, Settings, define
from eqsat.ir.node import Node, topological
from eqsat.ir.table import OPS, TRAITS
from eqsat.ir.types import DType, NotOfThisType, TensorType, float32, float64

__all__ = ["Operator", "elementwise", "named"]

TOLERANCE = 1e-9
"""How far a function may be from its reference, as a part of it or of 1, whichever is larger."""
SINGLE = 1e-4
"""Likewise in float32."""
_PLAIN = (bool, int, float, str, type(None))


class Operator:
    """An operator that was defined by :func:`elementwise` or ``eqsat.op(name=…)``."""

    def __init__(self, function: Callable[..., Any], definition: Definition, run: Callable[..., Any]) -> None:
        functools.update_wrapper(self, function)
        self.definition = definition
        definition.call, definition.attribute = self, getattr(function, "__qualname__", "")
        self._run = run
        given = (p.default for p in _parameters(function) if p.default is not p.empty)
        self._defaults = tuple(given)

    def __repr__(self) -> str:
        return f"<operator {self.definition.name}>"

    def __reduce__(self) -> tuple[Any, ...]:
        return _operator, (self.definition.name, self.definition.digest)

    def __call__(self, *args: Any, **settings: Any) -> Any:
        from eqsat.rules.pattern import Pattern, op

        name, of_arrays = self.definition.name, any(isinstance(a, TracedArray) for a in args)
        if settings and self.definition.elementwise:
            raise OptionError(f"{name}: arguments are given by place, not by name", user_line())
        missing = self.definition.arity - len(args)
        args += self._defaults[len(self._defaults) - missing :] if 0 < missing <= len(self._defaults) else ()
        settings = {key: value.item() if isinstance(value, np.generic) else value for key, value in settings.items()}
        strange = [key for key, value in settings.items() if not _is_setting(value)]
        if strange:
            raise OptionError(
                f"{name}: settings by keyword are no arrays: {', '.join(strange)}; numbers, texts, or tuples of these, "
                "also in patterns: a rule for any setting is one for each, made in a loop",
                user_line(),
            )
        if not of_arrays and not any(isinstance(a, (Node, Pattern)) for a in args):
            if len(args) != self.definition.arity:
                raise OptionError(f"{name} takes {self.definition.arity} arrays, not {len(args)}", user_line())
            if CURRENT.get() is None:
                return self._run(*args, **settings)
            of_arrays = True
        applied = Applied(self.definition, tuple(sorted(settings.items())))
        if any(isinstance(a, Pattern) for a in args):
            if not self.definition.elementwise:
                self._check_settings(settings)
            return op(name, *args, attrs=applied)
        if of_arrays:
            return located(name, lambda: TracedArray(build.rounded(name, self._lifted(args), applied)))
        return build.rounded(name, args, applied)

    def _check_settings(self, settings: dict[str, Any]) -> None:
        """Refuse a setting that the operator has not, and a missing one, where a call of it would."""
        own = {p.name: p for p in inspect.signature(self).parameters.values() if p.kind is p.KEYWORD_ONLY}
        strange = [name for name in settings if name not in own]
        lacking = [name for name, p in own.items() if p.default is p.empty and name not in settings]
        if strange or lacking:
            said = f"has no setting {', '.join(strange)}" if strange else f"needs {', '.join(lacking)}"
            raise OptionError(
                f"{self.definition.name} {said}; its settings are {', '.join(own) or 'none'}", user_line()
            )

    def _lifted(self, args: Sequence[Any]) -> list[Node]:
        if not self.definition.elementwise:
            if any(isinstance(a, (bool, int, float)) and not isinstance(a, np.generic) for a in args):
                raise ValueError("numbers that are no arrays are given by keyword")
            return [lift(a) for a in args]
        dtype = _computed_in(self.definition.name, args)
        return [lift(a, dtype) for a in args]


def _computed_in(name: str, args: Sequence[Any]) -> DType:
    """The element type that an elementwise function has of these, on arrays as in programs."""
    dtype = promote(*args)
    if dtype.kind == "complex":
        raise NotOfThisType(f"{name} is not supported for complex numbers")
    return dtype if dtype.is_float else float64


def _is_setting(value: object) -> bool:
    return type(value) in _PLAIN or (type(value) is tuple and all(map(_is_setting, value)))


def _operator(name: str, digest: str) -> Operator:
    raise TypeError(f"operator {name} ({digest}) is defined where its module is imported, it cannot be unpickled")


def _digest(content: object) -> str:
    try:
        return content_digest(content)[:12]
    except UnknownContent:
        return secrets.token_hex(6)  # as no other process has it


def _parameters(function: Callable[..., Any]) -> list[inspect.Parameter]:
    """Those that are arrays: they may be given by place. ``OptionError`` where others may, too."""
    try:
        parameters = inspect.signature(function).parameters.values()
    except (TypeError, ValueError) as error:
        raise OptionError(f"{function!r} is no function whose arguments are known: {error}", user_line()) from None
    strange = [p.name for p in parameters if p.kind in (p.VAR_POSITIONAL, p.VAR_KEYWORD)]
    found = [p for p in parameters if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)]
    found = found[: function.nin] if isinstance(function, np.ufunc) else found
    if strange or not found:
        raise OptionError(f"{function!r}: an operator takes one array or more, each by a name of its own", user_line())
    return found


def _definition(
    function: Callable[..., Any], name: str, traits: frozenset[str] = frozenset(), **more: Any
) -> Definition:
    inside: list[bool] = []

    def lower(types: Sequence[TensorType], settings: Settings) -> Lowered:
        if inside:
            raise ValueError(f"{name} is defined by itself")
        if more and (len({t.dtype for t in types}) != 1 or not types[0].dtype.is_float):
            raise ValueError(f"{name} is defined for floats of one type, not {', '.join(str(t.dtype) for t in types)}")
        inside.append(True)
        try:
            traced = trace(function, tuple(np.zeros(t.shape, t.dtype.numpy) for t in types), dict(settings))
        except EqsatError as error:
            raise ValueError(str(error)) from error
        except Exception as error:  # the user's own code: it may raise anything
            said = f"{type(error).__name__}: {error}"
            raise ValueError(f"{name} does not take {', '.join(map(str, types))}: {said}") from error
        finally:
            inside.pop()
        if len(traced.graph.outputs) != 1 or traced.written or traced.complex:
            raise ValueError(f"{name}: an operator returns one real array, and writes to none of its arguments")
        return traced.graph.inputs, traced.graph.outputs[0]

    arity = len(_parameters(function))
    name = name or getattr(function, "__name__", "")
    if not isinstance(name, str) or not name.isidentifier() or keyword.iskeyword(name):
        raise OptionError(f"an operator's name is one of Python's, not {name!r}: give it name=…", user_line())
    digest = _digest((function, tuple(sorted(traits))))
    where = user_line()
    # What is no function of Python's is of the module that made it: functools, numpy.
    module = function.__module__ if inspect.isfunction(function) else where.file if where is not None else ""
    return Definition(name, arity, lower, digest, where, module, **more)


def named(function: Callable[..., Any], name: str) -> Operator:
    """``eqsat.op(name=…)``: an operator of tensors, written with ``eqsat.compute`` or NumPy's functions.

    Parameters that may be given by place are arrays; those by keyword alone are numbers, strings, or tuples of these.
    """
    definition = _definition(function, name)
    define(definition, doc=(function.__doc__ or "").strip().split("\n")[0])
    return Operator(function, definition, lambda *args, **kwargs: run_by_reference(function, args, kwargs))


def elementwise(
    function: Callable[..., Any] | None = None,
    *,
    name: str = "",
    reference: Callable[..., Any] | None = None,
    ufunc: np.ufunc | None = None,
    odd: bool = False,
    even: bool = False,
    increasing: bool = False,
    decreasing: bool = False,
    domain: tuple[float, float] = (-np.inf, np.inf),
    tolerance: float = TOLERANCE,
) -> Any:
    """A new elementwise function, as a decorator of a function of floats written with NumPy's.

    Everything but the function may be left out. ``name``: that of the function. ``reference``: computes the same with
    NumPy or SciPy; it is what the operator runs on arrays, and the function is held to it on ``domain`` (bounds
    included), within ``tolerance`` of its value or of 1. ``ufunc``: one that this operator is in optimized functions,
    and the reference where none is given. ``odd``, ``even``, ``increasing``, ``decreasing``: what rules of the library
    may take for granted, for one argument, on all numbers and infinities. Arguments broadcast; integers are
    computed in float64, floats of 16 bits in float32 and rounded once.

    The kernel is the function's, inlined where it is used; the cost is that of its operators.

    Raises:
        OptionError: with the line: the function is not elementwise, has not a trait or is not its reference, with a
            number that shows it; the name is another operator's.
    """
    if function is None:
        return functools.partial(
            elementwise, name=name, reference=reference, ufunc=ufunc, odd=odd, even=even, increasing=increasing,
            decreasing=decreasing, domain=domain, tolerance=tolerance,
        )  # fmt: skip
    reference = reference or ufunc
    traits = frozenset(t for t, has in zip(TRAITS, (odd, even, increasing, decreasing), strict=True) if has)
    low, high = _interval(domain)
    if not (isinstance(tolerance, (int, float, np.number)) and 0 <= tolerance < np.inf):
        raise OptionError(f"the tolerance is a number, 0 or more, not {tolerance!r}", user_line())
    if ufunc is not None and not isinstance(ufunc, np.ufunc):
        raise OptionError(
            f"ufunc= is one of NumPy's or SciPy's, not {ufunc!r}; give reference= what is none", user_line()
        )
    definition = _definition(function, name, traits, elementwise=True, domain=(low, high))
    _check_elementwise(definition)
    _check_traits(function, definition, traits)
    if reference is not None:
        _check_reference(function, reference, definition, tolerance)
    define(definition, traits, (function.__doc__ or "").strip().split("\n")[0])
    if ufunc is not None:
        UFUNCS[ufunc] = of_reals(lambda *nodes: build.rounded(definition.name, nodes, Applied(definition)))
    return Operator(function, definition, _as_floats(definition.name, reference or function))


def _interval(domain: object) -> tuple[float, float]:
    try:
        low, high = map(float, domain)  # type: ignore[call-overload]
    except (TypeError, ValueError):
        low = high = np.nan
    if not low < high:
        raise OptionError(f"a domain is two numbers, the lower one first, not {domain!r}", user_line())
    return low, high


def _as_floats(name: str, function: Callable[..., Any]) -> Callable[..., Any]:
    """On arrays: all arguments in the element type that they have in programs, those of 16 bits in float32."""

    def run(*args: Any) -> Any:
        dtype = _computed_in(name, args)
        wide = float32 if dtype.bits < 32 else dtype
        found = function(*(np.asarray(a, wide.numpy) for a in args))
        found = found if wide == dtype else np.asarray(found).astype(dtype.numpy)
        return found[()] if isinstance(found, np.ndarray) else found  # without axes a scalar, as of NumPy's ufuncs

    return run


def _refused(definition: Definition, why: str) -> OptionError:
    return OptionError(f"operator {definition.name!r}: {why}", definition.where)


def _check_elementwise(definition: Definition) -> None:
    shapes = ((2, 3), (3,), (2, 1))
    for dtype in (float64, float32):
        types = [TensorType(shapes[n % 3], dtype) for n in range(definition.arity)]
        try:
            given, result = definition.meaning(types, ())
        except (ValueError, IndexError) as error:
            raise _refused(definition, str(error)) from error
        wanted = TensorType(np.broadcast_shapes(*(t.shape for t in types)), dtype)
        if result.type != wanted:
            raise _refused(definition, f"it makes {result.type} of {', '.join(map(str, types))}, not {wanted}")
        (simple,) = without_composites([result])
        of_arguments = set(given)
        for node in topological([simple], given):
            if node.op == "iota" or (node.op == "const" and node.type.size != 1):
                raise _refused(definition, "it depends on where an element is; eqsat.op(name=…) takes any operator")
            if of_arguments.isdisjoint(node.inputs):
                continue
            of_arguments.add(node)
            spread = node.op == "view" and node.attrs == views.broadcast(node.inputs[0].shape, node.shape)
            if OPS[node.op].kind != "map" and not spread:
                raise _refused(definition, f"{node.op} is not elementwise; eqsat.op(name=…) takes any operator")


def _samples(domain: tuple[float, float], arity: int) -> list[np.ndarray]:
    """Numbers of all magnitudes in a domain, in order where it is one argument."""
    rng = np.random.default_rng(0)
    low, high = domain
    wide = rng.choice([-1.0, 1.0], 400) * 10.0 ** rng.uniform(-12, 12, 400)
    near = max(low, -20.0), min(high, 20.0)
    near = domain if near[0] >= near[1] and np.isfinite(domain).all() else near
    inside = rng.uniform(*near, 400) if near[0] < near[1] else wide[:0]
    special = [0.0, -0.0, 0.5, -0.5, 1.0, -1.0, 2.0, -2.0, *(b for b in domain if np.isfinite(b))]
    numbers = np.concatenate([wide, inside, special])
    numbers = np.sort(numbers[(numbers >= low) & (numbers <= high)])
    return [numbers] if arity == 1 else [rng.permutation(numbers) for _ in range(arity)]


def _run(function: Callable[..., Any], args: Sequence[np.ndarray]) -> np.ndarray:
    with np.errstate(all="ignore"):
        found = np.asarray(function(*args))
    if found.dtype.kind not in "biuf":
        raise TypeError(f"it returns {found.dtype}, no real numbers")
    return found.astype(np.float64)


def _check_traits(function: Callable[..., Any], definition: Definition, traits: frozenset[str]) -> None:
    if not traits:
        return
    if definition.arity != 1:
        raise _refused(definition, f"{', '.join(sorted(traits))}: traits are of functions of one argument")
    x = np.concatenate([[-np.inf], *_samples((-np.inf, np.inf), 1), [np.inf]])
    y, turned = _run(function, [x]), _run(function, [-x])
    if np.isnan(y).any():
        at = x[np.isnan(y)][0]
        raise _refused(definition, f"{', '.join(sorted(traits))}: traits hold on all numbers, but f({at:g}) is nan")
    lost = _run(function, [np.array([np.nan])])[0]
    # A maximum is NaN where one element is, and -NaN no other than NaN; of even functions any value would do.
    for trait in sorted(traits & {"increasing", "decreasing", "odd"}):
        if not np.isnan(lost):
            raise _refused(definition, f"it is not {trait}: f(nan) = {lost:g}, which is to be nan")
    y_finite = np.nan_to_num(y, posinf=0, neginf=0)
    step = 1e-12 * np.maximum(np.abs(y_finite[1:]), np.abs(y_finite[:-1]))
    broken = {
        "odd": (turned != -y) & ~np.isclose(turned, -y, rtol=1e-12, atol=0),
        "even": (turned != y) & ~np.isclose(turned, y, rtol=1e-12, atol=0),
        "increasing": np.append(y[1:] < y[:-1] - step, False),
        "decreasing": np.append(y[1:] > y[:-1] + step, False),
    }
    for trait in sorted(traits):
        if broken[trait].any():
            at = int(np.argmax(broken[trait]))
            other = -x[at] if trait in ("odd", "even") else x[at + 1]
            shown = f"f({x[at]:g}) = {y[at]:g}, f({other:g}) = {_run(function, [np.array([other])])[0]:g}"
            raise _refused(definition, f"it is not {trait}: {shown}")


def _check_reference(
    function: Callable[..., Any], reference: Callable[..., Any], definition: Definition, tolerance: float
) -> None:
    exact_of = _samples(definition.domain, definition.arity)
    if np.isinf(definition.domain).all():  # NaN is in it, one at a time
        lost = np.where(np.eye(definition.arity, dtype=bool), np.nan, 0.5)
        exact_of = [np.append(a, nans) for a, nans in zip(exact_of, lost, strict=True)]
    shape = exact_of[0].shape
    for dtype, allowed in ((np.float64, tolerance), (np.float32, max(SINGLE, tolerance))):
        args = [a.astype(dtype) for a in exact_of]
        given = [a.astype(np.float64) for a in args]
        try:
            exact = _run(reference, given)
        except Exception as raised:  # the user's own code: it may raise anything
            said = f"{type(raised).__name__}: {raised}"
            raise _refused(definition, f"its reference does not take {definition.arity} arrays: {said}") from raised
        if exact.shape != shape:
            raise _refused(definition, f"its reference returns an array of shape {exact.shape} for one of {shape}")
        if not all(
            np.array_equal(one, a.astype(np.float64), equal_nan=True) for one, a in zip(given, args, strict=True)
        ):
            raise _refused(definition, "its reference writes to its arguments")
        found = _run(function, args)
        with np.errstate(all="ignore"):
            error = np.abs(found - exact) / np.maximum(1.0, np.abs(exact))
        wrong = (np.isnan(found) != np.isnan(exact)) | (error > allowed) | (np.isinf(found) & np.isfinite(exact))
        wrong &= ~((found == exact) | (np.isnan(found) & np.isnan(exact)))
        wrong &= np.isfinite(exact) & (np.abs(exact) < np.finfo(dtype).max) | np.isnan(exact)
        if wrong.any():
            at = int(np.argmax(np.where(wrong, np.nan_to_num(error, nan=np.inf), -1)))
            numbers = ", ".join(f"{a[at]:g}" for a in args)
            raise _refused(
                definition,
                f"in {np.dtype(dtype)} f({numbers}) = {found[at]:.17g}, where its reference is {exact[at]:.17g}",
            )
