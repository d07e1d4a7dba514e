"""The only writer of checkpoints and of a run's status.

Every write is conditional on the lease's epoch and says whether it won; a loser gets ``LeaseLost`` and has written
nothing. A plain step is one statement, which checks the fence and inserts the row (rule D5); everything else is one
short transaction that locks the run first (``fenced``).
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import datetime
from typing import Any

from django.db import connections, transaction
from django.db.models import Count, Max, Q

from . import clock, conf, events, registry, standing, wakeup
from .exceptions import RunNotResumable
from .models import Execution, Signal, Step, Wait
from .statuses import Outcome, Rollback, RunStatus, StepStatus, StuckReason, Undo, WaitKind
from .stops import LeaseLost

Place = tuple[str, int]

#: What a child's end is called among its parent's signals; no user's signal can be named so.
CHILD_SIGNAL = "sub:"

# FOR SHARE, because it waits for a claim's update and then sees the new epoch; FOR KEY SHARE would not (design, rule
# D5).
RECORD = """
INSERT INTO finoflow_step (execution_id, status, branch, "index", step_id, kind, attempts, result, state_patch,
    started_at, finished_at, compensable, compensation)
SELECT id, 'done', %s, %s, %s, %s, %s, %s, %s, %s, %s, %s, '' FROM finoflow_execution
WHERE id = %s AND lease_epoch = %s {for_share}
"""


def order(place: Place) -> tuple[tuple[float, float], ...]:
    """Return what places are sorted by: what a branch has recorded comes where its parent made the branch.

    A path that was too long to be kept comes last.
    """
    branch, index = place
    made = [part.partition(".") for part in branch.split("/") if part]
    path = [(int(at), int(nth)) if nth.isdecimal() else (math.inf, 0) for at, _, nth in made]
    return (*path, (index, math.inf))


class History:
    """What a run has recorded, by place, as a drive replays it."""

    def __init__(self, checkpoints: dict[Place, Step | Wait] | None = None, delivered: dict[Any, Signal] | None = None):
        self.checkpoints = checkpoints or {}
        self.delivered = delivered or {}

    def at(self, place: Place) -> Step | Wait | None:
        """Return what is recorded at ``place``."""
        return self.checkpoints.get(place)

    def in_order(self) -> list[Step | Wait]:
        """Return everything that is recorded, in order of position."""
        return [self.checkpoints[place] for place in sorted(self.checkpoints, key=order)]

    def after(self, branch: str, index: int) -> Step | Wait | None:
        """Return what ``branch`` has recorded at ``index`` or behind it, if anything."""
        return next((self.checkpoints[p] for p in sorted(self.checkpoints) if p[0] == branch and p[1] >= index), None)

    def add(self, checkpoint: Step | Wait) -> None:
        """Note a checkpoint that has just been stored."""
        self.checkpoints[checkpoint.branch, checkpoint.index] = checkpoint

    def has_open_waits(self) -> bool:
        """Whether something is recorded as being waited for."""
        return any(isinstance(c, Wait) and c.is_open for c in self.checkpoints.values())

    def cursor(self) -> int:
        """Return the first position not yet done, counted without gaps."""
        position = 0
        while is_done(self.at(("", position))):
            position += 1
        return position


def is_done(checkpoint: Step | Wait | None) -> bool:
    """Whether a checkpoint is behind the cursor: a step that is done, a wait that is over."""
    if isinstance(checkpoint, Step):
        return checkpoint.status == StepStatus.DONE
    return checkpoint is not None and not checkpoint.is_open


def load(run: Execution) -> History:
    """Return what ``run`` has recorded, in at most three queries however much it is."""
    rows: list[Step | Wait] = [*Step.objects.filter(execution=run), *Wait.objects.filter(execution=run)]
    delivered: dict[Any, Signal] = {}
    if any(isinstance(row, Wait) and row.outcome == Outcome.SIGNALLED for row in rows):
        consumed = Signal.objects.filter(execution=run, consumed_by__isnull=False)
        delivered = {signal.consumed_by_id: signal for signal in consumed}
    return History({(row.branch, row.index): row for row in rows}, delivered)


def count(run: Execution) -> int:
    """Return how much ``run`` has recorded, without reading it: its checkpoints, and what has been undone of them."""
    steps = Step.objects.filter(execution=run).aggregate(all=Count("pk"), undone=Count("compensated_at"))
    return int(steps["all"] + steps["undone"]) + Wait.objects.filter(execution=run).count()


def signals(run: Execution) -> dict[str, Any]:
    """Return the payloads of the signals that have come to ``run``, by name, as they came; of one name the first.

    Children's ends are not among them.
    """
    rows = Signal.objects.filter(execution=run, sequence=0).exclude(name__startswith=CHILD_SIGNAL)
    return dict(rows.order_by("received_at", "pk").values_list("name", "payload"))


@contextmanager
def fenced(run: Execution) -> Iterator[Execution]:
    """A transaction in which ``run`` is locked and ours; yields its row as it is now.

    Raises:
        LeaseLost: it is not ours any more.
    """
    with transaction.atomic(using=conf.database()):
        # Without its payloads: a row that cannot be decoded must still be able to end.
        row = Execution.objects.filter(pk=run.pk, lease_epoch=run.lease_epoch).only("due_at").locked()
        if row is None:
            raise LeaseLost
        yield row


def insert(run: Execution, step: Step, result: str | None, state_patch: str | None) -> None:
    """Store a step that is done and has no row yet, in one statement that proves the lease.

    Args:
        run: the run, as leased.
        step: the row, without its payloads.
        result: the payloads as JSON text, since the caller has encoded them already.
        state_patch: likewise.

    Raises:
        LeaseLost: the run is not ours any more; nothing was written.
        IntegrityError: the place is taken, which only a write of ours whose answer was lost can have done.
    """
    connection = connections[conf.database()]
    adapt = connection.ops.adapt_datetimefield_value
    values: list[Any] = [step.branch, step.index, step.step_id, step.kind, step.attempts, result, state_patch]
    values += [adapt(step.started_at), adapt(step.finished_at), step.compensable, run.pk, run.lease_epoch]
    with connection.cursor() as cursor:
        cursor.execute(RECORD.format(for_share="FOR SHARE" if connection.vendor == "postgresql" else ""), values)
        _won(cursor.rowcount)


def stored(run: Execution, place: Place) -> Step | None:
    """Return the step that is stored at ``place``, after a write whose answer was lost.

    Raises:
        LeaseLost: the run is not ours any more, so whatever stands there may be another's.
    """
    if not Execution.objects.filter(pk=run.pk, lease_epoch=run.lease_epoch).exists():
        raise LeaseLost
    return Step.objects.filter(execution=run, branch=place[0], index=place[1]).first()


def save(run: Execution, step: Step) -> None:
    """Store a step's row whole, new or known, within ``fenced``: for attempts that failed, and what follows them."""
    step.execution = run
    step.save(using=conf.database())


