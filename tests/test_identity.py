"""Numbers that Python takes for equal are different programs: 0.0 and -0.0, 1 and 1.0 and True, one NaN and another."""

from __future__ import annotations

import enum
import itertools
import json
import math
import pickle
import struct
from fractions import Fraction
from typing import Any, NamedTuple

import numpy as np
import pytest

import eqsat
from eqsat.egraph.interning import Interner
from eqsat.ir import build
from eqsat.ir.build import call
from eqsat.ir.identity import identity
from eqsat.ir.joins import PadAttrs
from eqsat.ir.kernel import Call, Literal
from eqsat.ir.node import ConstArray, Graph, Node
from eqsat.ir.serialize import nodes_from_json, nodes_to_json
from eqsat.ir.table import make
from eqsat.ir.types import TensorType, float32, float64

(NEGATIVE_NAN,) = struct.unpack("<d", struct.pack("<Q", 0xFFF8 << 48))
NUMBERS = (0.0, -0.0, 0, False, 1, 1.0, True, math.nan, NEGATIVE_NAN, math.inf, 5e-324)
SCALARS = tuple(
    kind(n) for kind in (np.bool_, np.int32, np.int64, np.float32, np.float64, np.complex64) for n in (0, 1)
)


class Level(enum.IntEnum):
    ONE = 1


class Pair(NamedTuple):
    first: float


OTHERS = (np.float32(-0.0), np.float64(-0.0), np.float64("nan"), np.datetime64(1, "s"), np.datetime64(1, "ms"))
DISTINCT = (
    *(*NUMBERS, *SCALARS, *OTHERS, 0j, complex(0.0, -0.0), Level.ONE, Fraction(1)),
    *((0.0,), (-0.0,), (0,), (False,), (np.float32(0),), (np.float64(0),), Pair(0.0), Pair(-0.0)),
)
PAIRS = [*itertools.combinations(DISTINCT, 2)]


@pytest.mark.parametrize(("one", "other"), PAIRS, ids=repr)
def test_values_are_told_apart_by_type_and_bits(one: object, other: object) -> None:
    assert identity(one) != identity(other)
    intern = Interner()
    assert intern(one) != intern(other) and intern.values[intern(other)] is other


def test_no_attribute_is_number_zero() -> None:
    intern = Interner()
    assert intern(None) == 0 != intern(0)


@pytest.mark.parametrize("value", DISTINCT, ids=repr)
def test_equal_bits_are_equal_also_of_nan(value: object) -> None:
    again = pickle.loads(pickle.dumps(value))
    assert identity(value) == identity(again) and hash(identity(value)) == hash(identity(again))


@pytest.mark.parametrize(("one", "other"), [*itertools.combinations(NUMBERS, 2)], ids=repr)
def test_literals_and_paddings_of_different_numbers_differ(one: float, other: float) -> None:
    x = build.input_node(0, TensorType((3,), float32))
    nodes = [make("pad", (x,), PadAttrs(((1, 1),), v)) for v in (one, other, one)]
    assert nodes[0] is nodes[2] and nodes[0] is not nodes[1]
    assert Graph((x,), (nodes[0],)).key() != Graph((x,), (nodes[1],)).key() or math.isnan(one)
    a, b, again = (Literal(v, float64) for v in (one, other, one))
    assert a == again and hash(a) == hash(again) and a != b
    first, second, third = (Call("neg", (v,), float64) for v in (a, b, again))
    assert first == third and first != second


@pytest.mark.parametrize("eps", [0.0, -0.0])
def test_plans_keep_the_sign_of_zero(eps: float) -> None:
    x = build.input_node(0, TensorType((3,), float32))
    node = call("mul", make("pad", (x,), PadAttrs(((1, 1),), eps)), build.scalar(eps, x))
    (read,) = nodes_from_json(json.loads(json.dumps(nodes_to_json([node]))), lambda digest: pytest.fail(digest))
    assert read is node


def test_a_stored_nan_keeps_its_bits() -> None:
    bits = np.array([0x7FC00000, 0xFFC00000, 0x7FC00001], np.uint32)
    node = build.const(bits.view(np.float32))
    (read,) = nodes_from_json(json.loads(json.dumps(nodes_to_json([node], ()))), lambda digest: pytest.fail(digest))
    assert isinstance(read.attrs, ConstArray) and (read.attrs.array.view(np.uint32) == bits).all()


def test_a_program_with_zero_does_not_answer_for_one_with_minus_zero() -> None:
    x = np.ones(3, np.float32)
    kept = []
    for fill in (0.0, -0.0, 0.0):
        kept.append(eqsat.optimize(lambda x, fill=fill: np.pad(x * 2, 1, constant_values=fill), threads=1))
        assert np.signbit(kept[-1](x)[[0, 4]]).tolist() == [math.copysign(1, fill) < 0] * 2


def test_keys_of_dicts_are_static_values() -> None:
    seen: list[Node] = []

    @eqsat.optimize(backend="numpy")
    def by_key(d: dict) -> object:
        seen.append(d)
        ((key, value),) = d.items()
        return value * 2 if isinstance(key, bool) else value * 3

    x = np.ones(2)
    assert by_key({1: x}).tolist() == [3, 3]
    assert by_key({True: x}).tolist() == [2, 2]


@pytest.mark.parametrize("keys", [((1,), (True,)), ((0.0,), (-0.0,)), (np.float32(0.0), np.float32(-0.0))], ids=repr)
def test_keys_of_dicts_that_python_takes_for_equal_are_different_programs(keys: tuple[Any, Any]) -> None:
    f = eqsat.optimize(lambda d: [v + (repr(k) == repr(keys[0])) for k, v in d.items()], backend="numpy")
    assert [f({key: np.zeros(2)})[0].tolist() for key in keys] == [[1, 1], [0, 0]]
