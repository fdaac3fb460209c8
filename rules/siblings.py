"""Contractions that share an input merged into one, and the reverse."""

from __future__ import annotations

from collections.abc import Sequence

from eqsat.ir import build, views
from eqsat.ir.build import call
from eqsat.ir.node import Node
from eqsat.ir.spec import Spec
from eqsat.ir.views import ViewMap
from eqsat.rules import Match, Parts, attributes, contract, gather, rewrite, signed_sum, tensors, whole
from eqsat.rules.examples import Maker

b, w, x = tensors("b w x")
s = attributes("s")


def program_weight(m: Match) -> bool:
    """the weight is known and one of the program's own, the input is not known"""
    return m.known(m.w) and m.original(m.w) and not m.known(m.x)


def program_weight_and_bias(m: Match) -> bool:
    """weight and bias are known and the program's own, the bias a vector along the result's last axis"""
    return program_weight(m) and m.known(m.b) and m.original(m.b) and m.b.shape == m.root.shape[-1:]


def few_parts(m: Match) -> bool:
    """the concatenation is one of the program's own, or the e-graph small, of at most four parts"""
    return len(m.ps) <= 4 and (m.small() or m.original(m._class_ps))


def _column(spec: Spec, weights: Sequence[Node]) -> int | None:
    """The one axis of the weights that goes to the result alone, if they agree in the others."""
    if len(spec.cols) != 1:
        return None
    axis = spec.b.index(spec.cols[0])
    shapes = {tuple(n for k, n in enumerate(w.shape) if k != axis) for w in weights}
    return axis if len(shapes) == 1 else None


def _slices(whole: Node, axis: int, sizes: Sequence[int]) -> list[Node]:
    found, at = [], 0
    for size in sizes:
        found.append(build.take_range(whole, axis, at, at + size))
        at += size
    return found


def _merge(matches: Sequence[Match]) -> list[Node] | None:
    spec: Spec = matches[0].s
    weights = [m.w for m in matches]
    axis = _column(spec, weights)
    if axis is None:
        return None
    product = build.contract(spec, matches[0].x, build.concat(weights, axis))
    return _slices(product, spec.out.index(spec.b[axis]), [w.shape[axis] for w in weights])


def _merge_biased(matches: Sequence[Match]) -> list[Node] | None:
    spec: Spec = matches[0].s
    weights = [m.w for m in matches]
    axis = _column(spec, weights)
    if axis is None or spec.out[-1] != spec.b[axis]:
        return None
    product = build.contract(spec, matches[0].x, build.concat(weights, axis))
    bias = build.concat([m.b for m in matches], 0)
    return _slices(signed_sum([(1, product), (1, bias)]), len(spec.out) - 1, [w.shape[axis] for w in weights])


def slice_of_tensor(m: Match) -> bool:
    """the weight and the product are the program's own, and the input a view of a tensor that is not known"""
    own = m.original(m.w) and (m.known(m.w) or m.original(m.root))
    return own and not m.known(m.x) and bool(m.forms(m.x, "view"))


def _merge_rows(matches: Sequence[Match]) -> list[Node] | None:
    """One product of all the slices; their concatenation is the tensor itself where they cover it."""
    spec: Spec = matches[0].s
    maps, bases = [], set()
    for m in matches:
        map, inputs = m.forms(m.x, "view")[0]
        assert isinstance(map, ViewMap)
        maps.append(map)
        bases.add(inputs[0])
    if len(spec.rows) != 1 or len(bases) != 1:
        return None
    if len({map.offset for map in maps}) < len(maps):
        return None  # one is a part of another, perhaps of what was merged before: that would go on for ever
    axis = spec.a.index(spec.rows[0])
    if len({tuple(n for k, n in enumerate(m.x.shape) if k != axis) for m in matches}) != 1:
        return None
    # As they lie in the tensor, so that their concatenation is a view of it.
    order = sorted(range(len(matches)), key=lambda n: (maps[n].offset, n))
    if not matches[0].known(matches[0].w) and views.joined([maps[n] for n in order], axis) is None:
        return None  # nothing is saved that copying the slices would not cost
    slices = [matches[n].x for n in order]
    product = build.contract(spec, build.concat(slices, axis), matches[0].w)
    parts = _slices(product, spec.out.index(spec.rows[0]), [x.shape[axis] for x in slices])
    return [parts[order.index(n)] for n in range(len(matches))]


def _split(m: Match) -> Node | None:
    """x@[u v] as [x@u x@v], and [x y]@w as a sum."""
    spec: Spec = m.s
    label = spec.b[m.ps_axis]
    if label in spec.a and label not in spec.out:
        along, at, terms = spec.a.index(label), 0, []
        for part in m.ps:
            size = part.shape[m.ps_axis]
            terms.append((1, build.contract(spec, build.take_range(m.x, along, at, at + size), part)))
            at += size
        return signed_sum(terms)
    if label in spec.a:
        return None
    return build.concat([build.contract(spec, m.x, part) for part in m.ps], spec.out.index(label))


def _projections(mk: Maker) -> list[Node]:
    x = mk.tensor(2, 3, 4)
    if mk.random.random() < 0.5:
        return [build.matmul(x, mk.known(4, n)) for n in (2, 5, 3)]
    return [build.matmul(mk.known(n, 3), x) for n in (2, 5, 3)]


def _steps(mk: Maker) -> list[Node]:
    x, w = mk.tensor(4, 3), mk.tensor(3, 5, known=mk.random.random() < 0.5)
    return [build.matmul(build.take_range(x, 0, at, at + n), w) for at, n in ((0, 1), (1, 2), (3, 1))]


def _biased_projections(mk: Maker) -> list[Node]:
    x = mk.tensor(3, 4)
    return [call("add", build.matmul(x, mk.known(4, n)), mk.known(n)) for n in (2, 5, 3)]


merge_siblings = gather(
    contract(x, w, s),
    ("x", "s"),
    _merge,
    where=program_weight,
    doc="x@u, x@v from x@[u v]",
    example=_projections,
)
merge_rows = gather(
    contract(x, w, s),
    ("w", "s"),
    _merge_rows,
    where=slice_of_tensor,
    doc="x[i]@w, x[j]@w from [x[i] x[j]]@w",
    example=_steps,
)
merge_biased_siblings = gather(
    whole(contract(x, w, s) + b),
    ("x", "s"),
    _merge_biased,
    where=program_weight_and_bias,
    doc="x@u + a, x@v + b from x@[u v] + [a b]",
    example=_biased_projections,
)
contract_concat = rewrite(contract(x, Parts("ps"), s), _split, where=few_parts, doc="x@[u v] = [x@u x@v]")
