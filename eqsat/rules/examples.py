"""Random typed programs on which a rule should fire, and values for their inputs."""

from __future__ import annotations

import random
from collections.abc import Sequence

import numpy as np

from eqsat.ir import build, views
from eqsat.ir.node import Node
from eqsat.ir.spec import Spec, make_spec
from eqsat.ir.structure import PadAttrs
from eqsat.ir.table import OPS, make
from eqsat.ir.types import DType, TensorType, bool_, float32, float64, int32, int64, row_major
from eqsat.ir.views import ViewMap
from eqsat.rules.instantiate import signed_sum
from eqsat.rules.pattern import (
    Apply,
    Attribute,
    Expanded,
    Literal,
    Mean,
    NumberVar,
    Parts,
    Pattern,
    Sum,
    Terms,
    Var,
)

SHAPES: tuple[tuple[int, ...], ...] = (
    (3, 4),
    (4, 3),
    (3, 3),
    (2, 3, 4),
    (3,),
    (4,),
    (),
    (1, 4),
    (3, 1),
    (2, 1, 4),
    (1,),
    (0, 4),
    (4, 1, 3),
    (1, 1),
    (2, 0),
)
NUMBERS = (2.0, 0.5, 3.0, -1.5, 0.25, 1.0, -1.0, 1.7)
HARD = (np.nan, np.inf, -np.inf, 0.0, -0.0, 1.0, -1.0, 1e300, -1e-300, 5e-324)
WRAPS = (2**30, 46341, 3037000500)
"""Integers whose sums or squares leave a type of 32 or 64 bits."""


