"""Tell other processes that a run is due or has come to rest, on commit (rule W9).

PostgreSQL delivers a notification when the transaction that sent it commits, and folds equal ones of one transaction
into one: so this is one call inside the caller's transaction, naming only the queue. Workers listen to ``DUE`` (starts,
deliveries), those who watch runs to ``RESTED`` (parks, ends): a worker that ends a run does not wake the others. Other
databases have no such thing; there one polls.
"""

from __future__ import annotations

from django.db import connections

DUE = "finoflow_due"
RESTED = "finoflow_rested"


def can_notify(using: str) -> bool:
    """Whether database ``using`` can carry notifications."""
    return connections[using].vendor == "postgresql"


def notify(channel: str, queue: str, *, using: str) -> None:
    """Wake those who listen to ``channel`` for ``queue``, when the current transaction on ``using`` commits."""
    if can_notify(using):
        with connections[using].cursor() as cursor:
            cursor.execute("SELECT pg_notify(%s, %s)", [channel, queue])
