"""Terms as the e-graph holds them: hash-consed, with e-classes as integer handles.

This is the Python side of an e-graph whose matching is egglog's. It types terms, puts them in canonical form (see
``canonical``), keeps congruence so that no known term is sent again, and follows what is known of each class: whether
it is known when the program is compiled, and the number all its elements equal. What egglog must hear of is queued as
rows.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from eqsat.egraph.asked import EVERYWHERE, Asked
from eqsat.egraph.canonical import SUMS, Canonical, signed_operands, signs_of
from eqsat.egraph.interning import Interner, Number, number_key, number_or_array_key, uniform
from eqsat.errors import RuleError
from eqsat.ir.build import broadcast_to
from eqsat.ir.node import ConstArray, Node, intern
from eqsat.ir.repeats import worth_storing
from eqsat.ir.table import OPS, make
from eqsat.ir.types import TensorType

FOLDED_SIZE = 4096
"""Constants up to this many elements are computed during the search; larger ones are left as known terms."""


@dataclass(slots=True)
class Term:
    """An operator over classes, as egglog was told of it: children may since have been merged into others.

    ``attrs`` is an interned attribute. ``live``: not a copy of another term.
    """

    op: str
    attrs: int
    children: tuple[int, ...]
    handle: int
    rule: str | None
    live: bool = True


class Terms:
    """The term store. ``constants``: input nodes whose values are known when the program is compiled.

    ``attrs``, ``numbers``: what it begins to count with. ``room``: with so many terms it is no longer small.
    """

    def __init__(
        self,
        constants: frozenset[Node],
        *,
        flatten: bool,
        fold: bool,
        room: int = 0,
        attrs: Interner | None = None,
        numbers: Interner | None = None,
    ) -> None:
        self.attrs = attrs or Interner()
        self._forms = Canonical(self.attrs)
        self.numbers = numbers or Interner()
        self.terms: list[Term] = []
        self.types: list[TensorType] = []
        self.live = 0
        self.empty: set[int] = set()
        self.merges: dict[int, list[tuple[int, str | None]]] = {}
        self.rows: dict[tuple[str, int], list[tuple[int, ...]]] = {}
        self._constants = constants
        self.room = room
        self.outgrown = False  # whether somebody was told since this was last set
        self._flatten = flatten
        self._fold = fold
        self._parent: list[int] = []
        self._known: list[bool] = []
        self._original: list[bool] = []
        self._value: list[Number | None] = []
        self._array: list[ConstArray | None] = []
        self._table: dict[tuple[str, int, tuple[int, ...]], int] = {}
        self._users: list[list[int]] = []
        self._members: list[list[int]] = []
        self._nodes: dict[Node, int] = {}
        self._shared: set[Node] = set()
        self._equal: list[tuple[int, int, str | None]] = []
        self._changed: list[int] = []
        self._settling = False
        self._leaves: dict[int, Node] = {}
        self.asked = Asked()

    # Reading

    def find(self, handle: int) -> int:
        """The class's name: the least handle merged into it."""
        parent = self._parent
        while parent[handle] != handle:
            parent[handle] = parent[parent[handle]]
            handle = parent[handle]
        return handle

    def leaf(self, handle: int) -> Node:
        """A node standing for a class in right sides."""
        if self._parent[handle] != handle:
            handle = self.find(handle)
        node = self._leaves.get(handle)
        if node is None:
            node = self._leaves[handle] = intern("eclass", (), handle, self.types[handle], "")
        return node

    def handle(self, node: Node) -> int:
        """The class a node was inserted in."""
        return self.find(node.attrs) if node.op == "eclass" else self.find(self._nodes[node])  # type: ignore[arg-type]

    def has(self, node: Node) -> bool:
        """Whether a node was inserted as a term of its own."""
        return node in self._nodes

    def own_handle(self, node: Node) -> int:
        """The handle of a node's own term, whatever its class is called by now."""
        return self._nodes[node] if node in self._nodes else self.handle(node)

    def known(self, node: Node) -> bool:
        """Whether a node over classes is known when the program is compiled."""
        if node.op == "eclass":
            handle = self.find(node.attrs)  # type: ignore[arg-type]
            return self._known[handle] or self.asked.lacks(handle, "known")
        return node.op != "input" and all(self.known(n) for n in node.inputs)

    def is_known(self, handle: int) -> bool:
        return self._known[self.find(handle)]

    def value(self, node: Node) -> Number | None:
        if node.op != "eclass" and node not in self._nodes:
            return None
        handle = self.handle(node)
        if self._value[handle] is None:
            self.asked.lacks(handle, "value")
        return self._value[handle]

    def value_of(self, handle: int) -> Number | None:
        return self._value[self.find(handle)]

    def array(self, node: Node) -> ConstArray | None:
        if node.op != "eclass" and node not in self._nodes:
            return None
        handle = self.handle(node)
        if self._array[handle] is None:
            self.asked.lacks(handle, "array")
        return self._array[handle]

    def original(self, node: Node) -> bool:
        if node.op != "eclass":
            return False
        handle = self.find(node.attrs)  # type: ignore[arg-type]
        return self._original[handle] or self.asked.lacks(handle, "original")

    def small(self) -> bool:
        """Whether there are few terms yet, or again: merging makes them fewer."""
        self.outgrown |= self.live >= self.room
        return self.live < self.room or self.asked.lacks(EVERYWHERE, "small")

    def forms(self, node: Node, op: str) -> list[tuple[object, tuple[Node, ...]]]:
        """(attributes, operands) of the terms of an operator in a node's class."""
        if node.op != "eclass" and node not in self._nodes:
            return []
        handle = self.handle(node)
        self.asked.lacks(handle, op)
        members = (self.terms[number] for number in self._members[handle])
        return [
            (self.attrs.values[t.attrs], tuple([self.leaf(c) for c in t.children]))
            for t in members
            if t.live and t.op == op
        ]

    def fewer(self, node: Node, op: str, count: int) -> bool:
        """Whether a node's class has fewer terms of an operator than ``count``."""
        if node.op != "eclass" and node not in self._nodes:
            return count > 0
        handle = self.handle(node)
        self.asked.lacks(handle, op)
        terms = self.terms
        return sum(1 for n in self._members[handle] if terms[n].op == op and terms[n].live) < count

    def canonical(self, term: Term) -> tuple[str, int, tuple[int, ...]]:
        """Operator, attribute and children of a term by now, in canonical order."""
        return self._canonical(term.op, term.attrs, term.children)

    def lookup(self, op: str, attrs: int, children: tuple[int, ...]) -> int | None:
        """The class of a term, if there is one."""
        number = self._table.get(self._canonical(op, attrs, children))
        return None if number is None else self.find(self.terms[number].handle)

    def has_terms(self, handle: int, count: int) -> bool:
        """Whether a class has so many terms."""
        members = self._members[self.find(handle)]
        return len(members) >= count and sum(self.terms[number].live for number in members) >= count

    def signed_terms(self, number: int) -> list[tuple[int, int]]:
        """(sign, class) of every term of a sum, by the number of its term."""
        term = self.terms[number]
        signs = self.attrs.values[term.attrs]
        assert isinstance(signs, tuple)
        return [(s, self.find(c)) for s, c in zip(signs, term.children, strict=True)]

    @property
    def classes(self) -> int:
        return sum(1 for h, p in enumerate(self._parent) if h == p)

    # Writing

    def mark_original(self, outputs: Sequence[Node]) -> None:
        """Insert the program; its shared sums stay terms of their own, and its classes are ``original``."""
        from eqsat.ir.node import topological

        users: dict[Node, int] = {}
        for node in topological(outputs):
            for operand in node.inputs:
                users[operand] = users.get(operand, 0) + 1
        self._shared = {n for n, count in users.items() if count > 1} | set(outputs)
        for output in outputs:
            self.insert(output, None)
        self._original = [True] * len(self._parent)
        self._shared = set()

    def insert(self, node: Node, rule: str | None) -> int:
        """The class of a node over ``leaf`` nodes, adding the terms that are missing."""
        stack = [node]
        while stack:
            at = stack[-1]
            if at.op == "eclass" or at in self._nodes:
                stack.pop()
                continue
            signed = signed_operands(at, self._flatten) if at.op in SUMS else []
            needs = [n for _, n in signed] if signed else list(at.inputs)
            missing = [n for n in needs if n.op != "eclass" and n not in self._nodes]
            if missing:
                stack.extend(reversed(missing))
                continue
            stack.pop()
            if at.op == "input" and rule is not None:
                raise KeyError(f"no such input: {at!r}")
            if signed:
                self._nodes[at] = self._insert_sum(at, signed, rule)
            else:
                self._nodes[at] = self._add(
                    at.op, at.attrs, tuple(self.handle(n) for n in at.inputs), at.type, rule, at
                )
            expansion = OPS[at.op].expansion
            if expansion is not None:
                meaning = expansion([self.leaf(self.handle(n)) for n in at.inputs], at.attrs)
                self.merge(self._nodes[at], self.insert(meaning, rule), rule)
        self._settle()
        return self.handle(node)

    def merge(self, a: int, b: int, rule: str | None) -> bool:
        """Make two classes one; False if they are already. ``RuleError`` where their types differ."""
        if self.find(a) == self.find(b):
            return False
        if self.types[a] != self.types[b]:
            raise RuleError(f"rule {rule!r} equates a tensor of type {self.types[a]} with one of type {self.types[b]}")
        self._equal.append((a, b, rule))
        self._settle()
        return True

    # Sums

    def _insert_sum(self, node: Node, signed: list[tuple[int, Node]], rule: str | None) -> int:
        handle = self.add_sum([(s, self.handle(n)) for s, n in signed], node.type, rule)
        if any(n in self._shared for n in node.inputs if n.op in SUMS):
            nested = [(s, self.insert(n, rule)) for s, n in zip(signs_of(node), node.inputs, strict=True)]
            self.merge(handle, self.add_sum(nested, node.type, rule), rule)
        return self.find(handle)

    def add_sum(self, signed: Sequence[tuple[int, int]], type: TensorType, rule: str | None) -> int:
        """The class of a sum of two or more signed classes."""
        ordered = sorted(((self.find(h), s) for s, h in signed), key=lambda t: (t[0], -t[1]))
        return self._add("add_n", tuple(s for _, s in ordered), tuple(h for h, _ in ordered), type, rule, None)

    # Terms

    def _canonical(self, op: str, attrs: int, children: tuple[int, ...]) -> tuple[str, int, tuple[int, ...]]:
        parent = self._parent
        for child in children:
            if parent[child] != child:
                children = tuple([self.find(c) for c in children])
                break
        return self._forms(op, attrs, children)

    def _add(
        self, op: str, attrs: object, children: tuple[int, ...], type: TensorType, rule: str | None, node: Node | None
    ) -> int:
        key = self._canonical(op, self.attrs(attrs), children)
        number = self._table.get(key)
        if number is not None:
            return self.find(self.terms[number].handle)
        handle = len(self._parent)
        number = len(self.terms)
        self._parent.append(handle)
        self.types.append(type)
        if type.size == 0:
            self.empty.add(handle)
        self._users.append([])
        self._members.append([number])
        known = op != "input" if not children else self._makes_known(type, key[2])
        self._known.append(known or (node is not None and node in self._constants))
        self._original.append(False)
        self._value.append(None)
        self._array.append(None)
        self.terms.append(Term(op, key[1], key[2], handle, rule))
        self.live += 1
        self._table[key] = number
        for child in dict.fromkeys(key[2]):
            self._users[child].append(number)
        self._send(number)
        self._evaluate(number)
        return self.find(handle)

    def _makes_known(self, type: TensorType, children: Sequence[int]) -> bool:
        """Whether a term of known operands is known at compile time, and small enough to be stored."""
        return all(self._known[c] for c in children) and worth_storing(
            type.nbytes, sum(self.types[c].nbytes for c in children)
        )

    def _send(self, number: int) -> None:
        term = self.terms[number]
        count = len(term.children)
        if term.op == "add_n":
            signs = self.attrs.values[term.attrs]
            assert isinstance(signs, tuple)
            self._row("add_n", 0, (term.handle, number, count))
            for place, (sign, child) in enumerate(zip(signs, term.children, strict=True)):
                self._row("add_n", 1, (number, place, sign, child))
        elif term.op == "concat":
            self._row("concat", 0, (term.handle, number, term.attrs))
            for place, child in enumerate(term.children):
                self._row("concat", 1, (number, place, child))
        else:
            self._row(term.op, count, (term.handle, term.attrs, *term.children))
            # Both orders, so that a pattern need not be written twice.
            if count == 2 and OPS[term.op].commutes:
                self._row(term.op, count, (term.handle, term.attrs, *term.children[::-1]))
            elif term.op == "contract":
                self._row(term.op, count, (term.handle, self._forms.swapped(term.attrs), *term.children[::-1]))

    def _row(self, op: str, arity: int, row: tuple[int, ...]) -> None:
        self.rows.setdefault((op, arity), []).append(row)

    # Analysis

    def _evaluate(self, number: int) -> None:
        """Derive what is known of a term's class from what is known of its children."""
        term = self.terms[number]
        handle = self.find(term.handle)
        if term.op == "const":
            array = self.attrs.values[term.attrs]
            assert isinstance(array, ConstArray)
            self._array[handle] = array
            self._set_value(handle, uniform(array.array))
            return
        if not term.children:
            return
        children = [self.find(c) for c in term.children]
        if not self._known[handle] and self._makes_known(self.types[handle], children):
            self._known[handle] = True
            self._changed.append(handle)
            self.asked.tell(handle, "known")
        row = OPS[term.op]
        if row.kind == "opaque" or not self._known[handle]:
            return
        values = [self._value[c] for c in children]
        if self._value[handle] is None and row.kind in ("map", "view") and all(v is not None for v in values):
            if row.kind == "view":
                self._set_value(handle, values[0])
            else:
                scalars = [np.asarray(v, self.types[c].dtype.numpy) for v, c in zip(values, children, strict=True)]
                result = self._run(term, scalars, handle)
                self._set_value(handle, None if result is None else uniform(result))
        if self._fold and self._array[handle] is None and self.types[handle].size <= FOLDED_SIZE:
            arrays = [self._array[c] for c in children]
            if all(a is not None for a in arrays):
                result = self._run(term, [a.array for a in arrays if a is not None], handle)
                if result is not None:
                    self._fold_to(handle, result)

    def _run(self, term: Term, arrays: Sequence[np.ndarray], handle: int) -> np.ndarray | None:
        with np.errstate(all="ignore", over="raise", under="raise"):
            try:
                result = np.asarray(OPS[term.op].reference(arrays, self.attrs.values[term.attrs]))
            except (IndexError, ValueError):
                # An index out of range or a negative power of an integer is the program's error, for when it runs.
                return None
            except FloatingPointError:
                # Rules may bring in ever smaller numbers; one that becomes 0 would be equal to all its multiples.
                return None
        return result.astype(self.types[handle].dtype.numpy, copy=False)

    def _fold_to(self, handle: int, array: np.ndarray) -> None:
        node = make("const", (), ConstArray(array, self.types[handle].dtype))
        self._equal.append((handle, self.insert(node, "fold.constants"), "fold.constants"))

    def _set_value(self, handle: int, value: Number | None) -> None:
        type = self.types[handle]
        if value is None or type.size == 0:
            return
        self._value[handle] = value
        self._row("value", 0, (handle, self.numbers(number_key(value))))
        self._changed.append(handle)
        self.asked.tell(handle, "value")
        if self._fold and type.ndim and type.size > 1:
            scalar = make("const", (), ConstArray(np.asarray(value, type.dtype.numpy), type.dtype))
            spread = self.insert(broadcast_to(scalar, type.shape), "fold.constants")
            self._equal.append((handle, spread, "fold.constants"))

    # Congruence

    def _settle(self) -> None:
        """Carry out the merges that are waiting, and those that follow by congruence."""
        if self._settling:
            return
        self._settling = True
        try:
            self._settle_all()
        finally:
            self._settling = False

    def _settle_all(self) -> None:
        while self._equal or self._changed:
            if self._changed:
                for number in list(self._users[self.find(self._changed.pop())]):
                    if self.terms[number].live:
                        self._evaluate(number)
                continue
            one, other, rule = self._equal.pop()
            a, b = self.find(one), self.find(other)
            if a == b:
                continue
            if self.types[a] != self.types[b]:
                raise RuleError(
                    f"rule {rule!r} makes a tensor of type {self.types[a]} equal one of type {self.types[b]}"
                )
            if self._differ(a, b):
                continue
            self.merges.setdefault(one, []).append((other, rule))
            self.merges.setdefault(other, []).append((one, rule))
            keep, gone = (a, b) if a < b else (b, a)
            self._row("equal", 0, (keep, gone))
            self._parent[gone] = keep
            self._merge_facts(keep, gone)
            for number in self._members[gone]:
                self.asked.tell(keep, self.terms[number].op)
            self.asked.tell_all(gone)
            self._members[keep].extend(self._members[gone])
            moved = self._users[gone]
            self._users[gone] = []
            for number in moved:
                self._rekey(number, rule)
            self._users[keep].extend(n for n in moved if self.terms[n].live)

    def _differ(self, a: int, b: int) -> bool:
        """Whether two classes have known values that are not the same: equal as reals, but rounded otherwise.

        Merged, they would equate 1 with 0.9999999, and every multiple of one with that of the other.
        """
        for known in (self._value, self._array):
            one, other = known[a], known[b]
            if one is not None and other is not None and number_or_array_key(one) != number_or_array_key(other):
                return True
        return False

    def _merge_facts(self, keep: int, gone: int) -> None:
        news = self._known[keep] != self._known[gone]
        for flags, kind in ((self._known, "known"), (self._original, "original")):
            if flags[gone] and not flags[keep]:
                flags[keep] = True
                self.asked.tell(keep, kind)
        if self._value[keep] is None and self._value[gone] is not None:
            self._value[keep] = self._value[gone]
            self.asked.tell(keep, "value")
            news = True
        if self._array[keep] is None and self._array[gone] is not None:
            self._array[keep] = self._array[gone]
            self.asked.tell(keep, "array")
            news = True
        if news:
            self._changed.extend((keep, gone))

    def _rekey(self, number: int, rule: str | None) -> None:
        term = self.terms[number]
        if not term.live:
            return
        key = self._canonical(term.op, term.attrs, term.children)
        self.asked.tell(self.find(term.handle), term.op)
        other = self._table.get(key)
        if other is not None and other != number and self.terms[other].live:
            term.live = False
            self.live -= 1
            self._equal.append((self.terms[other].handle, term.handle, rule))
            return
        self._table[key] = number
