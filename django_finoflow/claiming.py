"""Which runs a worker takes next (rules W1 and W2), at a cost that does not grow with what it does not take.

A claim walks the index ``finoflow_claim``: from each workflow that the worker knows to that workflow's lanes (queue and
priority), and in each lane to its due head. What is parked, due later, or another worker's to know is never read,
however much it is; the tests look at the plans. PostgreSQL does it in one statement, which skips rows that other claims
have locked. Elsewhere the walk reads candidates, and a conditional update decides who gets them.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from django.db import connections

from . import clock, conf
from .models import Execution

Known = Sequence[tuple[str, int]]

LANES = """
WITH RECURSIVE lane(workflow_id, version, queue, priority) AS (
    SELECT k.workflow_id, k.version, h.queue, h.priority
    FROM (VALUES {known}) k(workflow_id, version) CROSS JOIN LATERAL (
        SELECT queue, priority FROM finoflow_execution
        WHERE workflow_id = k.workflow_id AND version = k.version AND due_at IS NOT NULL AND lease_until IS NULL
        ORDER BY queue, priority LIMIT 1) h
  UNION ALL
    SELECT l.workflow_id, l.version, h.queue, h.priority FROM lane l CROSS JOIN LATERAL (
        SELECT queue, priority FROM finoflow_execution
        WHERE workflow_id = l.workflow_id AND version = l.version AND due_at IS NOT NULL AND lease_until IS NULL
          AND (queue, priority) > (l.queue, l.priority)
        ORDER BY queue, priority LIMIT 1) h
),
picked AS MATERIALIZED (
    SELECT e.id FROM lane l CROSS JOIN LATERAL (
        SELECT id, priority, due_at FROM finoflow_execution
        WHERE workflow_id = l.workflow_id AND version = l.version AND queue = l.queue AND priority = l.priority
          AND due_at <= %s AND lease_until IS NULL {queues}
        ORDER BY due_at, id LIMIT %s FOR UPDATE SKIP LOCKED) e
    ORDER BY e.priority DESC, e.due_at, e.id LIMIT %s
)
"""

# The same walk without LATERAL: what it carries from row to row is an id. Heads first, then a few rows behind each, so
# that two claims at once do not get in each other's way. (For ``(queue, priority) > (…)`` SQLite reads a whole lane.)
CANDIDATES = """
WITH RECURSIVE known(workflow_id, version) AS (VALUES {known}),
lane(workflow_id, version, head) AS (
    SELECT k.workflow_id, k.version, (
        SELECT id FROM finoflow_execution e
        WHERE e.workflow_id = k.workflow_id AND e.version = k.version AND e.due_at IS NOT NULL AND e.lease_until IS NULL
        ORDER BY e.queue, e.priority, e.due_at, e.id LIMIT 1)
    FROM known k
  UNION ALL
    SELECT l.workflow_id, l.version, COALESCE((
        SELECT id FROM finoflow_execution e
        WHERE e.workflow_id = l.workflow_id AND e.version = l.version AND e.due_at IS NOT NULL AND e.lease_until IS NULL
          AND e.queue = h.queue AND e.priority > h.priority
        ORDER BY e.priority, e.due_at, e.id LIMIT 1), (
        SELECT id FROM finoflow_execution e
        WHERE e.workflow_id = l.workflow_id AND e.version = l.version AND e.due_at IS NOT NULL AND e.lease_until IS NULL
          AND e.queue > h.queue
        ORDER BY e.queue, e.priority, e.due_at, e.id LIMIT 1))
    FROM lane l JOIN finoflow_execution h ON h.id = l.head
),
due(id, depth) AS (
    SELECT h.id, 1 FROM lane l JOIN finoflow_execution h ON h.id = l.head WHERE h.due_at <= %s {queues}
  UNION ALL
    SELECT (
        SELECT id FROM finoflow_execution e
        WHERE e.workflow_id = h.workflow_id AND e.version = h.version AND e.queue = h.queue AND e.priority = h.priority
          AND e.due_at <= %s AND e.lease_until IS NULL AND (e.due_at, e.id) > (h.due_at, +h.id)
        ORDER BY e.due_at, e.id LIMIT 1), d.depth + 1
    FROM due d JOIN finoflow_execution h ON h.id = d.id WHERE d.depth < %s
)
SELECT e.id FROM due d JOIN finoflow_execution e ON e.id = d.id ORDER BY e.priority DESC, e.due_at, e.id LIMIT %s
"""

LEFT_BEHIND = """
SELECT e.id FROM finoflow_execution e
WHERE e.lease_until < {now} AND (e.workflow_id, e.version) IN (VALUES {known}) {queues}
ORDER BY e.priority DESC, e.lease_until, e.id LIMIT %s {skip_locked}
"""

LEASE = """
UPDATE finoflow_execution
SET lease_owner = %s, lease_until = {until}, lease_epoch = lease_epoch + 1, due_at = NULL,
    recoveries = recoveries + CASE WHEN lease_until IS NULL THEN 0 ELSE 1 END, started_at = COALESCE(started_at, %s)
