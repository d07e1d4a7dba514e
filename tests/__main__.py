"""Run the tests once for each database, side by side: ``python -m tests [arguments for pytest]``.

PostgreSQL is the server that ``FINOFLOW_TEST_POSTGRES`` names, or else one that is started for this run only.
``FINOFLOW_TEST_DATABASE`` restricts the run to one database. A database that cannot be had counts as one skipped, or as
one failed if a variable asked for it by name.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from subprocess import PIPE, STDOUT

from tests import databases
from tests.processes import ROOT

RUNNING: list[subprocess.Popen[str]] = []
NO_TESTS = 5  # pytest's exit code when nothing was selected


@dataclass
class Result:
    """What came of the tests on one database; ``skipped`` counts by reason."""

    database: str
    passed: int = 0
    failed: int = 0
    skipped: Counter[str] = field(default_factory=Counter)
    not_here: int = 0
    remark: str = ""

    def __str__(self) -> str:
        counts = f"{self.passed} passed, {self.failed} failed, {self.skipped.total()} skipped"
        lines = [f"{self.database:<12}{counts}, {self.not_here} not for this database"]
        lines += [f"{'':<12}{count} skipped: {reason}" for reason, count in self.skipped.items()]
        lines += [f"{'':<12}{self.remark}"] if self.remark else []
        return "\n".join(lines)


def main(arguments: list[str]) -> int:
    """Run on every database, print the summary, and return the exit code."""
    signal.signal(signal.SIGTERM, stop)
    asked = os.environ.get("FINOFLOW_TEST_DATABASE")
    wanted = [name for name in databases.NAMES if asked in (None, "", name)]
    with ThreadPoolExecutor() as pool:  # they wait for processes more than they compute
        results = list(pool.map(lambda name: run(name, arguments), wanted))
    passed, failed = sum(r.passed for r in results), sum(r.failed for r in results)
    skipped = sum(r.skipped.total() for r in results)
    print("\nSummary")
    for result in results:
        print(result)
    for name in databases.NAMES if asked else ():
        if name != asked:
            print(f"{name:<12}not asked for (FINOFLOW_TEST_DATABASE is {asked})")
    print(f"{passed} passed, {failed} failed, {skipped} skipped", flush=True)
    return 1 if failed or not passed else 0


def stop(*_: object) -> None:
    """End the test processes, so that our server is stopped, too, and nothing is left behind."""
    for process in RUNNING:
        process.terminate()
    sys.exit(128 + signal.SIGTERM)


def run(name: str, arguments: list[str]) -> Result:
    """Run pytest on one database, or say why not."""
    try:
        with databases.reachable(name, durable=False) as env:
            return pytest(name, arguments, env)
    except databases.Unreachable as why:
        print(f"{name:<11}| not run: {why}", flush=True)
        if os.environ.get("FINOFLOW_TEST_DATABASE") or os.environ.get("FINOFLOW_TEST_POSTGRES"):
            return Result(name, failed=1, remark=f"1 failed: it was asked for and cannot be had, {why}")
        return Result(name, skipped=Counter({f"the whole database, {why}": 1}))


def pytest(name: str, arguments: list[str], env: dict[str, str]) -> Result:
    """Run pytest in a process of its own and read the counts that ``conftest`` leaves."""
    with tempfile.TemporaryDirectory() as folder:
        report = Path(folder) / "report.json"
        command = [sys.executable, "-m", "pytest", *arguments]
        env = {**os.environ, **env, "FINOFLOW_TEST_REPORT": str(report)}
        process = subprocess.Popen(command, cwd=ROOT, env=env, stdout=PIPE, stderr=STDOUT, text=True)
        RUNNING.append(process)
        for line in process.stdout or ():
            print(f"{name:<11}| {line}", end="", flush=True)
        code = process.wait()
        counts = json.loads(report.read_text()) if report.exists() else {}
    result = Result(name, **{**counts, "skipped": Counter(counts.get("skipped"))})
    if code not in (0, NO_TESTS) and not result.failed:
        result.failed, result.remark = 1, f"pytest ended with exit code {code}, which counts as one failure"
    return result


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
