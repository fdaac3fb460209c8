"""The command ``eqsat rules discover``: laws over operators, printed and written as a module."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from pathlib import Path
from typing import Any

OPTIONS = ("size", "numbers", "numerics", "seconds", "seed")


def add_arguments(parser: argparse.ArgumentParser, argument: Callable[[str], tuple[str, Any]]) -> None:
    """The options; ``argument`` reads a name and a type."""
    group = parser.add_argument_group("discover", "laws over operators that no rule derives, each checked")
    group.add_argument("--ops", metavar="OP", nargs="+", help="operators, such as add maximum matmul concatenate")
    group.add_argument("--size", type=int, help="most operators of a side (default: 3)")
    group.add_argument(
        "--var", metavar="NAME=TYPE", type=argument, action="append", help="inputs, such as a=float64[2,3]"
    )
    group.add_argument("--numbers", metavar="N", type=float, nargs="+", help="constants, such as 0 1")
    group.add_argument("--numerics", help="the loosest class of laws (default: reassociates)")
    group.add_argument("--seed", type=int, help="of the random inputs (default: 0)")
    group.add_argument("--out", metavar="FILE", type=Path, help="write the laws as a Python module")


def run(options: argparse.Namespace) -> int:
    """Search, print, write. ``ValueError`` for what cannot be asked."""
    from rich.console import Console

    from eqsat.discovery.search import discover

    if not options.ops:
        raise ValueError("discover needs --ops, such as: eqsat rules discover --ops maximum neg abs --size 2")
    if options.out is not None and not options.out.resolve().parent.is_dir():
        raise ValueError(f"there is no folder {options.out.resolve().parent}")
    given = {name: getattr(options, name) for name in OPTIONS if getattr(options, name) is not None}
    found = discover(options.ops, variables=dict(options.var) if options.var else None, **given)
    Console(soft_wrap=True, markup=False, highlight=False).print(str(found))
    if options.out is not None:
        found.write(options.out)
    return 0
