"""Run benchmarks by name, each in a process of its own on a new database: ``python -m tests.benchmarks [NAME ...]``."""

from __future__ import annotations

import os
import subprocess
import sys

from tests import databases
from tests.processes import ROOT

NAMES = ("steps", "latency", "replay", "claims", "asynchronous", "gates")


def main(names: list[str]) -> int:
    """Run the benchmarks ``names``, or all."""
    if unknown := set(names) - set(NAMES):
        sys.exit(f"No benchmark {', '.join(sorted(unknown))}; there are {', '.join(NAMES)}.")
    with databases.reachable("postgresql") as variables:
        for name in names or NAMES:
            run(name, variables)
    if "steps" in (names or NAMES):
        run("steps", {"FINOFLOW_TEST_DATABASE": "sqlite", "FINOFLOW_TEST_SQLITE": "tuned"})
    return 0


def run(name: str, variables: dict[str, str]) -> None:
    """Run one benchmark on the database that the variables name."""
    print(f"\n── {name}", flush=True)
    command = [sys.executable, "-m", f"tests.benchmarks.{name}"]
    subprocess.run(command, cwd=ROOT, env={**os.environ, **variables}, check=True)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
