"""Waits.

Opened, answered, expired. Each is one transaction on the run's row, so exactly one of them happens (rule S2).
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime
from typing import Any

from django.db import transaction

from . import clock, conf, durations, events, history, payloads, registry
from .approval import Question
from .drive import Drive
from .exceptions import AlreadySignalled, NotWaiting, RunNotFound, RunNotLive, UnknownSignal
from .history import Place
from .models import Execution, Signal, Wait
from .names import check_name
from .reading import check_run_id, progress
from .statuses import OPEN_TO_SIGNALS, Outcome, RunStatus, StuckReason, WaitKind
from .stops import Exhausted, Parked


def sleep(drive: Drive, place: Place, id: str, duration: Any) -> None:
    """Pass a timer that is due, or park the run on it. A timer that was reached before keeps its due time (rule T5)."""
    wait: Any = drive.recall(place, "sleep", id)
    _answered(drive, wait or _draft(drive, place, WaitKind.TIMER, id, duration))


def for_signal(
    drive: Drive,
    place: Place,
    name: str,
    timeout: Any,
    *,
    early: bool = False,
    ask: Callable[[], Question] | None = None,
) -> tuple[Wait, Any]:
    """Pass a wait whose signal has come or whose deadline has passed, or park the run on it.

    Args:
        drive: the drive.
        place: the wait's position.
        name: the signal's name.
        timeout: how long to wait, should the wait be new; the deadline is fixed when first reached (rule T6).
        early: whether signals may have come before.
        ask: makes this a gate: says what a person is asked, should it be new.

    Returns:
        The wait, signalled or timed out, and its signal's payload.
    """
    wait: Any = drive.recall(place, "approval" if ask else "signal", name)
    if wait is None:
        drive.leave_if_exhausted()
        wait = _draft(drive, place, WaitKind.SIGNAL, name, timeout, ask() if ask else None)
    return _answered(drive, wait, early)


def for_child(
    drive: Drive, place: Place, name: str, timeout: Any, start: Callable[[str], Execution]
) -> tuple[Wait, Any]:
    """Pass a child run that has ended or whose deadline has passed, or park the run on it; start it if it is new.

    Args:
        drive: the drive.
        place: the wait's position, from which the child's id follows.
        name: the node's name.
        timeout: how long the child may take.
        start: inserts the child's row under the id it is given, within the transaction that stores the wait.

    Returns:
        The wait, signalled or timed out, and how the child ended.
    """
    wait: Any = drive.recall(place, "child", name)
    wait = wait or _draft(drive, place, WaitKind.CHILD, name, timeout)
    return _answered(drive, wait, start=lambda: start(history.child_run_id(drive.run, *place)))


def _answered(
    drive: Drive, wait: Wait, early: bool = False, start: Callable[[], Execution] | None = None
) -> tuple[Wait, Any]:
    if wait.outcome == Outcome.OPEN:
        _settle(drive, wait, early, start)
    elif wait.outcome == Outcome.CANCELLED:
        drive.stop(Exhausted())
    signal = drive.recorded.delivered.get(wait.pk)
    return wait, signal.payload if signal else None


def _draft(
    drive: Drive, place: Place, kind: WaitKind, name: str, timeout: Any, question: Question | None = None
) -> Wait:
    times = {"opened_at": (now := clock.now()), "due_at": None if timeout is None else durations.due(timeout, now)}
    gate = {"approval": question.snapshot, "audience": question.audience.dumps()} if question else {}
    branch, index = place
    return Wait(execution=drive.run, branch=branch, index=index, kind=kind, name=name, **times, **gate)


def _settle(drive: Drive, wait: Wait, early: bool = False, start: Callable[[], Execution] | None = None) -> None:
    """End the wait if it can be ended, else park the run; in one transaction, of which the drive then tells."""
    drive.leave_if_exhausted()
    parked = drive.write(lambda: _settle_locked(drive, wait, early, start))
    drive.signals = None
    drive.store(wait)
    if parked:
        drive.stop(Parked())


def _settle_locked(drive: Drive, wait: Wait, early: bool, start: Callable[[], Execution] | None) -> bool:
    """Settle the wait within one transaction; return whether the run is parked on it."""
    run = drive.run
    with history.fenced(run) as row:
        if _store(run, wait) and start is not None:
            start()
        signal = _signal_for(run, wait, early)
        if signal is not None:
            drive.recorded.delivered[wait.pk] = signal
        elif wait.is_open and wait.due_at is not None and wait.due_at <= clock.now():
            _expire(run, wait)
        elif wait.is_open:
            drive.recorded.add(wait)
            drive.current_step = wait.name
            history.park(run, row, _earliest(drive), **drive.progress())
            return True
        history.resume(run)
        run.status = RunStatus.RUNNING
        return False


def _store(run: Execution, wait: Wait) -> bool:
    """Insert a new wait; or read a known one again: it may have been answered, or stored by one that seemed lost."""
    stored = Wait.objects.filter(execution=run, branch=wait.branch, index=wait.index).first()
    if stored is not None:
        wait.pk = stored.pk
        wait.refresh_from_db()
        return False
    # Whatever a try that did not commit has made of it.
    wait.pk, wait.outcome, wait.closed_at = None, Outcome.OPEN, None
    wait.save(force_insert=True, using=conf.database())
    if wait.is_gate:
        _tell(events.gate_opened, run, name=wait.name, wait=wait.pk)
    return True


def _signal_for(run: Execution, wait: Wait, early: bool) -> Signal | None:
    """Return the signal that ends this wait, if it has come: the one delivered to it, or the oldest of those kept."""
    if wait.outcome == Outcome.SIGNALLED:
        return Signal.objects.get(consumed_by=wait)
    if wait.kind != WaitKind.SIGNAL or not wait.is_open or not early:
        return None
    signal = Signal.objects.filter(execution=run, name=wait.name, consumed_by=None).order_by("sequence").first()
    if signal is not None:
        history.close(wait, Outcome.SIGNALLED)
        Signal.objects.filter(pk=signal.pk).update(consumed_by=wait)
    return signal


def _expire(run: Execution, wait: Wait) -> None:
    timer = wait.kind == WaitKind.TIMER
    history.close(wait, Outcome.FIRED if timer else Outcome.TIMED_OUT)
    if wait.kind == WaitKind.CHILD:
        child = Execution.objects.filter(run_id=history.child_run_id(run, wait.branch, wait.index)).locked()
        if child is not None:
            cancel(child)
    if not timer:
        _tell(events.signal_timed_out, run, name=wait.name, wait=wait.pk)


def _earliest(drive: Drive) -> datetime | None:
    open_waits = [c for c in drive.recorded.checkpoints.values() if isinstance(c, Wait) and c.is_open]
    return min((w.due_at for w in open_waits if w.due_at is not None), default=None)


def cancel(run: Execution) -> bool:
    """End a locked run because somebody said so, and its live children with it.

    Return whether that changed anything: not for a run that has ended, or is unwinding (rule D14).
    """
    unwinding = run.status == RunStatus.COMPENSATING or run.stuck_reason == StuckReason.COMPENSATION_FAILED
    if run.is_over or unwinding:
        return False
    history.cancelled(run, **progress(run))
    for pk in run.children.live().order_by("pk").values_list("pk", flat=True):
        if (child := Execution.objects.filter(pk=pk).locked()) is not None:
            cancel(child)
    return True


def length(wait: Wait) -> str:
    """Return how long a wait was to last, as ``86400s``."""
    seconds = (wait.due_at - wait.opened_at).total_seconds() if wait.due_at else 0.0
    return f"{max(seconds, 0.0):.3f}".rstrip("0").rstrip(".") + "s"


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
        wait = (
            Wait.objects.open()
            .filter(execution=run, kind=WaitKind.SIGNAL, name=name)
            .order_by("index", "branch")
            .first()
        )
        if wait is None:
            _check_early(run, name)
        return accept(run, wait, name, payload, sender)


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


def check_live(run: Execution | None, run_id: str, name: str) -> None:
    """Refuse a signal to a run that is not there or not alive (rule S3)."""
    if run is None:
        raise RunNotFound(f"There is no run {run_id!r}.")
    if run.status not in OPEN_TO_SIGNALS:
        raise RunNotLive(f'Run {run_id} is {run.status} and cannot receive the signal "{name}".')


def accept(run: Execution, wait: Wait | None, name: str, payload: Any, sender: str) -> Signal:
    """Store a signal to a locked run, end the wait it is for, if any, and make the run due."""
    signal = history.deliver(run, wait, name, payload, sender)
    _tell(events.signal_received, run, name=name, payload=payload)
    return signal


def _waiting_for(run: Execution) -> str:
    waits = [
        f'the {"signal" if w.kind == WaitKind.SIGNAL else w.kind} "{w.name}"'
        for w in run.waits.open().order_by("index")
    ]
    return "it waits for " + " and ".join(waits) if waits else "it waits for nothing now"


def _tell(event: Any, run: Execution, **facts: Any) -> None:
    events.announce(event, using=conf.database(), sender=run.workflow_id, run_id=run.run_id, **facts)
