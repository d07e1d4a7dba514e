"""Tell other processes that a run is due or has changed, on commit (rule W9).

PostgreSQL delivers a notification when the transaction that sent it commits, and folds equal ones of one transaction
into one. Workers listen to ``DUE`` (starts, deliveries), which names only the queue: a thousand starts in one
transaction are one notification. Those who watch runs listen to ``CHANGED`` (deliveries, parks, ends), which names the
run's row: on a busy system each of them would else be woken for all others. So a worker that ends a run does not wake
the other workers. Checkpoints send neither. Other databases have no such thing; there one polls.
"""

from __future__ import annotations

from django.db import connections

DUE = "finoflow_due"
CHANGED = "finoflow_changed"


def can_notify(using: str) -> bool:
    """Whether database ``using`` can carry notifications."""
    return connections[using].vendor == "postgresql"


def notify_due(queue: str, *, using: str, changed: int | None = None) -> None:
    """Wake the workers of ``queue`` when the current transaction on ``using`` commits.

    Args:
        queue: the queue of the run that is due.
        using: alias of the runs' database.
        changed: the key of the run, if it may be watched, so that those who do are woken as well.
    """
    if not can_notify(using):
        return
    with connections[using].cursor() as cursor:
        if changed is None:
            cursor.execute("SELECT pg_notify(%s, %s)", [DUE, queue])
        else:
            cursor.execute("SELECT pg_notify(%s, %s), pg_notify(%s, %s)", [DUE, queue, CHANGED, str(changed)])
