"""Modules whose named integers (:mod:`eqsat.plan.texts`) are read from an array behind a kernel's other arguments."""

import re


def reading(source: str, words: int) -> str:
    """With what each phase reads of the array behind ``words`` words; ``ValueError`` for names outside of phases."""
    made = []
    for part in re.split(r"(?m)^(?=def )", source):
        names = sorted({int(n) for n in re.findall(r"\bsize_(\d+)\b", part)})
        head = re.match(r"def \w+\(args, tid, nt\):\n", part)
        if names and head is None:
            raise ValueError("integers outside of phases depend on a length")
        reads = [f"    sizes = word(args, {words})\n", *(f"    size_{n} = word(sizes, {n})\n" for n in names)]
        made.append(head[0] + "".join(reads) + part[head.end() :] if names and head else part)
    return "".join(made)
