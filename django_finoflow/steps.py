"""Steps: a body is called until it succeeds or its attempts are spent, and what came of it is recorded at once.

A step that is done is never called again (rule D1). What the caller gets is always what a replay would get: the result
encoded and decoded (D2), the error as it is rebuilt from its record (D7).
"""

from __future__ import annotations

import logging
import random
from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

from django.db import IntegrityError, connections, transaction

from . import bodies, clock, conf, events, failures, history, leases, payloads, schemas
from .attempt import Attempt, idempotency_key
from .bodies import Outcome, Race
from .drive import Drive
from .exceptions import NonRetryable, PayloadError
from .history import Place
from .leases import Lease
from .models import Step
from .retry import Retry
from .statuses import StepKind, StepStatus
from .stops import LeaseLost, Parked
from .trouble import is_conflict, is_lost

logger = logging.getLogger("django_finoflow")

#: A pause of a second or more parks the run; a shorter one is waited out (rule T3).
LONGEST_PAUSE = 1.0


@dataclass(frozen=True)
class Call:
    """What a body asked for: the step's id and kind, its function, and how to run it."""

    id: str
    kind: StepKind
    body: Callable[[], Any]
    retry: Retry
    timeout: float | None
    atomic: bool
    output_schema: Any = None


def take(drive: Drive, place: Place, call: Call) -> Any:
    """Return the result of a step, recorded or new.

    Raises:
        Exception: the recorded or new failure of a step whose attempts are spent.
        DriveStopped: the run is parked for the next attempt, or is not ours any more.
    """
    step: Any = drive.recall(place, call.kind, call.id)
    if step is None:
        branch, index = place
        step = Step(branch=branch, index=index, step_id=call.id, kind=call.kind, attempts=0)
    elif step.status == StepStatus.DONE:
        drive.bag.apply(step.state_patch)
        return schemas.rebuild(call.output_schema, step.result)
    elif step.status == StepStatus.FAILED:
        raise failures.rebuild(step.error)
    elif step.due_at is not None and step.due_at > clock.now():
        _park_again(drive, step)
    return _try_until_settled(drive, step, call)


def _try_until_settled(drive: Drive, step: Step, call: Call) -> Any:
    while True:
        drive.leave_if_stopping()
        drive.go_on()
        step.attempts += 1
        step.started_at = clock.now()
        outcome = _attempt(drive, step, call)
        if outcome.error is None:
            return _record_success(drive, step, call, outcome)
        if isinstance(outcome.error, LeaseLost):
            drive.abort.set()
            drive.stop(outcome.error)
        if not _is_retryable(outcome.error) or step.attempts >= call.retry.max_attempts:
            _record_failure(drive, step, outcome.error)
        _record_retry(drive, step, call.retry, outcome.error)


def _attempt(drive: Drive, step: Step, call: Call) -> Outcome:
    """Run the body once, in this thread or, with a timeout, in one of its own."""
    deadline = None if call.timeout is None else clock.now() + timedelta(seconds=call.timeout)
    attempt = Attempt(
        run_id=drive.run.run_id,
        step_id=step.step_id,
        attempt=step.attempts,
        idempotency_key=idempotency_key(drive.run.run_id, step.branch, step.index, step.step_id),
        deadline=deadline,
        abort=drive.abort.derive(),
    )
    once = _atomic_body if call.atomic else _plain_body
    return bodies.run(lambda race: once(drive, step, call, attempt, race), attempt, call.timeout)


def _plain_body(drive: Drive, step: Step, call: Call, attempt: Attempt, race: Race) -> Outcome:
    try:
        with bodies.mended_test_case():
            outcome = _result_of(call, attempt)
    except KeyboardInterrupt:
        raise
    except BaseException as error:
        outcome = Outcome(error=error)
    return race.finish(outcome)


def _result_of(call: Call, attempt: Attempt) -> Outcome:
    value = call.body()
    if call.output_schema is not None:
        value = schemas.clean(call.output_schema, value, f'The result of {call.kind} "{call.id}"')
    text = payloads.dumps(value)
    stored = payloads.loads(text)
    return Outcome(value=stored, text=None if stored is None else text, patch=attempt.state_patch())


def _atomic_body(drive: Drive, step: Step, call: Call, attempt: Attempt, race: Race) -> Outcome:
    """Run the body and record it in one transaction; again if that transaction met another one (rule D6)."""
    while True:
        recording = False
        try:
            with transaction.atomic(using=conf.database()):
                _fence_first(drive)
                outcome = _result_of(call, attempt)
                race.claim()
                recording = True
                _insert_done(drive, step, outcome)
                _renew_last(drive)
        except KeyboardInterrupt:
            raise
        except BaseException as error:
            again = _may_run_again(error, recording)  # asked before a look at the row mends the connection
            outcome = (recording and _committed(drive, step, error)) or Outcome(error=error)
            again = again and outcome.error is not None and race.reopen()
            if again and not drive.abort.wait(random.uniform(0, 0.1)):
                attempt.changes.clear()
                continue
        outcome.stored = outcome.error is None
        return race.finish(outcome)


