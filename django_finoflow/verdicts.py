"""The row of a decision, whoever made it: a person (see ``decisions``) or a gate's deadline (rule A8)."""

from __future__ import annotations

import hashlib
from typing import Any

from . import clock, conf, events, payloads
from .models import Decision, Execution, Wait
from .records import TIMER


def record(
    gate: Wait,
    user: Any,
    *,
    approved: bool,
    reason: str = "",
    data: Any = None,
    channel: str = TIMER,
    override: bool = False,
) -> Decision:
    """Store an answer to a gate of a locked run; ``user`` None: nobody's."""
    return Decision.objects.create(
        wait=gate,
        user_id=None if user is None else user.pk,
        user_name="" if user is None else str(user.get_username()),
        approved=approved,
        override=override,
        reason=reason,
        data=data,
        channel=channel,
        digest=digest(gate),
        decided_at=clock.now(),
    )


def payload(decision: Decision) -> dict[str, Any]:
    """Return what the run gets of the decision that answers its gate."""
    return {
        "approved": decision.approved,
        "by": decision.user_name or None,
        "by_id": decision.user_id,
        "reason": decision.reason,
        "data": decision.data,
        "at": decision.decided_at,
    }


def announce(run: Execution, gate: Wait, decision: Decision) -> None:
    """Tell that a gate is decided, once that is committed."""
    events.announce(
        events.gate_decided,
        using=conf.database(),
        sender=run.workflow_id,
        run_id=run.run_id,
        name=gate.name,
        wait=gate.pk,
        approved=decision.approved,
        by=decision.user_name or None,
    )


def digest(gate: Wait) -> str:
    """Return a digest of what a gate shows; a decision keeps it."""
    return digest_of(gate.name, gate.approval)


def digest_of(*parts: Any) -> str:
    """Return a digest of values that could be stored."""
    return hashlib.sha256(payloads.to_json(payloads.encode(list(parts))).encode()).hexdigest()
