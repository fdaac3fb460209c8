"""Equations between tensor programs as text, their types by unification, and typed instances of them."""

from __future__ import annotations

import itertools
import math
import random
import string
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from eqsat.ir import build, views
from eqsat.ir.node import Node
from eqsat.ir.table import OPS
from eqsat.ir.types import TensorType, float32, row_major
from eqsat.nn.convolution import contracted
from eqsat.nn.images import images
from eqsat.nn.windows import extended

Extent = Counter[str]
"""A sum of unknown extents."""
Pair = tuple[Node, Node]
SCALARS = "pq"
"""Variables of no axes; all others have the rank of their line."""
KERNEL = 3
MOST_DRAWS = 20_000


class Term:
    """An operator applied to terms, a variable (no operands), or a number (its ``value``)."""

    def __init__(self, op: str, *args: Term | float, axis: int = 0, value: float | None = None) -> None:
        self.op, self.axis, self.value = op, axis, value
        self.args = tuple(a if isinstance(a, Term) else Term("number", value=a) for a in args)


def _operator(op: str, *, swapped: bool = False) -> Callable[..., Term]:
    return lambda a, *rest: Term(op, *((*rest, a) if swapped else (a, *rest)))


for _name, _op in {"add": "add", "sub": "sub", "mul": "mul", "truediv": "div", "matmul": "matmul"}.items():
    setattr(Term, f"__{_name}__", _operator(_op))
    setattr(Term, f"__r{_name}__", _operator(_op, swapped=True))
for _name in ("neg", "abs", "lt", "le", "gt", "ge"):
    setattr(Term, f"__{_name}__", _operator(_name))
for _name, _op in {"and": "logical_and", "or": "logical_or", "invert": "logical_not"}.items():
    setattr(Term, f"__{_name}__", _operator(_op))

UNARY = ("relu", "maxpool", "avgpool", "ones_like", "exp", "neg", "abs", "logical_not", "reverse")
PAIRS = ("add", "sub", "mul", "div", "maximum", "minimum", "lt", "le", "gt", "ge", "logical_and", "logical_or", "where")
"""Operators of equal shapes, and of numbers and variables without axes."""


def _functions() -> dict[str, Callable[..., Term]]:
    def along(op: str, axis: int) -> Callable[..., Term]:
        return lambda *args: Term(op, *args, axis=axis)

    plain = ("relu", "conv", "conv_full", "t", "maxpool", "avgpool", "ones_like", "exp", "abs", "where")
    plain += ("maximum", "minimum")
    found: dict[str, Callable[..., Term]] = {name: lambda *args, name=name: Term(name, *args) for name in plain}
    found["conv_relu"] = lambda x, w: Term("relu", Term("conv", x, w))
    found["inf"] = math.inf  # type: ignore[assignment]
    for axis in range(4):
        found[f"sum{axis}"] = along("reduce_sum", axis)
        found[f"rev{axis}"] = along("reverse", axis)
        found[f"cat{axis}"] = along("cat", axis)
        for part in (0, 1):
            found[f"split{axis}_{part}"] = along(f"split{part}", axis)
    return found


@dataclass(frozen=True)
class _Shape:
    extents: tuple[Extent, ...]
    seams: Mapping[int, Extent] = field(default_factory=dict)
    """Along which axes it was put together, and the extent of the first part."""


