"""``optimize``: a NumPy-style function in, a function of verified kernels out."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, overload

from eqsat import forks
from eqsat.errors import OptionError
from eqsat.function import FUNCTIONS, OptimizedFunction
from eqsat.options import Numerics, Options, names, unknown
from eqsat.plan import backend as backends


def cache_clear() -> None:
    """Forget the compiled programs of all optimized functions, and free the memory kept for later results."""
    for function in list(FUNCTIONS):
        function.cache_clear()
    backends.release()


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
    strict: bool = ...,
    check_speed: bool = ...,
    programs: int | None = ...,
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
    strict: bool = ...,
    check_speed: bool = ...,
    programs: int | None = ...,
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
    try:
        backends.backend(options.backend)
    except ValueError as error:
        raise OptionError(str(error)) from None
    if options.disable:
        with forks.IMPORTING:
            from eqsat import rules
            from eqsat.schedule import installed_loop_rules

        valid = [*(rule.id for rule in rules.list()), *(rule.id for rule in installed_loop_rules())]
        for rule in options.disable:
            if rule not in valid:
                raise unknown("rule", rule, valid)