def resume(run: Execution) -> None:
    """Note that a waiting run goes on, within ``fenced``."""
    Execution.objects.filter(pk=run.pk, status=RunStatus.WAITING).update(
        status=RunStatus.RUNNING, updated_at=clock.now()
    )


def park(run: Execution, row: Execution, due_at: datetime | None, **progress: Any) -> None:
    """Make the run wait, within ``fenced``, and end its lease. A signal that came while it was driven keeps it due.

    Args:
        run: the run, as leased.
        row: the same, as ``fenced`` gave it.
        due_at: when to drive it again; None: when something comes.
        progress: ``state``, ``cursor`` and ``current_step`` as they stand.
    """
    moments = [moment for moment in (row.due_at, due_at) if moment is not None]
    _let_go(run, status=RunStatus.WAITING, due_at=min(moments, default=None), **progress)
    _tell(events.run_waiting, run, due_at=due_at)


def hand_on(run: Execution) -> None:
    """Give up a run that others shall drive, now. Its state is not brought up to date, so ``updated_at`` stays, too."""
    _let_go(run, due=True, touch=False, due_at=clock.now())


def wake(run: Execution) -> None:
    """Make a locked run due now, because something came for it. Its lease, if it has one, stays.

    A stuck one waits for its operator, who makes it due.
    """
    if run.status == RunStatus.STUCK:
        return
    changes: dict[str, Any] = {"due_at": clock.now(), "updated_at": clock.now()}
    if run.status == RunStatus.WAITING:
        changes["status"] = RunStatus.RUNNING
    Execution.objects.filter(pk=run.pk).update(**changes)
    wakeup.notify_due(run.queue, using=conf.database(), changed=run.pk)


