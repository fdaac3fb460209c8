"""A program being put together: numbered tensors, the kernels and other steps that make them, and loops among them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from eqsat.ir.evaluate import evaluate_nodes
from eqsat.ir.kernel import Acc, Kernel, Load, Operand
from eqsat.ir.known import constant_nodes, constant_operands, without_empty
from eqsat.ir.loop import LoopResult
from eqsat.ir.node import Graph, Node, substitute, topological
from eqsat.ir.types import TensorType
from eqsat.plan.link import Piece
from eqsat.plan.plan import KernelStep, Plan, ReferenceStep, Repeat, Step
from eqsat.plan.regions import LoopRegion, Region, cut

__all__ = ["Assembly", "PlacedLoop", "own_tensors", "place_loop", "searched"]


@dataclass(frozen=True)
class PlacedLoop:
    """A loop's body in the numbers of the program around it; ``repeats[0]`` is the loop itself."""

    steps: tuple[Step, ...]
    repeats: tuple[Repeat, ...]

    def repeats_from(self, begin: int) -> list[Repeat]:
        """The loops where the body's steps begin with number ``begin``."""
        return [replace(r, begin=r.begin + begin, end=r.end + begin) for r in self.repeats]


@dataclass
class Assembly:
    """The program being put together from its regions' winners."""

    types: dict[int, TensorType] = field(default_factory=dict)
    tensor_of: dict[Node, int] = field(default_factory=dict)
    constants: dict[int, Node] = field(default_factory=dict)
    constant_of: dict[Node, int] = field(default_factory=dict)
    pieces: list[Piece] = field(default_factory=list)
    others: list[ReferenceStep | PlacedLoop | None] = field(default_factory=list)
    """What pieces without a kernel stand for (``Piece.key``); None for a further result of a loop."""
    labels: dict[int, str] = field(default_factory=dict)
    origins: dict[int, tuple[Node, ...]] = field(default_factory=dict)
    """Nodes of the program, or of a loop's body, that have the value of a tensor, or that it is made for."""

    def fresh(self, type: TensorType) -> int:
        number = len(self.types)
        self.types[number] = type
        return number

    def buffer(self, size: int, operand: Operand) -> int:
        """A new tensor of ``size`` elements."""
        return self.fresh(TensorType((size,), operand.dtype))

    def value(self, tensor: int) -> np.ndarray | None:
        """The value of a tensor, if the program itself holds it (not an argument that stays constant)."""
        node = self.constants.get(tensor)
        if node is None or any(n.op == "input" for n in topological([node])):
            return None
        return evaluate_nodes([node], {})[0]

    def constant(self, node: Node) -> int:
        """The tensor of a value known at compile time."""
        if node not in self.constant_of:
            number = self.constant_of[node] = self.fresh(node.type)
            self.constants[number] = node
        return self.constant_of[node]

    def add(self, tensor: int, reads: Iterable[int], made: ReferenceStep | PlacedLoop | None) -> None:
        """Something without a kernel that stores a tensor."""
        self.pieces.append(Piece(tensor, None, tuple(reads), False, len(self.others)))
        self.others.append(made)


def own_tensors(assembly: Assembly, outputs: Sequence[int]) -> list[int]:
    """The outputs as tensors that kernels store, each another: of inputs, constants, loops' results copies are made."""
    loops = {n for n, other in enumerate(assembly.others) if not isinstance(other, ReferenceStep)}
    stored = {piece.tensor for piece in assembly.pieces if piece.kernel is not None or piece.key not in loops}
    found: list[int] = []
    for tensor in outputs:
        if tensor not in stored or tensor in found:
            type, given = assembly.types[tensor], tensor
            copy = Load(0, 0, (1,), type.dtype)
            operand = Operand(type.dtype, type.size)
            kernel = Kernel((type.size,), 1, None, copy, Acc(type.dtype), (operand,), operand, 0, (1,))
            tensor = assembly.fresh(type)
            assembly.pieces.append(Piece(tensor, kernel, (given,)))
        found.append(tensor)
    return found


