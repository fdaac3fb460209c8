"""A child process that examines programs: requests and outcomes are lines of JSON; a crash costs one program."""

from __future__ import annotations

import json
import os
import sys
from dataclasses import asdict
from typing import Any


def main() -> None:
    """Answer requests until the input ends."""
    answers = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)  # what programs print is no answer
    from tests.numpy_net.generate import generate
    from tests.numpy_net.program import Program, bounded_memory
    from tests.numpy_net.run import examine

    answers.write(json.dumps({"ready": True}) + "\n")
    for line in sys.stdin:
        request: dict[str, Any] = json.loads(line)
        if "program" in request:
            program = Program.from_json(request["program"])
        else:
            program = generate(request["seed"], request["number"])
        with bounded_memory():
            outcome = examine(program)
        answer = asdict(outcome) | {"program": outcome.program.to_json() if outcome.program else ""}
        answers.write(json.dumps(answer) + "\n")


if __name__ == "__main__":
    main()
