"""Tracing: an ordinary NumPy function, run once on traced arrays, becomes a graph."""

from __future__ import annotations

import functools
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, TypeVar

import numpy as np

from eqsat.deadline import NEVER, Deadline, OutOfTime
from eqsat.errors import OptionError

# Imported for their registrations.
from eqsat.frontends import (  # noqa: F401
    attributes,
    contractions,
    elementary,
    filters,
    indexing,
    joins,
    lookups,
    nans,
    numpy_code,
    opaque,
    pads,
    ranks,
    reductions,
    scipy_functions,
    shapes,
    special,
    windows,
    writes,
)
from eqsat.frontends.convert import lift
from eqsat.frontends.creation import hide, show
from eqsat.frontends.guards import Guard
from eqsat.frontends.numbered import Unlike
from eqsat.frontends.pytree import (
    ArgSpec,
    Branch,
    Key,
    Leaf,
    Static,
    TracedArgument,
    Tree,
    check_result,
    rebuild,
    tensor_type,
    tree_of,
)
from eqsat.frontends.registry import located
from eqsat.frontends.scope import Scopes
from eqsat.frontends.steps import Retraced
from eqsat.frontends.traced_loops import check_closed
from eqsat.frontends.tracer import TracedArray, TracedNumber
from eqsat.frontends.tracing import CURRENT, Trace, Unsized
from eqsat.ir import build, complexes
from eqsat.ir.absorb import absorbed
from eqsat.ir.batched import batched
from eqsat.ir.evaluate import evaluate
from eqsat.ir.loop import of_loop, with_bodies
from eqsat.ir.node import LINES, Graph, Node, Source
from eqsat.ir.repeats import base_of, cut, overlapping, repeated_axes
from eqsat.ir.reroll import rerolled
from eqsat.ir.stretches import SHORT

__all__ = ["ArgSpec", "Traced", "TracedArgument", "run_by_reference", "trace", "traceable"]

Function = TypeVar("Function", bound=Callable[..., Any])

BATCH = 4
"""Operators that one stands for, in the mean, where a program is taken with its short repetitions in batches."""


@dataclass(frozen=True)
class Written:
    """An argument whose memory the function changes: its number, name, the output that it becomes, the last line."""

    leaf: int
    name: str
    output: int
    line: Source


