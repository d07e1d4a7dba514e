"""Waits: opened, rested on, expired.

Each is one transaction on the run's row, as a delivery is, so exactly one of them happens (rule S2).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from . import clock, conf, deliveries, durations, events, history, verdicts
from .approval import Question
from .audience import Audience
from .drive import Drive
from .history import Place
from .models import Candidate, Execution, Signal, Wait
from .statuses import Outcome, RunStatus, WaitKind
from .stops import Exhausted, Parked

#: What a wait is stored as, by the word that users know it by.
KINDS = {
    "sleep": WaitKind.TIMER,
    "signal": WaitKind.SIGNAL,
    "approval": WaitKind.SIGNAL,
    "child": WaitKind.CHILD,
}


@dataclass(frozen=True)
class Asked:
    """What a body asks to wait for.

    Attributes:
        kind: ``sleep``, ``signal``, ``approval`` or ``child``, the words that users know.
        name: the signal's name, or the timer's or the child's.
        timeout: how long to wait, should the wait be new; the deadline is fixed when first reached (rules T5, T6).
        early: whether a signal may have come before.
        ask: of an approval, says what a person is asked, should it be new.
        start: of a child, inserts its row under the id it is given, within the transaction that stores the wait.
    """

    kind: str
    name: str
    timeout: Any = None
    early: bool = False
    ask: Callable[[], Question] | None = None
    start: Callable[[str], Execution] | None = None


def take(drive: Drive, place: Place, asked: Asked) -> tuple[Wait, Any]:
    """Pass a wait whose signal has come or whose time has passed, or park the run on it.

    Returns:
        The wait, which is over, and its signal's payload; a child's is how it ended.
    """
    wait: Any = drive.recall(place, asked.kind, asked.name)
    if wait is None or wait.is_open:
        drive.leave_if_exhausted()
        wait = wait or draft(drive, place, asked)
        settle(drive, wait, asked, alone=True)
    elif wait.outcome == Outcome.CANCELLED:
        drive.stop(Exhausted())
    if wait.is_open:
        drive.stop(Parked())
    return wait, payload(drive, wait)


def payload(drive: Drive, wait: Wait) -> Any:
    """Return the payload of the signal that ended a wait, if one did."""
    signal = drive.recorded.delivered.get(wait.pk)
    return signal.payload if signal else None


def draft(drive: Drive, place: Place, asked: Asked) -> Wait:
    """Return a new wait, not yet stored."""
    question = asked.ask() if asked.ask else None
    now, (branch, index) = clock.now(), place
    due_at = None if asked.timeout is None else durations.due(asked.timeout, now)
    what = {"branch": branch, "index": index, "kind": KINDS[asked.kind], "name": asked.name}
    return Wait(
        execution=drive.run, opened_at=now, due_at=due_at, **what, **(question.row(now, due_at) if question else {})
    )


def settle(drive: Drive, wait: Wait, asked: Asked, *, alone: bool) -> None:
    """Store a wait, and end it if it can be ended; in one transaction, of which the drive then tells.

    Args:
        drive: the drive.
        wait: the wait, new or still open when it was read.
        asked: what the body asks for.
        alone: whether nothing else of the run is going on, so that it parks at once if the wait stays open.
    """
    drive.write(lambda: _settle_locked(drive, wait, asked, alone))
    drive.signals = None
    drive.store(wait)


def _settle_locked(drive: Drive, wait: Wait, asked: Asked, alone: bool) -> None:
    run = drive.run
    with history.fenced(run) as row:
        if _store(run, wait) and asked.start is not None:
            asked.start(history.child_run_id(run, wait.branch, wait.index))
        if _end_if_due(drive, wait, early=asked.early):
            history.resume(run)
            run.status = RunStatus.RUNNING
        elif alone:
            drive.recorded.add(wait)
            drive.current_step = wait.name
            history.park(run, row, wait.due_at, **drive.progress())


def rest(drive: Drive, waiting: Sequence[Wait], due_at: datetime | None, *, park: bool) -> bool:
    """Look which of several open waits have ended by now; return whether the run is parked because none has.

    Args:
        drive: the drive.
        waiting: the waits, which are brought up to date.
        due_at: when the run is due again at the latest, besides their deadlines.
        park: whether to park, nothing else of the run being in flight.
    """
    ended = drive.write(lambda: _rest_locked(drive, waiting, due_at, park))
    for wait in ended:
        drive.store(wait)
    drive.signals = None
    return park and not ended


def _rest_locked(drive: Drive, waiting: Sequence[Wait], due_at: datetime | None, park: bool) -> list[Wait]:
    run = drive.run
    with history.fenced(run) as row:
        stored = Wait.objects.in_bulk([wait.pk for wait in waiting])
        for wait in waiting:
            wait.outcome, wait.closed_at = stored[wait.pk].outcome, stored[wait.pk].closed_at
        ended = [wait for wait in waiting if _end_if_due(drive, wait)]
        if ended:
            history.resume(run)
            run.status = RunStatus.RUNNING
        elif park:
            moments = [moment for moment in (due_at, *(wait.due_at for wait in waiting)) if moment is not None]
            history.park(run, row, min(moments, default=None), **drive.progress())
        return ended


def withdraw(drive: Drive, wait: Wait) -> None:
    """Close a wait that its branch has given up, so that nobody answers it for nothing."""
    drive.write(lambda: _withdraw_locked(drive, wait))
    drive.store(wait)


def _withdraw_locked(drive: Drive, wait: Wait) -> None:
    with history.fenced(drive.run):
        wait.refresh_from_db()
        if wait.is_open:
            history.close(wait, Outcome.CANCELLED)


def _end_if_due(drive: Drive, wait: Wait, *, early: bool = False) -> bool:
    """End a stored wait of a locked run if its signal has come or its time has passed; return whether it is over."""
    if wait.is_open and early:
        _consume(drive.run, wait)
    if wait.is_open and wait.due_at is not None and wait.due_at <= clock.now():
        _expire(drive.run, wait)
    if wait.outcome == Outcome.SIGNALLED:
        drive.recorded.delivered[wait.pk] = Signal.objects.get(consumed_by=wait)
    return not wait.is_open


def _store(run: Execution, wait: Wait) -> bool:
    """Insert a new wait; or read a known one again: it may have been answered, or stored by one that seemed lost."""
    stored = Wait.objects.filter(execution=run, branch=wait.branch, index=wait.index).first()
    if stored is not None:
        wait.pk = stored.pk
        wait.refresh_from_db()
        return False
    # Whatever a try that did not commit has made of it.
    wait.pk, wait.outcome, wait.closed_at = None, Outcome.OPEN, None
    if wait.is_gate:
        wait.audience_digest = Candidate.objects.index(Audience.loads(wait.audience))
    wait.save(force_insert=True, using=conf.database())
    if wait.is_gate:
        deliveries.tell(events.gate_opened, run, name=wait.name, wait=wait.pk)
    return True


def _consume(run: Execution, wait: Wait) -> None:
    """End a wait by the oldest signal that came before it, if there is one."""
    signal = Signal.objects.filter(execution=run, name=wait.name, consumed_by=None).order_by("sequence").first()
    if signal is not None:
        history.consume(signal, wait)


def _expire(run: Execution, wait: Wait) -> None:
    """End a wait whose deadline has passed; it may be a gate that its deadline decides."""
    if (rule := (wait.approval or {}).get("on_timeout", "fail")) != "fail":
        _decide_by_deadline(run, wait, approved=rule == "approve")
        return
    timer = wait.kind == WaitKind.TIMER
    history.close(wait, Outcome.FIRED if timer else Outcome.TIMED_OUT)
    if wait.kind == WaitKind.CHILD:
        child = Execution.objects.filter(run_id=history.child_run_id(run, wait.branch, wait.index)).locked()
        if child is not None:
            deliveries.cancel(child)
    if not timer:
        deliveries.tell(events.signal_timed_out, run, name=wait.name, wait=wait.pk)


def _decide_by_deadline(run: Execution, gate: Wait, *, approved: bool) -> None:
    """Answer a gate of the run that is driven as its ``on_timeout`` says (rule A8). It goes on, so nobody is woken."""
    deliveries.tell(events.signal_timed_out, run, name=gate.name, wait=gate.pk)
    made = verdicts.record(gate, None, approved=approved)
    signal = deliveries.accept(run, None, gate.name, verdicts.payload(made), sender="")
    history.consume(signal, gate)
    verdicts.announce(run, gate, made)


def length(wait: Wait) -> str:
    """Return how long a wait was to last, as ``86400s``."""
    seconds = (wait.due_at - wait.opened_at).total_seconds() if wait.due_at else 0.0
    return f"{max(seconds, 0.0):.3f}".rstrip("0").rstrip(".") + "s"
