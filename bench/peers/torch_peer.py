"""PyTorch eager, with its own fused functions where it has them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from bench import quant
from bench.images import KIND
from bench.peers import Run
from bench.peers.torch_images import network
from bench.workload import Inputs, Workload, convert


def _linear_gelu(x: Tensor, w: Tensor, b: Tensor) -> Tensor:
    return F.gelu(torch.addmm(b, x, w))


def _mean_variance(x: Tensor, axis: int) -> tuple[Tensor, Tensor]:
    variance, mean = torch.var_mean(x, dim=axis, correction=0)
    return mean, variance


def _swiglu(x: Tensor, gate: Tensor, up: Tensor) -> Tensor:
    return F.silu(x @ gate) * (x @ up)


def _attention(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return F.scaled_dot_product_attention(q[None], k[None], v[None])[0]


def _causal_attention(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return F.scaled_dot_product_attention(q[None], k[None], v[None], is_causal=True)[0]


def _linear_attention(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    fq, fk = torch.exp(q), torch.exp(k)
    return (fq @ (fk.mT @ v)) / (fq @ fk.sum(dim=-2, keepdim=True).mT)


def _nas_rnn(x: Tensor, state: Tensor, wx: Tensor, wh: Tensor, length: int, gates: int) -> Tensor:
    for step in range(length):
        t = [x[step] @ wx[i] + state @ wh[i] for i in range(gates)]
        m0 = F.relu(t[0]) + torch.sigmoid(t[3])
        m1 = torch.sigmoid(t[1]) + torch.tanh(t[2])
        m2 = torch.sigmoid(t[4]) * torch.tanh(t[5])
        m3 = torch.sigmoid(t[6]) * F.relu(t[7])
        m4 = torch.sigmoid(m1) + torch.tanh(m2)
        m5 = torch.tanh(m0) * torch.tanh(m3)
        state = torch.tanh(torch.tanh(m4) * torch.tanh(m5))
    return state


def _quantized_conv(inputs: Inputs, padding: int) -> tuple[Callable[..., Any], list[Any]]:
    x, w, b = (torch.from_numpy(value) for value in inputs.values())
    step = float(quant.X[0] * quant.W)
    images = torch._make_per_tensor_quantized_tensor(x, float(quant.X[0]), int(quant.X[1]))
    weights = torch._make_per_tensor_quantized_tensor(w, float(quant.W), 0)
    ones = [1, 1]
    packed = torch.ops.quantized.conv2d_prepack(weights, b * step, ones, [padding, padding], ones, 1)
    run = torch.ops.quantized.conv2d
    return lambda images: run(images, packed, float(quant.Y[0]), int(quant.Y[1])).int_repr(), [images]


FUNCTIONS: dict[str, Callable[..., Any]] = {
    "dot": torch.matmul,
    "integers": torch._int_mm,
    "matmul": torch.matmul,
    "linear_gelu": _linear_gelu,
    "gelu_tanh": lambda x: F.gelu(x, approximate="tanh"),
    "softmax": lambda x: torch.softmax(x, dim=-1),
    "log_softmax": lambda x: torch.log_softmax(x, dim=-1),
    "layer_norm": lambda x, scale, shift: F.layer_norm(x, x.shape[-1:], scale, shift, 1e-5),
    "rms_norm": lambda x, scale: F.rms_norm(x, x.shape[-1:], scale, 1e-5),
    "add_layer_norm": lambda x, y, scale, shift: F.layer_norm(x + y, x.shape[-1:], scale, shift, 1e-5),
    "swiglu": _swiglu,
    "multiply_add": lambda a, b, c: torch.addcmul(c, a, b),
    "erf": torch.erf,
    "power": torch.pow,
    "fixed_power": torch.pow,
    "mean_variance": _mean_variance,
    "attention": _attention,
    "causal_attention": _causal_attention,
    "linear_attention": _linear_attention,
    "chain": lambda a, b, c, d: a @ b @ c @ d,
    "qkv": lambda x, q, k, v: (x @ q, x @ k, x @ v),
    "common_factor": lambda a, b, c: a @ b + a @ c,
    "sum_of_product": lambda a, b: (a @ b).sum(),
    "trace_of_product": lambda a, b: torch.trace(a @ b),
    "low_rank": lambda x, u, v: (x @ u) @ v,
    "lora": lambda x, w, a, b: x @ (w + 0.5 * (a @ b)),
    "as_written_linear_attention": lambda q, k, v: (q @ k.mT) @ v,
    "nas_rnn": _nas_rnn,
    "relu_relu": lambda x: F.relu(F.relu(x)),
}


class MiniLM(torch.nn.Module):  # type: ignore[misc]
    """The encoder of ``examples/minilm.py`` with PyTorch's functions and the same weights."""

    HEADS = 12

    def __init__(self, params: Any) -> None:
        super().__init__()

        def add(at: str, value: Any) -> None:
            if isinstance(value, dict):
                for key, item in value.items():
                    add(f"{at}_{key}" if at else key, item)
            elif isinstance(value, list):
                for number, item in enumerate(value):
                    add(f"{at}_{number}", item)
            else:
                self.register_parameter(f"p_{at}", torch.nn.Parameter(torch.from_numpy(value), requires_grad=False))

        add("", params)
        self.depth = len(params["layers"])

    def weight(self, name: str) -> Tensor:
        found: Tensor = getattr(self, f"p_{name}")
        return found

    def linear(self, name: str, x: Tensor) -> Tensor:
        return F.linear(x, self.weight(f"{name}_weight"), self.weight(f"{name}_bias"))

    def norm(self, name: str, x: Tensor) -> Tensor:
        return F.layer_norm(x, x.shape[-1:], self.weight(f"{name}_weight"), self.weight(f"{name}_bias"), 1e-12)

    def forward(self, tokens: Tensor, mask: Tensor) -> Tensor:
        batch, length = tokens.shape
        x = F.embedding(tokens, self.weight("word")) + self.weight("position")[:length] + self.weight("type")[0]
        x = self.norm("norm", x)
        bias = torch.zeros(mask.shape).masked_fill(~mask, -1e9)[:, None, None, :]
        for i in range(self.depth):
            at = f"layers_{i}"
            q, k, v = (
                self.linear(f"{at}_attention_{n}", x).view(batch, length, self.HEADS, -1).transpose(1, 2)
                for n in ("query", "key", "value")
            )
            mixed = F.scaled_dot_product_attention(q, k, v, attn_mask=bias).transpose(1, 2).reshape(x.shape)
            x = self.norm(f"{at}_attention_norm", x + self.linear(f"{at}_attention_output", mixed))
            hidden = F.gelu(self.linear(f"{at}_intermediate", x))
            x = self.norm(f"{at}_output_norm", x + self.linear(f"{at}_output", hidden))
        weight = mask[:, :, None].to(x.dtype)
        pooled = (x * weight).sum(dim=1) / weight.sum(dim=1)
        return F.normalize(pooled, dim=-1)