def done(run: Execution, result: Any, *, open_waits: bool, **progress: Any) -> None:
    """End the run well. ``open_waits`` says whether there are any to close with it."""
    _end(run, RunStatus.DONE, open_waits, result=result, error=None, **progress)
    _tell(events.run_done, run, result=result)


def failed(
    run: Execution,
    error: dict[str, Any],
    *,
    open_waits: bool,
    rollback: Rollback = Rollback.NOT_APPLICABLE,
    **progress: Any,
) -> None:
    """End the run as failed; ``error`` says why, ``rollback`` what became of its compensations (rule C4)."""
    _end(run, RunStatus.ERROR, open_waits, error=error, rollback=rollback, **progress)
    _tell(events.run_failed, run, error=error)


def unwind(run: Execution, error: dict[str, Any], **progress: Any) -> None:
    """Note that a run has failed and is being unwound; whoever claims it next goes on with that (rule C6)."""
    with fenced(run) as row:
        _set(row, status=RunStatus.COMPENSATING, error=error, **progress)
        _close_waits(run)
    run.status = RunStatus.COMPENSATING


def undone(run: Execution, step: Step, outcome: Undo, error: dict[str, Any] | None = None) -> None:
    """Record the outcome of one compensation, before the next begins (rule C2)."""
    with fenced(run):
        Step.objects.filter(execution=run, branch=step.branch, index=step.index).update(
            compensation=outcome, compensation_error=error, compensated_at=clock.now()
        )
    event = events.compensation_done if outcome == Undo.COMPENSATED else events.compensation_failed
    _tell(event, run, step_id=step.step_id, error=error)


def undo_failed(run: Execution, step: Step, error: dict[str, Any]) -> None:
    """Record a compensation that failed and leave the unwinding to an operator, both at once (rules C2 and C3)."""
    with fenced(run):
        undone(run, step, Undo.FAILED, error)
        stuck(run, StuckReason.COMPENSATION_FAILED, error)


def unwind_child(run: Execution, child_id: str, error: dict[str, Any]) -> bool:
    """Begin to unwind a finished child, and park its parent until that has ended; False if nothing is to wait for.

    A child that has ended otherwise has unwound itself; one that is alive is never unwound.
    """
    with fenced(run):
        child = Execution.objects.filter(run_id=child_id).locked()
        if child is not None and child.status == RunStatus.DONE:
            _let_go(
                child,
                due=True,
                status=RunStatus.COMPENSATING,
                error=error,
                recoveries=0,
                finished_at=None,
                due_at=clock.now(),
            )
        elif child is None or child.is_over:
            return False
        _let_go(run, due_at=None)
        return True


def go_on_unwinding(run: Execution) -> None:
    """Make a locked run due whose unwinding got stuck; what failed is tried again."""
    _let_go(run, due=True, status=RunStatus.COMPENSATING, stuck_reason="", recoveries=0, due_at=clock.now())


def abandon_unwinding(run: Execution) -> None:
    """End a locked run whose unwinding got stuck; what has no outcome yet is skipped."""
    rest = Step.objects.filter(execution=run, compensable=True, compensation="").exclude(status=StepStatus.RETRYING)
    rest.update(compensation=Undo.SKIPPED, compensated_at=clock.now())
    failed(run, run.error, open_waits=True, rollback=Rollback.STUCK, stuck_reason="")


def stuck(run: Execution, reason: StuckReason, error: dict[str, Any], **progress: Any) -> None:
    """Set the run aside for an operator or a deployment.

    It has not ended: its gates stay open, but take no decision. A run that got stuck in its unwinding keeps the error
    that failed it (rule C4).
    """
    if reason != StuckReason.COMPENSATION_FAILED:
        progress["error"] = error
    _let_go(run, status=RunStatus.STUCK, stuck_reason=reason, due_at=None, **progress)
    _tell(events.run_stuck, run, reason=reason.value, error=error)


