"""Tuning records: nests as JSON, what a record is good for, documents from anywhere, and measuring elsewhere."""

from __future__ import annotations

import contextlib
import json
import logging
import os
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ProcessPoolExecutor
from dataclasses import fields, replace
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import eqsat
from eqsat import cli, records
from eqsat import tune as tuner
from eqsat.compiled import Compiled
from eqsat.cost import machine as machine_model
from eqsat.cost.processor import Processor, processor_of
from eqsat.ir.kernel import Call, KernelGroup, Load, Stage, rewrite_kernel
from eqsat.ir.nest import Loop, Nest, Pack, Seq, TileOp
from eqsat.ir.nest_json import nest_from_json, nest_to_json
from eqsat.ir.types import float64
from eqsat.plan.plan import KernelStep
from eqsat.schedule import check_offered, schedule
from eqsat.schedule.maps import tile_of
from eqsat.schedule.sample import sample
from eqsat_backends.numba_cpu import NumbaCpuBackend
from eqsat_backends.numba_cpu.tile_ops import cpu_target
from tests.kernel_groups import DESK, TINY, attention, gemm, perceptron, reduction
from tests.test_contract import contractions
from tests.test_obeyed_maps import kernels
from tests.test_tile_ops import VECTORS_OFF, group_of, max_plus

GROUPS = {
    "product": gemm(70, 90, 50),
    "batches, known factor": gemm(16, 40, 33, batch=3, const="b"),
    "few rows": gemm(2, 300, 200),
    "float64": gemm(9, 40, 33, dtype=float64),
    "sum of columns": reduction((40, 70), 1, (1, 0)),
    "attention": attention(2, 16, 24, 8),
    "perceptron": perceptron(8, 16, 32),
}
HEALTH = [HealthCheck.too_slow, HealthCheck.data_too_large]


@pytest.fixture
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A cache of the test's own."""
    monkeypatch.setenv("EQSAT_CACHE_DIR", str(tmp_path / "cache"))
    return tmp_path / "cache" / "v2"


def setup(threads: int = 1, **changes: Any) -> records.Setup:
    here = records.setup_of(machine_model.load(), threads, "numba_cpu")
    return here._replace(processor=replace(here.processor, **changes))


def nests_of(group: KernelGroup, count: int, machine: Any = DESK, threads: int = 1) -> list[Nest]:
    return [nest for nest, _ in sample(group, cpu_target(machine, threads), count)]


# nests as data


@pytest.mark.parametrize("threads", [1, 3])
@pytest.mark.parametrize("name", GROUPS)
def test_nests_survive_json_and_are_offered_where_they_were_drawn(name: str, threads: int) -> None:
    for at in (DESK, TINY):
        target = cpu_target(at, threads)
        for nest in nests_of(GROUPS[name], 25, at, threads):
            again = nest_from_json(json.loads(json.dumps(nest_to_json(nest))))
            assert again == nest and nest_to_json(again) == nest_to_json(nest)
            check_offered(again, GROUPS[name], target)


@settings(max_examples=15, deadline=None, suppress_health_check=HEALTH)
@given(st.one_of(kernels(), contractions().map(lambda made: made[0])), st.integers(1, 2))
def test_nests_of_any_kernel_survive_json(group: KernelGroup, threads: int) -> None:
    for nest in nests_of(group, 8, threads=threads):
        assert nest_from_json(json.loads(json.dumps(nest_to_json(nest)))) == nest
        check_offered(nest, group, cpu_target(DESK, threads))


def changed(data: Any, change: Callable[[Any], Any], at: int) -> tuple[Any, int]:
    """JSON data with the part that is the ``at``-th (in preorder) changed; and how many parts are left to count."""
    if at == 0:
        return change(data), -1
    at -= 1
    if isinstance(data, dict):
        out: Any = {}
        for key, value in data.items():
            out[key], at = changed(value, change, at) if at >= 0 else (value, at)
        return out, at
    if isinstance(data, list):
        out = []
        for value in data:
            new, at = changed(value, change, at) if at >= 0 else (value, at)
            out.append(new)
        return out, at
    return data, at


