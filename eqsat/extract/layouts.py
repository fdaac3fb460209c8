"""What layouts of operands cost contractions and reductions, in issue slots: copies to panels, lanes that lie apart.

``maps``: of each stored tensor that an operand is computed from, which element each of the operand's reads; None where
that is its own.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from eqsat.cost.calibration import PACK_TRANSPOSED, PANEL_PACK_SLOTS, RUN_SLOTS
from eqsat.cost.roofline import Roofline
from eqsat.extract.walks import VECTOR, run_of
from eqsat.ir import views
from eqsat.ir.types import TensorType, row_major
from eqsat.ir.views import ViewMap

__all__ = ["Maps", "copied_across", "lanes_apart", "windows_copied"]

Maps = tuple[ViewMap | None, ...]


def windows_copied(roofline: Roofline, type: TensorType, maps: Maps, along: Sequence[int] | None) -> float:
    """Slots in which windows that overlap are copied: to panels by vectors along some axes, or as they are."""
    walked = [map.axes for map in maps if map is not None and not map.repeats]
    if not walked:
        return 0.0
    runs = [run_of(axes, True) if along is None else run_of([axes[a] for a in along], False) for axes in walked]
    lanes, run = roofline.lanes(type.dtype), min(runs)
    return lanes * (PANEL_PACK_SLOTS * -(-run // lanes) + RUN_SLOTS) / run * type.size


def copied_across(
    roofline: Roofline, type: TensorType, maps: Maps, labels: Sequence[int], along: int, summed: Sequence[int]
) -> float:
    """Slots in which an operand is copied to panels by vectors along one of its axes: of each tensor that lies another
    way. What lies along summed axes is turned by blocks, else lanes are loaded one by one, but for every second one."""
    axis, slots = labels.index(along), 0.0
    for map in maps:
        axes = (views.identity(type.shape) if map is None else map).axes
        steps = [abs(atoms[-1][1]) if atoms else 0 for atoms in axes]
        if steps[axis] > 2 and type.shape[axis] > 1:
            blocks = any(step == 1 and x in summed for x, step in zip(labels, steps, strict=True))
            slots += PACK_TRANSPOSED if blocks else roofline.apart(type.dtype)
    return slots * type.size


def lanes_apart(
    roofline: Roofline,
    type: TensorType,
    operands: Iterable[tuple[TensorType, Maps, Sequence[int]]],
    out: Sequence[int],
    points: float,
) -> tuple[tuple[int, float], ...]:
    """For each axis of a reduction its step, and the slots lost where vectors lie along it: in lanes that are not in
    use, and by loads lane by lane. Nothing where neighbours are combined, which vectors may lie along.

    ``type``: of the result; ``operands``: with the labels of their axes; ``out``: those of the result's.
    """
    lanes = roofline.lanes(type.dtype)
    steps: dict[int, list[int]] = {}
    for operand, maps, labels in operands:
        for map in maps:
            axes = (views.identity(operand.shape) if map is None else map).axes
            for label, atoms in zip(labels, axes, strict=True):
                steps.setdefault(label, []).append(abs(atoms[-1][1]) if atoms else 0)
                if label not in out and atoms and atoms[-1][0] >= VECTOR and atoms[-1][1] == 1:
                    return ()
    found = []
    for x, n, stride in zip(out, type.shape, row_major(type.shape), strict=True):
        apart = roofline.apart(type.dtype) * sum(step > 2 for step in steps.get(x, ()))
        if n > 1:
            found.append((stride, points * (-(-n // lanes) * lanes / n - 1 + apart)))
    return tuple(found)
