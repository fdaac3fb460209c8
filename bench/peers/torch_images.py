"""Operators of networks as PyTorch's functions."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from bench.workload import Inputs, Workload, convert


class TorchOps:
    def conv(self, x: Tensor, w: Tensor, b: Tensor | None = None, **options: Any) -> Tensor:
        return (F.conv1d, F.conv2d, F.conv3d)[x.ndim - 3](x, w, b, **options)

    def conv_transpose(self, x: Tensor, w: Tensor, b: Tensor | None = None, **options: int) -> Tensor:
        return (F.conv_transpose1d, F.conv_transpose2d, F.conv_transpose3d)[x.ndim - 3](x, w, b, **options)

    def batch_norm(self, x: Tensor, p: Mapping[str, Tensor]) -> Tensor:
        return F.batch_norm(x, p["mean"], p["variance"], p["scale"], p["shift"], eps=1e-5)

    def max_pool(self, x: Tensor, kernel: int, *, stride: int, padding: int = 0) -> Tensor:
        return F.max_pool2d(x, kernel, stride, padding)

    def avg_pool(self, x: Tensor, kernel: int, *, stride: int, padding: int = 0, count_padding: bool = True) -> Tensor:
        return F.avg_pool2d(x, kernel, stride, padding, count_include_pad=count_padding)

    def mean_pool(self, x: Tensor) -> Tensor:
        return x.mean(dim=(2, 3))

    def adaptive_avg_pool(self, x: Tensor, size: int) -> Tensor:
        return F.adaptive_avg_pool2d(x, size)

    def resize(self, x: Tensor, factor: int) -> Tensor:
        return F.interpolate(x, scale_factor=factor, mode="bilinear", align_corners=False)

    def relu(self, x: Tensor) -> Tensor:
        return F.relu(x)

    def clip(self, x: Tensor, low: float, high: float) -> Tensor:
        return F.hardtanh(x, low, high)

    def add(self, x: Tensor, y: Tensor) -> Tensor:
        return x + y

    def concat(self, *parts: Tensor) -> Tensor:
        return torch.cat(parts, dim=1)

    def linear(self, x: Tensor, w: Tensor, b: Tensor) -> Tensor:
        return F.linear(x, w, b)

    def matmul(self, x: Tensor, y: Tensor) -> Tensor:
        return x @ y

    def scaled(self, x: Tensor, by: float) -> Tensor:
        return x * by

    def reshape(self, x: Tensor, shape: tuple[int, ...]) -> Tensor:
        return x.reshape(shape)

    def transpose(self, x: Tensor, axes: tuple[int, ...]) -> Tensor:
        return x.permute(axes)

    def softmax(self, x: Tensor) -> Tensor:
        return torch.softmax(x, dim=-1)

    def layer_norm(self, x: Tensor, scale: Tensor, shift: Tensor) -> Tensor:
        return F.layer_norm(x, x.shape[-1:], scale, shift, 1e-5)

    def gelu(self, x: Tensor) -> Tensor:
        return F.gelu(x)


class Network(torch.nn.Module):  # type: ignore[misc]
    """A workload with its known inputs as parameters, which a compiler may fold and lay out anew."""

    def __init__(self, workload: Workload, inputs: Inputs) -> None:
        super().__init__()
        self.build = workload.options["build"]
        self.names = list(inputs)
        self.known: dict[str, Any] = {}
        for name in workload.const:
            self.known[name] = convert(inputs[name], self.kept)

    def kept(self, array: Any) -> Tensor:
        made = torch.nn.Parameter(torch.from_numpy(array), requires_grad=False)
        self.register_parameter(f"p{len(self._parameters)}", made)
        return made

    def forward(self, *given: Tensor) -> Tensor | tuple[Tensor, ...]:
        rest = iter(given)
        found: Tensor | tuple[Tensor, ...] = self.build(
            OPS, *(self.known[n] if n in self.known else next(rest) for n in self.names)
        )
        return found


OPS = TorchOps()


def network(workload: Workload, inputs: Inputs) -> tuple[Network, list[Any]]:
    """The module, and the tensors that it is called with."""
    rest = [convert(value, torch.from_numpy) for name, value in inputs.items() if name not in workload.const]
    return Network(workload, inputs).eval(), rest
