"""A graph as a NumPy program that can be pasted and run."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from eqsat.ir import views
from eqsat.ir.defined import Applied
from eqsat.ir.joins import PadAttrs
from eqsat.ir.loop import Loop, LoopResult
from eqsat.ir.node import ConstArray, Graph, Node
from eqsat.ir.opaque import Result, Slot
from eqsat.ir.sources import InputAttrs, IotaAttrs
from eqsat.ir.spec import Spec
from eqsat.ir.table import OPS
from eqsat.ir.types import DType, TensorType, bfloat16, row_major
from eqsat.ir.views import ViewMap

_SHOWN = 32
_ARGUMENT = 256
_CALLS = {
    "cumsum": "np.cumsum({0}, axis={attrs}, dtype={0}.dtype)",
    "cumprod": "np.cumprod({0}, axis={attrs}, dtype={0}.dtype)",
    "cummax": "np.maximum.accumulate({0}, axis={attrs})",
    "cummin": "np.minimum.accumulate({0}, axis={attrs})",
    "sort": "np.sort({0}, axis={attrs})",
    "argsort": "np.argsort({0}, axis={attrs})",
    "sort_stable": "np.sort({0}, axis={attrs}, kind='stable')",
    "argsort_stable": "np.argsort({0}, axis={attrs}, kind='stable')",
    "sort_heapsort": "np.sort({0}, axis={attrs}, kind='heapsort')",
    "argsort_heapsort": "np.argsort({0}, axis={attrs}, kind='heapsort')",
    "gather": "np.take(eqsat.asarray({0}), {1}, axis={attrs})",
    "argmax": "np.argmax({0}, axis={attrs[0]})",
    "argmin": "np.argmin({0}, axis={attrs[0]})",
    "reduce_sum": "np.sum({0}, axis={attrs}, dtype={0}.dtype)",
    "reduce_prod": "np.prod({0}, axis={attrs}, dtype={0}.dtype)",
    "reduce_max": "np.max({0}, axis={attrs})",
    "reduce_min": "np.min({0}, axis={attrs})",
    "softmax": "eqsat.nn.softmax({0}, axis={attrs})",
    "log_softmax": "eqsat.nn.log_softmax({0}, axis={attrs})",
    "layer_norm": "eqsat.nn.layer_norm({0}, {1}, {2}, eps={attrs})",
    "rms_norm": "eqsat.nn.rms_norm({0}, {1}, eps={attrs})",
    "gelu": "eqsat.nn.gelu({0})",
    "gelu_tanh": "eqsat.nn.gelu({0}, 'tanh')",
    "silu": "eqsat.nn.silu({0})",
}


def _view(x: str, map: ViewMap, shape: Sequence[int]) -> str:
    """A view of a tensor of a shape: a reshape, a transpose, or index notation; tracing it finds the same one."""
    size = math.prod(shape)
    if 0 in map.shape:
        return f"np.zeros({map.shape}, {x}.dtype)"
    if map.keeps_order(size):
        return f"np.reshape({x}, {map.shape})"
    order = _permutation(map, shape)
    if order:
        return f"np.transpose({x}, {order})"
    atoms = [atom for axis in map.axes for atom in axis]
    names = [f"i{n}" for n in range(len(atoms))]
    terms = [f"{step} * {name}" for name, (_, step) in zip(names, atoms, strict=True) if step]
    index = " + ".join([*([str(map.offset)] if map.offset or not terms else []), *terms])
    element = f"lambda{' ' * bool(names)}{', '.join(names)}: eqsat.asarray({x}).reshape(-1)[{index}]"
    return f"eqsat.compute({tuple(n for n, _ in atoms)}, {element}).reshape({map.shape})"


def _permutation(map: ViewMap, shape: Sequence[int]) -> tuple[int, ...]:
    """The order of axes of which a view is the transposition; empty where it is none."""
    steps = {step: axis for axis, (n, step) in enumerate(zip(shape, row_major(tuple(shape)), strict=True)) if n > 1}
    order = [steps.get(atoms[0][1], -1) if len(atoms) == 1 else -1 for atoms in map.axes]
    ones = iter([axis for axis, n in enumerate(shape) if n == 1])
    order = [next(ones, -1) if axis < 0 and n == 1 else axis for axis, n in zip(order, map.shape, strict=True)]
    plain = sorted(order) == [*range(len(shape))] and views.transpose(shape, order) == map
    return tuple(order) if plain else ()


def _type(dtype: DType) -> str:
    return f"ml_dtypes.{dtype}" if dtype == bfloat16 else f"np.{dtype}"


def _number(value: object) -> str:
    return repr(value).replace("nan", "np.nan").replace("inf", "np.inf")


def _call(result: Result, args: Sequence[str]) -> str:
    """An array of what a library's function returns."""
    call = result.call
    shown = [
        f"np.ascontiguousarray({a}).view(np.result_type({a}, np.complex64))[..., 0]" if n in call.complex else a
        for n, a in enumerate(args)
    ]

    def text(part: object) -> str:
        if isinstance(part, Slot):
            return shown[part.number]
        if isinstance(part, tuple):
            return f"({', '.join(map(text, part))}{',' * (len(part) == 1)})"
        if isinstance(part, list):
            return f"[{', '.join(map(text, part))}]"
        return _number(part)

    positional, named = call.arguments
    given = [*map(text, positional), *(f"{name}={text(part)}" for name, part in named.items())]
    return f"np.asarray({call.name}({', '.join(given)}){_place(call.result, result.number)})"


