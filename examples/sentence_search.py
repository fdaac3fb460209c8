"""Semantic search with a trained transformer, plain NumPy code made fast by eqsat.

    python examples/sentence_search.py "how do I keep plants alive"

Embeds the sentences below with all-MiniLM-L6-v2, ranks them by meaning against the query, and prints
the time per batch of the same function before and after ``eqsat.optimize``.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable

import minilm
import numpy as np

import eqsat

SENTENCES = [
    "Water the ferns twice a week and keep them out of direct sun.",
    "The train to Lisbon leaves from platform four at half past nine.",
    "A compiler rewrites a program into a faster one that means the same.",
    "Our bakery uses a sourdough starter that is forty years old.",
    "The central bank raised interest rates by a quarter of a point.",
    "She fixed the leaking tap with a new rubber washer.",
    "Whales sing to each other over hundreds of kilometres.",
    "The goalkeeper saved two penalties in the final.",
    "Let the dough rest overnight in the fridge before baking.",
    "Matrix multiplication is associative, so the order can be chosen.",
    "The museum is closed on Mondays, but the garden stays open.",
    "House prices fell for the third month in a row.",
    "Yellow leaves on a tomato plant often mean too much water.",
    "He learned to play the cello at the age of sixty.",
    "Migrating birds find their way by the stars and the magnetic field.",
    "Graphics processors run thousands of threads at once.",
    "The last bus into town goes at midnight on Fridays.",
    "A vaccine trains the immune system to recognise a virus.",
    "The team won the cup after extra time.",
    "Light from that galaxy took two billion years to reach us.",
]


def milliseconds(*functions: Callable[[], object], repeats: int) -> list[float]:
    """Median time of a call of each function, called in turn; the first round only warms up."""
    times: list[list[float]] = [[] for _ in functions]
    for _ in range(repeats + 1):
        for f, taken in zip(functions, times, strict=True):
            start = time.perf_counter()
            f()
            taken.append(1e3 * (time.perf_counter() - start))
    return [statistics.median(taken[1:]) for taken in times]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0] if __doc__ else None)
    parser.add_argument("query", nargs="?", default="how do I keep my plants alive?")
    parser.add_argument("--top", type=int, default=5, help="sentences to show (default 5)")
    parser.add_argument("--threads", type=int, default=None, help="threads of the optimized function (default: all)")
    parser.add_argument("--repeats", type=int, default=10, help="timed calls of each version (default 10)")
    options = parser.parse_args()

    params = minilm.load_params()
    tokens, mask = minilm.tokenize([*SENTENCES, options.query])
    encode = eqsat.optimize(minilm.encode, const=("params",), threads=options.threads)

    start = time.perf_counter()
    vectors = encode(params, tokens, mask)
    compiled = time.perf_counter() - start
    similarity = vectors[:-1] @ vectors[-1]

    print(f"query: {options.query}")
    for i in np.argsort(-similarity)[: options.top]:
        print(f"  {similarity[i]:6.3f}  {SENTENCES[i]}")

    exact = minilm.encode(minilm.load_params(np.float64), tokens, mask)
    error = np.linalg.norm(vectors - exact, axis=-1).max()
    numpy, ours = milliseconds(
        lambda: minilm.encode(params, tokens, mask), lambda: encode(params, tokens, mask), repeats=options.repeats
    )
    batch, length = tokens.shape
    print(f"\n{batch} sentences of {length} tokens (padded), all-MiniLM-L6-v2, float32")
    print(f"  first call, with compilation   {compiled:8.2f} s")
    print(f"  plain NumPy                    {numpy:8.2f} ms a batch")
    print(f"  eqsat                          {ours:8.2f} ms a batch   {numpy / ours:.2f} x")
    print(f"  error against float64          {error:8.1e} of a unit vector")


if __name__ == "__main__":
    main()
