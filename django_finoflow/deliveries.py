"""What comes for a run from outside: signals, a cancel, the end of a claim. Each on the run's locked row."""

from __future__ import annotations

from typing import Any

from django.db import transaction

from . import conf, events, history, payloads, registry, standing
from .exceptions import AlreadySignalled, NotWaiting, RunNotFound, RunNotLive, UnknownSignal
from .models import Execution, Signal, Wait
from .names import check_name
from .reading import check_run_id, progress
from .statuses import OPEN_TO_SIGNALS, WaitKind


def deliver(run_id: str, name: str, payload: Any, sender: str = "") -> Signal:
    """Accept a signal for a run, in one transaction.

    Args:
        run_id: the run.
        name: the signal's name.
        payload: what the wait is to return.
        sender: who sent it, for the record.

    Raises:
        RunNotFound: no such run.
        RunNotLive: the run is neither running nor waiting.
        NotWaiting: it does not wait for that name, and its workflow keeps no early ones.
        UnknownSignal: a builder workflow that declares no such wait.
        AlreadySignalled: a builder workflow that has accepted one of that name. Nothing was written in any case.
    """
    payloads.dumps(payload)
    if sender:
        check_name(sender, "signal(sender=...)", longest=255)
    check_run_id(run_id)
    with transaction.atomic(using=conf.database()):
        run = Execution.objects.filter(run_id=run_id).locked()
        check_live(run, run_id, name)
        waiting = Wait.objects.open().filter(execution=run, kind=WaitKind.SIGNAL, name=name)
        wait = min(waiting, key=lambda wait: history.order((wait.branch, wait.index)), default=None)
        if wait is None:
            _check_early(run, name)
        return accept(run, wait, name, payload, sender)


def check_live(run: Execution | None, run_id: str, name: str) -> None:
    """Refuse a signal to a run that is not there or not alive (rule S3)."""
    if run is None:
        raise RunNotFound(f"There is no run {run_id!r}.")
    if run.status not in OPEN_TO_SIGNALS:
        raise RunNotLive(f'Run {run_id} is {run.status} and cannot receive the signal "{name}".')


def accept(run: Execution, wait: Wait | None, name: str, payload: Any, sender: str) -> Signal:
    """Store a signal to a locked run, end the wait it is for, if any, and make the run due."""
    signal = history.deliver(run, wait, name, payload, sender)
    tell(events.signal_received, run, name=name, payload=payload)
    return signal


def cancel(run: Execution) -> bool:
    """End a locked run because somebody said so, and its live children with it.

    Return whether that changed anything: not for a run that has ended, or is unwinding (rule D14).
    """
    if not standing.can_cancel(run):
        return False
    history.cancelled(run, **progress(run))
    for pk in run.children.live().order_by("pk").values_list("pk", flat=True):
        if (child := Execution.objects.filter(pk=pk).locked()) is not None:
            cancel(child)
    return True


def unclaim(gate: Wait) -> None:
    """End the claim of a gate of a locked run, if it has one."""
    gate.claimed_by_id, gate.claimed_by_name, gate.claimed_at = None, "", None
    gate.save(update_fields=["claimed_by", "claimed_by_name", "claimed_at"])


def tell(event: Any, run: Execution, **facts: Any) -> None:
    """Tell what has happened to a run, once that is committed."""
    events.announce(event, using=conf.database(), sender=run.workflow_id, run_id=run.run_id, **facts)


def _check_early(run: Execution, name: str) -> None:
    """Refuse a signal that nothing waits for now, unless it may come early (rules S4 and S5)."""
    definition = registry.get(run.workflow_id, run.version)
    if definition.declared_signals is not None:
        if name not in definition.declared_signals:
            known = ", ".join(f'"{signal}"' for signal in definition.declared_signals) or "none"
            raise UnknownSignal(f'Workflow "{run.workflow_id}" has no wait for the signal "{name}" (known: {known}).')
        if Signal.objects.filter(execution=run, name=name).exists():
            raise AlreadySignalled(f'Run {run.run_id} has accepted a signal "{name}" before; the first one stands.')
    elif not definition.early_signals:
        raise NotWaiting(f'Run {run.run_id} does not wait for the signal "{name}": {_waiting_for(run)}.')


def _waiting_for(run: Execution) -> str:
    waits = [
        f'the {"signal" if w.kind == WaitKind.SIGNAL else w.kind} "{w.name}"'
        for w in run.waits.open().order_by("index")
    ]
    return "it waits for " + " and ".join(waits) if waits else "it waits for nothing now"