JUNK = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-3, 100),
    st.sampled_from([10**9, 10**20, -1, 0, 2**50]),
    st.floats(),
    st.text(max_size=3),
    st.sampled_from(["m", "n", "k", "p0", "r0", "rows", "outer", "b", "a@1", "fma", "update", "map", "reduce", "loop"]),
    st.lists(st.integers(), max_size=2),
    st.dictionaries(st.sampled_from(["term", "axis", "body"]), st.integers(), max_size=2),
)
DRAWN: dict[str, list[Nest]] = {}


@settings(max_examples=400, deadline=None)
@given(st.data())
def test_damaged_nests_are_refused_or_legal(data: st.DataObject) -> None:
    """Whatever becomes of a nest's data: ``ValueError``, or a nest that the checks judge without another error."""
    name = data.draw(st.sampled_from(sorted(GROUPS)))
    if name not in DRAWN:
        DRAWN[name] = nests_of(GROUPS[name], 10)
    found: Any = nest_to_json(data.draw(st.sampled_from(DRAWN[name])))
    for _ in range(data.draw(st.integers(1, 3))):
        junk = data.draw(JUNK)
        found, _ = changed(found, lambda _, junk=junk: junk, data.draw(st.integers(0, 30)))
    with contextlib.suppress(ValueError):
        check_offered(nest_from_json(found), GROUPS[name], cpu_target(DESK))


def test_tiles_of_the_table_are_offered_where_they_are_registered() -> None:
    group, row = group_of({"m": 20, "n": 70, "k": 33}), max_plus()
    nests: list[Nest] = []
    NumbaCpuBackend().register_tile_op(row)
    try:
        target = cpu_target(DESK)
        nests = [nest for nest, _ in sample(group, target, 20, disable=VECTORS_OFF)]
        for nest in nests:
            assert tile_of(nest).name == row.name
            again = nest_from_json(json.loads(json.dumps(nest_to_json(nest))))
            check_offered(again, group, target)
        here = setup()
    finally:
        NumbaCpuBackend().unregister_tile_op(row.name)
    assert nests and here.version != setup().version
    for nest in nests:
        with pytest.raises(ValueError):
            check_offered(nest, group, cpu_target(DESK))


def deep(depth: int) -> Any:
    nest: Any = {"term": "tile", "name": "map", "sizes": []}
    for _ in range(depth):
        nest = {"term": "loop", "axis": "p0", "block": 1, "step": 1, "body": nest}
    return nest


@pytest.mark.parametrize(
    "data",
    [
        None,
        [],
        {},
        {"term": "nothing"},
        {"term": ["loop"]},
        {"term": "tile", "name": "map"},
        {"term": "tile", "name": "map", "sizes": [], "more": 1},
        {"term": "tile", "name": "map", "sizes": [["p0", 1.0]]},
        {"term": "tile", "name": "map", "sizes": [["p0", True]]},
        {"term": "tile", "name": "map", "sizes": [["p0", 10**30]]},
        {"term": "tile", "name": "x" * 1000, "sizes": []},
        {"term": "tile", "name": "map\n", "sizes": []},
        {"term": "seq", "bodies": [{"term": "seq", "bodies": []}] * 2000},
        deep(100),
    ],
)
def test_what_is_no_nest_is_refused(data: Any) -> None:
    with pytest.raises(ValueError):
        nest_from_json(data)


