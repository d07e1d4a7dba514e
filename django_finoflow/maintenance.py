"""What is done in good time and by no run: reminders and escalations of gates, by each worker's main thread.

And gates that older code opened while a new version is deployed are indexed, so that people find them.

The schedule is in the rows, fixed when the gate opened. Each notice is one transaction that locks the run and looks
again, so it is given once, however many workers there are and whatever dies when. What was missed while no worker ran
is made up for; reminders that have piled up are one.
"""

from __future__ import annotations

import logging
from typing import Any

from django.db import InterfaceError, OperationalError, transaction

from . import clock, conf, deliveries, events
from .approval import ESCALATE, REMIND
from .audience import Audience
from .models import Candidate, Execution, GateEvent, Wait
from .statuses import OPEN_TO_SIGNALS, GateEventKind

logger = logging.getLogger("django_finoflow.worker")

KINDS = {REMIND: GateEventKind.REMINDED, ESCALATE: GateEventKind.ESCALATED}
#: Takes the place of the digest of an audience that cannot be read.
NOBODYS = "-"

TOLD = {REMIND: events.gate_reminded, ESCALATE: events.gate_escalated}


def give_notices(limit: int = 100) -> int:
    """Give the notices that are due, those due longest first.

    Args:
        limit: for how many gates at the most; the others are for the next time.

    Returns:
        For how many gates it gave some.

    Raises:
        Error: the database is away.
    """
    live = Wait.objects.open().filter(execution__status__in=OPEN_TO_SIGNALS)
    due = live.filter(notice_due_at__lte=clock.now()).order_by("notice_due_at", "pk")
    return sum(_given(*row) for row in due.values_list("execution_id", "pk")[:limit])


def index_gates(limit: int = 100) -> int:
    """Have gates found that older code has opened, as it does while a new version is deployed.

    Args:
        limit: how many at the most; the others are for the next time.

    Returns:
        How many there were.

    Raises:
        Error: the database is away.
    """
    unknown = Wait.objects.gates().filter(audience_digest="").values_list("pk", "audience")
    gates = list(unknown[:limit])
    for pk, audience in gates:
        Wait.objects.filter(pk=pk, audience=audience).update(audience_digest=_indexed(pk, audience))
    return len(gates)


def _indexed(gate_pk: int, audience: str) -> str:
    """Return the digest of a gate's audience, which is indexed. One that cannot be is reported, once (rule W6)."""
    try:
        with transaction.atomic(using=conf.database()):
            return Candidate.objects.index(Audience.loads(audience))
    except (InterfaceError, OperationalError):
        raise
    except Exception:
        logger.exception("event=gate-not-indexed gate=%s", gate_pk)
        return NOBODYS


def _given(run_pk: int, gate_pk: int) -> bool:
    """Give one gate its notices. One that cannot be given is reported, and that gate gets no more (rule W6)."""
    try:
        with transaction.atomic(using=conf.database()):
            return _give(run_pk, gate_pk)
    except (InterfaceError, OperationalError):
        raise
    except Exception:
        logger.exception("event=notice-failed gate=%s", gate_pk)
        Wait.objects.filter(pk=gate_pk).update(notice_due_at=None)
        return False


def _give(run_pk: int, gate_pk: int) -> bool:
    # One that is locked is being answered, perhaps; we look again soon, and wait for nobody.
    run = Execution.objects.filter(pk=run_pk).locked(wait=False)
    if run is None or run.status not in OPEN_TO_SIGNALS:
        return False
    gate = Wait.objects.open().filter(pk=gate_pk).first()
    now = clock.now()
    if gate is None or gate.notice_due_at is None or gate.notice_due_at > now:
        return False
    gate.execution = run
    ahead = gate.approval["notices"][gate.notices :]
    due = [notice for notice in ahead if notice["at"] <= now]
    gate.notices += len(due)
    gate.notice_due_at = ahead[len(due)]["at"] if len(due) < len(ahead) else None
    gate.save(update_fields=["notices", "notice_due_at"])
    if gate.due_at is not None and gate.due_at <= now:
        return False  # too late for an answer, so for a notice
    for notice in _folded(due):
        _note(gate, notice, now)
    return True


def _folded(due: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return each escalation, and one reminder in place of all, after them: it reaches those who were added, too."""
    reminders = [notice for notice in due if notice["kind"] == REMIND]
    return [notice for notice in due if notice["kind"] == ESCALATE] + reminders[-1:]


def _note(gate: Wait, notice: dict[str, Any], now: Any) -> None:
    kind = notice["kind"]
    if kind == ESCALATE:
        audience = Audience.loads(gate.audience).widened(Audience.of(notice["audience"]))
        gate.audience, gate.audience_digest = audience.dumps(), Candidate.objects.index(audience)
        gate.save(update_fields=["audience", "audience_digest"])
        deliveries.unclaim(gate)
    GateEvent.objects.create(wait=gate, kind=KINDS[kind], happened_at=now)
    facts = {"run_id": gate.execution.run_id, "name": gate.name, "wait": gate.pk}
    events.announce(TOLD[kind], using=conf.database(), sender=gate.execution.workflow_id, **facts)