@dataclass(frozen=True)
class Traced:
    """A traced function.

    ``graph.inputs[i]`` is the type of the ``i``-th leaf of the arguments (``ArgSpec.flatten``), in order,
    and ``graph.names[i]`` its name. ``const`` are the numbers of inputs that the user said stay the same
    from call to call. ``rebuild`` makes the function's result of the graph's outputs. ``name``: the function's.
    ``as_given``: whether leaves are inputs and outputs results as they are; else inputs are types of the leaves' bases,
    of complex ones as real numbers (``given``), and the outputs ``complex`` are as well. ``pairs``: the element types
    of complex leaves, by their number; None where some leaf has a base.
    ``numbers``: the outputs that the function returns as Python numbers, as ``np.array_equal`` does.
    ``written``: the arguments that the function changes; ``own``: the outputs that are one of these themselves, each
    with the argument's number. ``rows``: what is changed depends on arguments lying in row-major order, as they were
    traced. ``guards``: what Python was told of values; their nodes are the last outputs of the graph. ``seconds``: how
    long tracing took. ``lines``: which of the user's lines made each node of the graph and of its loops' bodies, as far
    as that is known. ``rolled``: the same program with short repetitions as loops, which may be better or worse.
    """

    graph: Graph
    key: Key
    const: tuple[int, ...]
    arguments: tuple[Tree, ...]
    output: Tree
    _ranks: tuple[int, ...]
    name: str = ""
    written: tuple[Written, ...] = ()
    own: tuple[tuple[int, int], ...] = ()
    rows: bool = False
    as_given: bool = True
    pairs: Mapping[int, np.dtype] | None = None
    complex: frozenset[int] = frozenset()
    numbers: frozenset[int] = frozenset()
    guards: tuple[Guard, ...] = ()
    seconds: float = 0.0
    lines: Mapping[Node, Source] = field(default_factory=dict)
    rolled: Graph | None = None
    in_loop_form: bool = False
    """Whether ``graph`` is what was ``rolled``."""

    def in_loops(self) -> Traced:
        """With the graph that is ``rolled``. Raises ``ValueError`` where there is none."""
        if self.rolled is None:
            raise ValueError("the program has no short repetitions")
        return replace(self, graph=self.rolled, rolled=None, in_loop_form=True)

    def seen(self, results: Sequence[np.ndarray]) -> list[int]:
        """What the guards' values are in a call, of the program's results."""
        return [int(value) for value in results[len(results) - len(self.guards) :]]

    def agrees(self, seen: Sequence[int]) -> bool:
        """Whether this is the trace of calls in which the first guards have these values."""
        return [guard.value for guard in self.guards[: len(seen)]] == list(seen)

    def given(self, leaves: Sequence[np.ndarray]) -> Sequence[np.ndarray]:
        """The arrays that the graph's inputs are, of the arguments' leaves."""
        return leaves if self.as_given else [complexes.as_real(base_of(np.asarray(leaf))) for leaf in leaves]

    def takes(self, leaves: Sequence[np.ndarray]) -> bool:
        """Whether these arguments can be changed as those that were traced: NumPy alone does what it does to others.

        Each that is written must be writable and share no memory with another; where it matters, all are in row order.
        """
        if self.rows and not all(leaf.flags.c_contiguous for leaf in leaves):
            return False
        for changed in self.written:
            array = leaves[changed.leaf]
            if not array.flags.writeable or overlapping(array):
                return False
            for number, other in enumerate(leaves):
                if number != changed.leaf and _share(array, other):
                    return False
        return True

    def rebuild(self, results: Sequence[np.ndarray], leaves: Sequence[np.ndarray]) -> Any:
        """The result in the user's structure; 0-d results are NumPy scalars, as NumPy's functions return.

        ``leaves``: the arguments, which get the values that the function gave them.
        """
        results = [complexes.as_complex(a) if i in self.complex else a for i, a in enumerate(results)]
        ready: list[Any] = [a if rank else a[()] for a, rank in zip(results, self._ranks, strict=False)]
        for number in self.numbers:
            ready[number] = ready[number].item()
        for changed in self.written:
            np.copyto(leaves[changed.leaf], results[changed.output])
        for output, leaf in self.own:
            ready[output] = leaves[leaf]
        return ready[0] if isinstance(self.output, Leaf) else rebuild(self.output, ready)


def _share(array: np.ndarray, other: np.ndarray) -> bool:
    try:
        return np.shares_memory(array, other, max_work=1000)  # type: ignore[arg-type]
    except np.exceptions.TooHardError:
        return True


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
    return isinstance(value, (TracedArray, Unsized, np.ndarray, np.generic))


def trace(
    fn: Callable[..., Any],
    args: tuple[Any, ...],
    kwargs: dict[str, Any] | None = None,
    *,
    const: Sequence[str] = (),
    spec: ArgSpec | None = None,
    deadline: Deadline = NEVER,
    guarded: bool = False,
) -> Traced:
    """Run ``fn`` on traced arrays shaped and typed as the arguments, and return its graph.

    Python numbers, strings and None in the arguments are constants of the program. Arrays that ``fn``
    captures become constants. ``guarded``: where Python asks for a truth value or an integer, it gets that of these
    arguments, and the trace is for calls where it is the same.

    Raises the errors of :mod:`eqsat.errors`, each with the user's line, and whatever ``fn`` itself raises;
    ``OutOfTime`` from its first operator after the deadline.
    """
    start = time.perf_counter()
    spec = spec or ArgSpec(fn)
    known = Retraced(frozenset())
    while True:
        try:
            return _traced(fn, args, kwargs or {}, const, spec, deadline, guarded, known, start)
        except Retraced as again:
            known = Retraced(known.barred | again.barred, known.soon | again.soon)