HUGE: dict[str, tuple[KernelGroup, Nest]] = {
    "unrolled": (reduction((4096, 4096), 1, (0, 1)), TileOp("reduce", (("p0", 4096), ("r0", 4096)), 0, 16)),
    "lanes": (reduction((16, 16), 1, (0, 1)), Loop("p0", 16, 1, TileOp("reduce", (("r0", 1 << 40),), 0, 1 << 40))),
    "parts": (
        reduction((16, 1 << 20), 1, (0, 1)),
        Loop("r0", 1 << 20, 16, Loop("p0", 16, 1, TileOp("reduce", (("r0", 16),), 0, 16)), True, True),
    ),
    "update": (gemm(2, 64, 4096), TileOp("update", (("m", 2), ("n", 64), ("k", 4096)))),
    "rows": (gemm(2048, 64, 8), TileOp("update", (("m", 2048), ("n", 64), ("k", 8)))),
    "register tile": (gemm(512, 64, 8), TileOp("fma", (("m", 512), ("n", 64), ("k", 8)))),
    "no step": (gemm(8, 64, 8), Loop("m", 8, 0, TileOp("fma", (("m", 8), ("n", 64), ("k", 8))))),
    "no size": (gemm(8, 64, 8), TileOp("fma", (("m", 0), ("n", 0), ("k", 8)))),
}


@pytest.mark.parametrize("name", HUGE)
def test_nests_that_no_search_would_offer_are_refused(name: str) -> None:
    group, nest = HUGE[name]
    with pytest.raises(ValueError):
        check_offered(nest, group, cpu_target(DESK))


# what a record is good for


def moved(group: KernelGroup, offset: int) -> KernelGroup:
    """The group at another place in its buffers."""

    def fix(expr: Any) -> Any:
        return replace(expr, offset=expr.offset + offset) if isinstance(expr, Load) else expr

    return replace(group, stages=tuple(replace(s, kernel=rewrite_kernel(s.kernel, fix)) for s in group.stages))


def test_groups_that_are_scheduled_alike_have_one_content() -> None:
    one = gemm(16, 32, 8)
    assert records.content(one) == records.content(gemm(16, 32, 8))
    assert records.content(one) == records.content(replace(one, name="another"))
    assert records.content(one) == records.content(moved(one, 3))
    different = [records.content(group) for group in GROUPS.values()]
    different += [records.content(group) for group in (one, gemm(16, 32, 9), gemm(16, 32, 8, transposed=True))]
    different += [records.content(gemm(16, 32, 8, const="b")), records.content(gemm(16, 32, 8, dtype=float64))]
    assert len(set(different)) == len(different)


def test_content_does_not_depend_on_what_is_shared() -> None:
    stage = gemm(6, 7, 8).stages[0]
    load = Load(0, 0, (8, 0, 1), stage.kernel.body.dtype)
    copy = Load(0, 0, (8, 0, 1), stage.kernel.body.dtype)
    groups = []
    for second in (load, copy):
        body = Call("mul", (load, second), load.dtype)
        groups.append(replace(gemm(6, 7, 8), stages=(replace(stage, kernel=replace(stage.kernel, body=body)),)))
    assert records.content(groups[0]) == records.content(groups[1]) != records.content(gemm(6, 7, 8))


def deepened(group: KernelGroup, depth: int) -> KernelGroup:
    stage: Stage = group.stages[0]
    expr = stage.kernel.epilogue
    for _ in range(depth):
        expr = Call("neg", (expr,), expr.dtype)
    return replace(group, stages=(replace(stage, kernel=replace(stage.kernel, epilogue=expr)),))


def test_deep_expressions_have_a_content() -> None:
    contents = {records.content(deepened(gemm(4, 5, 6), depth)) for depth in (4000, 4001)}
    assert len(contents) == 2


def test_keys_tell_everything_apart_that_decides_a_timing() -> None:
    here = setup()
    other: dict[str, Any] = {"str": "other", "int": 7, "tuple[tuple[str, int], ...]": (("L1", 1),)}
    keys = [records.key_of("group", here), records.key_of("another", here)]
    keys += [records.key_of("group", setup(**{f.name: other[str(f.type)]})) for f in fields(Processor)]
    keys += [records.key_of("group", here._replace(**{name: other[kind]})) for name, kind in SETUP.items()]
    assert len(set(keys)) == len(keys)
    assert records.key_of("group", setup()) == keys[0]


SETUP = {"threads": "int", "backend": "str", "version": "str"}


