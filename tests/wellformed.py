"""Checks of what extraction returns: kernels that can be kernels, programs that can run."""

from __future__ import annotations

from eqsat.extract.terms import Read, Selection, Term
from eqsat.ir.node import ConstArray
from eqsat.ir.table import OPS
from eqsat.ir.views import ViewMap


class MalformedError(ValueError):
    """A term that is no kernel, or kernels that are no program; the message says why."""


def check_selection(selection: Selection, inputs: frozenset[int]) -> None:
    """Raise ``MalformedError`` unless every kernel is well-formed and reads only inputs, constants that are
    listed, and tensors stored by kernels before it, and every output is there."""
    known: set[int] = set()
    for term in selection.constants:
        if any(not isinstance(child, Read) or not child.const for child in term.children):
            raise MalformedError(f"constant {term.eclass}: operands must be constants that are listed")
        _check_reads(term, known, "constant")
        known.add(term.eclass)
    stored = set(inputs)
    for term in selection.kernels:
        check_kernel(term)
        _check_reads(term, known | stored, "kernel")
        if term.eclass in stored:
            raise MalformedError(f"e-class {term.eclass} is stored twice")
        stored.add(term.eclass)
    for output in selection.outputs:
        if output not in stored and output not in known:
            raise MalformedError(f"output {output} is not computed")


def _check_reads(term: Term, known: set[int], what: str) -> None:
    for read in term.reads():
        if read.eclass not in known:
            raise MalformedError(f"{what} {term.eclass} reads e-class {read.eclass}, which is not there yet")


def check_kernel(term: Term) -> None:
    """Raise ``MalformedError`` unless the term is one kernel (for joins, one kernel per part)."""
    kind = OPS[term.op].kind
    if kind == "composite":
        raise MalformedError(f"{term.op} is not executable; its expansion is")
    if any(read.eclass == term.eclass for read in term.reads()):
        raise MalformedError(f"the kernel of e-class {term.eclass} reads itself")
    if kind == "opaque":
        if not all(isinstance(child, Read) for child in term.children):
            raise MalformedError(f"{term.op} runs over stored operands only")
        return
    for part in term.children if kind in ("concat", "pad") else (term,):
        cores: list[tuple[Term, tuple[object, ...]]] = []
        _check_stream(part, cores, (), False)
        for core in cores[1:]:
            if core != cores[0]:
                raise MalformedError(f"two accumulations in one kernel: {cores[0][0].op} and {core[0].op}")


def _check_stream(
    node: Term | Read, cores: list[tuple[Term, tuple[object, ...]]], path: tuple[object, ...], inside: bool
) -> None:
    """Walk a stream. ``path``: the views above; ``inside``: below an accumulation."""
    if isinstance(node, Read):
        return
    kind = OPS[node.op].kind
    _check_type(node)
    if node.op == "const":
        if not isinstance(node.attrs, ConstArray) or node.attrs.array.size != 1:
            raise MalformedError("a constant tensor is read, not inlined")
    elif kind in ("contract", "reduce"):
        if inside:
            raise MalformedError(f"{node.op} below another accumulation")
        cores.append((node, path))
        for child in node.children:
            _check_stream(child, cores, (), True)
    elif kind == "view":
        (child,) = node.children
        assert isinstance(node.attrs, ViewMap)
        found = len(cores)
        _check_stream(child, cores, (*path, node.attrs), inside)
        if len(cores) > found and not inside and not node.attrs.is_one_to_one(child.type.size):
            raise MalformedError("a view of an accumulated value must be one-to-one")
    elif kind == "map":
        for child in node.children:
            found = len(cores)
            _check_stream(child, cores, path, inside)
            if len(cores) > found and not inside and child.type.size != node.type.size:
                raise MalformedError(f"{node.op} broadcasts an accumulated value")
    elif kind == "gather":
        table, index = node.children
        while isinstance(table, Term) and table.op == "view":
            (table,) = table.children
        if not isinstance(table, Read):
            raise MalformedError("a gather needs its table stored")
        _check_stream(index, cores, path, True)
    elif node.op != "iota":
        raise MalformedError(f"{node.op} cannot be inlined")


def _check_type(node: Term) -> None:
    type_ = OPS[node.op].type_rule([child.type for child in node.children], node.attrs)
    if type_ != node.type:
        raise MalformedError(f"{node.op} gives {type_}, not {node.type}")
