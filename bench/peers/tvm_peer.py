"""Apache TVM's Relax on the graphs that ONNX Runtime runs, under its default schedules.

Its tuner (MetaSchedule) is not run: it takes minutes per network, and the wheel of 0.27 died while tuning.
"""

from __future__ import annotations

from typing import Any

import llvmlite.binding as llvm
import numpy as np
import onnx
import tvm
from tvm import relax
from tvm.relax.frontend.onnx import from_onnx

from bench.images import KIND
from bench.peers import Run
from bench.peers.onnxruntime_peer import serialized
from bench.workload import Inputs, Workload
from eqsat.cost.machine import vector_limit


class TvmPeer:
    name = "tvm"
    version = tvm.__version__

    def __init__(self, threads: int) -> None:
        cpu = {512: llvm.get_host_cpu_name(), 256: "haswell"}.get(vector_limit(), "x86-64")
        self.target = tvm.target.Target({"kind": "llvm", "mcpu": cpu, "num-cores": threads})

    def prepare(self, workload: Workload, inputs: Inputs) -> Run | None:
        found = serialized(workload, inputs) if workload.kind == KIND else None
        if found is None:
            return None
        model, feeds = found
        module = from_onnx(onnx.load_from_string(model))
        machine = relax.VirtualMachine(relax.build(module, target=self.target), tvm.cpu())
        operands = [tvm.runtime.tensor(np.ascontiguousarray(feeds[p.name])) for p in module["main"].params]
        return lambda: machine["main"](*operands)

    def result(self, value: Any) -> Any:
        found = [value] if hasattr(value, "numpy") else list(value)
        arrays = [tensor.numpy() for tensor in found]
        return tuple(arrays) if len(arrays) > 1 else arrays[0]


def make(threads: int) -> TvmPeer:
    return TvmPeer(threads)
