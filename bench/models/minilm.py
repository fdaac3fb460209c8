"""Whole trained models. MiniLM-L6 needs the ``examples`` extra for its weights."""

from __future__ import annotations

import functools
import importlib.util
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np

from bench.workload import Inputs, Workload, leaves

LENGTH = 128


@functools.cache
def minilm() -> ModuleType:
    """``examples/minilm.py``, which is no package."""
    path = Path(__file__).parents[2] / "examples" / "minilm.py"
    spec = importlib.util.spec_from_file_location("minilm", path)
    if spec is None or spec.loader is None:
        raise FileNotFoundError(path)
    module = importlib.util.module_from_spec(spec)
    sys.modules.setdefault("minilm", module)
    spec.loader.exec_module(module)
    return module


@functools.cache
def params() -> dict[str, Any]:
    loaded: dict[str, Any] = minilm().load_params()
    return loaded


def _inputs(rng: np.random.Generator, batch: int) -> Inputs:
    """Random token ids; sentences end at random places, the first fills its row."""
    vocabulary = params()["word"].shape[0]
    lengths = np.concatenate([[LENGTH], rng.integers(LENGTH // 4, LENGTH, batch - 1, endpoint=True)])
    mask = np.arange(LENGTH) < lengths[:, None]
    tokens = np.where(mask, rng.integers(0, vocabulary, (batch, LENGTH)), 0)
    return {"params": params(), "tokens": tokens, "mask": mask}


def workloads() -> list[Workload]:
    def encode(params: dict[str, Any], tokens: np.ndarray, mask: np.ndarray) -> np.ndarray:
        result: np.ndarray = minilm().encode(params, tokens, mask)
        return result

    found = []
    for batch in (1, 8):
        rows, width, layers = batch * LENGTH, 384, 6
        dense = 12 * width * width
        flops = layers * (2.0 * rows * dense + 4.0 * rows * LENGTH * width)
        weights = sum(a.nbytes for a in leaves(params()["layers"]))
        found.append(
            Workload(
                suite="models",
                name=f"MiniLM-L6 {batch}x{LENGTH}",
                kind="minilm",
                function=encode,
                inputs=functools.partial(_inputs, batch=batch),
                flops=flops,
                const=("params",),
                # Of the embedding table, only the rows that are looked up.
                touched=weights + rows * width * 4.0,
                cold_compile=True,
            )
        )
    return found