def test_every_part_of_the_setup_is_tried() -> None:
    assert set(records.Setup._fields) == {"processor", *SETUP}


def test_the_machine_model_is_no_part_of_the_processor_but_its_vectors_are() -> None:
    assert processor_of(DESK) == processor_of(replace(DESK, launch_us=99.0, cpu="another name"))
    assert processor_of(DESK) != processor_of(replace(DESK, vector_bytes=32))
    assert Processor.from_json(json.loads(json.dumps(processor_of(DESK).to_json()))) == processor_of(DESK)


def record_of(
    group: KernelGroup = GROUPS["product"], seconds: tuple[float, ...] = (2e-3, 1e-3), **where: Any
) -> records.TuningRecord:
    nests = nests_of(group, len(seconds))
    return records.measured(records.content(group), setup(**where), "a kernel", dict(zip(nests, seconds, strict=True)))


def test_records_are_ranked_merged_and_bounded() -> None:
    nests = nests_of(GROUPS["product"], records.MOST_NESTS + 3)
    assert len(nests) == records.MOST_NESTS + 3
    old = records.measured("g", setup(), "k", {nest: 1.0 + n for n, nest in enumerate(nests)})
    assert len(old.nests) == records.MOST_NESTS and old.nests[0] == (nests[0], 1.0)
    both = records.merged(old, records.measured("g", setup(), "k", {nests[0]: 500.0, nests[1]: 0.5}))
    assert both.nests[0] == (nests[1], 0.5) and both.nests[-1] == (nests[0], 500.0)
    ties = [records.measured("g", setup(), "k", dict.fromkeys(order, 1.0)) for order in (nests[:9], nests[8::-1])]
    assert ties[0].nests == ties[1].nests


def test_records_survive_processes(root: Path) -> None:
    record = record_of()
    assert records.write(record) and records.read(record.key) == record
    code = f"from eqsat import records; print(records.read({record.key!r}).to_json())"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout.strip() == str(record.to_json())
    assert (root / f"{record.key}.record").stat().st_mode & 0o777 == 0o600


def test_a_record_of_another_processor_or_kernel_is_not_used(root: Path, caplog: pytest.LogCaptureFixture) -> None:
    from eqsat import cache

    mine, other = record_of(), record_of(cpu="another processor")
    assert mine.key != other.key
    for data in (
        {"format": records.FORMAT, **other.to_json()},
        {"format": records.FORMAT, **record_of(GROUPS["few rows"]).to_json()},
        {"format": 99, **mine.to_json()},
        {"format": records.FORMAT},
        [],
        3,
    ):
        cache.plan_store().put("record", mine.key, data)
        with caplog.at_level(logging.INFO, "eqsat"):
            caplog.clear()
            assert records.read(mine.key) is None
        assert len(caplog.messages) == 1 and "is not used" in caplog.messages[0]
    records.write(mine)
    assert records.read(mine.key) == mine


def test_nests_that_are_not_legal_are_passed_over(caplog: pytest.LogCaptureFixture) -> None:
    group, target = GROUPS["product"], cpu_target(DESK)
    legal = nests_of(group, 2)
    foreign = nests_of(GROUPS["attention"], 1)[0]
    record = records.measured("g", setup(), "a kernel", {foreign: 1e-6, legal[0]: 3e-3, legal[1]: 2e-3})
    with caplog.at_level(logging.INFO, "eqsat"):
        assert records.fastest(record, group, target) == (legal[1], 2e-3)
    assert len(caplog.messages) == 1 and "a recorded nest of a kernel is not used" in caplog.messages[0]
    assert records.fastest(replace(record, nests=((foreign, 1e-6),)), group, target) is None


# programs


def layer(x: Any, w: Any) -> Any:
    return np.maximum(x @ w, 0)


RNG = np.random.default_rng(0)
ARGS = RNG.standard_normal((24, 40), np.float32), RNG.standard_normal((40, 48), np.float32)


