"""The command line: ``python -m tests.numpy_net --programs 5000 --seed 0 --jobs 2``."""

from __future__ import annotations

import argparse

from tests.numpy_net.generate import generate
from tests.numpy_net.sweep import sweep


def main(given: list[str] | None = None) -> int:
    """0 only where no program failed."""
    parser = argparse.ArgumentParser(
        prog="python -m tests.numpy_net", description="Random NumPy programs against eqsat."
    )
    parser.add_argument("--programs", type=int, default=500, help="how many (default 500)")
    parser.add_argument("--first", type=int, default=0, help="number of the first one")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--jobs", type=int, default=1, help="child processes at a time")
    parser.add_argument("--timeout", type=float, default=60.0, help="seconds for a program (default 60)")
    parser.add_argument("--no-shrink", action="store_true", help="print failing programs as they were drawn")
    parser.add_argument("--show", action="store_true", help="print the programs and run none")
    options = parser.parse_args(given)
    numbers = range(options.first, options.first + options.programs)
    if options.show:
        for number in numbers:
            print(f"# program {number}\n{generate(options.seed, number).script()}")
        return 0
    report = sweep(
        options.seed, numbers, jobs=options.jobs, timeout=options.timeout, shrink=not options.no_shrink, say=True
    )
    print(report)
    return 1 if report.findings else 0


if __name__ == "__main__":
    raise SystemExit(main())
