"""Networks of TASO's and Tensat's benchmarks: what rewriting gains over the program as written, by the same backend.

``bench/peers/as_written_peer.py`` runs the program as written: no rewrite rules, but the same fusion and schedules.
"""

from __future__ import annotations

import dataclasses
from typing import Any

from bench import algebra, vision
from bench.images import of_images
from bench.models import inception, nasnet, resnext, transformers, vgg
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

NETWORKS: dict[str, tuple[Any, Any, float, tuple[int, ...]]] = {
    "BERT (Tensat)": (transformers.tensat_bert, transformers.tensat_bert_params, 4.43e9, (64, 1024)),
    "BERT-base layer": (transformers.bert_layer, transformers.bert_layer_params, 1.87e9, (128, 768)),
    "SqueezeNet": (vision.squeezenet, vision.squeezenet_params, 0.698e9, (1, 3, EXTENT, EXTENT)),
    "ResNeXt-50": (resnext.resnext50, resnext.resnext50_params, 8.46e9, (1, 3, EXTENT, EXTENT)),
    "NasNet-A": (nasnet.nasnet, nasnet.nasnet_params, 30.1e9, (1, 3, EXTENT, EXTENT)),
    "Inception-v3": (inception.inception, inception.inception_params, 11.4e9, (1, 3, inception.EXTENT, inception.EXTENT)),
    "VGG-19": (vgg.vgg19, vgg.vgg19_params, 39.3e9, (1, 3, EXTENT, EXTENT)),
    "ResNet-50": (vision.resnet50, vision.resnet50_params, 8.18e9, (1, 3, EXTENT, EXTENT)),
}
"""Function, parameters, operations and the input's shape, by name."""


def workloads() -> list[Workload]:
    (cell,) = (w for w in algebra.workloads() if w.kind == "nas_rnn")
    rows = [dataclasses.replace(cell, suite=SUITE, name="NasRNN")]
    for name, (build, params, flops, shape) in NETWORKS.items():
        makers: dict[str, Any] = {"params": params, "x": normal(*shape)}
        rows.append(of_images(SUITE, name, build, makers, flops, const=("params",), tolerance=1e-4))
    return rows