WHERE id {picked} AND {claimable}
RETURNING {columns}, input
"""

#: What a drive needs of a run, besides its input. No column here is one that needs converting.
COLUMNS = (
    "id",
    "run_id",
    "workflow_id",
    "version",
    "status",
    "queue",
    "lease_owner",
    "lease_epoch",
    "recoveries",
    "checkpoints",
    "requester_id",
    "requester_name",
    "parent_id",
)

#: An array, because its length is no matter to the planner: it would rather scan the table than look up so many ids.
PICKED = "= ANY (ARRAY(SELECT id FROM picked))"

DIALECTS = {
    "postgresql": {
        "now": "STATEMENT_TIMESTAMP()",
        "until": "STATEMENT_TIMESTAMP() + %s * INTERVAL '1 second'",
        "skip_locked": "FOR UPDATE SKIP LOCKED",
    },
    "sqlite": {
        "now": "STRFTIME('%%Y-%%m-%%d %%H:%%M:%%f', 'NOW')",
        "until": "STRFTIME('%%Y-%%m-%%d %%H:%%M:%%f', 'NOW', %s || ' seconds')",
        "skip_locked": "",
    },
}


class Claimer:
    """Takes runs for one worker.

    Args:
        owner: the worker's token, fresh for each process.
        known: (workflow id, version) of what it can drive.
        queues: the queues it takes from; none: all.
        lease: how long its leases are, in seconds.
    """

    def __init__(self, owner: str, known: Known, queues: Sequence[str] = (), lease: float | None = None):
        self._owner = owner
        self._known = known
        self._queues = list(queues)
        self._lease = lease or conf.get("LEASE")
        self._using = conf.database()
        self._dialect = DIALECTS[connections[self._using].vendor]
        self._names = {
            "known": ", ".join(["(%s, %s)"] * len(known)),
            "queues": f"AND queue IN ({', '.join(['%s'] * len(queues))})" if queues else "",
            **self._dialect,
        }
        self._places = [part for place in known for part in place]

    def due(self, limit: int = 1) -> list[Execution]:
        """Lease up to ``limit`` runs that are due, by priority (higher first), then due time."""
        if not self._known:
            return []
        now = self._now()
        if connections[self._using].vendor == "postgresql":
            params = [*self._places, now, *self._queues, limit, limit]
            return self._take(LANES.format(**self._names), params, PICKED, [], "due_at IS NOT NULL")
        some = 2 * limit + 6
        while ids := self._ids(CANDIDATES, [*self._places, now, *self._queues, now, some, some])[:limit]:
            if found := self._take("", [], _marks(ids), ids, "lease_until IS NULL AND due_at <= %s", now):
                return found  # else another claim was quicker: there may be more
        return []

    def left_behind(self, limit: int = 1) -> list[Execution]:
        """Lease up to ``limit`` runs whose lease ran out, and count that as a crash."""
        if not self._known:
            return []
        params = [*self._places, *self._queues, limit]
        expired = "lease_until < {now}".format(**self._dialect)
        if self._dialect["skip_locked"]:
            picked = LEFT_BEHIND.format(**self._names)
            return self._take(f"WITH picked AS MATERIALIZED ({picked})", params, PICKED, [], expired)
        while ids := self._ids(LEFT_BEHIND, params):
            if found := self._take("", [], _marks(ids), ids, expired):
                return found
        return []

    def _take(
        self, walk: str, params: list[Any], picked: str, ids: list[int], claimable: str, *still: Any
    ) -> list[Execution]:
        """Lease what was picked, as far as it is still ``claimable`` (an SQL condition with the parameters ``still``).

        The input comes undecoded, as JSON text: a row that cannot be decoded must not stop the claim of others.
        """
        columns, until = ", ".join(COLUMNS), self._dialect["until"]
        sql = walk + LEASE.format(picked=picked, claimable=claimable, until=until, columns=columns)
        params = [*params, self._owner, self._lease, self._now(), *ids, *still]
        return [self._run(row) for row in self._rows(sql, params)]

    def _run(self, row: Sequence[Any]) -> Execution:
        run = Execution.from_db(self._using, COLUMNS, row[:-1])
        run.stored_input, run.lease_seconds = row[-1], self._lease
        return run

    def _ids(self, sql: str, params: list[Any]) -> list[int]:
        return [row[0] for row in self._rows(sql.format(**self._names), params)]

    def _rows(self, sql: str, params: list[Any]) -> list[Any]:
        with connections[self._using].cursor() as cursor:
            cursor.execute(sql, params)
            return cursor.fetchall()

    def _now(self) -> Any:
        return connections[self._using].ops.adapt_datetimefield_value(clock.now())


def _marks(ids: list[int]) -> str:
    return f"IN ({', '.join(['%s'] * len(ids))})"
