"""Fixtures and markers for all tests: one database, processes that share it, and an account of what was not run."""

from __future__ import annotations

import json
import os
import shutil
import textwrap
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests import databases
from tests.processes import ROOT, Spawned

if TYPE_CHECKING:
    from tests.making import Workshop

CHROMIUM = shutil.which("chromium")
NOT_HERE = pytest.StashKey[int]()
#: Fixtures by which a test starts processes of its own.
PROCESSES = {"live_database", "spawn", "spawn_code", "spawn_python", "live_server"}


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave out tests of the other database, and skip browser tests where there is no browser."""
    others = [f"only_{name}" for name in databases.NAMES if name != databases.chosen()]
    left_out = [item for item in items if any(item.get_closest_marker(marker) for marker in others)]
    items[:] = [item for item in items if item not in left_out]
    config.stash[NOT_HERE] = len(left_out)
    config.hook.pytest_deselected(items=left_out)
    for item in items:
        if PROCESSES & set(getattr(item, "fixturenames", ())):
            item.add_marker("processes")
        if item.get_closest_marker("browser") and not CHROMIUM:
            item.add_marker(pytest.mark.skip(reason="no chromium on this machine"))


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    """Say how many tests are not for this database, and leave the counts for ``python -m tests``."""
    not_here = config.stash.get(NOT_HERE, 0)
    terminalreporter.write_line(f"{databases.chosen()}: {not_here} not for this database")
    if path := os.environ.get("FINOFLOW_TEST_REPORT"):
        Path(path).write_text(json.dumps({**_counts(terminalreporter), "not_here": not_here}))


def _counts(reporter: pytest.TerminalReporter) -> dict:
    def found(*kinds: str) -> list:
        return [report for kind in kinds for report in reporter.stats.get(kind, [])]

    reasons = Counter(_reason(report) for report in found("skipped", "xfailed"))
    return {"passed": len(found("passed")), "failed": len(found("failed", "error")), "skipped": reasons}


def _reason(report: pytest.TestReport) -> str:
    text = report.longrepr[2] if isinstance(report.longrepr, tuple) else getattr(report, "wasxfail", "") or "no reason"
    return text.removeprefix("Skipped: ")


@pytest.fixture
def live_database(transactional_db: None) -> dict[str, str]:
    """The environment in which another process works on this very test's database.

    The test's own rows must be committed for that: it brings ``django_db(transaction=True)`` with it.
    """
    from django.conf import settings
    from django.db import connection

    return {
        **os.environ,
        "DJANGO_SETTINGS_MODULE": settings.SETTINGS_MODULE,
        "FINOFLOW_TEST_DATABASE": databases.chosen(),
        "FINOFLOW_TEST_NAME": str(connection.settings_dict["NAME"]),
        "PYTHONPATH": os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")])),
        "PYTHONUNBUFFERED": "1",
    }


@pytest.fixture
def spawn_python(live_database: dict[str, str], tmp_path: Path) -> Iterator[Callable[..., Spawned]]:
    """Start ``python`` with arguments, and environment variables as keywords, on this test's database."""
    processes: list[Spawned] = []

    def spawn_python(*arguments: str, **env: str) -> Spawned:
        log = tmp_path / f"process-{len(processes)}.log"
        processes.append(Spawned(list(arguments), {**live_database, **env}, log))
        return processes[-1]

    yield spawn_python
    for process in processes:
        process.destroy()


@pytest.fixture
def spawn(spawn_python: Callable[..., Spawned]) -> Callable[..., Spawned]:
    """Start a management command: ``spawn("finoflow_worker", "--drain", SOME_VARIABLE="x")``."""

    def spawn(*arguments: str, **env: str) -> Spawned:
        return spawn_python("-m", "django", *arguments, **env)

    return spawn


@pytest.fixture
def spawn_code(spawn_python: Callable[..., Spawned]) -> Callable[..., Spawned]:
    """Run Python source after ``django.setup()``: ``spawn_code("print(1)", "argument of sys.argv", VARIABLE="x")``."""

    def spawn_code(source: str, *arguments: str, **env: str) -> Spawned:
        setup = "import django; django.setup()\n"
        return spawn_python("-c", setup + textwrap.dedent(source), *arguments, **env)

    return spawn_code


@pytest.fixture
def make() -> Iterator[Workshop]:
    """Make workflows that are forgotten when the test ends; see ``tests.making``."""
    from tests.making import Workshop

    workshop = Workshop()
    yield workshop
    workshop.forget()
