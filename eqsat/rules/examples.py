"""Random typed programs on which a rule should fire, and values for their inputs."""

from __future__ import annotations

import math
import random
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import numpy as np

from eqsat.ir import build, views
from eqsat.ir.joins import PadAttrs
from eqsat.ir.node import ConstArray, Node
from eqsat.ir.spec import Spec, make_spec
from eqsat.ir.table import OPS, make
from eqsat.ir.types import (
    DType,
    TensorType,
    bool_,
    float16,
    float32,
    float64,
    int8,
    int16,
    int32,
    int64,
    is_floating,
    row_major,
    uint8,
    uint16,
    uint32,
    uint64,
)
from eqsat.ir.views import ViewMap
from eqsat.rules.instantiate import signed_sum, swapped
from eqsat.rules.pattern import (
    Apply,
    Attribute,
    Expanded,
    Joined,
    Literal,
    Mean,
    NumberVar,
    Parts,
    Pattern,
    Sum,
    Swapped,
    Terms,
    Var,
)
from eqsat.rules.values import Regime, near_numbers, random_values

PARTS = (2, 2, 3, 5, 2, 2, 3, 9)
MORE_TERMS = (1, 2, 2, 4, 1, 2, 2, 8)
"""How many parts a concatenation has, and a sum terms beside one: now and then more than a rule's author thought of."""
SHAPES: tuple[tuple[int, ...], ...] = (
    (3,),
    (3, 4),
    (2, 3, 4),
    (3, 3),
    (),
    (2, 2),
    (2, 2, 2),
    (1, 4),
    (3, 1),
    (2, 1, 4),
    (4,),
    (4, 3),
    (1,),
    (0, 4),
    (4, 1, 3),
    (2, 1, 3, 2),
    (1, 1),
    (2, 3, 2),
    (2, 0),
    (300,),
    (2, 260),
)
"""Shapes of examples: unequal and equal extents, of 1 and 0, one of more than bytes count to, and up to four axes."""
DTYPES = (
    *(float64, float32, int64, float64, bool_, float32, float64, int32, float64, uint8, float32, int8, uint64),
    *(float16, int16, uint32, uint16),
)
"""Element types of examples, the usual ones more often."""
NUMBERS = (2.0, 0.5, 3.0, -1.5, 0.25, 1.0, -1.0, 1.7, -4.0, 10.0, 0.0, 1e-3, 1e3)
RARE = (-0.0, 1e30, -1e30, 1e-30, np.inf, -np.inf, np.nan, 1e300, 1e-310, 5e-324)
"""Numbers from which guards should keep a rule, or on which only what is finite must agree."""
TARGETS = (float64, float32, float16, int64, int32, int16, int8, uint64, uint32, uint16, uint8, bool_)
"""Element types of casts."""
VIEWS = (
    *("transpose", "transpose", "reshape", "broadcast", "slice", "flip", "flip", "diagonal", "step", "rows", "both"),
)
"""Kinds of index maps, the usual ones more often."""
PADDINGS = {"bool": (0, 1), "int": (0, 0, 1, 2)}
"""What is padded with, by the kind of the elements; floats with others, too."""


