"""Tracing: an ordinary NumPy function, run once on traced arrays, becomes a graph."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

import numpy as np

from eqsat.deadline import NEVER, Deadline
from eqsat.errors import OptionError

# Imported for their registrations.
from eqsat.frontends import contractions, indexing, joins, reductions, shapes, writes  # noqa: F401
from eqsat.frontends.convert import lift
from eqsat.frontends.pytree import ArgSpec, Key, Leaf, TracedArgument, Tree, check_result, rebuild, tensor_type, tree_of
from eqsat.frontends.registry import located
from eqsat.frontends.selections import Selection
from eqsat.frontends.tracer import CURRENT, Trace, TracedArray, TracedNumber
from eqsat.ir import build
from eqsat.ir.evaluate import evaluate
from eqsat.ir.node import Graph, Source
from eqsat.ir.repeats import base_of, cut, repeated_axes

__all__ = ["ArgSpec", "Traced", "TracedArgument", "run_by_reference", "trace", "traceable"]

Function = TypeVar("Function", bound=Callable[..., Any])


@dataclass(frozen=True)
class Traced:
    """A traced function.

    ``graph.inputs[i]`` is the type of the ``i``-th leaf of the arguments (``ArgSpec.flatten``), in order,
    and ``graph.names[i]`` its name. ``const`` are the numbers of inputs that the user said stay the same
    from call to call. ``rebuild`` makes the function's result of the graph's outputs. ``name``: the function's.
    ``repeated``: whether a leaf stands for more than it holds; then inputs are types of the leaves' bases (``given``).
    ``numbers``: the outputs that the function returns as Python numbers, as ``np.array_equal`` does.
    ``written`` are the names of arguments whose memory the function would write to, and the line that does.
    """

    graph: Graph
    key: Key
    const: tuple[int, ...]
    arguments: tuple[Tree, ...]
    output: Tree
    _ranks: tuple[int, ...]
    name: str = ""
    written: tuple[tuple[str, Source], ...] = ()
    repeated: bool = False
    numbers: frozenset[int] = frozenset()

    def given(self, leaves: Sequence[np.ndarray]) -> Sequence[np.ndarray]:
        """The arrays that the graph's inputs are, of the arguments' leaves."""
        return [base_of(np.asarray(leaf)) for leaf in leaves] if self.repeated else leaves

    def rebuild(self, results: Sequence[np.ndarray]) -> Any:
        """The result in the user's structure; 0-d results are NumPy scalars, as NumPy's functions return."""
        ready: list[Any] = [a if rank else a[()] for a, rank in zip(results, self._ranks, strict=True)]
        for number in self.numbers:
            ready[number] = ready[number].item()
        return ready[0] if isinstance(self.output, Leaf) else rebuild(self.output, ready)


def const_inputs(const: Sequence[str], names: Sequence[str], parameters: Sequence[str]) -> tuple[int, ...]:
    """The numbers of the inputs whose name is one of ``const`` or lies under it (``layers``, ``layers[0].w``)."""
    found: set[int] = set()
    for wanted in const:
        under = [i for i, n in enumerate(names) if n == wanted or n.startswith((f"{wanted}.", f"{wanted}["))]
        if not under and wanted not in parameters:
            raise OptionError(f"const={wanted!r} names no argument; the arrays are: {', '.join(names) or 'none'}")
        found.update(under)
    return tuple(sorted(found))


def _is_output(value: Any) -> bool:
    if isinstance(value, Selection):
        value.returned()
    return isinstance(value, (TracedArray, np.ndarray, np.generic))


def trace(
    fn: Callable[..., Any],
    args: tuple[Any, ...],
    kwargs: dict[str, Any] | None = None,
    *,
    const: Sequence[str] = (),
    spec: ArgSpec | None = None,
    deadline: Deadline = NEVER,
) -> Traced:
    """Run ``fn`` on traced arrays shaped and typed as the arguments, and return its graph.

    Python numbers, strings and None in the arguments are constants of the program. Arrays that ``fn``
    captures become constants. Raises the errors of :mod:`eqsat.errors`, each with the user's line, and
    whatever ``fn`` itself raises; ``OutOfTime`` from its first operator after the deadline.
    """
    spec = spec or ArgSpec(fn)
    kwargs = kwargs or {}
    _, key = spec.flatten(args, kwargs)
    trees, leaves = spec.trees(args, kwargs)
    names = spec.leaf_names(trees)
    axes = [repeated_axes(a) for a in leaves]
    inputs = tuple(
        build.input_node(i, tensor_type(cut(a, repeated)), name)
        for i, (a, repeated, name) in enumerate(zip(leaves, axes, names, strict=True))
    )
    before = CURRENT.set(Trace(deadline))
    try:
        arguments = [TracedArray(build.broadcast_to(n, a.shape)) for n, a in zip(inputs, leaves, strict=True)]
        call_args, call_kwargs = spec.call_with(trees, arguments)
        result = fn(*call_args, **call_kwargs)
        found: list[Any] = []
        output = tree_of(result, found, _is_output)
        check_result(output)
        outputs = tuple(lift(value) for value in found)
    finally:
        CURRENT.reset(before)
    parameters = [p.name for p in spec.parameters]
    return Traced(
        graph=Graph(inputs, outputs, tuple(names)),
        key=key,
        const=const_inputs(const, names, parameters),
        arguments=tuple(trees),
        output=output,
        _ranks=tuple(node.type.ndim for node in outputs),
        name=spec.name,
        written=tuple(
            (name, a.memory.line) for name, a in zip(names, arguments, strict=True) if a.memory.line is not None
        ),
        repeated=any(axes),
        numbers=frozenset(i for i, value in enumerate(found) if isinstance(value, TracedNumber)),
    )


def run_by_reference(fn: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """``fn`` of NumPy arrays, traced and evaluated by the reference interpreter."""
    spec = ArgSpec(fn)
    traced = trace(fn, args, kwargs, spec=spec)
    leaves, _ = spec.flatten(args, kwargs)
    return traced.rebuild(evaluate(traced.graph, traced.given(leaves)))


def traceable(fn: Function) -> Function:
    """A function written for traced arrays that works on NumPy arrays too, through the reference."""
    spec = ArgSpec(fn)

    @functools.wraps(fn)
    def run(*args: Any, **kwargs: Any) -> Any:
        if CURRENT.get() is None:
            return run_by_reference(fn, args, kwargs)
        try:
            spec.flatten(args, kwargs)
        except TracedArgument:
            return located(spec.name, fn, *args, **kwargs)
        return run_by_reference(fn, args, kwargs)

    return run  # type: ignore[return-value]
