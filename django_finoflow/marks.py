"""What tells cheaply whether a run has changed, so that those who watch it read it only then."""

from __future__ import annotations

from datetime import datetime
from typing import Any, NamedTuple

from django.db.models import Count, F, Model, OuterRef, Subquery, Sum

from .models import Execution, Signal, Step, Wait


class Mark(NamedTuple):
    """How a run stands, in a few values: whatever a snapshot shows cannot change without one of them.

    ``steps`` grows with each attempt that is recorded, ``waits`` with each that opens or closes, ``signals`` with each
    that comes.
    """

    status: str
    updated_at: datetime
    steps: int | None
    waits: int | None
    signals: int | None


def marks(**which: Any) -> dict[int, Mark]:
    """Return the marks of runs by their keys, in one statement; those of runs that do not exist are missing.

    Args:
        which: says which runs, as for ``filter()``.
    """
    runs = Execution.objects.filter(**which).annotate(
        of_steps=_of_each(Step, Sum(F("attempts") + 1)),
        of_waits=_of_each(Wait, Count("pk") + Count("closed_at")),
        of_signals=_of_each(Signal, Count("pk")),
    )
    rows = runs.values_list("pk", "status", "updated_at", "of_steps", "of_waits", "of_signals")
    return {key: Mark(*values) for key, *values in rows}


def _of_each(model: type[Model], total: Any) -> Subquery:
    of_run = model._default_manager.filter(execution=OuterRef("pk")).order_by().values("execution")
    return Subquery(of_run.annotate(total=total).values("total"))
