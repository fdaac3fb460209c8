"""Tuning records: what they are good for, what searches take of them, and documents from anywhere."""

from __future__ import annotations

import json
import logging
import subprocess
import sys
from collections.abc import Callable
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import eqsat
from eqsat import cli, records
from eqsat import tune as tuner
from eqsat.compiled import Compiled
from eqsat.cost import machine as machine_model
from eqsat.cost.processor import Processor, processor_of
from eqsat.ir.kernel import Call, KernelGroup, Load, Stage, rewrite_kernel
from eqsat.ir.nest import Nest
from eqsat.ir.types import float64
from eqsat.plan.plan import KernelStep
from eqsat.schedule import schedule
from eqsat_backends.numba_cpu.tiles.tile_ops import cpu_target
from tests.kernel_groups import DESK, gemm
from tests.reports import one_line
from tests.test_nest_json import GROUPS, deep, nests_of


def setup(threads: int = 1, **changes: Any) -> records.Setup:
    here = records.setup_of(machine_model.load(), threads, "numba_cpu")
    return here._replace(processor=replace(here.processor, **changes))


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


def test_records_survive_processes(own_cache: Path) -> None:
    record = record_of()
    assert records.write(record) and records.read(record.key) == record
    code = f"from eqsat import records; print(records.read({record.key!r}).to_json())"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout.strip() == str(record.to_json())
    assert (own_cache / f"{record.key}.record").stat().st_mode & 0o777 == 0o600


def test_a_record_of_another_processor_or_kernel_is_not_used(own_cache: Path, caplog: pytest.LogCaptureFixture) -> None:
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
    np.testing.assert_allclose(made(*ARGS), layer(*ARGS), rtol=1e-4, atol=1e-4)
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


def test_a_record_made_after_a_plan_was_cached_is_used(own_cache: Path) -> None:
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


def test_explain_says_that_a_nest_was_measured(own_cache: Path) -> None:
    before = eqsat.optimize(layer, threads=1).explain(*ARGS)
    assert "when tuned" not in str(before) and before.steps[0].tuned is None
    _, record = slow_but_recorded(compiled())
    records.write(record)
    report = eqsat.optimize(layer, threads=1).explain(*ARGS)
    text = one_line(report)
    assert f"chosen by measurement: {1e3 * record.nests[0][1]:.3g} ms when tuned, predicted " in text
    assert report.steps[0].tuned == record.nests[0][1] and json.loads(report.to_json())["steps"][0]["tuned"]
    step = steps_of(compiled())[0]
    drawn = nests_of(step.group, 60, machine_model.load())
    foreign = next(nest for nest in drawn if nest not in dict(record.nests))
    records.write(replace(record, nests=((foreign, 1e-6),)))
    text = one_line(eqsat.optimize(layer, threads=1).explain(*ARGS))
    assert "1 µs when tuned, not among those that the model offers" in text
    assert steps_of(compiled())[0].nest == foreign


def test_tuning_records_what_it_measured_and_measures_it_once(own_cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
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


def test_without_records_a_plan_costs_one_look_for_each_kernel(
    own_cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
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


def test_records_are_moved_as_json(own_cache: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
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


def test_hostile_documents_are_refused_whole(
    own_cache: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "hostile.json"
    for name, data in spoiled().items():
        file.write_bytes(data)
        code, shown, told = run(capsys, "import", str(file))
        assert (code, shown) == (1, ""), name
        assert told.startswith("eqsat: ") and len(told.splitlines()) == 1 and len(told) < 300, name
        assert not own_cache.exists() or not [path for path in own_cache.iterdir() if path.suffix == ".record"], name


def test_a_document_that_is_not_there_or_too_large_is_refused(
    own_cache: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert run(capsys, "import", str(tmp_path / "none"))[0] == 1
    monkeypatch.setattr(records, "MOST_BYTES", 100)
    file = tmp_path / "records.json"
    file.write_text(records.document([record_of()]))
    code, _, told = run(capsys, "import", str(file))
    assert code == 1 and "has more than" in told


def test_a_legal_nest_of_a_document_cannot_make_a_wrong_result(own_cache: Path) -> None:
    step = steps_of(compiled())[0]
    for nest in nests_of(step.group, 3, machine_model.load()):
        record = records.measured(records.content(step.group), setup(), step.label, {nest: 1e-9})
        records.import_json(records.document([record]), machine_model.load())
        assert steps_of(compiled())[0].nest == nest  # compiled() compares the results
