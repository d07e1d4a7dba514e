"""A worker's time-limited right to drive a run.

``lease_epoch`` is its fencing token: whenever a lease is taken, given back or taken away the epoch rises, and whatever
was written for an older one matches no row. Safety hangs on that alone, never on a clock or a name (rule W3). Leases
are measured by the database's clock, due times by ``clock``.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterable
from datetime import timedelta
from typing import Any, NamedTuple

from django.db import connections, transaction
from django.db.models import F, Q
from django.db.models.functions import Coalesce, Now

from . import clock, conf, history
from .models import Execution
from .stops import LeaseLost

logger = logging.getLogger("django_finoflow")


class Lease(NamedTuple):
    """Which run is held, and the token that proves it."""

    pk: int
    epoch: int


def take(pk: int, owner: str) -> bool:
    """Lease one run, due or not, unless it is under a live lease. Returns whether that worked."""
    free = Q(lease_until__isnull=True) | Q(lease_until__lt=Now())
    return bool(
        Execution.objects.live()
        .filter(free, pk=pk)
        .update(
            lease_owner=owner,
            lease_until=Now() + timedelta(seconds=conf.get("LEASE")),
            lease_epoch=F("lease_epoch") + 1,
            due_at=None,
            started_at=Coalesce("started_at", clock.now()),
        )
    )


def give_back(lease: Lease) -> bool:
    """End a lease early and make the run due for whoever comes next; no crash counts. Return whether it was ours."""
    try:
        history.hand_on(Execution(pk=lease.pk, lease_epoch=lease.epoch))
    except LeaseLost:
        return False
    return True


def renew(leases: Iterable[Lease], length: float) -> tuple[set[Lease], set[Lease]]:
    """Prolong leases to ``length`` seconds from now, but for those whose row is locked at this moment (rule W8).

    Returns:
        The leases that are lost, and those to try again soon.
    """
    leases = set(leases)
    rows = Execution.objects.filter(pk__in=[lease.pk for lease in leases])
    free = held = leases & {Lease(*row) for row in rows.values_list("pk", "lease_epoch")}
    with transaction.atomic(using=conf.database()):
        if connections[conf.database()].features.has_select_for_update_skip_locked:
            rows = rows.select_for_update(skip_locked=True).order_by("pk")
            free = held & {Lease(*row) for row in rows.values_list("pk", "lease_epoch")}
        if free:
            ours = Q.create([Q(pk=pk, lease_epoch=epoch) for pk, epoch in free], connector=Q.OR)
            Execution.objects.filter(ours).update(lease_until=Now() + timedelta(seconds=length))
    return leases - held, held - free


def clock_skew() -> float:
    """Return by how many seconds this process's clock is ahead of the database's; 0 where both are one machine's."""
    connection = connections[conf.database()]
    if connection.vendor == "sqlite":
        return 0.0
    with connection.cursor() as cursor:
        cursor.execute("SELECT STATEMENT_TIMESTAMP()")
        return (clock.now() - cursor.fetchone()[0]).total_seconds()


class Heartbeat(threading.Thread):
    """Keeps the leases of one process alive, all in one statement, and tells a drive when its lease is gone.

    Args:
        length: how long the leases are, in seconds; they are renewed three times as often.
    """

    def __init__(self, length: float):
        super().__init__(name="finoflow-heartbeat", daemon=True)
        self._length = length
        self._held: dict[Lease, Any] = {}
        self._lock = threading.Lock()
        self._over = threading.Event()

    def watch(self, lease: Lease, abort: Any) -> None:
        """Renew ``lease`` from now on; set ``abort`` when it is lost."""
        with self._lock:
            self._held[lease] = abort

    def forget(self, lease: Lease) -> None:
        """Renew ``lease`` no more."""
        with self._lock:
            self._held.pop(lease, None)

    def stop(self) -> None:
        """End the thread."""
        self._over.set()

    def run(self) -> None:
        every = self._length / 3
        pause = every
        while not self._over.wait(pause):
            try:
                pause = every / 10 if self.beat() else every
            except Exception as error:
                logger.warning("event=heartbeat-failed error=%r", str(error).strip())
                connections[conf.database()].close()
                pause = every / 10
        connections[conf.database()].close()

    def beat(self) -> bool:
        """Renew every lease once. Returns whether some must be tried again soon."""
        with self._lock:
            held = dict(self._held)
        if not held:
            return False
        lost, again = renew(held, self._length)
        for lease in lost:
            held[lease].set()
            self.forget(lease)
        return bool(again)
