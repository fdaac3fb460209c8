"""Loop nests as JSON data and back: what leaves the process, and what came from anywhere."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Callable, Iterator
from typing import Any

from eqsat.ir.nest import Loop, Nest, Pack, Seq, TileOp

TERMS: dict[str, type] = {"loop": Loop, "seq": Seq, "pack": Pack, "tile": TileOp}
MOST_TERMS = 1000
MOST_DEPTH = 64
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_@]{0,30}")


def nest_to_json(nest: Nest) -> dict[str, Any]:
    """``{"term": "loop", …}`` with the fields of the term, those at their defaults left out."""
    (name,) = (name for name, kind in TERMS.items() if type(nest) is kind)
    data: dict[str, Any] = {"term": name}
    for field in dataclasses.fields(nest):
        value = getattr(nest, field.name)
        if value != field.default:
            data[field.name] = _to_json(value)
    return data


def _to_json(value: Any) -> Any:
    if isinstance(value, Loop | Seq | Pack | TileOp):
        return nest_to_json(value)
    return [_to_json(part) for part in value] if isinstance(value, tuple) else value


def nest_from_json(data: Any) -> Nest:
    """The nest again; whether it is one of any kernel is for ``eqsat.schedule.legal`` to say.

    Raises:
        ValueError: ``data`` is no nest: another term, a missing, superfluous or wrong field, a number out of range,
            too many terms, or too deep.
    """
    return _nest(data, 0, iter(range(MOST_TERMS)))


def _nest(data: Any, depth: int, left: Iterator[int]) -> Nest:
    if depth > MOST_DEPTH or next(left, None) is None:
        raise ValueError(f"a nest of more than {MOST_TERMS} terms, or deeper than {MOST_DEPTH}")
    name = data.get("term") if isinstance(data, dict) else None
    kind = TERMS.get(name) if isinstance(name, str) else None
    if kind is None:
        raise ValueError(f"no term of a nest: {_shown(data)}")
    fields = {field.name: field for field in dataclasses.fields(kind)}
    extra = sorted(str(key) for key in data if key not in fields and key != "term")
    missing = [n for n, f in fields.items() if n not in data and f.default is dataclasses.MISSING]
    if extra or missing:
        raise ValueError(f"a {name} with unknown or missing fields: {', '.join([*extra, *missing])[:100]}")
    readers: dict[str, Callable[[Any], Any]] = {
        "str": _name,
        "int": _count,
        "bool": _flag,
        "Nest": lambda value: _nest(value, depth + 1, left),
        "tuple[Nest, ...]": lambda value: tuple(_nest(part, depth + 1, left) for part in _list(value)),
        "tuple[tuple[str, int], ...]": lambda value: tuple((_name(a), _count(n)) for a, n in map(_pair, _list(value))),
    }
    made: Nest = kind(**{n: readers[str(f.type)](data[n]) for n, f in fields.items() if n in data})
    return made


def _name(value: Any) -> str:
    if isinstance(value, str) and _NAME.fullmatch(value):
        return value
    raise ValueError(f"no name of an axis, operand or tile: {_shown(value)}")


def _count(value: Any) -> int:
    if isinstance(value, int) and not isinstance(value, bool) and 0 <= value < 1 << 50:
        return value
    raise ValueError(f"no size: {_shown(value)}")


def _flag(value: Any) -> bool:
    if isinstance(value, bool):
        return value
    raise ValueError(f"neither true nor false: {_shown(value)}")


def _list(value: Any) -> list[Any]:
    if isinstance(value, list) and len(value) <= MOST_TERMS:
        return value
    raise ValueError(f"no list: {_shown(value)}")


def _pair(value: Any) -> list[Any]:
    if isinstance(value, list) and len(value) == 2:
        return value
    raise ValueError(f"no axis and size: {_shown(value)}")


def _shown(value: Any) -> str:
    """The kind of a value and, of a short one, what it is: data may be huge."""
    kind = type(value).__name__
    return f"{kind} {value!r}" if isinstance(value, str | bool) and len(str(value)) <= 40 else kind
