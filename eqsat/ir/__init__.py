"""The typed graph, the op table and index notation."""

from eqsat.ir import build, composite, elementwise, opaque, structure
from eqsat.ir.node import ConstArray, Graph, Node
from eqsat.ir.table import OPS, Op, make
from eqsat.ir.types import DType, TensorType

__all__ = [
    "OPS",
    "ConstArray",
    "DType",
    "Graph",
    "Node",
    "Op",
    "TensorType",
    "build",
    "composite",
    "elementwise",
    "make",
    "opaque",
    "structure",
]
