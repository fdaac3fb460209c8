"""Networks of TASO's and Tensat's benchmarks: what rewriting gains over the program as written, by the same backend.

``bench/peers/as_written_peer.py`` runs the program as written: no rewrite rules, but the same fusion and schedules.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from bench import algebra, vision
from bench.images import Build, of_images
from bench.models import inception, nasnet, resnext, transformers, vgg
from bench.vision import Params
from bench.workload import Workload, normal

SUITE = "superopt"
EXTENT = vision.EXTENT

TENSAT = {
    "BERT (Tensat)": (0.092, 1.4),
    "ResNeXt-50": (0.088, 0.7),
    "NasNet-A": (0.073, 10.6),
    "NasRNN": (0.689, 0.5),
    "Inception-v3": (0.100, 5.1),
    "SqueezeNet": (0.245, 0.3),
    "VGG-19": (0.089, 0.4),
}
"""What Yang et al. (MLSys 2021) report, on a T4: gain over the program as written, seconds of search."""

BUDGET = 120.0
"""Seconds of a compilation: networks of hundreds of distinct kernels take up to 50 on an idle machine."""
APPROXIMATES = "approximates"
"""Behind the name of a row that may use Winograd's F(4, 3), as Tensat's cuDNN may, and Strassen's algorithm."""


@dataclass(frozen=True)
class Network:
    """``shape``: of the input; ``flops``: of its convolutions and products."""

    build: Build
    params: Callable[[np.random.Generator], Params]
    flops: float
    shape: tuple[int, ...] = (1, 3, EXTENT, EXTENT)


NETWORKS = {
    "BERT (Tensat)": Network(transformers.tensat_bert, transformers.tensat_bert_params, 4.43e9, (64, 1024)),
    "BERT-base layer": Network(transformers.bert_layer, transformers.bert_layer_params, 1.87e9, (128, 768)),
    "SqueezeNet": Network(vision.squeezenet, vision.squeezenet_params, 0.698e9),
    "ResNeXt-50": Network(resnext.resnext50, resnext.resnext50_params, 8.46e9),
    "NasNet-A": Network(nasnet.nasnet, nasnet.nasnet_params, 30.1e9),
    "Inception-v3": Network(
        inception.inception, inception.inception_params, 11.4e9, (1, 3, inception.EXTENT, inception.EXTENT)
    ),
    "VGG-19": Network(vgg.vgg19, vgg.vgg19_params, 39.3e9),
    "ResNet-50": Network(vision.resnet50, vision.resnet50_params, 8.18e9),
}


def workloads() -> list[Workload]:
    (cell,) = (w for w in algebra.workloads() if w.kind == "nas_rnn")
    rows = [dataclasses.replace(cell, suite=SUITE, name="NasRNN")]
    for name, network in NETWORKS.items():
        makers = {"params": network.params, "x": normal(*network.shape)}
        budget = BUDGET if len(network.shape) == 4 else Workload.budget
        row = of_images(
            SUITE, name, network.build, makers, network.flops, const=("params",), tolerance=1e-4, budget=budget
        )
        rows += [row, dataclasses.replace(row, name=f"{name} {APPROXIMATES}", numerics="approximates")]
    return rows


def published(name: str) -> tuple[float, float] | None:
    """Tensat's gain and seconds of search for a row's network."""
    return TENSAT.get(name.removesuffix(f" {APPROXIMATES}"))
