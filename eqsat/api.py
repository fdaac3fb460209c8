"""``optimize``: a NumPy-style function in, a function of verified kernels out."""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable, Sequence
from typing import Any, overload

from eqsat.compiled import Compiled
from eqsat.cost import machine as machine_model
from eqsat.errors import OptionError
from eqsat.explain.report import Explanation
from eqsat.frontends.pytree import ArgSpec, Key, TracedArgument
from eqsat.frontends.trace import trace
from eqsat.options import Numerics, Options, names, unknown


class OptimizedFunction:
    """A function compiled once per shapes, element types and structure of its arguments, then cached.

    Made by :func:`optimize`. Safe to call from several threads.
    """

    def __init__(self, fn: Callable[..., Any], options: Options) -> None:
        functools.update_wrapper(self, fn)
        self.fn = fn
        self.options = options
        self._spec = ArgSpec(fn)
        self._flatten = self._spec.flatten
        self._programs: dict[Key, list[Compiled]] = {}
        self._lock = threading.Lock()
        self._check_const()

    def _check_const(self) -> None:
        parameters = [p.name for p in self._spec.parameters]
        for name in self.options.const:
            head = name.split(".")[0].split("[")[0]
            if parameters and head not in parameters and not self._takes_keywords():
                raise unknown("argument in const", head, parameters)

    def _takes_keywords(self) -> bool:
        return any(p.kind is p.VAR_KEYWORD for p in self._spec.parameters)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """The function's result, as new NumPy arrays in the structure the function returns."""
        try:
            leaves, key = self._flatten(args, kwargs)
        except TracedArgument:
            return self.fn(*args, **kwargs)
        for program in self._programs.get(key, ()):
            if not program.held or program.holds(leaves):
                return program(leaves)
        return self._compile(args, kwargs, leaves, key)(leaves)

    def _compile(self, args: tuple[Any, ...], kwargs: dict[str, Any], leaves: Sequence[Any], key: Key) -> Compiled:
        with self._lock:
            for program in self._programs.get(key, ()):
                if program.holds(leaves):
                    return program
            traced = trace(self.fn, args, kwargs, const=self.options.const, spec=self._spec)
            program = Compiled(traced, leaves, self.options, machine_model.load())
            self._programs.setdefault(key, []).append(program)
            return program

    def compile(self, *args: Any, **kwargs: Any) -> Compiled:
        """Compile for these arguments (or arrays of the same types) without calling."""
        leaves, key = self._flatten(args, kwargs)
        for program in self._programs.get(key, ()):
            if program.holds(leaves):
                return program
        return self._compile(args, kwargs, leaves, key)

    def explain(self, *args: Any, **kwargs: Any) -> Explanation:
        """What was chosen for these arguments and why, with every step timed now."""
        from eqsat.explain.why import why

        leaves, _ = self._flatten(args, kwargs)
        program = self.compile(*args, **kwargs)
        return program.explain(self._spec.name, leaves, functools.partial(why, program))

    def source(self, *args: Any, **kwargs: Any) -> str:
        """The generated kernels for these arguments, as Python source."""
        program = self.compile(*args, **kwargs)
        rule = "\n\n" + "# " + "-" * 100 + "\n\n"
        return rule.join(program.executable.sources())

    def __get__(self, instance: object, owner: type | None = None) -> Any:
        """Methods: ``self`` is passed on as the first argument."""
        return self if instance is None else functools.partial(self, instance)

    def __repr__(self) -> str:
        return f"<eqsat.optimize of {self._spec.name}{self._spec.signature}>"


@overload
def optimize(fn: Callable[..., Any], /) -> OptimizedFunction: ...
@overload
def optimize(
    fn: Callable[..., Any],
    /,
    *,
    numerics: Numerics = ...,
    budget: float = ...,
    threads: int | None = ...,
    const: str | Sequence[str] = ...,
    tune: int | None = ...,
    verify: bool = ...,
    disable: str | Sequence[str] = ...,
    backend: str = ...,
    cache: bool = ...,
) -> OptimizedFunction: ...
@overload
def optimize(
    fn: None = None,
    /,
    *,
    numerics: Numerics = ...,
    budget: float = ...,
    threads: int | None = ...,
    const: str | Sequence[str] = ...,
    tune: int | None = ...,
    verify: bool = ...,
    disable: str | Sequence[str] = ...,
    backend: str = ...,
    cache: bool = ...,
) -> Callable[[Callable[..., Any]], OptimizedFunction]: ...
def optimize(fn: Callable[..., Any] | None = None, /, **options: Any) -> Any:
    """Optimize a NumPy-style function: also a decorator, with or without options.

    Args:
        fn: the function. It is run once on traced arrays for each new set of argument types; arguments and
            result are any nesting of tuples, lists, dicts and dataclasses with arrays in them.
        options: see :class:`eqsat.options.Options`.

    Returns:
        A function that takes and returns what ``fn`` does, as NumPy arrays.

    Raises:
        OptionError: an unknown option, value, rule id or argument name.

    >>> import eqsat, numpy as np
    >>> @eqsat.optimize
    ... def f(x, w):
    ...     return np.maximum(x @ w, 0)
    """
    valid = Options.__dataclass_fields__
    for name in options:
        if name not in valid:
            raise unknown("option", name, list(valid))
    for name in ("const", "disable"):
        if name in options:
            options[name] = names(options[name], name)
    made = Options(**options)
    _check(made)
    if fn is None:
        return lambda function: OptimizedFunction(function, made)
    if not callable(fn):
        raise OptionError(f"optimize takes a function, not a {type(fn).__name__}")
    return OptimizedFunction(fn, made)


def _check(options: Options) -> None:
    """Names that only the installed rules and backends can judge."""
    from eqsat.plan.backend import backend

    try:
        backend(options.backend)
    except ValueError as error:
        raise OptionError(str(error)) from None
    if options.disable:
        from eqsat import rules

        valid = [rule.id for rule in rules.list()]
        for rule in options.disable:
            if rule not in valid:
                raise unknown("rule", rule, valid)
