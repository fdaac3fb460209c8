"""A graph as a NumPy program that can be pasted and run."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from eqsat.ir.composite import expand
from eqsat.ir.node import ConstArray, Graph, Node
from eqsat.ir.spec import Spec
from eqsat.ir.structure import InputAttrs, IotaAttrs, PadAttrs
from eqsat.ir.table import OPS
from eqsat.ir.types import DType, TensorType
from eqsat.ir.views import ViewMap

_SHOWN = 32
_NUMPY_NAMES = {
    "neg": "np.negative({0})",
    "rsqrt": "1 / np.sqrt({0})",
    "reciprocal": "1 / {0}",
    "erf": "scipy.special.erf({0})",
    "sigmoid": "scipy.special.expit({0})",
    "relu": "np.maximum({0}, 0)",
    "round": "np.rint({0})",
    "add": "{0} + {1}",
    "sub": "{0} - {1}",
    "mul": "{0} * {1}",
    "div": "{0} / {1}",
    "floor_divide": "{0} // {1}",
    "remainder": "{0} % {1}",
    "pow": "{0} ** {1}",
    "eq": "{0} == {1}",
    "ne": "{0} != {1}",
    "lt": "{0} < {1}",
    "le": "{0} <= {1}",
    "gt": "{0} > {1}",
    "ge": "{0} >= {1}",
    "cumsum": "np.cumsum({0}, axis={attrs}, dtype={0}.dtype)",
    "cumprod": "np.cumprod({0}, axis={attrs}, dtype={0}.dtype)",
    "sort": "np.sort({0}, axis={attrs})",
    "argsort": "np.argsort({0}, axis={attrs}, kind='stable')",
    "gather": "np.take({0}, {1}, axis={attrs})",
    "argmax": "np.argmax({0}, axis={attrs[0]})",
    "argmin": "np.argmin({0}, axis={attrs[0]})",
    "reduce_sum": "np.sum({0}, axis={attrs})",
    "reduce_prod": "np.prod({0}, axis={attrs})",
    "reduce_max": "np.max({0}, axis={attrs})",
    "reduce_min": "np.min({0}, axis={attrs})",
}


def _view(x: str, map: ViewMap, itemsize: int) -> str:
    if 0 in map.shape:
        return f"np.empty({map.shape}, {x}.dtype)"
    strides = map.strides
    flat = f"np.ascontiguousarray({x}).reshape(-1)"
    from eqsat.ir.types import row_major

    if map.keeps_order(int(np.prod(map.shape, dtype=int))) and strides is not None and strides == row_major(map.shape):
        return f"{x}.reshape({map.shape})"
    atoms = [a for axis in map.axes for a in axis]
    sizes, steps = [n for n, _ in atoms], [s * itemsize for _, s in atoms]
    return f"np.lib.stride_tricks.as_strided({flat}[{map.offset}:], {sizes}, {steps}).reshape({map.shape})"


def expression(node: Node, args: Sequence[str]) -> str:
    """The right side of one line."""
    attrs = node.attrs
    match attrs:
        case ConstArray():
            if attrs.array.size <= _SHOWN:
                values = attrs.array.tolist()
                return f"np.array({values!r}, np.{node.dtype})".replace("nan", "np.nan").replace("inf", "np.inf")
            return f"rng.standard_normal({node.shape}).astype(np.{node.dtype})  # a captured array"
        case IotaAttrs():
            return f"np.arange({attrs.size}, dtype=np.{attrs.dtype})"
        case ViewMap():
            return _view(args[0], attrs, node.dtype.itemsize)
        case Spec():
            return f"np.einsum('{attrs}', {args[0]}, {args[1]})"
        case PadAttrs():
            return f"np.pad({args[0]}, {attrs.widths}, constant_values={attrs.value})"
        case DType():
            return f"{args[0]}.astype(np.{attrs})"
    if node.op == "concat":
        return f"np.concatenate([{', '.join(args)}], axis={attrs})"
    if node.op == "add_n":
        assert isinstance(attrs, tuple)
        return " ".join(("+ " if sign > 0 else "- ") + arg for sign, arg in zip(attrs, args, strict=True)).lstrip("+ ")
    if node.op == "wrap_index":
        return f"np.where({args[0]} < 0, {args[0]} + {attrs}, {args[0]})"
    form = _NUMPY_NAMES.get(node.op)
    if form is not None:
        return form.format(*args, attrs=attrs)
    return f"np.{node.op}({', '.join(args)})"


def sample(type: TensorType) -> str:
    """An expression for a random array of this type."""
    if type.dtype.kind == "float":
        return f"rng.standard_normal({type.shape}).astype(np.{type.dtype})"
    if type.dtype.kind == "bool":
        return f"rng.random({type.shape}) < 0.5"
    return f"rng.integers(0, 2, {type.shape}).astype(np.{type.dtype})"


def program(graph: Graph, *, seed: int = 0) -> str:
    """Python source that defines ``f`` and calls it on random inputs of the graph's types."""
    names: dict[Node, str] = {}
    lines: list[str] = []
    params = []
    for number, node in enumerate(graph.inputs):
        names[node] = f"x{number}"
        params.append(f"x{number}")

    def visit(node: Node) -> str:
        if node in names:
            return names[node]
        if OPS[node.op].kind == "composite":
            names[node] = visit(expand(node))
            return names[node]
        args = [visit(i) for i in node.inputs]
        name = names[node] = f"v{len(lines)}"
        lines.append(f"    {name} = {expression(node, args)}")
        return name

    for node in graph.nodes():
        if not isinstance(node.attrs, InputAttrs):
            visit(node)
    results = ", ".join(names[o] for o in graph.outputs)
    calls = ", ".join(sample(n.type) for n in graph.inputs)
    body = "\n".join(lines)
    return (
        "import numpy as np\nimport scipy.special\nimport eqsat\n\n"
        f"rng = np.random.default_rng({seed})\n\n\n"
        f"def f({', '.join(params)}):\n{body}\n    return ({results},)\n\n\n"
        f"args = ({calls},)\nprint(f(*args))\n"
    )
