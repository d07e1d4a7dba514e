"""What a claim of ten costs among 500,000 runs, as a ratio to a claim among ten."""

from __future__ import annotations

import time
from datetime import datetime, timedelta

from tests.benchmarks import stage

PARKED, LATER, DUE = 200_000, 200_000, 100_000
ROUNDS = 30


def main() -> None:
    """Claim ten among ten, then among ten, parked ones and a backlog; and among as many of a workflow nobody knows."""
    stage.set_up()
    few = _claims()
    stage.row("a claim of ten among ten", few * 1000, "ms")
    _fill("bench", PARKED, due=None)
    _fill("bench", LATER, due=timedelta(days=30))
    stage.row("… and 400,000 parked", (parked := _claims()) * 1000, "ms", few=parked / few)
    _fill("bench", DUE, due=timedelta(0))
    stage.row("… and 100,000 due now", (backlog := _claims()) * 1000, "ms", few=backlog / few)
    _fill("stranger", DUE, due=timedelta(0), priority=9)
    stage.row("… and 100,000 due of an unknown workflow", (strangers := _claims()) * 1000, "ms", few=strangers / few)
    idle = _claims("idle", 0)
    stage.row("an idle look, for a workflow with nothing due", idle * 1000, "ms", few=idle / few)


def _fill(workflow: str, count: int, due: timedelta | None, priority: int = 0) -> None:
    from django.db import connection

    from django_finoflow import clock
    from django_finoflow.models import Execution

    now = clock.now()
    moment = None if due is None else now + due
    for begin in range(0, count, 10_000):
        Execution.objects.bulk_create(
            Execution(
                run_id=f"{workflow}-{due}-{number}-{time.monotonic_ns()}",
                workflow_id=workflow,
                priority=priority,
                due_at=moment,
                status="waiting" if due != timedelta(0) else "running",
                created_at=now,
                updated_at=now,
            )
            for number in range(begin, min(begin + 10_000, count))
        )
    with connection.cursor() as cursor:
        cursor.execute("ANALYZE finoflow_execution")


def _claims(workflow: str = "bench", wanted: int = 10) -> float:
    """Return the median of some claims of ten, each given back before the next."""
    from django_finoflow.claiming import Claimer
    from django_finoflow.models import Execution

    if wanted and not Execution.objects.filter(workflow_id=workflow, due_at__isnull=False).exists():
        _fill(workflow, wanted, due=timedelta(0))
    claimer = Claimer("benchmark", [(workflow, 1), ("another", 1)])
    times = []
    for _ in range(ROUNDS):
        moment = time.perf_counter()
        runs = claimer.due(10)
        times.append(time.perf_counter() - moment)
        assert len(runs) == wanted
        if runs:
            Execution.objects.filter(pk__in=[run.pk for run in runs]).update(lease_until=None, due_at=_an_hour_ago())
    return stage.middle(times)


def _an_hour_ago() -> datetime:
    from django_finoflow import clock

    return clock.now() - timedelta(hours=1)


if __name__ == "__main__":
    main()
