"""What the app can do with a run, by its id: the functions that ``django_finoflow`` offers.

Everything that admin pages, views and commands do goes through here. Each works inside the caller's transaction and
takes effect when that commits (rule S7); a conflict it meets is caught in a savepoint, so that the caller's transaction
stays usable.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from django.db import transaction

from . import conf, deliveries, history, standing, starting
from .attempt import refuse_within
from .decisions import decide
from .exceptions import RunLive, RunNotFound, RunNotResumable
from .graph import walk
from .handling import claim_gate, delegate_gate, release_gate
from .inline import resume, run
from .models import Execution, Signal
from .names import check_signal_name
from .reading import check_run_id, find_run, get_run, list_runs, snapshot
from .watching import await_for_end, awatch_run, wait_for_end, watch_run
from .workflow import Definition

__all__ = [
    "abandon_compensation",
    "await_for_end",
    "awatch_run",
    "cancel",
    "claim_gate",
    "decide",
    "delegate_gate",
    "delete_run",
    "get_run",
    "list_runs",
    "release_gate",
    "resume",
    "resume_compensation",
    "retry_run",
    "run",
    "signal",
    "snapshot",
    "start",
    "wait_for_end",
    "walk",
    "watch_run",
]


def start(
    workflow_id: Definition | str,
    input: Any = None,
    *,
    run_id: str | None = None,
    key: str | None = None,
    requester: Any = None,
    queue: str | None = None,
    priority: int | None = None,
    at: Any = None,
) -> Execution:
    """Insert a run; a worker drives it once the transaction has committed.

    Args:
        workflow_id: the workflow's id (its newest version is taken), or the workflow.
        input: what the body gets, validated by the workflow's ``input_schema`` before a row exists.
        run_id: the run's id, up to 128 characters; default: a random one.
        key: makes starting idempotent: a second start of this workflow with the same key returns the first one's run.
        requester: the user on whose behalf it runs; approvals can exclude them.
        queue: which workers drive it; default: the workflow's.
        priority: higher goes first; default: the workflow's.
        at: when to begin, a duration from now or an aware ``datetime``; default: now.

    Returns:
        The run's row. Its ``created`` is False when the key was in use.

    Raises:
        UnknownWorkflow: no workflow of that id is registered.
        ValidationFailed: the input does not satisfy the schema, or an argument cannot be stored.
        DefinitionError: the ``queue`` is no name.
        DurationError: ``at`` is no duration and no moment.
        PayloadError: the input cannot be stored.
        RunExists: the ``run_id`` is in use; nothing was changed.
        KeyConflict: the ``key`` is in use for another input; nothing was changed.
    """
    return starting.begin(
        workflow_id, input, run_id=run_id, key=key, requester=requester, queue=queue, priority=priority, at=at
    )


def signal(run_id: str, name: str, payload: Any = None, *, sender: str | None = None) -> Signal:
    """Deliver a signal to a run, which goes on once the transaction has committed.

    Args:
        run_id: the run.
        name: the name it waits for.
        payload: what ``ctx.wait_for_signal`` returns; None counts as well as anything else.
        sender: who sends it, for the record.

    Raises:
        RunNotFound: no run has that id.
        SignalRefused: ``RunNotLive``, ``NotWaiting`` or ``InvalidSignalName``; nothing was written.
        UnknownWorkflow: nothing waits for it, and this process does not know whether the workflow keeps early ones.
        PayloadError: the payload cannot be stored.
    """
    check_signal_name(name)
    return deliveries.deliver(run_id, name, payload, sender or "")


def cancel(run_id: str) -> bool:
    """End a run now. What is done stays done; whoever drives it is told, and what it does from now on is discarded.

    Returns:
        Whether that changed anything: not for a run that has ended, or is unwinding.

    Raises:
        RunNotFound: no run has that id.
        CheckpointRefused: an atomic step of that very run asked for it.
    """
    refuse_within(run_id, "cancel")
    with transaction.atomic(using=conf.database()):
        return deliveries.cancel(_locked(run_id))


def retry_run(run_id: str) -> Execution:
    """Make an error or stuck run due again: its failed steps are tried afresh, what is done stays done.

    Returns:
        The run's row as it stands then.

    Raises:
        RunNotFound: no run has that id.
        RunNotResumable: it is in no such state, or was unwound.
    """
    with transaction.atomic(using=conf.database()):
        history.begin_again(_locked(run_id))
    return find_run(run_id)


def resume_compensation(run_id: str) -> Execution:
    """Try the compensation that failed again, and go on with the unwinding behind it (rule C3). A worker does it.

    Returns:
        The run's row as it stands then.

    Raises:
        RunNotFound: no run has that id.
        RunNotResumable: its unwinding is not stuck.
    """
    with transaction.atomic(using=conf.database()):
        history.go_on_unwinding(_stuck_unwinding(run_id))
    return find_run(run_id)


def abandon_compensation(run_id: str) -> Execution:
    """Give up an unwinding that is stuck: what has no outcome yet is skipped, and the run ends as ``error`` (rule C3).

    Returns:
        The run's row as it stands then; its ``rollback`` is ``stuck``.

    Raises:
        RunNotFound: no run has that id.
        RunNotResumable: its unwinding is not stuck.
    """
    with transaction.atomic(using=conf.database()):
        history.abandon_unwinding(_stuck_unwinding(run_id))
    return find_run(run_id)


def delete_run(run_id: str, force: bool = False) -> bool:
    """Delete a run with all its rows and its children. A parent that waits for it learns that it was cancelled.

    Args:
        run_id: the run.
        force: whether a run that has not ended, or has a child that has not, may be deleted too.

    Returns:
        Whether there was such a run.

    Raises:
        RunLive: it, or a child of it, has not ended, and ``force`` was not given.
    """
    refuse_within(run_id, "delete")
    with transaction.atomic(using=conf.database()):
        try:
            found = _locked(run_id)
        except RunNotFound:
            return False
        for run in [found, *_locked_children(found)]:
            if not run.is_over and not force:
                raise RunLive(f"Run {run.run_id} is {run.status}: cancel it first, or pass force=True.")
        if not found.is_over:
            history.cancelled(found)
        found.delete()
        return True


def _locked_children(run: Execution) -> Iterator[Execution]:
    """Lock all that go with a locked run, so that nobody who drives one meets its deletion half-way."""
    for pk in run.children.order_by("pk").values_list("pk", flat=True):
        if (child := Execution.objects.filter(pk=pk).locked()) is not None:
            yield child
            yield from _locked_children(child)


def _stuck_unwinding(run_id: str) -> Execution:
    found = _locked(run_id)
    if not standing.is_stuck_unwinding(found):
        raise RunNotResumable(
            f"Run {run_id} is {found.status}; only an unwinding that is stuck can be resumed or abandoned."
        )
    return found


def _locked(run_id: str) -> Execution:
    check_run_id(run_id)
    # Parents before children, everywhere. Nothing is read before the first lock (see ``locked``).
    Execution.objects.filter(pk__in=Execution.objects.filter(run_id=run_id).values("parent_id")).locked()
    found = Execution.objects.filter(run_id=run_id).locked()
    if found is None:
        raise RunNotFound(f"There is no run {run_id!r}.")
    return found
