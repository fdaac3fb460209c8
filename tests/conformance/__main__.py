"""``python -m tests.conformance``: the table of laws, which of them meet and which are refuted."""

from __future__ import annotations

import argparse
import statistics
import sys

from tests.conformance import taso
from tests.conformance.meeting import meet, refute
from tests.conformance.notation import table


def main() -> int:
    """0 if all sound laws meet and all others are refuted."""
    parser = argparse.ArgumentParser(prog="python -m tests.conformance", description=__doc__)
    parser.add_argument("numbers", nargs="*", type=int, help="laws to try; all without")
    parser.add_argument("--seed", type=int, default=0, help="of the extents")
    parser.add_argument("--failed", action="store_true", help="print only those that do not meet")
    options = parser.parse_args()
    counts = {"meets": 0, "without convolution": 0, "refuted": 0}
    wanted = dict.fromkeys(counts, 0)
    took, missed = [], 0
    for law in table(taso.TEXT):
        if options.numbers and law.number not in options.numbers:
            continue
        if law.number in taso.REFUTED:
            found = refute(law)
            wanted["refuted"] += 1
            counts["refuted"] += found is not None
            missed += found is None
            if not options.failed or found is None:
                print(f"{law.number:>4} {'refuted' if found else 'NOT REFUTED':<24} {law.equations.text}")
            continue
        met = meet(law, seed=options.seed)
        kinds = ("meets",) if law.convolves else ("meets", "without convolution")
        for kind in kinds:
            wanted[kind] += 1
            counts[kind] += met.met
        took.append(met.seconds)
        missed += not met.met
        if not options.failed or not met.met:
            what = f"{'meets' if met.met else met.stop:<10}{met.made:>6} {met.seconds:6.2f} s"
            print(f"{law.number:>4} {what} {law.equations.text}", flush=True)
    if took:
        print(f"median {statistics.median(took):.3f} s, most {max(took):.2f} s")
    print(", ".join(f"{kind}: {counts[kind]}/{wanted[kind]}" for kind in counts))
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