def _traced(
    fn: Callable[..., Any],
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    const: Sequence[str],
    spec: ArgSpec,
    deadline: Deadline,
    guarded: bool,
    known: Retraced,
    start: float,
) -> Traced:
    """As :func:`trace`; ``Retraced`` where it is to be done again, with more ``known`` of its loops."""
    _, key = spec.flatten(args, kwargs)
    trees, leaves = spec.trees(args, kwargs)
    names = spec.leaf_names(trees)
    axes = [repeated_axes(a) for a in leaves]
    given = [
        complexes.input_of(i, tensor_type(cut(a, repeated)), name)
        for i, (a, repeated, name) in enumerate(zip(leaves, axes, names, strict=True))
    ]
    inputs = [value for _, value in given]
    parameters = [p.name for p in spec.parameters]
    values = {
        n: complexes.as_real(np.asarray(base_of(a), a.dtype.newbyteorder("=")))
        for (n, _), a in zip(given, leaves, strict=True)
    }
    trace_of = Trace(deadline, values, guarded=guarded)
    trace_of.barred, trace_of.soon = known.barred, known.soon
    found_lines: dict[Node, Source] = {}
    before, lines_before = CURRENT.set(trace_of), LINES.set(found_lines)
    try:
        arguments = [TracedArray(build.broadcast_to(n, a.shape)) for n, a in zip(inputs, leaves, strict=True)]
        _protect(arguments, leaves, spec.raw(args, kwargs), names, const_inputs(const, names, parameters))
        call_args, call_kwargs = spec.call_with(trees, arguments)
        scopes = Scopes(trace_of)
        trace_of.original = scopes.original
        show()
        result = scopes.inside(fn)(*call_args, **call_kwargs)
        found: list[Any] = []
        output = _outside(tree_of(result, found, _is_output), scopes)
        check_result(output)
        found = [value.array() if isinstance(value, Unsized) else value for value in found]
        outputs = [lift(value) for value in found]
        ranks = tuple(node.type.ndim for node in outputs)
        written, own = _changes(inputs, arguments, names, found, outputs)
        rows = trace_of.rows
        guards = tuple(trace_of.guards or ())
        outputs.extend(guard.node for guard in guards)
        if trace_of.standing:
            raise Unlike
        if trace_of.bound:
            check_closed(outputs)
        made = frozenset(i for i, node in enumerate(outputs) if node.dtype.kind == "complex")
        order = [part for node in trace_of.nodes for part in (node.inputs if node.op == "pair" else (node,))]
        graph = Graph(tuple(node for node, _ in given), tuple(map(complexes.joined, outputs)), tuple(names))
        graph = absorbed(graph) if trace_of.stood else graph
        long = rerolled(graph, order, deadline=deadline)
        rolled = rerolled(graph, order, SHORT, deadline) if long is graph else long
        graph = _in_batches(long, found_lines)
        short = graph if rolled is long else _in_batches(rolled, found_lines)
        graph = short if _is_batch(short, graph) else graph
    except (Exception, Unlike) as error:
        if isinstance(error, Unlike) and error.soon is not None:
            raise Retraced(frozenset(), frozenset((error.soon,))) from None
        loops = frozenset(trace_of.standing or trace_of.stood)
        if isinstance(error, OutOfTime) or not loops:
            raise
        raise Retraced(loops) from None
    finally:
        CURRENT.reset(before)
        LINES.reset(lines_before)
        hide()
    return Traced(
        graph=graph,
        key=key,
        const=const_inputs(const, names, parameters),
        arguments=tuple(trees),
        output=output,
        _ranks=ranks,
        name=spec.name,
        written=written,
        own=own,
        rows=rows and any(leaf.ndim for leaf in leaves),
        as_given=not (any(axes) or made or any(a.dtype.kind == "c" for a in leaves)),
        pairs=None
        if any(axes)
        else {i: a.dtype.newbyteorder("=") for i, a in enumerate(leaves) if a.dtype.kind == "c"},
        complex=made,
        numbers=frozenset(i for i, value in enumerate(found) if isinstance(value, TracedNumber)),
        guards=guards,
        lines={
            node: found_lines[node]
            for node in dict.fromkeys([*with_bodies(graph), *with_bodies(short)])
            if node in found_lines
        },
        rolled=None if short is graph else short,
        seconds=time.perf_counter() - start,
    )