class Equations:
    """Equations over shared variables of one rank. ``text``: left = right, several apart by semicolons."""

    def __init__(self, text: str, rank: int) -> None:
        self.text, self.rank = text, rank
        names = {name: Term(name) for name in string.ascii_lowercase}
        scope: dict[str, object] = {"__builtins__": {}, **names, **_functions()}
        self.pairs: list[tuple[Term, Term]] = []
        for equation in text.split(";"):
            left, right = (eval(side.strip(), scope) for side in equation.split(" = "))
            self.pairs.append((left, right))
        self._root: dict[str, str] = {}
        self._equal: list[tuple[Extent, Extent]] = []
        self._grouped: list[tuple[Extent, Extent, Extent]] = []
        self._fixed: dict[str, int] = {}
        self._shapes: dict[str, tuple[str, ...]] = {}
        self._inferred: dict[Term, _Shape] = {}
        for left, right in self.pairs:
            self._unify(self._infer(left), self._infer(right))
        self.free = sorted({self._find(d) for dims in self._shapes.values() for d in dims} - self._fixed_roots())

    # Types

    def _find(self, name: str) -> str:
        while name in self._root:
            name = self._root[name]
        return name

    def _fixed_roots(self) -> set[str]:
        return {self._find(name) for name in self._fixed}

    def _unify(self, one: _Shape, other: _Shape) -> None:
        for a, b in zip(one.extents, other.extents, strict=True):
            self._same(a, b)

    def _same(self, a: Extent, b: Extent) -> None:
        if a.total() == b.total() == 1:
            x, y = (self._find(next(iter(form))) for form in (a, b))
            if x != y:
                self._root[max(x, y)] = min(x, y)
        else:
            self._equal.append((a, b))

    def _infer(self, term: Term) -> _Shape:
        if term not in self._inferred:
            self._inferred[term] = self._infer_one(term)
        return self._inferred[term]

    def _infer_one(self, term: Term) -> _Shape:
        if term.value is not None:
            return _Shape(())
        if not term.args:
            rank = 0 if term.op in SCALARS else self.rank
            dims = self._shapes.setdefault(term.op, tuple(f"{term.op}{axis}" for axis in range(rank)))
            return _Shape(tuple(Counter((d,)) for d in dims))
        shapes = [self._infer(arg) for arg in term.args]
        first, last = shapes[0], shapes[-1]
        if term.op in UNARY:
            return first
        if term.op == "reduce_sum":
            return _Shape(tuple(e for axis, e in enumerate(first.extents) if axis != term.axis))
        if term.op == "t":
            return _Shape(first.extents[::-1], {1 - axis: seam for axis, seam in first.seams.items()})
        if term.op in PAIRS:
            wide = [shape for shape in shapes if shape.extents]
            for one, other in itertools.pairwise(wide):
                self._unify(one, other)
            return wide[0] if wide else first
        if term.op == "cat":
            for axis in range(self.rank):
                if axis != term.axis:
                    self._same(first.extents[axis], last.extents[axis])
            whole = list(first.extents)
            whole[term.axis] = first.extents[term.axis] + last.extents[term.axis]
            return _Shape(tuple(whole), {**first.seams, term.axis: first.extents[term.axis]})
        if term.op.startswith("split"):
            cut = list(first.extents)
            seam = first.seams[term.axis]
            cut[term.axis] = seam if term.op == "split0" else cut[term.axis] - seam
            return _Shape(tuple(cut))
        if term.op == "matmul":
            self._same(first.extents[1], last.extents[0])
            out = (first.extents[0], last.extents[1])
            return _Shape(out, _seams(first, 0, 0) | _seams(last, 1, 1))
        assert term.op in ("conv", "conv_full"), term.op
        if term.op == "conv_full":
            self._same(first.extents[1], last.extents[1])
        for extent in last.extents[2:]:
            if extent.total() == 1:
                self._fixed[next(iter(extent))] = KERNEL
        self._grouped.append((first.extents[1], last.extents[0], last.extents[1]))
        out4 = (first.extents[0], last.extents[0], *first.extents[2:])
        return _Shape(out4, _seams(first, 0, 0) | _seams(last, 0, 1))

    # Instances

    def draw(self, rng: random.Random, sizes: Sequence[int] = (1, 2, 3, 4, 5, 6)) -> dict[str, int]:
        """Extents for which all sides are typed. ``ValueError`` where none are found."""
        for _ in range(MOST_DRAWS):
            roots = {name: rng.choice(sizes) for name in self.free}
            roots.update({self._find(name): size for name, size in self._fixed.items()})
            extents = {d: roots[self._find(d)] for dims in self._shapes.values() for d in dims}
            if self._typed(extents):
                return extents
        raise ValueError(f"no shapes found for {self.text}")

    def uneven(self, seed: int = 0) -> dict[str, int]:
        """Extents that differ from each other as far as the types allow: the best of a few draws."""
        rng = random.Random(seed)
        drawn = [self.draw(rng, (2, 3, 4, 5, 6, 7)) for _ in range(40)]
        return max(drawn, key=lambda extents: len({extents[self._find(d)] for d in extents}))

    def _typed(self, extents: Mapping[str, int]) -> bool:
        def size(form: Extent) -> int:
            return sum(extents[d] * n for d, n in form.items())

        if any(size(a) != size(b) for a, b in self._equal):
            return False
        for channels, width, depth in self._grouped:
            c, m, d = size(channels), size(width), size(depth)
            if c % d or m % (c // d):
                return False
        return True

    def instance(self, extents: Mapping[str, int], variable: Callable[..., Node] | None = None) -> list[Pair]:
        """The sides as nodes over inputs of these extents, made in order of their names by ``variable(*shape)``."""
        inputs: dict[str, Node] = {}
        for at, name in enumerate(sorted(self._shapes)):
            shape = tuple(extents[d] for d in self._shapes[name])
            given = variable(*shape) if variable else build.input_node(at, TensorType(shape, float32), name)
            inputs[name] = given

        def made(term: Term) -> Node:
            if term.value is not None:
                return build.scalar(term.value, float32)
            if not term.args:
                return inputs[term.op]
            args = [made(arg) for arg in term.args]
            if term.op == "reduce_sum":
                return build.reduce(term.op, args[0], (term.axis,))
            if term.op == "reverse":
                (x,) = args
                steps = [-1 if axis == term.axis else 1 for axis in range(x.type.ndim)]
                starts = [n - 1 if step < 0 else 0 for n, step in zip(x.shape, steps, strict=True)]
                return build.slices(x, starts, steps, x.shape)
            if (term.op in OPS and OPS[term.op].kind == "map") or term.op in ("add", "sub"):
                return build.call(term.op, *args)
            if term.op == "cat":
                return build.concat(args, term.axis)
            if term.op == "matmul":
                return build.matmul(*args)
            if term.op == "t":
                return build.transpose(args[0], (1, 0))
            if term.op == "ones_like":
                return build.const(np.ones(args[0].shape, args[0].dtype.numpy))
            if term.op in ("maxpool", "avgpool"):
                return _pooled(term.op, args[0])
            if term.op in ("conv", "conv_full"):
                x, w = args
                whole = extended(images("conv2d", x, None, 2), [((n - 1) // 2, n // 2) for n in w.shape[2:]])
                groups = x.shape[1] // w.shape[1]
                return contracted("conv2d", whole, w, groups, x.shape[2:], (1, 1), (1, 1))
            seam = sum(extents[d] * n for d, n in self._infer(term.args[0]).seams[term.axis].items())
            start, stop = (0, seam) if term.op == "split0" else (seam, args[0].shape[term.axis])
            return build.take_range(args[0], term.axis, start, stop)

        return [(made(left), made(right)) for left, right in self.pairs]


def _pooled(op: str, x: Node) -> Node:
    """The largest of each window, or the mean over all of its places, with padding that keeps the size."""
    side = KERNEL // 2
    filled = build.pad(x, [(0, 0), (0, 0), (side, side), (side, side)], -math.inf if op == "maxpool" else 0)
    steps = row_major(filled.shape)
    seen = build.view(filled, views.strided((*x.shape, KERNEL, KERNEL), (*steps, *steps[2:])))
    if op == "maxpool":
        return build.reduce("reduce_max", seen, (4, 5))
    total = build.reduce("reduce_sum", seen, (4, 5))
    return build.call("div", total, build.scalar(KERNEL**2, total))


def _seams(shape: _Shape, axis: int, to: int) -> dict[int, Extent]:
    return {to: shape.seams[axis]} if axis in shape.seams else {}


@dataclass(frozen=True)
class Law:
    """A numbered line of a table."""

    number: int | str
    equations: Equations

    @property
    def convolves(self) -> bool:
        return "conv" in self.equations.text


def table(text: str) -> list[Law]:
    """The laws of a text: number, rank, equations."""
    found = []
    for line in text.strip().splitlines():
        number, rank, equations = line.split(maxsplit=2)
        name = int(number) if number.isdigit() else number
        found.append(Law(name, Equations(equations, int(rank.removesuffix("d")))))
    return found
