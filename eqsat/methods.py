"""Optimized methods: a function together with the object that it is looked up on."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from eqsat.compiled import Compiled
from eqsat.explain.report import Explanation
from eqsat.plain import PlainProgram

if TYPE_CHECKING:
    from eqsat.function import OptimizedFunction


class BoundMethod:
    """An optimized method of one object, which must be a dataclass or another tree of arrays."""

    __slots__ = ("__self__", "function")

    def __init__(self, function: OptimizedFunction, instance: object) -> None:
        self.function = function
        self.__self__ = instance

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self.function(self.__self__, *args, **kwargs)

    def compile(self, *args: Any, **kwargs: Any) -> Compiled | PlainProgram:
        """As :meth:`OptimizedFunction.compile`."""
        return self.function.compile(self.__self__, *args, **kwargs)

    def explain(self, *args: Any, **kwargs: Any) -> Explanation:
        """As :meth:`OptimizedFunction.explain`."""
        return self.function.explain(*self._given(args, kwargs), **kwargs)

    def source(self, *args: Any, **kwargs: Any) -> str:
        """As :meth:`OptimizedFunction.source`."""
        return self.function.source(*self._given(args, kwargs), **kwargs)

    def _given(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Any, ...]:
        """With the object in front; nothing where the last call is meant."""
        return (self.__self__, *args) if args or kwargs or self.function.needs < 2 else ()

    def __repr__(self) -> str:
        return f"{self.function!r} bound to {self.__self__!r}"
