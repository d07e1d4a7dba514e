"""What tests of watching look at: the connections and threads there are, and what the shared thread asks."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from django.db import connection
from django.db.backends.signals import connection_created

from django_finoflow import lookout
from tests.processes import eventually

LOOKOUT = "finoflow-lookout"


def lookouts() -> int:
    """Return how many threads look out for those who watch."""
    return sum(thread.name == LOOKOUT for thread in threading.enumerate())


def other_connections() -> int:
    """Return how many connections there are to the test database, but for this thread's."""
    with connection.cursor() as cursor:
        cursor.execute(
            "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND pid <> pg_backend_pid() "
            "AND backend_type = 'client backend'"
        )
        return int(cursor.fetchone()[0])


def settled(count: int) -> None:
    """Wait until so many watch and each has been looked for once, so that what they see next has been told."""

    def is_settled() -> bool:
        shared = lookout._lookout
        runs = [] if shared is None else list(shared._runs.values())
        return sum(len(run.watchers) for run in runs) == count and not any(run.is_urgent for run in runs)

    eventually(is_settled)


def nobody_is_left() -> None:
    """Fail unless, soon, nothing of those who watched is left."""
    eventually(lambda: lookouts() == 0, 5)
    eventually(lambda: other_connections() == 0, 5)


class Overheard:
    """The statements of the shared thread's connections, and the number of the server's process for the latest."""

    def __init__(self) -> None:
        self.statements: list[str] = []
        self.backend = 0

    def keep(self, execute: Any, sql: str, params: Any, many: bool, context: Any) -> Any:
        self.statements.append(sql)
        return execute(sql, params, many, context)

    def of(self, start: str) -> list[str]:
        """Return those that begin so."""
        return [sql for sql in self.statements if sql.startswith(start)]


@contextmanager
def overheard() -> Iterator[Overheard]:
    """Keep what the shared thread asks of the database from now on."""
    kept = Overheard()

    def created(sender: Any, connection: Any, **_: Any) -> None:
        if threading.current_thread().name == LOOKOUT:
            kept.backend = connection.connection.info.backend_pid
            if kept.keep not in connection.execute_wrappers:
                connection.execute_wrappers.append(kept.keep)

    connection_created.connect(created)
    try:
        yield kept
    finally:
        connection_created.disconnect(created)
