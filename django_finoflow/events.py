"""Django signals that tell what happened to a run, for metrics, mails and dashboards.

Each is sent after the commit of what it tells, by ``send_robust``: a receiver that raises is logged and changes nothing
(rule W7). ``sender`` is the workflow's id; every one carries ``run_id``. Compare ``sender`` in the receiver:
``connect(sender="my-workflow")`` would compare identities, and miss. They are news, not part of the run: one may be
lost when a process dies between commit and sending, so let nothing depend on them that must happen. Put that in a step.
"""

from __future__ import annotations

from typing import Any

from django.db import transaction
from django.dispatch import Signal

run_started = Signal()
run_waiting = Signal()
run_done = Signal()
run_failed = Signal()
run_cancelled = Signal()
run_stuck = Signal()
step_done = Signal()
step_failed = Signal()
step_retrying = Signal()
signal_received = Signal()
signal_timed_out = Signal()
gate_opened = Signal()
gate_delegated = Signal()
gate_reminded = Signal()
gate_escalated = Signal()
gate_decided = Signal()
compensation_done = Signal()
compensation_failed = Signal()


def announce(event: Signal, *, using: str, sender: str, **facts: Any) -> None:
    """Send ``event`` once the transaction on database ``using`` has committed, at once if there is none.

    Args:
        event: one of the Django signals above.
        using: alias of the database whose commit is waited for.
        sender: the workflow's id.
        facts: what receivers get as keyword arguments.
    """
    if event.receivers:
        transaction.on_commit(lambda: event.send_robust(sender=sender, **facts) and None, using=using, robust=True)