def _place(nest: object, number: int) -> str:
    """How an array is taken out of a nest of tuples, lists and dicts."""
    parts = nest.items() if isinstance(nest, dict) else enumerate(nest) if isinstance(nest, tuple | list) else ()
    for key, part in parts:
        found = "" if part == Slot(number) else _place(part, number)
        if part == Slot(number) or found:
            return f"[{key!r}]{found}"
    return ""


def expression(node: Node, args: Sequence[str]) -> str:
    """The right side of one line."""
    attrs = node.attrs
    match attrs:
        case ConstArray():
            if not attrs.array.size:
                return f"np.zeros({node.shape}, {_type(node.dtype)})"
            return f"np.array({_number(attrs.array.tolist())}, {_type(node.dtype)})"
        case IotaAttrs():
            return f"np.arange({attrs.size}, dtype={_type(attrs.dtype)})"
        case ViewMap():
            return _view(args[0], attrs, node.inputs[0].shape)
        case Spec():
            return f"np.einsum('{attrs}', {args[0]}, {args[1]})"
        case PadAttrs():
            return f"np.pad({args[0]}, {attrs.widths}, constant_values={_number(attrs.value)})"
        case DType():
            return f"{args[0]}.astype({_type(attrs)})"
        case Result():
            return _call(attrs, args)
        case Applied():
            return attrs.call(args)
    if node.op == "concat":
        return f"np.concatenate([{', '.join(args)}], axis={attrs})"
    if node.op == "add_n":
        assert isinstance(attrs, tuple)
        return " ".join(("+ " if sign > 0 else "- ") + arg for sign, arg in zip(attrs, args, strict=True)).lstrip("+ ")
    if node.op == "wrap_index":
        return f"np.where({args[0]} < 0, {args[0]} + {attrs}, {args[0]})"
    if node.op == "scatter":
        change = "out.__setitem__(" if attrs == "set" else f"np.{attrs}.at(out, "
        write = f"{change}{args[1]}, {args[2]})"
        return f"[out := np.array({args[0]}), {write}][0]"
    form = _CALLS.get(node.op)
    return OPS[node.op].call(args) if form is None else form.format(*args, attrs=attrs)


def sample(type: TensorType) -> str:
    """An expression for a random array of this type."""
    if type.dtype.kind == "float":
        return f"rng.standard_normal({type.shape}).astype({_type(type.dtype)})"
    if type.dtype.kind == "bool":
        return f"rng.random({type.shape}) < 0.5"
    return f"rng.integers(0, 2, {type.shape}).astype({_type(type.dtype)})"


def _argument(type: TensorType, value: np.ndarray | None) -> str:
    if value is None or value.size > _ARGUMENT or not value.size:
        return sample(type)
    return f"np.array({_number(value.tolist())}, {_type(type.dtype)})"


