"""Steps: a body is called until it succeeds or its attempts are spent, and what came of it is recorded at once.

A step that is done is never called again (rule D1). What the caller gets is always what a replay would get: the result
encoded and decoded (D2), the error as it is rebuilt from its record (D7).
"""

from __future__ import annotations

import inspect
import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import timedelta
from functools import partial
from typing import Any, NamedTuple

from django.db import IntegrityError

from . import atomic, bodies, clock, conf, events, failures, history, payloads, schemas
from .attempt import Attempt
from .bodies import Outcome, Race
from .drive import Drive
from .exceptions import CheckpointRefused, DefinitionError, NonRetryable, PayloadError
from .history import Place
from .models import Step
from .retry import Retry
from .statuses import StepKind, StepStatus
from .stops import LeaseLost, Parked

logger = logging.getLogger("django_finoflow")

#: A pause of a second or more parks the run; a shorter one is waited out (rule T3).
LONGEST_PAUSE = 1.0


ONCE = Retry(1)

#: Errors that another attempt would not mend.
FINAL = (NonRetryable, PayloadError, CheckpointRefused, DefinitionError)


@dataclass(frozen=True)
class Call:
    """What a body asked for: the step's id and kind, its function, and how to run it."""

    id: str
    kind: StepKind
    body: Callable[[], Any]
    retry: Retry = ONCE
    timeout: float | None = None
    atomic: bool = False
    output_schema: Any = None
    compensate: Callable[[Any], Any] | None = None
    step_input: Any = None
    extra: Mapping[str, Any] | None = None
    #: Whether the body that asked is async, so that an async function's result is awaited.
    may_await: bool = False


class Undoable(NamedTuple):
    """A step that can be undone, and what was asked for at its place."""

    step: Step
    call: Call


def take(drive: Drive, place: Place, call: Call) -> Any:
    """Return the result of a step, recorded or new.

    Raises:
        Exception: the recorded or new failure of a step whose attempts are spent.
        DriveStopped: the run is parked for the next attempt, or is not ours any more.
    """
    step = recall(drive, place, call)
    if step.is_settled:
        drive.bag.apply(step.state_patch)
        return recorded(drive, step, call)
    drive.leave_if_exhausted()
    if is_early(step):
        park(drive, step)
    error = _try_until_settled(drive, step, call)
    drive.bag.apply(step.state_patch)
    return fresh(step, call, error)


def recorded(drive: Drive, step: Step, call: Call) -> Any:
    """Return the result of a step that a former drive has settled, or raise its failure."""
    if step.status == StepStatus.FAILED:
        raise failures.rebuild(step.error)
    return drive.rebuilt(call.output_schema, step.result, f'result of {call.kind} "{call.id}"')


def fresh(step: Step, call: Call, error: BaseException | None) -> Any:
    """Return the result of a step that this drive has settled, or raise its failure, as a replay would."""
    if step.status == StepStatus.FAILED:
        raise failures.rebuild(step.error) from error
    return schemas.rebuild(call.output_schema, step.result)


def is_early(step: Step) -> bool:
    """Whether the step's next attempt may not begin yet."""
    return step.due_at is not None and step.due_at > clock.now()


def recall(drive: Drive, place: Place, call: Call) -> Step:
    """Return the step that is recorded at ``place``, or a new one, and note it if it can be undone."""
    found: Any = drive.recall(place, call.kind, call.id)
    branch, index = place
    step = found or Step(branch=branch, index=index, step_id=call.id, kind=call.kind, attempts=0)
    if call.compensate is not None:
        step.compensable = True
        if not drive.pivoted:
            drive.undoables.append(Undoable(step, call))
    return step


def _try_until_settled(drive: Drive, step: Step, call: Call) -> BaseException | None:
    """Make attempts until the step is settled; return the last one's error."""
    while True:
        drive.leave_if_stopping()
        drive.go_on()
        outcome = attempt(drive, step, call)
        pause = settle(drive, step, call, outcome)
        if pause is None:
            return outcome.error
        if pause >= LONGEST_PAUSE:
            park(drive, step)
        drive.pause(pause)


def settle(drive: Drive, step: Step, call: Call, outcome: Outcome) -> float | None:
    """Record what an attempt came to; return the pause before the next one, or None if none follows."""
    if outcome.error is None:
        _record_success(drive, step, outcome)
        return None
    if isinstance(outcome.error, LeaseLost):
        drive.abort.set()
        drive.stop(outcome.error)
    if is_final(step, call, outcome.error):
        _record_failure(drive, step, outcome.error)
        return None
    return _record_retry(drive, step, call.retry, outcome.error)


def attempt(drive: Drive, step: Step, call: Call) -> Outcome:
    """Run the body once, in this thread or, with a timeout, in one of its own; only an atomic one is recorded by it."""
    return attempt_as(drive, step, call, begin_attempt(drive, step, call))


def begin_attempt(drive: Drive, step: Step, call: Call) -> Attempt:
    """Count an attempt that begins now, and return what its body sees."""
    step.attempts += 1
    step.started_at = clock.now()
    return begin(drive, step, call, step.step_id)


