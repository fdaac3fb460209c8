"""OpenVINO on the graphs that ONNX Runtime runs; operators of ONNX Runtime's own it has not."""

from __future__ import annotations

from typing import Any

import openvino

from bench.peers import Run
from bench.peers.onnxruntime_peer import serialized
from bench.workload import Inputs, Workload

KINDS = ("images",)


class OpenVinoPeer:
    name = "openvino"
    version = openvino.__version__.split("-")[0]

    def __init__(self, threads: int) -> None:
        # bfloat16 where the processor has it is the default, and another computation.
        self.options = {
            "INFERENCE_NUM_THREADS": threads, "NUM_STREAMS": 1, "INFERENCE_PRECISION_HINT": "f32",
            "ENABLE_CPU_PINNING": False,
        }  # fmt: skip

    def prepare(self, workload: Workload, inputs: Inputs) -> Run | None:
        found = serialized(workload, inputs) if workload.kind in KINDS else None
        if found is None:
            return None
        model, feeds = found
        core = openvino.Core()
        request = core.compile_model(core.read_model(model, b""), "CPU", self.options).create_infer_request()
        for port in request.model_inputs:
            request.set_tensor(port, openvino.Tensor(feeds[port.any_name], shared_memory=True))

        def run() -> Any:
            request.infer()
            return request

        return run

    def result(self, value: Any) -> Any:
        found = [tensor.data.copy() for tensor in value.output_tensors]
        return tuple(found) if len(found) > 1 else found[0]


def make(threads: int) -> OpenVinoPeer:
    return OpenVinoPeer(threads)
