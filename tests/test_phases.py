"""Maps that run in phases, cut where their guards change."""

from __future__ import annotations

from typing import Any

import numpy as np
from hypothesis import example, given, settings
from hypothesis import strategies as st

import eqsat
from tests.sweeps import a_part


@given(
    st.sampled_from(["int8", "uint8", "int16", "int32", "float16", "float32", "float64"]),
    st.sampled_from(["int8", "int16", "int64", "float32", "float64"]),
    st.tuples(st.integers(1, 70), st.integers(1, 70)),
    st.lists(st.integers(0, 2), min_size=4, max_size=4),
)
@example("int8", "float64", (33, 35), [1, 1, 0, 0])
@settings(max_examples=a_part(80), deadline=None)
def test_each_phase_has_vectors_of_its_own(stored: str, made: str, shape: tuple[int, int], pads: list[int]) -> None:
    """The border of a padded, transposed image has no narrow elements, and its vectors other lanes than the inside:
    blocks of 16 × 16 were transposed as 8 × 8."""

    def turned(x: Any) -> Any:
        return np.pad((x.astype(made) * 3).T, (tuple(pads[:2]), tuple(pads[2:])))

    x = np.random.default_rng(shape[0]).integers(0, 9, shape).astype(stored)
    f = eqsat.optimize(turned, threads=1, verify=False, check_speed=False, strict=True)
    np.testing.assert_array_equal(f(x), turned(x))