def _fence_first(drive: Drive) -> None:
    """Where rows cannot be locked (SQLite), take the one write lock before the body reads, and prove the lease.

    Elsewhere the fence comes last, so that no lock on the run is held while the body works.
    """
    if not connections[conf.database()].features.has_select_for_update:
        with history.fenced(drive.run):
            pass


def _renew_last(drive: Drive) -> None:
    """Where the body held the one write lock (SQLite), no heartbeat got through: renew the lease with its commit."""
    if not connections[conf.database()].features.has_select_for_update:
        run = drive.run
        leases.renew([Lease(run.pk, run.lease_epoch)], run.lease_seconds or conf.get("LEASE"))


def _committed(drive: Drive, step: Step, error: BaseException) -> Outcome | None:
    """Return what was recorded, if the COMMIT that raised ``error`` went through all the same."""
    if isinstance(error, LeaseLost):
        return None
    found = drive.write(lambda: history.stored(drive.run, (step.branch, step.index)))
    if found is None or found.status != StepStatus.DONE:
        return None
    logger.warning("event=after-commit-error run=%s step=%s error=%r", drive.run.run_id, step.step_id, error)
    step.state_patch = found.state_patch
    return Outcome(value=found.result)


def _may_run_again(error: BaseException, recording: bool) -> bool:
    return is_conflict(error) or (recording and is_lost(error, conf.database()))


def _insert_done(drive: Drive, step: Step, outcome: Outcome) -> None:
    step.status, step.finished_at, step.error, step.due_at = StepStatus.DONE, clock.now(), None, None
    if step._state.adding:
        history.insert(drive.run, step, outcome.text, outcome.patch)
        return
    with history.fenced(drive.run):
        step.result, step.state_patch = outcome.value, payloads.loads(outcome.patch)
        history.save(drive.run, step)


def _record_success(drive: Drive, step: Step, call: Call, outcome: Outcome) -> Any:
    if not outcome.stored:
        drive.write(lambda: _insert_once(drive, step, outcome))
    step.result = outcome.value
    step.status = StepStatus.DONE
    if outcome.patch:
        step.state_patch = payloads.loads(outcome.patch)
    drive.bag.apply(step.state_patch)
    drive.store(step)
    _tell(events.step_done, drive, step)
    return schemas.rebuild(call.output_schema, outcome.value)


def _insert_once(drive: Drive, step: Step, outcome: Outcome) -> None:
    """Insert the step, unless a first try whose answer was lost has done so."""
    try:
        with bodies.mended_test_case():
            _insert_done(drive, step, outcome)
    except IntegrityError:
        if history.stored(drive.run, (step.branch, step.index)) is None:
            raise


def _record_failure(drive: Drive, step: Step, error: BaseException) -> None:
    record = failures.describe(error)
    drive.write(lambda: _save_failed(drive, step, record, StepStatus.FAILED))
    drive.store(step)
    _tell(events.step_failed, drive, step, error=record)
    raise failures.rebuild(record) from error


def _record_retry(drive: Drive, step: Step, retry: Retry, error: BaseException) -> None:
    record = failures.describe(error)
    delay = retry.delay(step.attempts)
    step.due_at = clock.now() + timedelta(seconds=delay)
    parks = delay >= LONGEST_PAUSE
    drive.write(lambda: _save_failed(drive, step, record, StepStatus.RETRYING, parks=parks))
    drive.store(step)
    _tell(events.step_retrying, drive, step, error=record, due_at=step.due_at)
    if parks:
        drive.stop(Parked())
    drive.pause(delay)


def _save_failed(drive: Drive, step: Step, error: dict[str, Any], status: StepStatus, parks: bool = False) -> None:
    with history.fenced(drive.run) as row:
        step.pk = (
            Step.objects.filter(execution=row, branch=step.branch, index=step.index)
            .values_list("pk", flat=True)
            .first()
        )
        step.status, step.error, step.finished_at = status, error, clock.now()
        history.save(drive.run, step)
        if parks:
            drive.recorded.add(step)
            drive.current_step = step.step_id
            history.park(drive.run, row, step.due_at, **drive.progress())


def _park_again(drive: Drive, step: Step) -> None:
    """Park a run that was woken before its next attempt is due: nothing hastens the attempt (rule T3)."""

    def park() -> None:
        with history.fenced(drive.run) as row:
            drive.current_step = step.step_id
            history.park(drive.run, row, step.due_at, **drive.progress())

    drive.write(park)
    drive.stop(Parked())


def _is_retryable(error: BaseException) -> bool:
    return not isinstance(error, NonRetryable | PayloadError | LeaseLost)


def _tell(event: Any, drive: Drive, step: Step, **facts: Any) -> None:
    facts = {"run_id": drive.run.run_id, "step_id": step.step_id, "attempt": step.attempts, **facts}
    events.announce(event, using=conf.database(), sender=drive.run.workflow_id, **facts)
