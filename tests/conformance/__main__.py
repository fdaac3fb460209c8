"""``python -m tests.conformance``: the tables of laws, which of them meet and which are refuted."""

from __future__ import annotations

import argparse
import statistics
import sys
from collections.abc import Collection

from tests.conformance import axioms, taso, xla
from tests.conformance.meeting import meet, refute
from tests.conformance.notation import Law, table

TABLES = {
    "taso": (taso.TEXT, taso.REFUTED, {}),
    "axioms": (axioms.TEXT, frozenset(), axioms.OUTSIDE),
    "xla": (xla.TEXT, xla.REFUTED, xla.OUTSIDE),
}
"""By name: laws, numbers of those that are wrong, and reasons why others are left out."""


def shown(laws: Collection[Law], refuted: Collection[int], seed: int, failed: bool) -> int:
    """Print how each law fares; how many fare otherwise than they should."""
    counts = {"meets": 0, "without convolution": 0, "refuted": 0}
    wanted = dict.fromkeys(counts, 0)
    took, missed = [], 0
    for law in laws:
        if law.number in refuted:
            found = refute(law)
            wanted["refuted"] += 1
            counts["refuted"] += found is not None
            missed += found is None
            if not failed or found is None:
                print(f"{law.number:>4} {'refuted' if found else 'NOT REFUTED':<24} {law.equations.text}")
            continue
        met = meet(law, seed=seed)
        for kind in ("meets",) if law.convolves else ("meets", "without convolution"):
            wanted[kind] += 1
            counts[kind] += met.met
        took.append(met.seconds)
        missed += not met.met
        if not failed or not met.met:
            what = f"{'meets' if met.met else met.stop:<10}{met.made:>6} {met.seconds:6.2f} s"
            print(f"{law.number:>4} {what} {law.equations.text}", flush=True)
    if took:
        print(f"median {statistics.median(took):.3f} s, most {max(took):.2f} s")
    print(", ".join(f"{kind}: {counts[kind]}/{wanted[kind]}" for kind in counts if wanted[kind]))
    return missed


def main() -> int:
    """0 if all sound laws meet and all others are refuted."""
    parser = argparse.ArgumentParser(prog="python -m tests.conformance", description=__doc__)
    parser.add_argument("numbers", nargs="*", help="laws to try; all without")
    parser.add_argument("--table", choices=TABLES, action="append", help="tables to print; all without")
    parser.add_argument("--seed", type=int, default=0, help="of the extents")
    parser.add_argument("--failed", action="store_true", help="print only those that do not fare as they should")
    options = parser.parse_args()
    missed = 0
    for name in options.table or TABLES:
        text, refuted, outside = TABLES[name]
        laws = [law for law in table(text) if not options.numbers or str(law.number) in options.numbers]
        print(f"{name}: {len(laws)} laws")
        missed += shown(laws, refuted, options.seed, options.failed)
        for number, why in outside.items():
            if not options.failed and (not options.numbers or str(number) in options.numbers):
                print(f"{number:>4} left out: {why}")
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
