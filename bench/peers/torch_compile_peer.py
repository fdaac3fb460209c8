"""torch.compile (Inductor) of the same functions as PyTorch eager."""

from __future__ import annotations

from typing import Any

import torch
import torch._dynamo
import torch._inductor.config

from bench.peers import Run
from bench.peers.torch_peer import TorchPeer, native
from bench.workload import Inputs, Workload


class TorchCompilePeer(TorchPeer):
    name = "torch_compile"

    def prepare(self, workload: Workload, inputs: Inputs) -> Run | None:
        found = native(workload, inputs)
        if found is None:
            return None
        function, tensors = found
        torch._dynamo.reset()
        compiled = torch.compile(function, dynamic=False)

        def run() -> Any:
            with torch.no_grad():
                return compiled(*tensors)

        return run

    def result(self, value: Any) -> Any:
        return super().result(tuple(v.detach() for v in value) if isinstance(value, tuple) else value.detach())


def make(threads: int) -> TorchCompilePeer:
    torch.set_num_threads(threads)
    torch._inductor.config.freezing = True  # parameters of a module may be folded and laid out anew
    return TorchCompilePeer()
