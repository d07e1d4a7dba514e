"""A process that dies before any write it sends to the database, and others that do its work afterwards.

A real ``kill -9`` hits where it likes; this one hits every place in turn.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from itertools import count
from typing import Any

from django.db import connection
from django.db.models.functions import Now

from django_finoflow import registry
from django_finoflow.attempt import Abort
from django_finoflow.claiming import Claimer
from django_finoflow.driver import drive
from django_finoflow.models import Execution

WRITES = re.compile(r"INSERT INTO|DELETE FROM|(?<!FOR )UPDATE [\"f]")


class Killed(BaseException):
    """The process is no more."""


class Killer:
    """Lets a number of writes pass, and then nothing at all."""

    def __init__(self, writes: int):
        self.left = writes
        self.has_struck = False

    def __call__(self, execute: Any, sql: str, params: Any, many: bool, context: Any) -> Any:
        if WRITES.search(sql):
            self.has_struck = self.has_struck or not self.left
            self.left -= 1
        if self.has_struck:
            raise Killed(sql)
        return execute(sql, params, many, context)


def work(limit: int = 50) -> None:
    """Drive, as workers do, whatever is due or was left behind, until nothing is."""
    claimer = Claimer("somebody", registry.known())
    for _ in range(limit):
        if not (runs := claimer.due() or claimer.left_behind()):
            return
        drive(runs[0], abort=Abort())
    raise AssertionError("the runs do not come to rest")


@contextmanager
def killed_after(writes: int) -> Iterator[Killer]:
    """Die after so many writes; the leases of the dead then run out."""
    killer = Killer(writes)
    try:
        with connection.execute_wrapper(killer):
            yield killer
    except Killed:
        pass
    Execution.objects.filter(lease_until__isnull=False).update(lease_until=Now() - timedelta(seconds=1))


def killed_everywhere(begin: Callable[[int], Any], settled: Callable[[Any], None]) -> int:
    """Begin something, let its workers die after 0, 1, 2 … writes, let others go on, and see how it settled.

    Returns how many times somebody died.
    """
    with unsynchronised():
        for died in count():
            begun = begin(died)
            with killed_after(died) as killer:
                work()
            if not killer.has_struck:
                return died
            work()
            settled(begun)
    raise AssertionError("unreachable")


@contextmanager
def unsynchronised() -> Iterator[None]:
    """On SQLite, spare the waiting for the disk, which only a power failure would miss."""
    if connection.vendor != "sqlite":
        yield
        return
    with connection.cursor() as cursor:
        cursor.execute("PRAGMA synchronous=OFF")
        try:
            yield
        finally:
            cursor.execute("PRAGMA synchronous=FULL")
