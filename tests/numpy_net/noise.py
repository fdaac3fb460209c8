"""What rounding may do to a program: its text run again with noise on every arithmetic result.

Monte Carlo arithmetic (Parker, "Monte Carlo Arithmetic: exploiting randomness in floating-point arithmetic", 1997) on
the syntax tree: operands and results of functions that round are multiplied by ``1 + u eps``, u uniform in [-1, 1].
Functions that only move, compare or choose elements are left as they are, so that ``x[i]`` or ``np.argmax(x)`` of an
argument must come out exactly.
"""

from __future__ import annotations

import ast
from collections.abc import Callable
from typing import Any

import numpy as np

from tests.numpy_net.program import FILE, words

ROUNDS = frozenset(
    words("""
    exp exp2 expm1 log log2 log10 log1p sqrt square cbrt reciprocal sin cos tan arcsin arccos arctan sinh cosh
    tanh arcsinh arccosh arctanh acos asin atan acosh asinh atanh degrees radians deg2rad rad2deg spacing add
    subtract multiply divide true_divide floor_divide power float_power pow remainder mod fmod arctan2 atan2
    hypot logaddexp logaddexp2 nextafter divmod ldexp sinc i0 interp unwrap round around rint polyval sum mean
    prod std var ptp nansum nanmean nanprod nanstd nanvar cumsum cumprod cumulative_sum cumulative_prod diff
    ediff1d gradient trapezoid median quantile percentile average reduce accumulate reduceat outer cov corrcoef
    cross inner vdot vecdot kron convolve correlate trace norm vector_norm matrix_norm matrix_power multi_dot
    matmul dot matvec vecmat tensordot einsum apply_along_axis apply_over_axes linspace logspace geomspace
    vander hamming det inv solve isclose allclose sigmoid softmax astype fromfunction
""")
)
SINGLE = float(np.finfo(np.float32).eps)
BINARY = (ast.Add, ast.Sub, ast.Mult, ast.Div, ast.FloorDiv, ast.Mod, ast.Pow, ast.MatMult)


class _Instrument(ast.NodeTransformer):
    def visit_BinOp(self, node: ast.BinOp) -> ast.AST:
        self.generic_visit(node)
        if not isinstance(node.op, BINARY):
            return node
        node.left, node.right = _call("noisy_", node.left), _call("noisy_", node.right)
        return _call("noisy_", node)

    def visit_Call(self, node: ast.Call) -> ast.AST:
        self.generic_visit(node)
        name = node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
        if name not in ROUNDS:
            return node
        # with a dtype, steps inside may be rounded to a narrower type than operands and result have
        noisy = "coarse_" if any(k.arg == "dtype" for k in node.keywords) else "noisy_"
        node.args = [a if isinstance(a, ast.Starred) else _call(noisy, a) for a in node.args]
        if isinstance(node.func, ast.Attribute):
            node.func.value = _call(noisy, node.func.value)
        return _call("noisy_", node)

    def visit_AugAssign(self, node: ast.AugAssign) -> Any:
        self.generic_visit(node)
        if not isinstance(node.op, BINARY) or not isinstance(node.target, ast.Name):
            return node
        node.value = _call("noisy_", node.value)
        after = ast.Assign(
            [ast.Name(node.target.id, ast.Store())], _call("disturbed_", ast.Name(node.target.id, ast.Load()))
        )
        return [node, after]

    def visit_FunctionDef(self, node: ast.FunctionDef) -> ast.AST:
        """The inputs are given, not computed."""
        return node if node.name == "inputs" else self.generic_visit(node)


def _call(name: str, value: ast.expr) -> ast.Call:
    return ast.Call(ast.Name(name, ast.Load()), [value], [])


