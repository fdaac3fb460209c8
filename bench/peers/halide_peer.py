"""Halide on the stencils, under the fastest of its auto-schedulers' schedules and of those of its own applications."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Any

import halide as hl
import numpy as np

from bench import stencil
from bench.measure import turn
from bench.peers import Run
from bench.peers.halide_stencils import ALGORITHMS, x, y
from bench.workload import Inputs, Workload
from eqsat.cost.machine import vector_limit

Schedule = Callable[[list[Any], Sequence[int]], Any]
"""Schedules functions, the last of them the output, whose extents it is told; returns the pipeline to compile."""

AUTOMATIC = ("Mullapudi2016", "Adams2019")
"""Halide's auto-schedulers for processors."""
WIDE = ("AVX512", "AVX10")
"""How the names of features begin that are left out where vectors are held to 256 bits."""


def strips(rows: int, threads: int, lanes: int) -> Schedule:
    """Strips of the last axis, in which each stage runs a row before its readers and keeps what they still read.

    As the applications ``blur``, ``unsharp`` and ``harris`` are scheduled.
    """

    def schedule(stages: list[Any], extents: Sequence[int]) -> Any:
        *earlier, out = stages
        strip, row = hl.Var("strip"), hl.Var("row")
        out.split(out.args()[-1], strip, row, min(rows, extents[-1])).vectorize(x, lanes)
        if threads > 1:
            out.parallel(strip)
        for stage in earlier:
            stage.store_at(out, strip).compute_at(out, row).vectorize(x, lanes)
        return hl.Pipeline(out)

    return schedule


def tiles(size: int, threads: int, lanes: int) -> Schedule:
    """The same in tiles of the plane, as the application ``stencil_chain`` is scheduled."""

    def schedule(stages: list[Any], extents: Sequence[int]) -> Any:
        *earlier, out = stages
        across, down, column, row, tile = (hl.Var(name) for name in ("across", "down", "column", "row", "tile"))
        out.tile(x, y, across, down, column, row, min(size, extents[0]), min(size, extents[1]))
        out.fuse(across, down, tile).vectorize(column, lanes)
        if threads > 1:
            out.parallel(tile)
        for stage in earlier:
            stage.store_at(out, tile).compute_at(out, row).vectorize(x, lanes)
        return hl.Pipeline(out)

    return schedule


def stored(threads: int, lanes: int) -> Schedule:
    """Every stage whole, one after the other."""

    def schedule(stages: list[Any], _: Sequence[int]) -> Any:
        for stage in stages:
            stage.compute_root().vectorize(x, lanes)
            if threads > 1:
                stage.parallel(stage.args()[-1])
        return hl.Pipeline(stages[-1])

    return schedule


def automatic(name: str, threads: int, target: Any) -> Schedule:
    def schedule(stages: list[Any], _: Sequence[int]) -> Any:
        pipeline = hl.Pipeline(stages[-1])
        pipeline.apply_autoscheduler(target, hl.AutoschedulerParams(name, {"parallelism": str(threads)}))
        return pipeline

    return schedule


class HalidePeer:
    name = "halide"
    version = version("halide")

    def __init__(self, threads: int) -> None:
        self.target = hl.get_host_target()
        if vector_limit() < 512:
            for feature, value in hl.TargetFeature.__members__.items():
                self.target = self.target.without_feature(value) if feature.startswith(WIDE) else self.target
        lanes = self.target.natural_vector_size(hl.Float(32))
        self.schedules: dict[str, Schedule] = {
            **{f"strips of {rows}": strips(rows, threads, lanes) for rows in (32, 128)},
            **{f"tiles of {size}": tiles(size, threads, lanes) for size in (256, 512)},
            "stored": stored(threads, lanes),
            **{name: automatic(name, threads, self.target) for name in AUTOMATIC},
        }

    def prepare(self, workload: Workload, inputs: Inputs) -> Run | None:
        if workload.suite != stencil.SUITE:
            return None
        best: tuple[float, Run] | None = None
        for name, run in self.compiled(workload, inputs):
            seconds = turn(run)
            logging.getLogger("bench").info("halide, %s, %s: %.3f ms", workload.name, name, 1e3 * seconds)
            if best is None or seconds < best[0]:
                best = seconds, run
        assert best is not None  # what is stored whole runs for all extents
        return best[1]

    def compiled(self, workload: Workload, inputs: Inputs) -> Iterator[tuple[str, Run]]:
        """A call for every schedule that the extents allow; each writes one array of its own, time and again."""
        (image,) = inputs.values()
        shape = workload.function(image).shape
        for name, schedule in self.schedules.items():
            given = hl.ImageParam(hl.Float(32), image.ndim)
            stages = ALGORITHMS[workload.function.__name__](given, shape[::-1])
            given.set_estimates([(0, n) for n in image.shape[::-1]])
            stages[-1].set_estimates([(0, n) for n in shape[::-1]])
            try:
                pipeline = schedule(stages, shape[::-1])
                run = called(pipeline.compile_to_callable([given], self.target), image, np.empty(shape, np.float32))
                run()
            except hl.HalideError as error:
                logging.getLogger("bench").info("halide, %s, %s: %s", workload.name, name, error)
                continue
            yield name, run

    def result(self, value: Any) -> Any:
        return value


def called(function: Any, image: Any, result: Any) -> Run:
    source, target = hl.Buffer(image), hl.Buffer(result)  # both share NumPy's memory

    def run() -> Any:
        function(source, target)
        return result

    return run


def make(threads: int) -> HalidePeer:
    for name in AUTOMATIC:
        (library,) = Path(hl.install_dir()).glob(f"**/*autoschedule_{name.lower()}.*")
        hl.load_plugin(str(library))
    return HalidePeer(threads)