def compiled(**options: Any) -> Compiled:
    made = eqsat.optimize(layer, threads=1, **options).compile(*ARGS)
    assert isinstance(made, Compiled)
    np.testing.assert_allclose(made(ARGS), layer(*ARGS), rtol=1e-4, atol=1e-4)
    return made


def steps_of(program: Compiled) -> list[KernelStep]:
    return [step for step in program.search().steps if isinstance(step, KernelStep)]


def slow_but_recorded(program: Compiled) -> tuple[Nest, records.TuningRecord]:
    """A record of the program's first kernel in which a nest that the model ranks last was the fastest."""
    step = steps_of(program)[0]
    found = schedule(step.group, cpu_target(machine_model.load())).candidates
    assert len(found) > 1
    nests = {candidate.nest: 1.0 / (n + 2) for n, candidate in enumerate(found)}
    return found[-1].nest, records.measured(records.content(step.group), setup(), step.label, nests)


def test_a_record_made_after_a_plan_was_cached_is_used(root: Path) -> None:
    first = compiled()
    assert not first.cached and compiled().cached
    nest, record = slow_but_recorded(first)
    assert steps_of(first)[0].nest != nest
    records.write(record)
    again = compiled()
    assert not again.cached and steps_of(again)[0].nest == nest
    assert compiled().cached  # chosen by that record, which is still there
    assert compiled(cache=False).report["records"] == {}
    slower = {**dict(record.nests), nests_of(GROUPS["few rows"], 1)[0]: 9.0}
    records.write(replace(record, nests=tuple(slower.items())))
    assert compiled().cached  # the choice would be the same
    cli.main(["records", "clear"])
    last = compiled()
    assert not last.cached and steps_of(last)[0].nest == steps_of(first)[0].nest != nest


def test_explain_says_that_a_nest_was_measured(root: Path) -> None:
    before = eqsat.optimize(layer, threads=1).explain(*ARGS)
    assert "when tuned" not in str(before) and before.steps[0].tuned is None
    _, record = slow_but_recorded(compiled())
    records.write(record)
    text = str(report := eqsat.optimize(layer, threads=1).explain(*ARGS))
    assert f"chosen by measurement: {1e3 * record.nests[0][1]:.3g} ms when tuned, predicted " in text
    assert report.steps[0].tuned == record.nests[0][1] and json.loads(report.to_json())["steps"][0]["tuned"]
    step = steps_of(compiled())[0]
    drawn = nests_of(step.group, 60, machine_model.load())
    foreign = next(nest for nest in drawn if nest not in dict(record.nests))
    records.write(replace(record, nests=((foreign, 1e-6),)))
    assert "1 µs when tuned, not among those that the model offers" in str(
        eqsat.optimize(layer, threads=1).explain(*ARGS)
    )
    assert steps_of(compiled())[0].nest == foreign


