"""Unwinding: when a run has failed, undo what it has done, the last first (rules C1 to C6).

What can be undone, and how, is in the workflow's code: each step with a compensator, and each child run, is noted as
the body comes to it. A run that died amidst its unwinding is replayed over what is recorded, which notes them again,
and the unwinding goes on behind the last recorded outcome.
"""

from __future__ import annotations

import copy
import inspect
from collections.abc import Mapping
from functools import cached_property
from typing import Any

from . import atomic, bodies, failures, history, loop, schemas, steps
from .attempt import Abort, Attempt, idempotency_key
from .bodies import Race
from .context import Context
from .drive import Drive
from .exceptions import FinoflowError
from .models import Wait
from .state import StateBag
from .statuses import Rollback, RunStatus, StepStatus, StuckReason, Undo
from .steps import Undoable
from .stops import LeaseLost, Parked
from .workflow import is_async

SETTLED = (StepStatus.DONE, StepStatus.FAILED)


class UndoContext:
    """What a compensator gets.

    Attributes:
        input: what the run was started with.
        steps: the results so far by name; what is changed in them, or in anything else here, no other is shown.
        signals: the payloads so far by name.
        run_id: the run's id.
        requester: the user who started the run, or None.
        state: the run's bag, as it was when the run failed; what is changed in it is not kept.
        abort: set when the undoing is not wanted any more.
        result: what the step returned; None if it failed.
        error: the step's own exception, or None.
        run_error: what failed the run.
        step_input: the input of a call; None for a step.
        idempotency_key: the same over all attempts and restarts of this undoing, and no other's.
        forward_idempotency_key: the one that the step itself had.
        item: in a ``for_each`` only: the turn's item.
        index: in a ``for_each`` only: the turn's number.
    """

    def __init__(self, ctx: Context, undoable: Undoable, seen: Attempt, run_error: dict[str, Any]):
        step, call = undoable
        self._ctx = ctx
        self.input = copy.deepcopy(ctx.input)
        self.run_id = ctx.run_id
        self.abort: Abort = seen.abort
        self.idempotency_key = seen.idempotency_key
        self.forward_idempotency_key = idempotency_key(ctx.run_id, step.branch, step.index, step.step_id)
        done = step.status == StepStatus.DONE
        self.result = schemas.rebuild(call.output_schema, copy.deepcopy(step.result)) if done else None
        self.error = failures.rebuild(step.error) if step.error and not done else None
        self.run_error = failures.rebuild(run_error)
        self.step_input = call.step_input
        vars(self).update(copy.deepcopy(dict(call.extra or {})))
        if is_async(call.compensate):
            _ = self.signals, self.requester  # queries, which it could not make on an event loop

    @property
    def requester(self) -> Any:
        return self._ctx.requester

    @property
    def state(self) -> StateBag:
        return self._ctx.state

    @cached_property
    def signals(self) -> Mapping[str, Any]:
        return copy.deepcopy(self._ctx.signals())

    @cached_property
    def steps(self) -> dict[str, Any]:
        return copy.deepcopy(self._ctx.results())


def needed(drive: Drive) -> bool:
    """Whether the failed run of ``drive`` has anything to undo."""
    return bool(drive.missed()) or any(
        _has_finished(drive, entry) if isinstance(entry, Wait) else entry.step.status in SETTLED
        for entry in drive.undoables
    )


def unwind(drive: Drive, ctx: Context, run_error: dict[str, Any]) -> None:
    """Undo what has been done, the last first, and end the run; each outcome is recorded before the next begins.

    Raises:
        Parked: a child run is being unwound; the run goes on when that has ended.
        DriveStopped: the worker stops, or the run is not ours any more.
    """
    if missed := drive.missed():
        names = ", ".join(f'"{step.step_id}"' for step in missed)
        set_aside(drive, FinoflowError(f"The body did not come again to {names}, so nobody knows how to undo that."))
        return
    for entry in sorted(drive.undoables, key=_order, reverse=True):
        drive.leave_if_stopping()
        if isinstance(entry, Wait):
            _undo_child(drive, entry, run_error)
        elif _is_due(entry) and not _undo(drive, ctx, entry, run_error):
            return
    rollback = Rollback.COMPLETED if needed(drive) else Rollback.NOT_APPLICABLE
    drive.write(lambda: history.failed(drive.run, run_error, open_waits=False, rollback=rollback))


def set_aside(drive: Drive, error: BaseException) -> None:
    """Leave an unwinding that cannot go on to an operator (rule C3)."""
    record = failures.describe(error)
    drive.write(lambda: history.stuck(drive.run, StuckReason.COMPENSATION_FAILED, record))


def _has_finished(drive: Drive, wait: Wait) -> bool:
    """Whether a child run had come to a good end, so that it is this run's to undo."""
    end = drive.recorded.delivered.get(wait.pk)
    return end is not None and end.payload["status"] == RunStatus.DONE


def _is_due(entry: Undoable) -> bool:
    return entry.step.status in SETTLED and entry.step.compensation not in (Undo.COMPENSATED, Undo.SKIPPED)


def _undo(drive: Drive, ctx: Context, entry: Undoable, run_error: dict[str, Any]) -> bool:
    """Call one compensator and record what came of it; return whether the unwinding may go on."""
    step, call = entry
    seen = steps.begin(drive, step, call, f"undo {step.step_id}")

    def body() -> bodies.Outcome:
        assert call.compensate is not None
        undoing = call.compensate(UndoContext(ctx, entry, seen, run_error))
        if inspect.isawaitable(undoing):
            with loop.out_of_reach():
                bodies.finish(undoing)
        return bodies.Outcome()

    def once(race: Race) -> bodies.Outcome:
        if not call.atomic:
            return bodies.plain(body, race)
        return atomic.run(drive, seen, race, body=body, record=record, recall=recall)

    def record(outcome: bodies.Outcome) -> None:
        history.undone(drive.run, step, Undo.COMPENSATED)

    def recall() -> bodies.Outcome | None:
        found = drive.write(lambda: history.stored(drive.run, (step.branch, step.index)))
        return bodies.Outcome() if found is not None and found.compensation == Undo.COMPENSATED else None

    outcome = bodies.run(once, seen, call.timeout)
    if isinstance(outcome.error, LeaseLost):
        drive.abort.set()
        drive.stop(outcome.error)
    if outcome.error is not None:
        failure = failures.describe(outcome.error)
        drive.write(lambda: history.undo_failed(drive.run, step, failure))
        return False
    if not outcome.stored:
        drive.write(lambda: record(outcome))
    step.compensation = Undo.COMPENSATED
    return True


def _undo_child(drive: Drive, wait: Wait, run_error: dict[str, Any]) -> None:
    child_id = history.child_run_id(drive.run, wait.branch, wait.index)
    if drive.write(lambda: history.unwind_child(drive.run, child_id, run_error)):
        drive.stop(Parked())


def _order(entry: Any) -> Any:
    checkpoint = entry if isinstance(entry, Wait) else entry.step
    return history.order((checkpoint.branch, checkpoint.index))