def cancelled(run: Execution, **progress: Any) -> None:
    """End a locked run because somebody said so; whoever drives it finds its epoch gone."""
    with _parent_told(run, RunStatus.CANCELLED):
        _let_go(run, status=RunStatus.CANCELLED, due_at=None, finished_at=clock.now(), **progress)
        _close_waits(run)
    _tell(events.run_cancelled, run)


def begin_again(run: Execution) -> None:
    """Make a locked error or stuck run due, with the failed steps that nothing follows taken out (rule D16).

    Raises:
        RunNotResumable: it is in another state, or was unwound.
    """
    if not standing.can_retry(run):
        how = f"is {run.status}"
        if standing.was_unwound(run):
            how = f"was rolled back ({run.rollback or run.stuck_reason})"
        raise RunNotResumable(
            f"Run {run.run_id} {how}; only an error or stuck run that was not rolled back can be tried again."
        )
    if run.status == RunStatus.ERROR:
        recorded = load(run)
        failed = [c for c in recorded.checkpoints.values() if isinstance(c, Step) and c.status != StepStatus.DONE]
        # In a builder workflow no failure is ever passed: what is recorded behind one is its sibling.
        caught = not registry.consumes_nothing(run.workflow_id, run.version)
        last = [s for s in failed if not caught or recorded.after(s.branch, s.index + 1) is None]
        Step.objects.filter(pk__in=[step.pk for step in last]).delete()
        _reopen_waits(run, [run.finished_at, *(step.finished_at for step in last)] if last else [])
    _let_go(
        run,
        due=True,
        status=RunStatus.RUNNING,
        stuck_reason="",
        error=None,
        rollback="",
        recoveries=0,
        finished_at=None,
        due_at=clock.now(),
    )


def revive_mismatched(known: Sequence[tuple[str, int]], queues: Sequence[str] = ()) -> int:
    """Make the runs due that a replay mismatch made stuck, for a deployment that may know better.

    Return how many (rule W10).
    """
    if not known:
        return 0
    ours = Q.create([Q(workflow_id=workflow, version=version) for workflow, version in known], connector=Q.OR)
    stuck = Execution.objects.stuck().filter(ours, stuck_reason=StuckReason.REPLAY_MISMATCH)
    if queues:
        stuck = stuck.filter(queue__in=queues)
    now = clock.now()
    return stuck.update(status=RunStatus.RUNNING, stuck_reason="", error=None, due_at=now, updated_at=now)


def note_recovery(run: Execution, checkpoints: int) -> None:
    """Begin to count crashes afresh: the run has recorded more than at its last recovery (rule W2)."""
    _won(Execution.objects.filter(pk=run.pk, lease_epoch=run.lease_epoch).update(recoveries=1, checkpoints=checkpoints))


def _end(run: Execution, status: RunStatus, open_waits: bool, **changes: Any) -> None:
    """End the run, in one statement if it has no waits to close with it (rule A7) and no parent to tell."""
    changes |= {"status": status, "due_at": None, "finished_at": clock.now()}
    if not open_waits and run.parent_id is None:
        _let_go(run, **changes)
        return
    with _parent_told(run, status, changes.get("result"), changes.get("error")), fenced(run):
        _let_go(run, **changes)
        _close_waits(run)


@contextmanager
def _parent_told(run: Execution, status: RunStatus, result: Any = None, error: Any = None) -> Iterator[None]:
    """A transaction at whose end a child's parent gets the news. The parent is locked first, as everywhere."""
    with transaction.atomic(using=conf.database()):
        parent = None if run.parent_id is None else Execution.objects.filter(pk=run.parent_id).locked()
        yield
        if parent is None:
            return
        news = {"run_id": run.run_id, "status": str(status), "result": result, "error": error}
        for wait in Wait.objects.open().filter(execution=parent, kind=WaitKind.CHILD):
            if child_run_id(parent, wait.branch, wait.index) == run.run_id:
                deliver(parent, wait, CHILD_SIGNAL + wait.name, news, "")
        if parent.status == RunStatus.COMPENSATING:
            wake(parent)