@dataclass
class _Listing:
    """Lines of a program, in which every value has a name of its own; ``captured`` are arrays that it reads."""

    lines: list[str] = field(default_factory=list)
    captured: list[str] = field(default_factory=list)
    made: int = 0

    def fresh(self, letter: str = "v") -> str:
        self.made += 1
        return f"{letter}{self.made - 1}"

    def add(self, graph: Graph, names: dict[Node, str], indent: str) -> None:
        """The operators of a graph, whose inputs have names, and the names of their results."""
        loops: dict[tuple[Loop, tuple[Node, ...]], list[str]] = {}
        for node in graph.nodes():
            if isinstance(node.attrs, InputAttrs):
                continue
            if isinstance(node.attrs, ConstArray) and node.attrs.array.size > _SHOWN:
                names[node] = f"c{len(self.captured)}"
                self.captured.append(f"{names[node]} = {sample(node.type)}  # a captured array, of other values")
                continue
            args = [names[i] for i in node.inputs]
            if isinstance(node.attrs, LoopResult):
                key = (node.attrs.loop, node.inputs)
                if key not in loops:
                    loops[key] = self.loop(node.attrs.loop, args, [i.type for i in node.inputs], indent)
                names[node] = loops[key][node.attrs.index]
                continue
            names[node] = self.fresh()
            self.lines.append(f"{indent}{names[node]} = {expression(node, args)}")

    def loop(self, loop: Loop, args: Sequence[str], types: Sequence[TensorType], indent: str) -> list[str]:
        """A loop over operands; the names of its results."""
        body, deeper = loop.body, indent + "    "
        carried = [self.fresh() for _ in range(loop.carries)]
        rows = [self.fresh() for _ in body.outputs[loop.carries :]]
        names = dict(zip(body.inputs, [*carried, *args[loop.carries :]], strict=True))
        if loop.conditional:
            run = self.fresh("f")
            self.lines.append(f"{indent}def {run}({', '.join(carried)}):")
        else:
            trip = self.fresh("t")
            self.lines += [f"{indent}{name} = {arg}" for name, arg in zip(carried, args, strict=False)]
            self.lines += [f"{indent}{name} = []" for name in rows]
            self.lines.append(f"{indent}for {trip} in range({loop.trips}):")
            for node, step, type in zip(body.inputs[loop.carries :], loop.steps, types[loop.carries :], strict=True):
                if step:
                    start = f"{trip} * {step}" if step > 0 else f"({loop.trips - 1} - {trip}) * {-step}"
                    given, names[node] = names[node], self.fresh()
                    part = f"np.reshape({given}, {type.size})[{start}:{start} + {node.type.size}]"
                    self.lines.append(f"{deeper}{names[node]} = {part}")
        self.add(body, names, deeper)
        after = [names[o] for o in body.outputs]
        if loop.conditional:
            first = ", ".join(args[: loop.carries])
            self.lines.append(f"{deeper}return ({', '.join(after)},)")
            found = ", ".join(carried)
            self.lines.append(f"{indent}{found}, = eqsat.while_loop(lambda c: c[0], lambda c: {run}(*c), ({first},))")
            return carried
        self.lines += [f"{deeper}{row}.append({name})" for row, name in zip(rows, after[loop.carries :], strict=True)]
        if carried:
            self.lines.append(f"{deeper}{', '.join(carried)} = {', '.join(after[: loop.carries])}")
        self.lines += [f"{indent}{name} = np.stack({name})" for name in rows]
        return [*carried, *rows]


def program(graph: Graph, *, seed: int = 0, options: str = "", arguments: Sequence[np.ndarray] | None = None) -> str:
    """Python source that defines ``f`` and compiles it with ``options`` for these arguments, one per input.

    Random ones of the graph's types stand in for large ones.
    """
    names: dict[Node, str] = {node: f"x{number}" for number, node in enumerate(graph.inputs)}
    listing = _Listing()
    listing.add(graph, names, "    ")
    captured, lines = listing.captured, listing.lines
    parameters = ", ".join(names[node] for node in graph.inputs)
    lines.append(f"    return ({', '.join(names[o] for o in graph.outputs)},)")
    head = ["import numpy as np", "import scipy.special", "import eqsat", "", f"rng = np.random.default_rng({seed})"]
    values: list[np.ndarray | None] = [None] * len(graph.inputs)
    values[:] = arguments or values
    given = "".join(f"{_argument(n.type, a)}, " for n, a in zip(graph.inputs, values, strict=True)).rstrip()
    tail = [
        f"args = ({given})",
        f"for expected, got in zip(f(*args), eqsat.optimize(f{options and f', {options}'})(*args)):",
        "    print(np.abs(np.subtract(expected, got, dtype=np.float64)).max(initial=0))",
    ]
    text = "\n".join([*head, *captured, "", "", f"def f({parameters}):", *lines, "", "", *tail]) + "\n"
    return f"import ml_dtypes\n{text}" if "ml_dtypes." in text else text
