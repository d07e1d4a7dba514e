"""Driving a run in the caller's own process: ``.run()`` and ``.resume()``."""

from __future__ import annotations

import secrets
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from django.db import transaction

from . import conf, history, leases, registry
from .attempt import Abort, current_attempt
from .drive import in_test_case, refuse_open_transaction
from .driver import drive
from .exceptions import RunLeased, RunNotResumable, WorkflowError
from .leases import Heartbeat, Lease
from .models import Execution
from .reading import find_run, snapshot
from .snapshots import RunResult, RunState
from .starting import begin
from .statuses import RunStatus
from .workflow import Definition

OnCheckpoint = Callable[[RunState], None] | None


def run(
    definition: Definition, input: Any = None, *, abort: Any = None, on_checkpoint: OnCheckpoint = None, **options: Any
) -> RunResult:
    """Start a run and drive it here; see ``Definition.run``.

    Raises:
        DriveRefused: a transaction is open.
        WorkflowError: the body failed.
    """
    refuse_open_transaction()
    owner = _token()
    row = begin(definition, input, owner=owner, **options)
    if not row.created:
        return resume(definition, row.run_id, abort=abort, on_checkpoint=on_checkpoint)
    if row.lease_owner != owner:
        return _result(row.run_id, None)
    return _drive(row, abort, on_checkpoint)


def resume(definition: Definition, run_id: str, *, abort: Any = None, on_checkpoint: OnCheckpoint = None) -> RunResult:
    """Drive an existing run here; see ``Definition.resume``.

    Raises:
        DriveRefused: a transaction is open.
        RunNotFound: no run has that id.
        RunNotResumable: it was cancelled, or belongs to another workflow.
        RunLeased: a worker holds it at this moment.
        UnknownWorkflow: its version is not registered in this process.
        WorkflowError: the body failed.
    """
    refuse_open_transaction()
    row = find_run(run_id)
    if row.workflow_id != definition.id:
        raise RunNotResumable(f'Run {run_id} belongs to workflow "{row.workflow_id}", not to "{definition.id}".')
    if row.status not in (RunStatus.DONE, RunStatus.CANCELLED):
        registry.get(row.workflow_id, row.version)
    with transaction.atomic(using=conf.database()):
        row = Execution.objects.filter(pk=row.pk).locked() or find_run(run_id)
        if row.status == RunStatus.DONE:
            return _result(run_id, None)
        if row.status == RunStatus.CANCELLED:
            raise RunNotResumable(f"Run {run_id} was cancelled, and cannot be resumed.")
        if row.status in (RunStatus.ERROR, RunStatus.STUCK):
            history.begin_again(row)
        if not leases.take(row.pk, _token()):
            raise RunLeased(f"Run {run_id} is driven by a worker at this moment.")
    return _drive(Execution.objects.get(pk=row.pk), abort, on_checkpoint)


def _drive(row: Execution, abort: Any, on_checkpoint: OnCheckpoint) -> RunResult:
    heard = Abort(abort)

    def tell() -> None:
        if on_checkpoint is not None:
            on_checkpoint(snapshot(row.run_id))

    token = current_attempt.set(None)  # a step may drive another run; its own attempt is no business of that one
    try:
        with _kept(Lease(row.pk, row.lease_epoch), heard):
            error = drive(row, abort=heard, on_checkpoint=tell if on_checkpoint else None)
    finally:
        current_attempt.reset(token)
    return _result(row.run_id, error)


@contextmanager
def _kept(lease: Lease, abort: Abort) -> Iterator[None]:
    """Keep a lease alive meanwhile; inside a TestCase nobody could take it, and no other thread may look."""
    if in_test_case():
        yield
        return
    heartbeat = Heartbeat(conf.get("LEASE"))
    heartbeat.watch(lease, abort)
    heartbeat.start()
    try:
        yield
    finally:
        heartbeat.stop()


def _result(run_id: str, error: BaseException | None) -> RunResult:
    state = snapshot(run_id)
    if state.status == RunStatus.ERROR:
        failed = state.error or {}
        why = failed.get("message") or failed.get("type", "").rpartition(".")[2]
        raise WorkflowError(f"Run {run_id} failed: {why}", state) from error
    return RunResult(run_id, state.status, state, state.waiting_on, state.result)


def _token() -> str:
    return f"inline-{secrets.token_hex(8)}"
