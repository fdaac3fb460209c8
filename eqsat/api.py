"""``optimize``: a NumPy-style function in, a function of verified kernels out."""

from __future__ import annotations

import functools
import os
import sys
import threading
import weakref
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

    Made by :func:`optimize`. Safe to call from several threads, and after a fork.

    Ctrl-C while the rules are applied ends the search, and the best program found so far is used (and not
    remembered for other processes); at any other moment it raises ``KeyboardInterrupt`` and leaves nothing
    behind, so that the next call compiles again.
    """

    def __init__(self, fn: Callable[..., Any], options: Options) -> None:
        functools.update_wrapper(self, fn)
        self.fn = fn
        self.options = options
        self._spec = ArgSpec(fn)
        self._flatten = self._spec.flatten
        self._programs: dict[Key, list[Compiled]] = {}
        self._last: Compiled | None = None
        # Reentrant: while it is traced, the function may call itself on arrays.
        self._lock = threading.RLock()
        _functions.add(self)
        self._check_const()

    def _check_const(self) -> None:
        parameters = [p.name for p in self._spec.parameters]
        for name in self.options.const:
            head = name.split(".")[0].split("[")[0]
            if head not in parameters and not self._takes_any():
                raise unknown("argument in const", head, parameters)

    def _takes_any(self) -> bool:
        return any(p.kind in (p.VAR_KEYWORD, p.VAR_POSITIONAL) for p in self._spec.parameters)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """The function's result, as new NumPy arrays in the structure the function returns."""
        last = self._last
        if last is not None and not kwargs:
            # The compiled driver checks types and shapes itself, in a fraction of the time that a key takes.
            results = last.direct(args)  # type: ignore[misc]
            if results is not None:
                return results[0] if last.single else last.traced.rebuild(results)
        try:
            leaves, key = self._flatten(args, kwargs)
        except TracedArgument:
            return self.fn(*args, **kwargs)
        program = self._find(key, leaves) or self._compile(args, kwargs, leaves, key)
        if leaves is args and program.direct is not None:
            self._last = program
        return program(leaves)

    def _find(self, key: Key, leaves: Sequence[Any]) -> Compiled | None:
        for program in self._programs.get(key, ()):
            if not program.held or program.holds(leaves):
                return program
        return None

    def _compile(self, args: tuple[Any, ...], kwargs: dict[str, Any], leaves: Sequence[Any], key: Key) -> Compiled:
        with self._lock:
            found = self._find(key, leaves)
            if found is not None:
                return found
            traced = trace(self.fn, args, kwargs, const=self.options.const, spec=self._spec)
            program = Compiled(traced, leaves, self.options, machine_model.load())
            self._programs.setdefault(key, []).append(program)
            return program

    def compile(self, *args: Any, **kwargs: Any) -> Compiled:
        """Compile for these arguments (or arrays of the same types) without calling."""
        leaves, key = self._flatten(args, kwargs)
        return self._find(key, leaves) or self._compile(args, kwargs, leaves, key)

    def explain(self, *args: Any, **kwargs: Any) -> Explanation:
        """What was chosen for these arguments and why, with every step timed now."""
        from eqsat.why import why

        leaves, _ = self._flatten(args, kwargs)
        program = self.compile(*args, **kwargs)
        return program.explain(self._spec.name, leaves, functools.partial(why, program))

    def source(self, *args: Any, **kwargs: Any) -> str:
        """The generated kernels for these arguments, as Python source."""
        program = self.compile(*args, **kwargs)
        rule = "\n\n" + "# " + "-" * 100 + "\n\n"
        return rule.join(program.executable.sources())

    def __get__(self, instance: object, owner: type | None = None) -> OptimizedFunction | BoundMethod:
        """Methods: ``self`` is passed on as the first argument."""
        return self if instance is None else BoundMethod(self, instance)

    def __reduce__(self) -> str | tuple[Any, ...]:
        """Pickled by name where a module holds it, as functions are; else as its function and options."""
        name = getattr(self, "__qualname__", "")
        found: Any = sys.modules.get(getattr(self, "__module__", ""))
        for part in name.split("."):
            found = getattr(found, part, None)
        return name if found is self else (OptimizedFunction, (self.fn, self.options))

    def __repr__(self) -> str:
        return f"<eqsat.optimize of {self._spec.name}{self._spec.signature}>"


class BoundMethod:
    """An optimized method of one object, which must be a dataclass or another tree of arrays."""

    __slots__ = ("__self__", "function")

    def __init__(self, function: OptimizedFunction, instance: object) -> None:
        self.function = function
        self.__self__ = instance

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self.function(self.__self__, *args, **kwargs)

    def compile(self, *args: Any, **kwargs: Any) -> Compiled:
        """As :meth:`OptimizedFunction.compile`."""
        return self.function.compile(self.__self__, *args, **kwargs)

    def explain(self, *args: Any, **kwargs: Any) -> Explanation:
        """As :meth:`OptimizedFunction.explain`."""
        return self.function.explain(self.__self__, *args, **kwargs)

    def source(self, *args: Any, **kwargs: Any) -> str:
        """As :meth:`OptimizedFunction.source`."""
        return self.function.source(self.__self__, *args, **kwargs)

    def __repr__(self) -> str:
        return f"{self.function!r} bound to {self.__self__!r}"


_functions: weakref.WeakSet[OptimizedFunction] = weakref.WeakSet()


def _fresh_locks() -> None:
    """In the child of a fork: what other threads of the parent were compiling will never be finished here."""
    for function in _functions:
        function._lock = threading.RLock()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_fresh_locks)


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
        from eqsat.schedule import installed_loop_rules

        valid = [*(rule.id for rule in rules.list()), *(rule.id for rule in installed_loop_rules())]
        for rule in options.disable:
            if rule not in valid:
                raise unknown("rule", rule, valid)