class Maker:
    """Makes example programs: input tensors of chosen or random shapes, known or not."""

    def __init__(self, seed: int, *, dtype: DType | None = None, base: tuple[int, ...] | None = None) -> None:
        self.random = random.Random(seed)
        self.inputs: list[Node] = []
        self.known_inputs: list[Node] = []
        self.names: dict[str, object] = {}
        """What a pattern's variables stand for in the programs made from it."""
        self.literals: list[float] = []
        """The numbers in the patterns, near which a rule may hold or not."""
        self.rare = False
        """Whether a number is among the programs' that may take a promise out of force, such as infinity."""
        self._dtype = dtype
        self._base = base

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

    def values(self, regime: Regime = "ordinary") -> dict[Node, np.ndarray]:
        """Random values for the inputs."""
        rng = np.random.default_rng(self.random.getrandbits(32))
        found = {
            node: near_numbers(rng, random_values(rng, node.type, regime), regime, self.literals)
            for node in self.inputs
        }
        floats = [value for value in found.values() if is_floating(value) and value.size]
        if regime == "lone" and floats:
            chosen = floats[rng.integers(len(floats))]
            chosen.flat[rng.integers(chosen.size)] = np.nan
        return found

    def from_patterns(self, patterns: Sequence[Pattern], *, longer: bool = True) -> list[Node]:
        """Random programs that patterns sharing variables match; ``ValueError`` where the dice do not fit.

        ``longer``: a sum may have more terms than its pattern.
        """
        self._roll()
        if longer and len(patterns) == 1 and isinstance(patterns[0], Sum) and not patterns[0].whole:
            return [self._longer(patterns[0])]
        return [self._pattern(p) for p in patterns]

    def matches(self, pattern: Pattern, shared: Sequence[str]) -> list[Node]:
        """Programs that all match a pattern and agree on some of its variables."""
        self._roll()
        found = []
        for _ in range(self.random.choice((2, 3))):
            found.append(self._pattern(pattern))
            self.names = {name: bound for name, bound in self.names.items() if name in shared}
        return found

    def _roll(self) -> None:
        self._dtype = self._dtype or self.random.choice(DTYPES)
        self._base = self.random.choice(SHAPES) if self._base is None else self._base

    @property
    def dtype(self) -> DType:
        assert self._dtype is not None
        return self._dtype

    @property
    def base(self) -> tuple[int, ...]:
        assert self._base is not None
        return self._base

    def _longer(self, pattern: Sum) -> Node:
        """A sum in which a sum is found: with more terms, or of the other sign."""
        flip = self.random.choice((1, 1, 1, -1))
        signs = [flip * (s or self.random.choice((1, -1))) for s, _ in pattern.terms]
        terms = [(s, self._pattern(t)) for s, (_, t) in zip(signs, pattern.terms, strict=True)]
        for _ in range(self.random.choice((0, 0, 1, 2))):
            shape = self._shape(self.base)
            terms.append((self.random.choice((1, -1)), self.tensor(*shape, dtype=terms[0][1].dtype)))
        self.random.shuffle(terms)
        return signed_sum(terms)

    def _pattern(self, pattern: Pattern, truth: bool = False) -> Node:
        """A program that matches; ``truth``: of bools, where it is a variable."""
        dtype, names = bool_ if truth else self.dtype, self.names
        if isinstance(pattern, Var):
            if pattern.name not in names:
                names[pattern.name] = self._variable(self._shape(self.base), dtype)
            node = names[pattern.name]
            assert isinstance(node, Node)
            return node
        if isinstance(pattern, NumberVar):
            if pattern.name not in names:
                rare = self.random.random() < 0.2
                self.rare |= rare
                drawn = self.random.choice(RARE if rare else NUMBERS)
                if not rare and self.random.random() < 0.25:  # no list has all that a rule may ask for
                    drawn = self.random.choice((-1.0, 1.0)) * self.random.choice((self.random.randint(2, 12), 0.375))
                with np.errstate(over="ignore"):
                    number = build.scalar(_number(drawn, dtype), dtype)
                names[pattern.name] = self._spread(number)
            node = names[pattern.name]
            assert isinstance(node, Node)
            return node
        if isinstance(pattern, Literal):
            self.literals.append(float(pattern.value))
            return self._spread(build.scalar(pattern.value, bool_ if isinstance(pattern.value, bool) else dtype))
        if isinstance(pattern, Sum):
            signs = [s or self.random.choice((1, -1)) for s, _ in pattern.terms]
            return signed_sum([(s, self._pattern(t)) for s, (_, t) in zip(signs, pattern.terms, strict=True)])
        if isinstance(pattern, Terms):
            shapes = [self.base, *(self._shape(self.base) for _ in range(self.random.choice(MORE_TERMS)))]
            self.random.shuffle(shapes)
            return signed_sum([(self.random.choice((1, -1)), self._variable(s, dtype)) for s in shapes])
        if isinstance(pattern, Parts):
            return self._parts()
        if isinstance(pattern, Expanded):
            x = self._pattern(pattern.reduced.args[0])
            return build.reduce(pattern.reduced.op, x, self._axes(pattern.reduced, x), keepdims=True)
        if isinstance(pattern, Mean):
            x = self._pattern(pattern.x)
            axes = self._axes(Apply("reduce_sum", (pattern.x,), pattern.axes), x)
            total = build.reduce("reduce_sum", x, axes, keepdims=pattern.keepdims)
            return build.call("div", total, build.scalar(int(np.prod([x.shape[a] for a in axes])), x))
        if isinstance(pattern, Swapped):
            return swapped(self._pattern(pattern.x))
        if isinstance(pattern, Joined):
            return self._joined(pattern)
        assert isinstance(pattern, Apply)
        return self._apply(pattern)

    def _variable(self, shape: tuple[int, ...], dtype: DType) -> Node:
        """An input, known or not, or now and then a literal array."""
        if self.random.random() < 0.9:
            return self.tensor(*shape, dtype=dtype, known=self.random.random() < 0.4)
        kind = self.random.choice(("values", "values", "ones", "zeros", "identity"))
        if kind == "identity" and len(shape) == 2 and shape[0] == shape[1]:
            return build.const(np.eye(shape[0]), dtype)
        rng = np.random.default_rng(self.random.getrandbits(32))
        return build.const(rng.integers(-3, 4, shape) if kind == "values" else np.full(shape, kind == "ones"), dtype)

    def _apply(self, pattern: Apply) -> Node:
        if pattern.op == "matmul":
            return self._matmul(*pattern.args)
        if pattern.op == "gather":
            return self._gather(pattern)
        logical = pattern.op.startswith("logical")
        args = []
        for at, arg in enumerate(pattern.args):
            with self._another_type(pattern):
                args.append(self._pattern(arg, logical or (pattern.op == "where" and at == 0)))
        if OPS[pattern.op].kind == "reduce":
            return make(pattern.op, args, self._axes(pattern, args[0]))
        attrs = pattern.attrs
        if isinstance(attrs, Attribute):
            attrs = self.names.setdefault(attrs.name, self._attrs(pattern.op, args))
        if isinstance(attrs, ViewMap):
            if max((sum((n - 1) * abs(s) for n, s in axis) for axis in attrs.axes), default=0) >= max(
                1, args[0].type.size
            ):
                raise ValueError("this view does not fit")
            return make("view", args, attrs)
        return make(pattern.op, args, attrs)

    @contextmanager
    def _another_type(self, pattern: Apply) -> Iterator[None]:
        """What is cast is of any type, whatever is beside the cast."""
        own = self._dtype
        if pattern.op == "cast" and self.random.random() < 0.7:
            self._dtype = self.random.choice(DTYPES)
        try:
            yield
        finally:
            self._dtype = own

    def _matmul(self, left: Pattern, right: Pattern) -> Node:
        """A product, of which a factor that is a new variable is made to fit."""
        free = [isinstance(p, Var) and p.name not in self.names for p in (left, right)]
        if free[1]:
            a = self._pattern(left)
            if a.type.ndim and isinstance(right, Var) and self.random.random() < 0.9:
                columns = self.random.choice(((), (1,), (2,), (3,), (4,)))
                batch = a.shape[:-2] if self.random.random() < 0.5 and columns else ()
                self.names.setdefault(right.name, self._variable((*batch, a.shape[-1], *columns), self.dtype))
            return build.matmul(a, self._pattern(right))
        b = self._pattern(right)
        if free[0] and b.type.ndim and isinstance(left, Var):
            rows = self.random.choice(((), (1,), (2,), (3,), (5,)))
            self.names[left.name] = self._variable((*rows, b.shape[0 if b.type.ndim == 1 else -2]), self.dtype)
        return build.matmul(self._pattern(left), b)

    def _gather(self, pattern: Apply) -> Node:
        """Rows of a table by indices that are in range."""
        x = self._pattern(pattern.args[0])
        if not x.type.size:
            raise ValueError("nothing to take")
        axis = pattern.attrs
        if isinstance(axis, Attribute):
            axis = self.names.setdefault(axis.name, self.random.randrange(x.type.ndim))
        if not isinstance(axis, int) or not x.type.ndim:
            raise ValueError("no axis to take along")
        index = pattern.args[1]
        if isinstance(index, Var) and index.name not in self.names:
            any_index = self.tensor(*self.random.choice(((), (2,), (3,), (2, 2))), dtype=int64)
            self.names[index.name] = build.call("remainder", any_index, build.scalar(x.shape[axis], any_index))
        return make("gather", [x, self._pattern(index)], axis)

    def _shape(self, base: tuple[int, ...]) -> tuple[int, ...]:
        """The base shape, one that broadcasts to it, or another altogether."""
        dice = self.random.random()
        if dice < 0.5:
            return base
        if dice < 0.8:
            cut = self.random.randint(0, len(base))
            return tuple(n if self.random.random() < 0.7 else 1 for n in base[cut:])
        return self.random.choice(SHAPES)

    def _spread(self, number: Node) -> Node:
        """A number as it is, now and then as a tensor: a view of it, or a constant, which NumPy may treat otherwise."""
        how = self.random.random()
        if how < 0.1:
            return build.broadcast_to(number, self.base)
        if how < 0.2 and isinstance(number.attrs, ConstArray):
            return build.const(np.full(self.base, number.attrs.array), number.dtype)
        return number

    def _parts(self) -> Node:
        if not self.base:
            raise ValueError("a concatenation needs an axis")
        axis = self.random.randrange(len(self.base))
        parts = []
        for _ in range(self.random.choice(PARTS)):
            shape = list(self.base)
            shape[axis] = self.random.choice((1, 2, 3, 3))
            parts.append(self._variable(tuple(shape), self.dtype))
        return build.concat(parts, axis)

    def _joined(self, pattern: Joined) -> Node:
        """A concatenation, of which parts that are new variables are made to fit."""
        cut = self.random.randint(1, len(self.base)) if self.base and self.random.random() < 0.2 else 0
        base = self.base[cut:] or self.base[-1:]  # of fewer axes it is broadcast to what is beside it
        rank = len(base)
        if not rank:
            raise ValueError("a concatenation needs an axis")
        axis = pattern.axis
        if isinstance(axis, Attribute):
            axis = self.names.setdefault(axis.name, self.random.randrange(rank))
        assert isinstance(axis, int)
        if not -rank <= axis < rank:
            raise ValueError("no such axis")
        parts = []
        for part in pattern.parts:
            if isinstance(part, Var) and part.name not in self.names:
                shape = list(base)
                shape[axis % rank] = self.random.choice((1, 2, 3, 3))
                self.names[part.name] = self._variable(tuple(shape), self.dtype)
            parts.append(self._pattern(part))
        return build.concat(parts, axis if axis >= 0 else axis + parts[0].type.ndim)

    def _axes(self, pattern: Apply, x: Node) -> tuple[int, ...]:
        if x.type.ndim == 0:
            raise ValueError("nothing to reduce")
        if not isinstance(pattern.attrs, Attribute):
            assert isinstance(pattern.attrs, tuple)
            if not all(-x.type.ndim <= a < x.type.ndim for a in pattern.attrs):
                raise ValueError("no such axis")
            return tuple(sorted(a % x.type.ndim for a in pattern.attrs))
        one = pattern.op in ("argmax", "argmin") or self.random.random() < 0.7
        count = 1 if one else self.random.randint(1, x.type.ndim)
        chosen = tuple(sorted(self.random.sample(range(x.type.ndim), count)))
        given = self.names.setdefault(pattern.attrs.name, chosen)
        assert isinstance(given, tuple)
        return given

    def _attrs(self, op: str, args: Sequence[Node]) -> object:
        x = args[0]
        if op == "view":
            return self._view(x.shape)
        if op == "contract":
            return self._spec(args[0].shape, args[1].shape)
        if op == "cast":
            return self.random.choice(TARGETS)
        if op == "gather":
            raise ValueError("random indices are out of range")
        if op == "pad":
            if 0 in x.shape or not x.shape:
                raise ValueError("nothing to pad")
            widths = tuple((self.random.randint(0, 2), self.random.randint(0, 2)) for _ in x.shape)
            numbers = PADDINGS.get(x.dtype.kind, (0, 0, 1, 2.5, -3))
            return PadAttrs(widths, self.random.choice(numbers))
        if op in ("layer_norm", "rms_norm"):
            return self.random.choice((1e-5, 1e-5, 0.25))
        return self.random.randrange(max(1, x.type.ndim))

    def _view(self, shape: tuple[int, ...]) -> ViewMap:
        kind = self.random.choice(VIEWS)
        rank = len(shape)
        if kind == "transpose":
            order = self.random.sample(range(rank), rank)
            return views.transpose(shape, order if order != sorted(order) else order[::-1])
        if kind == "reshape":
            size = int(np.prod(shape))
            cuts = [n for n in (1, 2, 3, 4, 6) if size % n == 0]
            first = self.random.choice(cuts)
            return views.reshape(shape, (first, size // first))
        if kind == "broadcast":
            before = self.random.choice(((2,), (3,), (), shape[-1:]))
            return views.broadcast(shape, (*before, *(3 if n == 1 else n for n in shape)))
        if kind == "diagonal":
            if rank < 2 or shape[-1] != shape[-2]:
                raise ValueError("no diagonal")
            steps = row_major(shape)
            return views.strided((*shape[:-2], shape[-1]), (*steps[:-2], steps[-1] + steps[-2]))
        if kind == "flip":
            flips = [self.random.choice((-1, 1)) for _ in shape]
            starts = [max(0, n - 1) if step < 0 else 0 for n, step in zip(shape, flips, strict=True)]
            return views.slices(shape, starts, flips, shape)
        if kind == "step":
            apart = [self.random.choice((1, 2, -2, 3)) for _ in shape]
            starts = [max(0, n - 1) if step < 0 else 0 for n, step in zip(shape, apart, strict=True)]
            sizes = [-(-n // abs(step)) for n, step in zip(shape, apart, strict=True)]
            return views.slices(shape, starts, apart, sizes)
        if kind == "rows":  # one of them again and again, or windows that overlap
            if not rank or 0 in shape:
                raise ValueError("no rows")
            strides, again = list(row_major(shape)), self.random.randrange(rank)
            if self.random.random() < 0.5:
                strides[again] = 0
                return views.strided(shape, strides)
            length = self.random.randint(1, shape[again])
            windows = (*shape[:again], shape[again] - length + 1, *shape[again + 1 :], length)
            return views.strided(windows, (*strides, strides[again]))
        if kind == "both":
            inner = self._view(shape)
            both = views.compose(views.flattened(inner), self._view(inner.shape))
            if both is None:
                raise ValueError("no such view")
            return both
        sizes = [self.random.randint(min(1, n), n) for n in shape]
        at = [self.random.randint(0, n - size) for n, size in zip(shape, sizes, strict=True)]
        return views.slices(shape, at, [1] * rank, sizes)

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


def _number(value: float, dtype: DType) -> float | int:
    """A number as one of an element type, integers by wrapping around."""
    if dtype.kind != "int":
        with np.errstate(all="ignore"):
            return float(np.asarray(value, np.float64).astype(dtype.numpy)) if dtype.is_float else bool(value)
    return int(value) if math.isfinite(value) else dtype.limits[0]