def _in_batches(graph: Graph, lines: dict[Node, Source]) -> Graph:
    """The graph without loops whose trips do not need one another; the lines of what is new are added."""
    formed = batched(graph)
    if formed is None:
        return graph
    lines.update((new, lines[old]) for new, old in formed.origins.items() if old in lines and new not in lines)
    return formed.graph


def _is_batch(short: Graph, whole: Graph) -> bool:
    """Whether the program's short repetitions are so many operators in one that only that form need be planned."""
    nodes = short.nodes()
    return BATCH * len(nodes) <= len(whole.nodes()) and not any(of_loop(node) for node in nodes)


def _outside(tree: Tree, scopes: Scopes) -> Tree:
    """A result with the user's own functions for their copies."""
    if isinstance(tree, Static):
        return Static(scopes.original(tree.value))
    if isinstance(tree, Branch):
        return replace(tree, children=tuple(_outside(child, scopes) for child in tree.children))
    return tree


def _protect(
    arguments: Sequence[TracedArray],
    leaves: Sequence[np.ndarray],
    raw: Sequence[Any],
    names: Sequence[str],
    const: Sequence[int],
) -> None:
    """Tell the arguments that are not written to, and why."""
    for number, (argument, leaf, given, name) in enumerate(zip(arguments, leaves, raw, names, strict=True)):
        argument.is_scalar = isinstance(given, np.generic)
        memory = argument.memory
        if number in const:
            memory.protected = f"the argument {name!r} is named in const=, so the function must not write to it"
        elif not isinstance(given, (np.ndarray, np.generic)):
            memory.protected = f"the argument {name!r} is a {type(given).__name__}, whose memory may not be written to"
        elif isinstance(given, np.ndarray) and not given.flags.writeable:
            memory.protected = "assignment destination is read-only"
        elif overlapping(leaf):
            memory.protected = f"the argument {name!r} has elements that share memory: write to a copy"


def _changes(
    inputs: Sequence[Node],
    arguments: Sequence[TracedArray],
    names: Sequence[str],
    found: Sequence[Any],
    outputs: list[Node],
) -> tuple[tuple[Written, ...], tuple[tuple[int, int], ...]]:
    """The arguments that were changed, whose new values are added to the outputs, and the outputs that they are."""
    written: list[Written] = []
    own: list[tuple[int, int]] = []
    for number, (node, argument, name) in enumerate(zip(inputs, arguments, names, strict=True)):
        line, final = argument.memory.line, argument.node
        if line is None or final is node:
            continue
        same = [i for i, value in enumerate(found) if value is argument]
        own.extend((i, number) for i in same)
        if not same:
            outputs.append(final)
        written.append(Written(number, name, same[0] if same else len(outputs) - 1, line))
    return tuple(written), tuple(own)


def run_by_reference(
    fn: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any], *, guarded: bool = False
) -> Any:
    """``fn`` of NumPy arrays, traced (``guarded``: as in :func:`trace`) and evaluated by the reference interpreter.

    Results are arrays of their own, as those of a compiled program are, not views of arguments.
    """
    spec = ArgSpec(fn)
    traced = trace(fn, args, kwargs, spec=spec, guarded=guarded)
    leaves, _ = spec.flatten(args, kwargs)
    results = evaluate(traced.graph, traced.given(leaves))
    return traced.rebuild([a.copy() if any(np.may_share_memory(a, b) for b in leaves) else a for a in results], leaves)


def traceable(fn: Function) -> Function:
    """A function written for traced arrays that works on NumPy arrays too, through the reference."""
    spec = ArgSpec(fn)

    @functools.wraps(fn)
    def run(*args: Any, **kwargs: Any) -> Any:
        if CURRENT.get() is not None:
            try:
                spec.flatten(args, kwargs)
            except TracedArgument:
                return located(spec.name, fn, *args, **kwargs)
        return located(spec.name, run_by_reference, fn, args, kwargs, guarded=True)  # integers may be NumPy's

    return run  # type: ignore[return-value]
