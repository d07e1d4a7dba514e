"""The example project, as a newcomer has it: a copy of its folder, an empty database, and its commands."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import textwrap
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit

from tests import databases
from tests.processes import ROOT, Spawned

EXAMPLE = ROOT / "example_project"


@dataclass(frozen=True)
class Project:
    """A copy of the example's folder, and the environment in which its commands run."""

    folder: Path
    env: dict[str, str]

    @classmethod
    def copied(cls, folder: Path, database_url: str) -> Project:
        """Copy the example to a new folder of that name."""
        shutil.copytree(EXAMPLE, folder, ignore=shutil.ignore_patterns("*.sqlite3*", "__pycache__"))
        env = {
            **os.environ,
            "DJANGO_SETTINGS_MODULE": "company.settings",
            "EXAMPLE_DATABASE_URL": database_url,
            "PYTHONPATH": str(ROOT),
            "PYTHONWARNINGS": "error",
        }
        return cls(folder, env)

    def manage(self, *arguments: str) -> str:
        """Run ``manage.py`` and return what it printed; fail with that unless the exit code is 0."""
        return self._python(str(self.folder / "manage.py"), *arguments)

    def spawn(self, *arguments: str) -> Spawned:
        """Start ``manage.py`` and leave it running; whoever calls this destroys it."""
        log = self.folder / f"{arguments[0]}.log"
        return Spawned([str(self.folder / "manage.py"), *arguments], {**self.env, "PYTHONUNBUFFERED": "1"}, log)

    def run_code(self, source: str, *arguments: str) -> str:
        """Run Python source in a process with Django set up, and return what it printed."""
        return self._python("-c", "import django; django.setup()\n" + textwrap.dedent(source), *arguments)

    def _python(self, *arguments: str) -> str:
        command = [sys.executable, *arguments]
        done = subprocess.run(command, cwd=self.folder, env=self.env, capture_output=True, text=True, timeout=120)
        assert done.returncode == 0, done.stdout + done.stderr
        assert not done.stderr
        return done.stdout


@contextmanager
def empty_database(folder: Path, name: str) -> Iterator[str]:
    """Give an empty database, as the example is told of it: a file in ``folder``, or one of that name on the server."""
    if databases.chosen() == "sqlite":
        yield f"sqlite:///{folder / f'{name}.sqlite3'}"
        return
    import psycopg

    server, name = os.environ["FINOFLOW_TEST_POSTGRES"], f"test_finoflow_{name}_{os.getpid()}"
    with psycopg.connect(server, autocommit=True) as connection:
        connection.execute(f"CREATE DATABASE {name}")
        yield urlsplit(server)._replace(path=f"/{name}").geturl()
        connection.execute(f"DROP DATABASE {name} WITH (FORCE)")