def child_run_id(parent: Execution, branch: str, index: int) -> str:
    """Return the id of the child run that ``parent`` starts at a place: the same, whatever crashes when."""
    place = f"{branch}.{index}" if branch else str(index)
    short = f"{parent.run_id}.{place}"
    return short if len(short) <= 128 else hashlib.sha256(short.encode()).hexdigest()


def deliver(run: Execution, wait: Wait | None, name: str, payload: Any, sender: str) -> Signal:
    """Store a signal to a locked run, end the wait it is for, if any, and make the run due."""
    last = Signal.objects.filter(execution=run, name=name).aggregate(last=Max("sequence"))["last"]
    signal = Signal.objects.create(
        execution=run,
        name=name,
        sequence=0 if last is None else last + 1,
        payload=payload,
        received_at=clock.now(),
        sender=sender,
        consumed_by=wait,
    )
    if wait is not None:
        close(wait, Outcome.SIGNALLED)
        wake(run)
    return signal


def consume(signal: Signal, wait: Wait) -> None:
    """End a wait of a locked run by a signal that is stored."""
    close(wait, Outcome.SIGNALLED)
    Signal.objects.filter(pk=signal.pk).update(consumed_by=wait)


def close(wait: Wait, outcome: Outcome) -> None:
    """End a wait of a locked run, and with it the claim of whoever worked on it."""
    wait.outcome, wait.closed_at = outcome, clock.now()
    wait.claimed_by_id, wait.claimed_by_name, wait.claimed_at = None, "", None
    wait.save(update_fields=["outcome", "closed_at", "claimed_by", "claimed_by_name", "claimed_at"])


def _set(row: Execution, **changes: Any) -> None:
    Execution.objects.filter(pk=row.pk).update(updated_at=clock.now(), **changes)


def _let_go(run: Execution, *, due: bool = False, touch: bool = True, **changes: Any) -> None:
    """Change a run and end its lease, if it is still ours, and tell so in the same statement.

    Those who watch are told, and if it is ``due`` the workers as well. The epoch rises, so that nobody who held the run
    before can write any more.

    Raises:
        LeaseLost: it is not ours any more; nothing was written.
    """
    connection = connections[conf.database()]
    changes |= {"lease_owner": "", "lease_until": None, **({"updated_at": clock.now()} if touch else {})}
    fields: list[Any] = [Execution._meta.get_field(name) for name in changes]
    columns = ", ".join(f"{field.column} = %s" for field in fields)
    values = [field.get_db_prep_save(value, connection) for field, value in zip(fields, changes.values(), strict=True)]
    sql = f"UPDATE finoflow_execution SET {columns}, lease_epoch = lease_epoch + 1 WHERE id = %s AND lease_epoch = %s"
    values += [run.pk, run.lease_epoch]
    if wakeup.can_notify(connection.alias):
        sql += " RETURNING pg_notify(%s, CAST(id AS text))" + (", pg_notify(%s, queue)" if due else "")
        values += [wakeup.CHANGED, wakeup.DUE] if due else [wakeup.CHANGED]
    with connection.cursor() as cursor:
        cursor.execute(sql, values)
        _won(cursor.rowcount)


def _close_waits(run: Execution) -> None:
    Wait.objects.filter(execution=run, outcome=Outcome.OPEN).update(
        outcome=Outcome.CANCELLED, closed_at=clock.now(), claimed_by=None, claimed_by_name="", claimed_at=None
    )


def _reopen_waits(run: Execution, moments: Sequence[datetime | None]) -> None:
    """Open again the waits that were closed at the earliest of these moments, or later; of none: all.

    What was given up before the failed steps failed is given up again, whatever becomes of them: until the run gets
    there, nobody shall answer it.
    """
    closed = Wait.objects.filter(execution=run, outcome=Outcome.CANCELLED)
    known = [moment for moment in moments if moment is not None]
    if len(known) == len(moments) and known:
        closed = closed.filter(closed_at__gte=min(known))
    closed.update(outcome=Outcome.OPEN, closed_at=None)


def _won(rows: int) -> None:
    if not rows:
        raise LeaseLost


def _tell(event: Any, run: Execution, **facts: Any) -> None:
    events.announce(event, using=conf.database(), sender=run.workflow_id, run_id=run.run_id, **facts)
