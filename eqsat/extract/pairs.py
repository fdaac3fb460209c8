"""Kernels that compute what others of a program store for them alone.

Candidates combine the best few streams of operands: what one of a program's kernels might inline is not among them
where its other operands have better streams than those that the program is best with. Of a chosen program it is known
which those are.
"""

from __future__ import annotations

from collections.abc import Iterable

from eqsat.extract.candidates import Candidates
from eqsat.extract.streams import Stream
from eqsat.ir.table import OPS


def add_pairs(candidates: Candidates, chosen: Iterable[Stream]) -> list[Stream]:
    """New kernels, each for two of the chosen ones of which one stores what the other alone reads, where it takes less
    time than the two. They are added to the pool."""
    maker = {s.eclass: s for s in chosen} if candidates.fuse else {}
    users: dict[int, list[Stream]] = {}
    for stream in maker.values():
        for need in stream.needs:
            users.setdefault(need, []).append(stream)
    found: list[Stream] = []
    for need, using in users.items():
        by = maker.get(need)
        if by is None or by.root or len(using) != 1 or need in candidates.egraph.outputs:
            continue
        made = _pair(candidates, using[0], by)
        if made is None or made.uid in candidates.pool[made.eclass] or made.seconds >= using[0].seconds + by.seconds:
            continue
        candidates.pool[made.eclass][made.uid] = made
        found.append(made)
    return found


def _pair(candidates: Candidates, stream: Stream, by: Stream) -> Stream | None:
    """The stream with ``by`` where it reads what that makes; None where they do not fuse."""
    if stream.is_read:
        return by if stream.eclass == by.eclass else stream
    children: list[Stream] = []
    for child in stream.children:
        inner = child if by.eclass not in child.reads else _pair(candidates, child, by)
        if inner is None:
            return None
        children.append(inner)
    node = candidates.egraph.classes[stream.eclass][stream.node]
    kind, type = OPS[node.op].kind, candidates.types[stream.eclass]
    if kind == "opaque":
        return None
    return candidates.build.make(stream.eclass, stream.node, kind, node.op, node.attrs, type, tuple(children))
