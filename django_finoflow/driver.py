"""Drive one leased run: replay its body over what is recorded, until it is done, fails, waits or must stop.

The body is ordinary Python and runs from its beginning each time; what is recorded is returned, what is not is done.
However the drive ends, the run's row says so, or says nothing and the lease runs out.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from contextlib import suppress
from typing import Any

from . import compensation, conf, failures, history, leases, payloads, registry, schemas
from .attempt import Abort
from .awaiting import AsyncContext
from .context import Context
from .drive import Drive, drop_connection, is_open_transaction
from .exceptions import CheckpointRefused, FinoflowError
from .history import History
from .leases import Lease
from .models import Execution
from .statuses import StuckReason
from .stops import DriveStopped, Exhausted, Interrupted, LeaseLost, Mismatch, Parked, WriteRefused, is_interrupt

logger = logging.getLogger("django_finoflow")


def drive(
    run: Execution,
    *,
    abort: Abort,
    stopping: Callable[[], bool] = lambda: False,
    on_checkpoint: Callable[[], None] | None = None,
) -> BaseException | None:
    """Drive a leased run as far as it goes, and let go of it.

    Args:
        run: the run, as ``leases`` gave it.
        abort: set when the drive is to end early.
        stopping: whether it is to stop at its next checkpoint.
        on_checkpoint: called after each stored checkpoint.

    Returns:
        The error that failed the run, or None.
    """
    it = Drive(run, History(), abort, stopping, on_checkpoint)
    try:
        _weigh_recoveries(it)
        it.recorded = it.write(lambda: history.load(run)) if run.lease_epoch > 1 else History()
        return _unwind_further(it) if it.unwinding else _drive_on(it)
    except (Parked, LeaseLost):
        return None
    except Interrupted:
        _give_back(it)
        return None
    except WriteRefused as refused:
        raise refused.error from None
    except Mismatch as mismatch:
        record = {**failures.describe(FinoflowError(str(mismatch))), "mismatch": mismatch.pair}
        _set_aside(it, StuckReason.REPLAY_MISMATCH, record, **it.progress())
        return None
    except BaseException as error:
        if is_interrupt(error):
            _give_back(it)
        raise


def _drive_on(it: Drive) -> BaseException | None:
    """Run the body, end the run as the body ends, and undo what it has done if it failed."""
    ctx, result, error = _replay(it)
    if error is None:
        try:
            result = _checked(it, result)
        except Exception as refused:
            error = refused
    if error is None:
        it.write(lambda: history.done(it.run, result, open_waits=it.recorded.has_open_waits(), **it.progress()))
        return None
    record = failures.describe(error)
    if ctx is not None and compensation.needed(it):
        it.write(lambda: history.unwind(it.run, record, **it.progress()))
        compensation.unwind(it, ctx, record)
    else:
        it.write(lambda: history.failed(it.run, record, open_waits=it.recorded.has_open_waits(), **it.progress()))
    return error


def _unwind_further(it: Drive) -> BaseException | None:
    """Go on with the unwinding of a run that died, or was interrupted, amidst it."""
    record = it.write(lambda: Execution.objects.values_list("error", flat=True).get(pk=it.run.pk))
    error: BaseException | None = None
    try:
        _ctx, _result, error = _replay(it)
    except Exhausted:
        pass
    except Mismatch as mismatch:
        compensation.set_aside(it, FinoflowError(str(mismatch)))
        return None
    if it.ctx is None:  # its input cannot be read any more, say
        compensation.set_aside(it, error or FinoflowError("The run cannot be replayed."))
        return None
    it.stopped = None
    compensation.unwind(it, it.ctx, record)
    return failures.rebuild(record)


def _replay(it: Drive) -> tuple[Context | None, Any, BaseException | None]:
    """Run the body; return its context and its result, or the error that it raised.

    Raises:
        DriveStopped: it did not come to its end.
    """
    result, error = None, None
    ctx = None
    try:
        definition = registry.get(it.run.workflow_id, it.run.version)
        stored = it.run.input = _input(it.run)
        kind = AsyncContext if definition.is_async else Context
        ctx = it.ctx = kind(it, definition, it.rebuilt(definition.input_schema, stored, "input"))
        result = ctx.play(definition.body)
    except DriveStopped:
        raise
    except BaseException as raised:
        if is_interrupt(raised):
            raise
        error = raised
    if it.stopped is not None:
        raise it.stopped
    if is_open_transaction():
        drop_connection()
        error = CheckpointRefused("The body left a transaction open, so what it wrote there is lost.")
    if ctx is not None and (left := ctx.leftover()) is not None:
        it.mismatch(left, None)
    return ctx, result, error


def _checked(it: Drive, result: Any) -> Any:
    """Return the result as it is stored, if its schema and the codec take it."""
    schema = registry.get(it.run.workflow_id, it.run.version).output_schema
    if schema is not None:
        result = schemas.clean(schema, result, f'The result of workflow "{it.run.workflow_id}"')
    return payloads.roundtrip(result)


def _weigh_recoveries(it: Drive) -> None:
    """Set a run aside that kills its workers again and again in one place (rule W2).

    It comes before anything of the run's is decoded, so that a row which cannot be read ends here too.
    """
    run = it.run
    if not run.recoveries:
        return
    found = it.write(lambda: history.count(run))
    if found > run.checkpoints:
        it.write(lambda: history.note_recovery(run, found))
    elif run.recoveries > conf.get("MAX_RECOVERIES"):
        text = (
            f"{run.recoveries} workers died driving this run, each after {found} checkpoints. Mend it, then retry it."
        )
        # What is half undone must not be tried again from its failed step, nor forget why it failed.
        reason = StuckReason.COMPENSATION_FAILED if it.unwinding else StuckReason.TOO_MANY_CRASHES
        _set_aside(it, reason, failures.describe(FinoflowError(text)))
        raise LeaseLost


def _set_aside(it: Drive, reason: StuckReason, error: dict[str, Any], **progress: Any) -> None:
    with suppress(LeaseLost):
        it.write(lambda: history.stuck(it.run, reason, error, **progress))


def _give_back(it: Drive) -> None:
    with suppress(LeaseLost):
        it.write(lambda: leases.give_back(Lease(it.run.pk, it.run.lease_epoch)))


def _input(run: Execution) -> Any:
    """Return the run's input, which a claim gives undecoded: a broken row fails its own run and nobody else's claim."""
    return payloads.loads(run.stored_input) if hasattr(run, "stored_input") else run.input