def test_tuning_records_what_it_measured_and_measures_it_once(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    timed: list[Nest] = []
    real = tuner.time_of

    def noted(group: KernelGroup, nest: Nest, *rest: Any) -> float:
        timed.append(nest)
        return real(group, nest, *rest)

    monkeypatch.setattr(tuner, "time_of", noted)
    program = compiled(tune=2)
    (record,) = records.all_records()
    assert {nest for nest, _ in record.nests} == set(timed) and len(timed) == 2
    assert record.eqsat == eqsat.__version__ and record.setup == setup()
    assert steps_of(program)[0].nest == record.nests[0][0] and len(timed) == 2
    assert compiled(tune=2).cached
    compiled(tune=3)
    assert len(timed) == 3 == len(records.all_records()[0].nests) == len(set(timed))
    compiled(tune=2, cache=False)
    assert len(timed) == 5  # nothing is found or kept
    assert len(records.all_records()) == 1


def test_without_records_a_plan_costs_one_look_for_each_kernel(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    looked: list[str] = []
    real = records.read
    monkeypatch.setattr(records, "read", lambda key: [looked.append(key), real(key)][1])
    x = np.ones((8, 9), np.float32)

    def deep(x: Any) -> Any:
        for n in range(3):
            x = np.sort(x) + n  # three kernels of one content
        return x.sum(axis=0)

    made = eqsat.optimize(deep, threads=1).compile(x)
    assert isinstance(made, Compiled)
    assert sorted(looked) == sorted(made.report["records"]) and set(made.report["records"].values()) == {""}


# documents


def run(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str, str]:
    code = cli.main(["records", *arguments])
    shown = capsys.readouterr()
    return code, shown.out, shown.err


def test_records_are_moved_as_json(root: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    kept = [record_of(), record_of(GROUPS["attention"], (1e-6,)), record_of(GROUPS["few rows"], threads=2)]
    other = record_of(cpu="another processor")
    older = replace(kept[0], group="g", setup=kept[0].setup._replace(version="an older one"))
    missing = replace(kept[0], group="g", setup=kept[0].setup._replace(backend="gone"))
    for record in (*kept, other, older, missing):
        assert records.write(record)
    file = str(tmp_path / "records.json")
    assert run(capsys, "export", file)[:2] == (0, f"6 records written to {file}\n")
    code, shown, _ = run(capsys, "ls")
    assert code == 0 and "6 tuning records" in shown and "1 ms" in shown and "1 us" in shown
    code, shown, _ = run(capsys, "ls", "--json")
    assert json.loads(shown) == json.loads(Path(file).read_text())
    code, shown, _ = run(capsys, "clear")
    assert code == 0 and shown.startswith("removed ") and not records.all_records()
    told = "3 records taken (0 replaced), 3 skipped (1 of another processor, 2 of another version)\n"
    assert run(capsys, "import", file) == (0, told, "")
    assert sorted(r.key for r in records.all_records()) == sorted(r.key for r in kept)
    assert all(records.read(record.key) == record for record in kept)
    assert run(capsys, "import", file)[1].startswith("3 records taken (3 replaced)")


def spoiled() -> dict[str, bytes]:
    good = {"format": records.FORMAT, "records": [record_of().to_json(), record_of(GROUPS["few rows"]).to_json()]}

    def with_(change: Callable[[Any], Any]) -> bytes:
        data = json.loads(json.dumps(good))
        change(data)
        return json.dumps(data).encode()

    def last(name: str, value: Any) -> bytes:
        return with_(lambda d: d["records"][1].__setitem__(name, value))

    def nest(value: Any) -> bytes:
        return with_(lambda d: d["records"][1]["nests"][0].__setitem__("nest", value))

    def seconds(value: Any) -> bytes:
        return with_(lambda d: d["records"][1]["nests"][0].__setitem__("seconds", value))

    return {
        "nothing": b"",
        "bytes": b"\xff\xfe\x00",
        "a list": b"[]",
        "a number": b"7",
        "brackets": b"[" * 100_000,
        "digits": b'{"format": ' + b"9" * 10_000 + b"}",
        "format": with_(lambda d: d.__setitem__("format", 2)),
        "format true": with_(lambda d: d.__setitem__("format", True)),
        "no format": with_(lambda d: d.pop("format")),
        "more": with_(lambda d: d.__setitem__("more", 1)),
        "records": with_(lambda d: d.__setitem__("records", {})),
        "no record": with_(lambda d: d["records"].append(None)),
        "twice": with_(lambda d: d["records"].append(d["records"][0])),
        "group": last("group", 3),
        "long name": last("name", "x" * 10_000),
        "processor": last("processor", None),
        "caches": last("processor", {**record_of().to_json()["processor"], "caches": [["L1", "big"]]}),
        "cores": last("processor", {**record_of().to_json()["processor"], "cores": True}),
        "threads": last("threads", 10**30),
        "made": last("made", -1),
        "backend": last("backend", ["numba_cpu"]),
        "no nests": last("nests", []),
        "nests": last("nests", [None]),
        "nan": seconds(float("nan")),
        "inf": seconds(float("inf")),
        "zero": seconds(0),
        "negative": seconds(-1e-3),
        "text": seconds("1"),
        "huge": seconds(10**400),
        "no nest": nest({"term": "loop"}),
        "deep nest": nest(deep(500)),
    }


@pytest.mark.parametrize("name", sorted(spoiled()))
def test_hostile_documents_are_refused_whole(
    name: str, root: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "hostile.json"
    file.write_bytes(spoiled()[name])
    code, shown, told = run(capsys, "import", str(file))
    assert (code, shown) == (1, "") and told.startswith("eqsat: ") and len(told.splitlines()) == 1 and len(told) < 300
    assert not root.exists() or not [path for path in root.iterdir() if path.suffix == ".record"]


def test_a_document_that_is_not_there_or_too_large_is_refused(
    root: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert run(capsys, "import", str(tmp_path / "none"))[0] == 1
    monkeypatch.setattr(records, "MOST_BYTES", 100)
    file = tmp_path / "records.json"
    file.write_text(records.document([record_of()]))
    code, _, told = run(capsys, "import", str(file))
    assert code == 1 and "has more than" in told


def test_a_legal_nest_of_a_document_cannot_make_a_wrong_result(root: Path) -> None:
    step = steps_of(compiled())[0]
    for nest in nests_of(step.group, 3, machine_model.load()):
        record = records.measured(records.content(step.group), setup(), step.label, {nest: 1e-9})
        records.import_json(records.document([record]), machine_model.load())
        assert steps_of(compiled())[0].nest == nest  # compiled() compares the results


# executors


class Inline:
    """Runs a task when it is submitted, and counts."""

    def __init__(self, change: Callable[[Any], Any] = lambda found: found) -> None:
        self.submitted: list[Any] = []
        self.change = change

    def submit(self, fn: Callable[..., Any], /, *args: Any) -> Future[Any]:
        self.submitted.append(args)
        future: Future[Any] = Future()
        try:
            future.set_result(self.change(fn(*args)))
        except Exception as error:
            future.set_exception(error)
        return future


def test_measurements_run_on_an_executor(root: Path) -> None:
    executor = Inline()
    with eqsat.tuning(executor):
        program = compiled(tune=2)
        assert len(executor.submitted) == 2
        (record,) = records.all_records()
        assert steps_of(program)[0].chosen.measured == record.nests[0][1]  # type: ignore[union-attr]
    compiled(tune=3)
    assert len(executor.submitted) == 2  # outside of it, in this process


def test_what_another_processor_measured_is_recorded_for_that_one(root: Path, caplog: pytest.LogCaptureFixture) -> None:
    before = compiled()

    def elsewhere(found: tuner.Measurement) -> tuner.Measurement:
        return found._replace(seconds=1e-9, processor=replace(found.processor, cpu="another processor"))

    with eqsat.tuning(Inline(elsewhere)), caplog.at_level(logging.INFO, "eqsat"):
        program = compiled(tune=3)
    (record,) = records.all_records()
    assert record.setup.processor.cpu == "another processor" and len(record.nests) == 3
    assert steps_of(program)[0].nest == steps_of(before)[0].nest and "not used here" in caplog.text
    assert set(program.report["records"].values()) == {""}


class Failing(Inline):
    """A worker that fails at every other nest, in ways that differ."""

    def submit(self, fn: Callable[..., Any], /, *args: Any) -> Future[Any]:
        count = len(self.submitted)
        if count == 0:
            self.submitted.append(args)
            raise RuntimeError("cannot schedule new futures")
        future = super().submit(fn, *args)
        if count == 1:
            future = Future()
            future.set_exception(ValueError("the worker raised"))
        if count == 2:
            future = Future()
            future.set_result("no measurement")
        return future


def test_a_failing_worker_costs_its_candidate(root: Path, caplog: pytest.LogCaptureFixture) -> None:
    with eqsat.tuning(Failing()), caplog.at_level(logging.WARNING, "eqsat"):
        program = compiled(tune=4)
    told = [message for message in caplog.messages if "was not measured" in message]
    assert len(told) == 3 and "the worker raised" in told[1] and "cannot schedule" in told[0]
    (record,) = records.all_records()
    assert len(record.nests) == 1 and program.report["steps"][0]["tuned"] == record.nests[0][1]


def test_a_nest_that_cannot_be_run_is_not_timed(
    root: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    from eqsat_backends.numba_cpu import contract

    real, refused = contract.emit, list[Nest]()

    def picky(group: KernelGroup, nest: Nest, target: Any) -> Any:
        if refused in ([], [nest]):
            refused[:] = [nest]
            raise ValueError("refused")
        return real(group, nest, target)

    monkeypatch.setattr(contract, "emit", picky)
    with caplog.at_level(logging.WARNING, "eqsat"):
        program = compiled(tune=3)
    (record,) = records.all_records()
    assert len(record.nests) == 2 and refused[0] not in dict(record.nests)
    assert sum("was not measured" in message for message in caplog.messages) == 1
    assert program.report["steps"][0]["kind"] == "kernel"


def test_waiting_for_workers_ends_with_their_share_of_the_budget(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    futures: list[Future[Any]] = []

    class Never:
        def submit(self, fn: Callable[..., Any], /, *args: Any) -> Future[Any]:
            futures.append(Future())
            return futures[-1]

    monkeypatch.setattr(tuner, "SHARE", 0.01)
    with eqsat.tuning(Never()):
        program = compiled(tune=2)
    assert "untuned" in program.report["search"]["stops"]
    assert futures and all(future.cancelled() for future in futures)
    assert not records.all_records()


def test_only_executors_are_taken() -> None:
    with pytest.raises(eqsat.errors.OptionError, match="submit"), eqsat.tuning(3):  # type: ignore[arg-type]
        pass


def test_one_measurement_at_a_time_in_a_process(monkeypatch: pytest.MonkeyPatch) -> None:
    running, most = [0], [0]
    begun = threading.Event()

    def timed(*_: Any) -> float:
        running[0] += 1
        most[0] = max(most[0], running[0])
        begun.wait(0.02)
        running[0] -= 1
        return 1.0

    monkeypatch.setattr(tuner, "time_of", timed)
    group = GROUPS["product"]
    arguments = (group, nests_of(group, 1)[0], machine_model.load(), "numba_cpu", 1, float("inf"), True)
    threads = [threading.Thread(target=tuner.measure, args=arguments) for _ in range(5)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert most == [1]


@contextlib.contextmanager
def processes() -> Iterator[Any]:
    with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as pool:
        yield pool


def test_measurements_run_in_a_process_pool(root: Path, caplog: pytest.LogCaptureFixture) -> None:
    with processes() as pool:
        with eqsat.tuning(pool):
            program = compiled(tune=2)
        (record,) = records.all_records()
        assert len(record.nests) == 2 and record.setup == setup()
        assert steps_of(program)[0].nest == record.nests[0][0]
        pool.submit(os._exit, 1)
        with eqsat.tuning(pool), caplog.at_level(logging.WARNING, "eqsat"):
            compiled(tune=4)
    assert any("BrokenProcessPool" in message for message in caplog.messages)


def test_measurements_run_on_a_dask_cluster(root: Path) -> None:
    distributed = pytest.importorskip("distributed")
    with (
        distributed.LocalCluster(n_workers=1, threads_per_worker=2, dashboard_address=None) as cluster,
        distributed.Client(cluster) as client,
        eqsat.tuning(client),
    ):
        program = compiled(tune=3)
    (record,) = records.all_records()
    assert len(record.nests) == 3 and record.setup == setup()
    assert steps_of(program)[0].nest == record.nests[0][0]


def test_shapes_of_terms_are_all_known() -> None:
    """A nest with every kind of term, and every field away from its default."""
    tile = TileOp("map", (("p0", 4), ("p1", 8)), 1, 8, True)
    nest = Pack("b@2", Seq((Loop("r0", 9, 3, tile, True, True), tile)), True)
    assert nest_from_json(json.loads(json.dumps(nest_to_json(nest)))) == nest
