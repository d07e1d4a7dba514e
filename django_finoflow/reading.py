"""The reading half of the API: nothing here changes anything."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime
from typing import Any

from . import history, registry
from .exceptions import RunNotFound
from .history import History
from .models import Execution, Signal, Step, Wait
from .names import LONGEST_ID, why_not
from .snapshots import RunState, SignalState, StepState, WaitState
from .state import StateBag
from .statuses import Outcome, RunStatus, StepStatus, WaitKind

MOST = 1000


def check_run_id(run_id: str) -> None:
    """Spare the database an id that no run can have.

    Raises:
        RunNotFound: it is one.
    """
    if why_not(run_id, LONGEST_ID):
        raise RunNotFound(f"There is no run {run_id!r}.")


def get_run(run_id: str) -> Execution | None:
    """Return the run of that id, or None."""
    return None if why_not(run_id, LONGEST_ID) else Execution.objects.filter(run_id=run_id).first()


def find_run(run_id: str) -> Execution:
    """Return the run of that id.

    Raises:
        RunNotFound: there is none.
    """
    run = get_run(run_id)
    if run is None:
        raise RunNotFound(f"There is no run {run_id!r}.")
    return run


def list_runs(
    workflow_id: str | None = None, status: str | None = None, *, limit: int = 100, offset: int = 0
) -> list[Execution]:
    """Return runs, newest first, then highest id.

    Args:
        workflow_id: only runs of this workflow.
        status: only runs of this status.
        limit: how many at the most, from 1 to 1000.
        offset: how many to leave out first. Runs that start between two pages shift the later one.

    Raises:
        ValueError: a limit, offset or status that cannot be.
    """
    if isinstance(limit, bool) or not isinstance(limit, int) or not 1 <= limit <= MOST:
        raise ValueError(f"list_runs: limit is a whole number from 1 to {MOST}, not {limit!r}.")
    if isinstance(offset, bool) or not isinstance(offset, int) or not 0 <= offset < 2**31:
        raise ValueError(f"list_runs: offset is a whole number from 0 to 2147483647, not {offset!r}.")
    if workflow_id is not None and why_not(workflow_id):
        return []
    if status is not None and status not in RunStatus.values:
        raise ValueError(f"list_runs: status is one of {', '.join(RunStatus.values)}, not {status!r}.")
    wanted = {"workflow_id": workflow_id, "status": status}
    runs = Execution.objects.filter(**{name: value for name, value in wanted.items() if value is not None})
    return list(runs.newest_first()[offset : offset + limit])


def snapshot(run_id: str) -> RunState:
    """Return a detached copy of a run as its rows stand now.

    Raises:
        RunNotFound: no run has that id.
    """
    run = find_run(run_id)
    recorded = history.load(run)
    checkpoints = recorded.in_order()
    waits = tuple(_open_waits(run, checkpoints))
    return RunState(
        run_id=run.run_id,
        workflow_id=run.workflow_id,
        status=run.status,
        cursor=recorded.cursor(),
        input=run.input,
        steps=tuple(_step_state(c, recorded) for c in checkpoints if isinstance(c, Step) or not c.is_open),
        state=_state(run, checkpoints),
        signals=_signals(run),
        created_at=run.created_at,
        updated_at=max([run.updated_at, *(moment for c in checkpoints if (moment := _touched(c)) is not None)]),
        key=run.key,
        waiting_on=waits[0] if waits else None,
        waits=waits,
        result=run.result,
        error=_shown_error(run.error),
    )


def _open_waits(run: Execution, checkpoints: list[Any]) -> Iterator[WaitState]:
    if run.is_over:
        return
    for c in checkpoints:
        if isinstance(c, Wait) and c.is_open:
            name = c.name if c.kind == WaitKind.SIGNAL else ""
            yield WaitState(str(c.kind), c.name, name, c.index, c.opened_at, c.due_at)
        elif isinstance(c, Step) and c.status == StepStatus.RETRYING:
            yield WaitState("retry", c.step_id, "", c.index, c.finished_at, c.due_at)


def _step_state(checkpoint: Step | Wait, recorded: History) -> StepState:
    if isinstance(checkpoint, Step):
        c = checkpoint
        error = _shown_error(c.error)
        return StepState(c.index, c.step_id, c.kind, c.status, c.result, error, c.attempts, c.started_at, c.finished_at)
    signal = recorded.delivered.get(checkpoint.pk)
    ended_well = checkpoint.outcome in (Outcome.SIGNALLED, Outcome.FIRED)
    status = "done" if ended_well else checkpoint.outcome
    return StepState(
        checkpoint.index,
        checkpoint.name,
        checkpoint.kind,
        status,
        signal.payload if signal else None,
        None,
        1,
        checkpoint.opened_at,
        checkpoint.closed_at,
    )


def _state(run: Execution, checkpoints: list[Any]) -> dict[str, Any]:
    """Return the bag: as it was stored at the last park or end, with what steps have changed since."""
    bag = StateBag()
    for key, value in (run.state or {}).items():
        bag.set(key, value)
    for c in checkpoints if run.status == RunStatus.RUNNING else ():
        beyond = bool(c.branch) or c.index >= run.cursor
        if isinstance(c, Step) and beyond and c.finished_at is not None and c.finished_at >= run.updated_at:
            bag.apply(c.state_patch)
    return bag.entries()


def progress(run: Execution) -> dict[str, Any]:
    """Return what the row of a run that is being driven is behind with: its ``cursor`` and ``state``."""
    recorded = history.load(run)
    return {"cursor": recorded.cursor(), "state": _state(run, recorded.in_order()) or None}


def _signals(run: Execution) -> tuple[SignalState, ...]:
    """Return those that nothing has consumed; of a builder workflow, which consumes none, all (rule S4)."""
    sent = Signal.objects.filter(execution=run).exclude(name__startswith=history.CHILD_SIGNAL)
    if not registry.consumes_nothing(run.workflow_id, run.version):
        sent = sent.filter(consumed_by=None)
    return tuple(SignalState(s.name, s.payload, s.received_at) for s in sent.order_by("received_at", "pk"))


def _touched(checkpoint: Step | Wait) -> datetime | None:
    return checkpoint.finished_at if isinstance(checkpoint, Step) else checkpoint.closed_at or checkpoint.opened_at


def _shown_error(error: dict[str, Any] | None) -> dict[str, Any] | None:
    return None if error is None else {name: error.get(name, "") for name in ("type", "message", "traceback")}