def called(source: str) -> set[str]:
    """Names of the functions and methods that a program's text computes with, and of its operators."""
    found: set[str] = set()
    makers = ("inputs", "special", "edges", "frozen", "misaligned")
    parts = [p for p in ast.parse(source).body if not (isinstance(p, ast.FunctionDef) and p.name in makers)]
    for node in (n for part in parts for n in ast.walk(part)):
        if isinstance(node, ast.Attribute):
            found.add(node.attr)
        elif isinstance(node, ast.Name):
            found.add(node.id)
        elif isinstance(node, ast.BinOp | ast.AugAssign):
            found.add(type(node.op).__name__)
    return found


class Wrapped:
    """Events that make the place of a NaN, an infinity or the sign of a zero a matter of evaluation order."""

    def __init__(self) -> None:
        self.special = self.extreme = self.negative_zero = False


def noisy_run(source: str, seed: int, amplitude: float, events: Wrapped, arguments: Callable[[Any], Any]) -> Any:
    """The program's result with noise of ``amplitude`` units; ``arguments`` calls ``inputs`` as wanted."""
    rng = np.random.default_rng(seed)

    def noisy(value: Any, least: float = 0.0) -> Any:
        if isinstance(value, tuple | list):
            return type(value)(noisy(v, least) for v in value) if type(value) in (tuple, list) else value
        if not isinstance(value, np.ndarray | np.floating) or value.dtype.kind != "f" or value.size > 10**5:
            return value
        _watch(np.asarray(value), events)
        if not amplitude:
            return value
        unit = amplitude * max(least, float(np.finfo(value.dtype).eps))
        factor = 1 + rng.uniform(-unit, unit, value.shape)
        moved = (value * factor).astype(value.dtype)
        return moved if isinstance(value, np.ndarray) else value.dtype.type(moved)

    def disturbed(value: Any) -> Any:
        if isinstance(value, np.ndarray) and value.dtype.kind == "f" and value.flags.writeable:
            value[...] = noisy(value)
            return value
        return noisy(value)

    tree = ast.fix_missing_locations(_Instrument().visit(ast.parse(source)))
    import sys
    import types

    module = types.ModuleType("numpy_net_noise")
    sys.modules[module.__name__] = module
    module.__dict__.update(noisy_=noisy, coarse_=lambda v: noisy(v, SINGLE), disturbed_=disturbed)
    exec(compile(tree, FILE, "exec"), module.__dict__)
    given, named = arguments(module.inputs)
    with np.errstate(all="ignore"):
        return module.f(*given, **named)


def _watch(value: np.ndarray, events: Wrapped) -> None:
    if not value.size:
        return
    info = np.finfo(value.dtype)
    size = np.abs(value)
    finite = np.isfinite(value)
    events.special |= not finite.all()
    near = size[finite & (size > 0)]
    events.extreme |= bool(near.size) and bool(
        near.max() > float(info.max) ** 0.5 or near.min() < float(info.tiny) ** 0.5
    )
    events.negative_zero |= bool(((value == 0) & np.signbit(value)).any())


def widened(source: str) -> str:
    """The text with every float of the program computed in long double, which has a wider range."""

    class Widen(ast.NodeTransformer):
        def visit_Attribute(self, node: ast.Attribute) -> ast.AST:
            self.generic_visit(node)
            if isinstance(node.value, ast.Name) and node.value.id == "np" and node.attr in ("float32", "float64"):
                node.attr = "longdouble"
            return node

        def visit_Constant(self, node: ast.Constant) -> ast.AST:
            if node.value in ("float32", "f4", "f8", "d", "float64"):
                return ast.Constant("g")
            return node

    class InFunction(ast.NodeTransformer):
        def visit_FunctionDef(self, node: ast.FunctionDef) -> ast.AST:
            return Widen().visit(node) if node.name == "f" else node

    return ast.unparse(ast.fix_missing_locations(InFunction().visit(ast.parse(source))))


def wide(value: Any) -> Any:
    """Arguments with floats as long doubles."""
    if isinstance(value, np.ndarray | np.floating) and value.dtype.kind == "f" and value.size < 10**5:
        return value.astype(np.longdouble)
    if type(value) in (list, tuple):
        return type(value)(wide(v) for v in value)
    if isinstance(value, dict):
        return {k: wide(v) for k, v in value.items()}
    return value
