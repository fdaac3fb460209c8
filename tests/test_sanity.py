"""Figures that cannot be true are found, and replaced so that none is left."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from eqsat.cost.machine import Level, Machine
from eqsat.cost.sanity import failed_checks, repaired

GOOD = Machine(
    cpu="a server",
    cores=8,
    vector_bytes=64,
    registers=32,
    fma_gflops=(("float32", 117.0), ("float64", 58.4)),
    levels=(
        Level("L1", 32 << 10, False, 222.0, 235.0, 1776.0, 1880.0),
        Level("L2", 1 << 20, False, 115.0, 114.0, 920.0, 912.0),
        Level("L3", 32 << 20, True, 98.0, 96.0, 500.0, 400.0),
        Level("memory", 0, True, 36.0, 34.0, 120.0, 100.0),
    ),
    call_us=0.21,
    step_us=0.003,
    launch_us=2.0,
    barrier_us=0.3,
    function_ns=(("exp", 0.11), ("pow", 2.2)),
    matrix_ns=(("uint8·int8", 6.7),),
    panels_gbs=((4, 0, 18.0), (4, 1024, 21.0)),
)


def with_level(depth: int, **changes: float) -> Machine:
    levels = list(GOOD.levels)
    levels[depth] = dataclasses.replace(levels[depth], **changes)  # type: ignore[arg-type]
    return dataclasses.replace(GOOD, levels=tuple(levels))


def changed(**changes: Any) -> Machine:
    return dataclasses.replace(GOOD, **changes)


def test_a_good_machine_is_left_alone() -> None:
    assert failed_checks(GOOD) == []
    assert repaired(GOOD) == GOOD
    assert failed_checks(changed(cores=1, levels=tuple(
        dataclasses.replace(v, read_gbs_all=v.read_gbs, copy_gbs_all=v.copy_gbs) for v in GOOD.levels
    ), launch_us=1e-4, barrier_us=1e-4)) == []  # one core has neither launches nor barriers  # fmt: skip


@pytest.mark.parametrize(
    ("machine", "figure", "healed"),
    [
        (changed(step_us=40.0), "step_us", 0.02),
        (changed(step_us=1e-4), "step_us", 0.02),
        (changed(call_us=900.0), "call_us", 0.5),
        (changed(launch_us=4000.0), "launch_us", 10.0),
        (changed(launch_us=1e-4), "launch_us", 10.0),  # the pool was taken: the threads never started
        (changed(barrier_us=2700.0), "barrier_us", 1.0),
        (changed(fma_gflops=(("float32", 60.0), ("float64", 58.4))), "float32", 116.8),
        (changed(fma_gflops=(("float32", 117.0), ("float64", 12.0))), "float64", 58.5),
        (changed(fma_gflops=(("float32", 0.5), ("float64", 0.25))), "float32", 80.0),
        (changed(fma_gflops=(("float32", 9000.0), ("float64", 4500.0))), "float32", 80.0),
        (with_level(0, read_gbs=80.0), "L1 read_gbs", 222.0),
        (with_level(1, copy_gbs=20.0), "L2 copy_gbs", 114.0),
        (with_level(3, copy_gbs=13.7, copy_gbs_all=100.0), "memory copy_gbs", 0.45 * 36.0),
        (with_level(3, read_gbs=9.2), "memory read_gbs", 0.45 * 34.0),
        (with_level(3, read_gbs=5e4, read_gbs_all=5e5, copy_gbs=9.0), "memory read_gbs", 8.0),
        (changed(function_ns=(("exp", 5e5),)), "function exp", None),
        (changed(matrix_ns=(("uint8·int8", 0.1),)), "matrix uint8·int8", None),
        (changed(panels_gbs=((4, 0, 18.0), (4, 1024, 1e6))), "panels 4 1024", None),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_absurd_figures_are_named_and_replaced(machine: Machine, figure: str, healed: float | None) -> None:
    assert figure in {check.figure for check in failed_checks(machine)}
    better = repaired(machine)
    assert failed_checks(better) == []
    figures = {**dict(better.fma_gflops), **{f"function {name}": cost for name, cost in better.function_ns}}
    figures |= {f"matrix {name}": cost for name, cost in better.matrix_ns}
    figures |= {f"panels {rows} {ahead}": rate for rows, ahead, rate in better.panels_gbs}
    figures |= {name: getattr(better, name) for name in ("step_us", "call_us", "launch_us", "barrier_us")}
    for level in better.levels:
        figures |= {f"{level.name} {kind}": getattr(level, kind) for kind in ("read_gbs", "copy_gbs")}
    if healed is None:
        assert figure not in figures
    else:
        assert figures[figure] == pytest.approx(healed, rel=0.25)


any_figure = st.floats(min_value=1e-9, max_value=1e9)


@given(st.data(), st.integers(1, 256), st.sampled_from([16, 32, 64]), st.integers(1, 4))
def test_nothing_doubtful_is_left(data: st.DataObject, cores: int, vector_bytes: int, depth: int) -> None:
    near = st.floats(min_value=0.3, max_value=3.0)

    def some(figure: float) -> float:
        """Now and then anything at all, else about right."""
        return data.draw(any_figure) if data.draw(st.integers(0, 3)) == 0 else figure * data.draw(near)

    levels = tuple(
        Level(v.name, v.nbytes, v.shared, *(some(getattr(v, kind + end)) for end in ("_gbs", "_gbs_all")
              for kind in ("read", "copy")))
        for v in GOOD.levels[-depth:]
    )  # fmt: skip
    machine = Machine("any", cores, vector_bytes, 16, (("float32", some(117.0)), ("float64", some(58.0))), levels,
                      some(0.2), some(0.003), some(2.0), some(0.3), (("exp", some(0.1)),))  # fmt: skip
    better = repaired(machine)
    assert failed_checks(better) == []
    assert repaired(better) == better
    assert [(v.name, v.nbytes, v.shared) for v in better.levels] == [(v.name, v.nbytes, v.shared) for v in levels]