def attempt_as(drive: Drive, step: Step, call: Call, seen: Attempt) -> Outcome:
    """Run the body of an attempt that has begun."""

    def body() -> Outcome:
        value = call.body()
        return awaited(call, value) if inspect.isawaitable(value) else encoded(call, seen, value)

    def once(race: Race) -> Outcome:
        if not call.atomic:
            return bodies.plain(body, race)
        record = partial(_insert_done, drive, step)
        recall = partial(_committed, drive, step)
        return atomic.run(drive, seen, race, body=body, record=record, recall=recall)

    return bodies.run(once, seen, call.timeout)


def begin(drive: Drive, step: Step, call: Call, act: str) -> Attempt:
    """Return what the body of an attempt at ``act`` (the step, or its undoing) sees as ``current_step()``."""
    return Attempt(
        run_id=drive.run.run_id,
        step_id=step.step_id,
        attempt=step.attempts,
        deadline=None if call.timeout is None else clock.now() + timedelta(seconds=call.timeout),
        abort=drive.abort if call.timeout is None else drive.abort.derive(),
        place=(step.branch, step.index, act),
        atomic=call.atomic,
    )


def awaited(call: Call, value: Any) -> Outcome:
    """Return the outcome of a body that turned out to be async: only an async workflow's can be awaited.

    Raises:
        DefinitionError: nobody would await it, or a transaction would be open meanwhile.
    """
    if call.may_await and not call.atomic:
        return Outcome(awaitable=value)
    if inspect.iscoroutine(value):
        value.close()
    why = "with atomic=True it must not be" if call.may_await else "await it in an async def workflow"
    raise DefinitionError(f'{call.kind} "{call.id}": what its function returned is async; {why}.')


def encoded(call: Call, seen: Attempt, value: Any) -> Outcome:
    """Return the outcome of a body that returned ``value``: what is stored, and the text of it.

    Raises:
        PayloadError: it cannot be stored.
        ValidationFailed: the ``output_schema`` refuses it.
    """
    if call.output_schema is not None:
        value = schemas.clean(call.output_schema, value, f'The result of {call.kind} "{call.id}"')
    text = payloads.dumps(value)
    stored = payloads.loads(text)
    outcome = Outcome(value=stored, text=None if stored is None else text, patch=seen.state_patch())
    outcome.is_encoded = True
    return outcome


def _committed(drive: Drive, step: Step) -> Outcome | None:
    """Return what was recorded, if a COMMIT that raised an error went through all the same."""
    found = drive.write(lambda: history.stored(drive.run, (step.branch, step.index)))
    if found is None or found.status != StepStatus.DONE:
        return None
    logger.warning("event=after-commit-error run=%s step=%s", drive.run.run_id, step.step_id, exc_info=True)
    step.state_patch = found.state_patch
    return Outcome(value=found.result)


def _insert_done(drive: Drive, step: Step, outcome: Outcome) -> None:
    step.status, step.finished_at, step.error, step.due_at = StepStatus.DONE, clock.now(), None, None
    if step._state.adding:
        history.insert(drive.run, step, outcome.text, outcome.patch)
        return
    with history.fenced(drive.run):
        step.result, step.state_patch = outcome.value, payloads.loads(outcome.patch)
        history.save(drive.run, step)


def _record_success(drive: Drive, step: Step, outcome: Outcome) -> None:
    if not outcome.stored:
        drive.write(lambda: _insert_once(drive, step, outcome))
    step.result = outcome.value
    step.status = StepStatus.DONE
    if outcome.patch:
        step.state_patch = payloads.loads(outcome.patch)
    drive.store(step)
    _tell(events.step_done, drive, step)


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


def _record_retry(drive: Drive, step: Step, retry: Retry, error: BaseException) -> float:
    record = failures.describe(error)
    pause = retry.delay(step.attempts)
    step.due_at = clock.now() + timedelta(seconds=pause)
    drive.write(lambda: _save_failed(drive, step, record, StepStatus.RETRYING))
    drive.store(step)
    _tell(events.step_retrying, drive, step, error=record, due_at=step.due_at)
    return pause


def _save_failed(drive: Drive, step: Step, error: dict[str, Any], status: StepStatus) -> None:
    with history.fenced(drive.run) as row:
        known = Step.objects.filter(execution=row, branch=step.branch, index=step.index)
        step.pk = known.values_list("pk", flat=True).first()
        step.status, step.error, step.finished_at = status, error, clock.now()
        history.save(drive.run, step)


def park(drive: Drive, step: Step) -> None:
    """Park the run until the step's next attempt is due; whatever wakes it does not hasten the attempt (rule T3)."""

    def write() -> None:
        with history.fenced(drive.run) as row:
            drive.current_step = step.step_id
            history.park(drive.run, row, step.due_at, **drive.progress())

    drive.write(write)
    drive.stop(Parked())


def is_final(step: Step, call: Call, error: BaseException) -> bool:
    """Whether no attempt follows one that ended with ``error``."""
    return isinstance(error, FINAL) or step.attempts >= call.retry.max_attempts


def _tell(event: Any, drive: Drive, step: Step, **facts: Any) -> None:
    facts = {"run_id": drive.run.run_id, "step_id": step.step_id, "attempt": step.attempts, **facts}
    events.announce(event, using=conf.database(), sender=drive.run.workflow_id, **facts)
