"""Lint, format, import layers and types, in one command: ``python -m checks``."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parent
CODE = ["eqsat", "rules", "backends", "tests", "bench", "examples", "checks.py"]


def main() -> int:
    """Run every check; 0 if all are clean."""
    links = ROOT / "build" / "typing"
    links.mkdir(parents=True, exist_ok=True)
    for name, folder in (("eqsat_rules", "rules"), ("eqsat_backends", "backends")):
        link = links / name
        if link.is_symlink() and link.readlink() != ROOT / folder:
            link.unlink()  # the checkout has moved
        if not link.is_symlink():
            link.symlink_to(ROOT / folder)
    failed = 0
    for command in (
        [sys.executable, "-m", "ruff", "check", *CODE],
        [sys.executable, "-m", "ruff", "format", "--check", *CODE],
        [sys.executable, "-m", "mypy", "-p", "eqsat", "-p", "eqsat_rules", "-p", "eqsat_backends"],
        [sys.executable, "-m", "mypy", "bench", "examples", "checks.py"],
        [sys.executable, "-c", "from importlinter.cli import lint_imports_command as run; run()", "--no-logo"],
    ):
        print("$", Path(command[0]).name, *command[1:], flush=True)
        failed |= subprocess.run(command, cwd=ROOT).returncode
    return failed


if __name__ == "__main__":
    raise SystemExit(main())
