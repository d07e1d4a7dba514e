"""A run's first row: validated before it exists, inserted once (rules D10 and D11)."""

from __future__ import annotations

import secrets
from datetime import timedelta
from typing import Any

from django.db import IntegrityError, transaction
from django.db.models.functions import Now

from . import clock, conf, durations, events, payloads, registry, schemas, wakeup
from .exceptions import KeyConflict, RunExists, ValidationFailed
from .models import Execution
from .names import LONGEST_ID, check_name, why_not
from .workflow import Definition


def begin(
    workflow: Definition | str,
    input: Any = None,
    *,
    run_id: str | None = None,
    key: str | None = None,
    requester: Any = None,
    queue: str | None = None,
    priority: int | None = None,
    at: Any = None,
    owner: str = "",
    parent: Execution | None = None,
) -> Execution:
    """Insert a run, or find the one that has its key. Arguments as for ``api.start``.

    Args:
        owner: whose lease the run is inserted under; none: a worker drives it when it is due.
        parent: the run that it is a child of, and whose requester is its own.
    """
    definition = registry.get(workflow) if isinstance(workflow, str) else workflow
    run = _row(definition, input, run_id, key, requester, queue, priority, at)
    if parent is not None:
        run.parent_id = parent.pk
        run.requester_id, run.requester_name = parent.requester_id, parent.requester_name
    definition.check_start(has_requester=bool(run.requester_name))
    if key is not None and (found := _found(run)) is not None:
        return found
    if owner and run.due_at is not None and run.due_at <= clock.now():
        run.due_at, run.lease_owner, run.lease_epoch, run.started_at = None, owner, 1, clock.now()
        run.lease_until = Now() + timedelta(seconds=conf.get("LEASE"))
    try:
        _insert(run)
    except IntegrityError:
        if key is not None and (found := _found(run)) is not None:
            return found
        if Execution.objects.filter(run_id=run.run_id).exists():
            raise RunExists(f"There is a run {run.run_id!r} already; it was left as it is.") from None
        raise
    return run


def new_run_id() -> str:
    """Return a random id of 128 bits behind the time in milliseconds, so that ids sort by age."""
    return f"{int(clock.now().timestamp() * 1000):012x}{secrets.token_hex(16)}"


def _insert(run: Execution) -> None:
    using = conf.database()
    with transaction.atomic(using=using):
        run.save(force_insert=True, using=using)
        if run.due_at is not None:
            wakeup.notify_due(run.queue, using=using)
    facts = {"run_id": run.run_id, "input": run.input}
    events.announce(events.run_started, using=using, sender=run.workflow_id, **facts)


def _row(
    definition: Definition,
    input: Any,
    run_id: str | None,
    key: str | None,
    requester: Any,
    queue: str | None,
    priority: int | None,
    at: Any,
) -> Execution:
    where = f'workflow "{definition.id}"'
    stored = input
    if definition.input_schema is not None:
        stored = schemas.clean(definition.input_schema, input, f"The input of {where}")
    now = clock.now()
    known = requester is not None and requester.pk is not None
    return Execution(
        run_id=_checked_id("run_id", run_id, LONGEST_ID) if run_id is not None else new_run_id(),
        workflow_id=definition.id,
        version=definition.version,
        key=_checked_id("key", key, 255) if key is not None else None,
        queue=check_name(queue, "queue", longest=100) if queue is not None else definition.queue,
        priority=_checked_priority(priority) if priority is not None else definition.priority,
        due_at=durations.due(at, now) if at is not None else now,
        input=payloads.roundtrip(stored),
        requester_id=requester.pk if known else None,
        requester_name=str(requester.get_username()) if known else "",
        created_at=now,
        updated_at=now,
    )


def _found(run: Execution) -> Execution | None:
    """Return the run that has the key of ``run`` already.

    Raises:
        KeyConflict: it was started with another input.
    """
    found = Execution.objects.filter(workflow_id=run.workflow_id, key=run.key).first()
    if found is None:
        return None
    if payloads.dumps(found.input) != payloads.dumps(run.input):
        raise KeyConflict(
            f'Workflow "{run.workflow_id}" has run {found.run_id} under the key {run.key!r}, but that '
            f"one was started with another input. Use another key, or the same input."
        )
    found.created = False
    return found


def _checked_id(what: str, value: Any, longest: int) -> str:
    if problem := why_not(value, longest):
        raise ValidationFailed(f"start({what}={value!r}): it {problem}.")
    return str(value)


def _checked_priority(value: Any) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or not -(2**31) <= value < 2**31:
        raise ValidationFailed(f"start(priority={value!r}): it is no whole number of 32 bits.")
    return value
