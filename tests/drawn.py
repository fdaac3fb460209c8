"""Random programs as traced graphs, with the values of their inputs."""

from __future__ import annotations

import numpy as np

import eqsat
from eqsat import nn
from eqsat.frontends.trace import trace
from eqsat.ir.complexes import as_real
from eqsat.ir.node import Graph
from eqsat.verify.programs import Program


def traced_with_values(drawn: Program) -> tuple[Graph, list[np.ndarray]]:
    """The graph of a drawn program, and what its inputs are, complex ones as pairs of real numbers."""
    given = drawn.arrays()
    fn = drawn.function({"nn": nn, "eqsat": eqsat}, {i.name: given[i.name] for i in drawn.inputs if i.captured})
    args = tuple(given[name] for name in drawn.parameters)
    with np.errstate(all="ignore"):
        graph = trace(fn, args).graph
    return graph, [np.ascontiguousarray(as_real(a)).reshape(n.shape) for n, a in zip(graph.inputs, args, strict=True)]