def tensor(array: np.ndarray) -> Tensor:
    if array.dtype.name != "bfloat16":
        return torch.from_numpy(array)
    return torch.from_numpy(array.view(np.int16)).view(torch.bfloat16)


def native(workload: Workload, inputs: Inputs) -> tuple[Callable[..., Any], list[Any]] | None:
    """The PyTorch function of a workload and its tensors."""
    if workload.kind == "minilm":
        return MiniLM(inputs["params"]).eval(), [torch.from_numpy(inputs["tokens"]), torch.from_numpy(inputs["mask"])]
    if workload.kind == KIND:
        return network(workload, inputs)
    if workload.kind == "quantized_conv":
        if not torch.cpu._is_vnni_supported():
            return None  # sums of two products saturate in 16 bits there, and results are wrong
        return _quantized_conv(inputs, workload.options["padding"])
    if workload.kind == "weight_only":  # one row of weights for each column of the result
        x, w, scale = inputs.values()
        rows = np.ascontiguousarray(w.T)
        return torch._weight_int8pack_mm, [torch.from_numpy(value) for value in (x, rows, scale)]
    function = FUNCTIONS.get(workload.kind)
    if function is None:
        return None
    tensors = [convert(value, tensor) for value in inputs.values()]
    options = dict(workload.options)
    return (lambda *args: function(*args, **options)), tensors


class TorchPeer:
    name = "torch"
    version = torch.__version__

    def prepare(self, workload: Workload, inputs: Inputs) -> Run | None:
        found = native(workload, inputs)
        if found is None:
            return None
        function, tensors = found

        def run() -> Any:
            with torch.inference_mode():
                return function(*tensors)

        return run

    def result(self, value: Any) -> Any:
        if isinstance(value, tuple):
            return tuple(v.numpy() for v in value)
        return (value.float() if value.dtype == torch.bfloat16 else value).numpy()


def make(threads: int) -> TorchPeer:
    torch.set_num_threads(threads)
    return TorchPeer()