def searched(graph: Graph, const: frozenset[Node]) -> Iterator[Region]:
    """The regions of a program, and of its loops' bodies."""
    graph = without_empty(graph)
    known = constant_nodes(graph, const)
    for region in cut(graph, const):
        if isinstance(region, Region):
            yield region
        else:
            yield from searched(
                region.loop.body, frozenset(constant_operands(region.loop, region.outputs[0].inputs, known))
            )


def place_loop(region: LoopRegion, body: Plan, assembly: Assembly, known: Iterable[Node]) -> None:
    """Add a loop to the program, whose body runs by a plan with what is known of its inputs as constants."""
    loop, operands = region.loop, region.outputs[0].inputs
    given = constant_operands(loop, operands, known)
    outside = [assembly.tensor_of[n] if n in assembly.tensor_of else assembly.constant(n) for n in operands]
    numbers: dict[int, int] = {}
    for number, node in body.constants.items():
        (value,) = substitute([node], given)
        numbers[number] = assembly.constant(value)
    free = [(i, n) for i, n in enumerate(loop.body.inputs) if n not in given]
    inside = {i: number for (i, _), number in zip(free, body.inputs, strict=True)}
    for i, number in inside.items():
        if i >= loop.carries and not loop.steps[i - loop.carries]:
            numbers[number] = outside[i]
    for number, type in body.types.items():
        if number not in numbers:
            numbers[number] = assembly.fresh(type)
    assembly.origins.update((numbers[tensor], nodes) for tensor, nodes in body.origins.items())
    after = [numbers[tensor] for tensor in body.outputs]
    wanted = {node.attrs.index: node for node in region.outputs if isinstance(node.attrs, LoopResult)}
    results = {index: assembly.fresh(node.type) for index, node in wanted.items()}
    repeat = Repeat(
        begin=0,
        end=len(body.steps),
        trips=loop.trips,
        carries=tuple((outside[k], numbers[inside[k]], after[k]) for k in range(loop.carries)),
        windows=tuple(
            (outside[loop.carries + k], numbers[inside[loop.carries + k]], step)
            for k, step in enumerate(loop.steps)
            if step
        ),
        stacked=tuple((after[k], tensor) for k, tensor in results.items() if k >= loop.carries),
        finals=tuple((k, tensor) for k, tensor in results.items() if k < loop.carries),
        trial=loop.shortens,
        conditional=loop.conditional,
        copies=loop.copies,
    )
    steps = tuple(_renumbered(step, numbers) for step in body.steps)
    inner = tuple(_repeat_renumbered(r, numbers) for r in body.repeats)
    placed: PlacedLoop | None = PlacedLoop(steps, (repeat, *inner))
    reads = dict.fromkeys(outside)
    for index, tensor in results.items():
        assembly.tensor_of[wanted[index]] = tensor
        assembly.add(tensor, reads, placed)
        reads, placed = {tensor: None}, None


def _renumbered(step: Step, numbers: Mapping[int, int]) -> Step:
    if isinstance(step, KernelStep):
        return replace(step, tensors=tuple(numbers[t] for t in step.tensors))
    return replace(step, reads=tuple(numbers[t] for t in step.reads), tensors=tuple(numbers[t] for t in step.tensors))


def _repeat_renumbered(repeat: Repeat, numbers: Mapping[int, int]) -> Repeat:
    return replace(
        repeat,
        carries=tuple((numbers[a], numbers[b], numbers[c]) for a, b, c in repeat.carries),
        windows=tuple((numbers[a], numbers[b], step) for a, b, step in repeat.windows),
        stacked=tuple((numbers[a], numbers[b]) for a, b in repeat.stacked),
        finals=tuple((k, numbers[t]) for k, t in repeat.finals),
    )