class Maker:
    """Makes example programs: input tensors of chosen or random shapes, known or not."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.inputs: list[Node] = []
        self.known_inputs: list[Node] = []

    def tensor(self, *shape: int, dtype: DType = float64, known: bool = False) -> Node:
        """An input of the program."""
        node = build.input_node(len(self.inputs), TensorType(shape, dtype))
        self.inputs.append(node)
        if known:
            self.known_inputs.append(node)
        return node

    def known(self, *shape: int, dtype: DType = float64) -> Node:
        """An input whose value is known when the program is compiled."""
        return self.tensor(*shape, dtype=dtype, known=True)

    def values(self, *, hard: bool = False, nan: bool = False) -> dict[Node, np.ndarray]:
        """Random values for the inputs: ordinary ones, with NaN among them, or the hardest there are."""
        rng = np.random.default_rng(self.random.getrandbits(32))
        found = {}
        for node in self.inputs:
            found[node] = _values(rng, node.type, hard, nan)
        return found

    def from_patterns(self, patterns: Sequence[Pattern]) -> list[Node]:
        """Random programs that patterns sharing variables match; ``ValueError`` where the dice do not fit."""
        names: dict[str, object] = {}
        dtype = self.random.choice((float64, float64, float64, int64, int32, bool_, float32))
        base = self.random.choice(SHAPES)
        return [self._pattern(p, names, dtype, base) for p in patterns]

    def _pattern(self, pattern: Pattern, names: dict[str, object], dtype: DType, base: tuple[int, ...]) -> Node:
        if isinstance(pattern, Var):
            if pattern.name not in names:
                kind = self.random.choice((dtype, dtype, bool_)) if dtype != bool_ else bool_
                shape = self._shape(base)
                names[pattern.name] = self.tensor(*shape, dtype=kind, known=self.random.random() < 0.4)
            node = names[pattern.name]
            assert isinstance(node, Node)
            return node
        if isinstance(pattern, NumberVar):
            if pattern.name not in names:
                number = build.scalar(self.random.choice(NUMBERS), dtype)
                spread = self.random.random() < 0.2
                names[pattern.name] = build.broadcast_to(number, base) if spread else number
            node = names[pattern.name]
            assert isinstance(node, Node)
            return node
        if isinstance(pattern, Literal):
            return build.scalar(pattern.value, bool_ if isinstance(pattern.value, bool) else dtype)
        if isinstance(pattern, Sum):
            signs = [s or self.random.choice((1, -1)) for s, _ in pattern.terms]
            parts = [self._pattern(t, names, dtype, base) for _, t in pattern.terms]
            return signed_sum(list(zip(signs, parts, strict=True)))
        if isinstance(pattern, Terms):
            shapes = [base, *(self._shape(base) for _ in range(self.random.choice((1, 2))))]
            self.random.shuffle(shapes)
            return signed_sum(
                [
                    (self.random.choice((1, -1)), self.tensor(*s, dtype=dtype, known=self.random.random() < 0.4))
                    for s in shapes
                ]
            )
        if isinstance(pattern, Parts):
            return self._parts(dtype, base)
        if isinstance(pattern, Expanded):
            x = self._pattern(pattern.reduced.args[0], names, dtype, base)
            return build.reduce(pattern.reduced.op, x, self._axes(pattern.reduced, x, names), keepdims=True)
        if isinstance(pattern, Mean):
            x = self._pattern(pattern.x, names, dtype, base)
            axes = self._axes(Apply("reduce_sum", (pattern.x,), pattern.axes), x, names)
            total = build.reduce("reduce_sum", x, axes, keepdims=pattern.keepdims)
            return build.call("div", total, build.scalar(int(np.prod([x.shape[a] for a in axes])), x))
        assert isinstance(pattern, Apply)
        return self._apply(pattern, names, dtype, base)

    def _apply(self, pattern: Apply, names: dict[str, object], dtype: DType, base: tuple[int, ...]) -> Node:
        args = [self._pattern(a, names, dtype, base) for a in pattern.args]
        if pattern.op == "matmul":
            return build.matmul(*args)
        if OPS[pattern.op].kind == "reduce":
            axes = self._axes(pattern, args[0], names)
            return make(pattern.op, args, axes)
        attrs = pattern.attrs
        if isinstance(attrs, Attribute):
            attrs = names.setdefault(attrs.name, self._attrs(pattern.op, args))
        if isinstance(attrs, ViewMap):
            if max((sum((n - 1) * abs(s) for n, s in axis) for axis in attrs.axes), default=0) >= max(
                1, args[0].type.size
            ):
                raise ValueError("this view does not fit")
            return make("view", args, attrs)
        return make(pattern.op, args, attrs)

    def _shape(self, base: tuple[int, ...]) -> tuple[int, ...]:
        """The base shape, one that broadcasts to it, or another altogether."""
        dice = self.random.random()
        if dice < 0.5:
            return base
        if dice < 0.8:
            cut = self.random.randint(0, len(base))
            return tuple(n if self.random.random() < 0.7 else 1 for n in base[cut:])
        return self.random.choice(SHAPES)

    def _parts(self, dtype: DType, base: tuple[int, ...]) -> Node:
        if not base:
            raise ValueError("a concatenation needs an axis")
        axis = self.random.randrange(len(base))
        parts = []
        for _ in range(self.random.choice((2, 3))):
            shape = list(base)
            shape[axis] = self.random.choice((1, 2, 3, 3))
            parts.append(self.tensor(*shape, dtype=dtype, known=self.random.random() < 0.5))
        return build.concat(parts, axis)

    def _axes(self, pattern: Apply, x: Node, names: dict[str, object]) -> tuple[int, ...]:
        if not isinstance(pattern.attrs, Attribute):
            assert isinstance(pattern.attrs, tuple)
            if x.type.ndim == 0:
                raise ValueError("nothing to reduce")
            return tuple(sorted(a % x.type.ndim for a in pattern.attrs))
        if x.type.ndim == 0:
            raise ValueError("nothing to reduce")
        one = pattern.op in ("argmax", "argmin") or self.random.random() < 0.7
        count = 1 if one else self.random.randint(1, x.type.ndim)
        chosen = tuple(sorted(self.random.sample(range(x.type.ndim), count)))
        given = names.setdefault(pattern.attrs.name, chosen)
        assert isinstance(given, tuple)
        return given

    def _attrs(self, op: str, args: Sequence[Node]) -> object:
        x = args[0]
        if op == "view":
            return self._view(x.shape)
        if op == "contract":
            return self._spec(args[0].shape, args[1].shape)
        if op == "cast":
            return self.random.choice((float64, float32, int64))
        if op == "gather":
            raise ValueError("random indices are out of range")
        if op == "pad":
            if 0 in x.shape or not x.shape:
                raise ValueError("nothing to pad")
            widths = tuple((self.random.randint(0, 2), self.random.randint(0, 2)) for _ in x.shape)
            return PadAttrs(widths, self.random.choice((0, 0, 1)))
        if op in ("layer_norm", "rms_norm"):
            return 1e-5
        return self.random.randrange(max(1, x.type.ndim))

    def _view(self, shape: tuple[int, ...]) -> ViewMap:
        kind = self.random.choice(("transpose", "transpose", "reshape", "broadcast", "slice", "flip", "diagonal"))
        rank = len(shape)
        if kind == "transpose":
            return views.transpose(shape, self.random.sample(range(rank), rank))
        if kind == "reshape":
            size = int(np.prod(shape))
            cuts = [n for n in (1, 2, 3, 4, 6) if size % n == 0]
            first = self.random.choice(cuts)
            return views.reshape(shape, (first, size // first))
        if kind == "broadcast":
            return views.broadcast(shape, (*self.random.choice(((2,), (3,), ())), *(3 if n == 1 else n for n in shape)))
        if kind == "diagonal":
            if rank < 2 or shape[-1] != shape[-2]:
                raise ValueError("no diagonal")
            steps = row_major(shape)
            return views.strided((*shape[:-2], shape[-1]), (*steps[:-2], steps[-1] + steps[-2]))
        if kind == "flip":
            return views.slices(shape, [max(0, n - 1) for n in shape], [-1] * rank, shape)
        sizes = [self.random.randint(min(1, n), n) for n in shape]
        starts = [self.random.randint(0, n - size) for n, size in zip(shape, sizes, strict=True)]
        return views.slices(shape, starts, [1] * rank, sizes)

    def _spec(self, a: tuple[int, ...], b: tuple[int, ...]) -> Spec:
        left: list[object] = [("a", i) for i in range(len(a))]
        right: list[object] = [("b", i) for i in range(len(b))]
        for j, n in enumerate(b):
            fits = [i for i, m in enumerate(a) if m == n and left[i] not in right]
            if fits and self.random.random() < 0.75:
                right[j] = left[self.random.choice(fits)]
        both = [x for x in left if x in right]
        summed = {x for x in both if self.random.random() < 0.7}
        out = [x for x in dict.fromkeys((*left, *right)) if x not in summed]
        self.random.shuffle(out)
        return make_spec(left, right, out)


def _integers(rng: np.random.Generator, type: TensorType) -> np.ndarray:
    """Small integers, and with them those that wrap around when they are added, multiplied or negated."""
    limits = np.iinfo(type.dtype.numpy)
    hard = (limits.min, limits.min + 1, limits.max, limits.max - 1, *(n for n in WRAPS if n <= limits.max))
    small = rng.integers(-5, 6, type.shape)
    return np.where(rng.random(type.shape) < 0.6, small, rng.choice(np.array(hard), type.shape)).astype(
        type.dtype.numpy
    )


def _values(rng: np.random.Generator, type: TensorType, hard: bool, nan: bool) -> np.ndarray:
    if type.dtype == bool_:
        return rng.random(type.shape) < 0.5
    if not type.dtype.is_float:
        return _integers(rng, type)
    if hard:
        with np.errstate(over="ignore"):
            return rng.choice(np.array(HARD), type.shape).astype(type.dtype.numpy)
    found = rng.normal(size=type.shape)
    if nan and type.size:
        found = np.where(rng.random(type.shape) < 0.2, np.nan, found)
    return np.asarray(found).astype(type.dtype.numpy)
