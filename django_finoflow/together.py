"""Steps side by side: their bodies in threads, their records by the driving thread (atomic ones record themselves).

All settle before anything else happens: a sibling that fails or must wait for its next attempt never undoes or hides
what another has finished. None sees what another changed in ``ctx.state``; the changes are made in order of position
once all have settled.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import contextvars
import queue
import threading
from collections.abc import Callable, Sequence
from typing import Any

from django.db import connections

from . import clock, failures, schemas, steps
from .bodies import Outcome
from .drive import Drive, in_test_case
from .exceptions import FinoflowError
from .history import Place
from .models import Step
from .statuses import StepStatus
from .steps import Call

#: Bodies that run at the same time, at the most.
WIDTH = 32


def take(drive: Drive, places: Sequence[Place], calls: Sequence[Call]) -> list[Any]:
    """Return the results of several steps in order, recorded or new.

    Raises:
        Exception: the failure of one of them; of several, a ``FinoflowError`` that names them all.
        DriveStopped: the run is parked for the next attempt of one, or is not ours any more.
    """
    siblings = [Sibling(drive, place, call) for place, call in zip(places, calls, strict=True)]
    if any(not sibling.step.is_settled for sibling in siblings):
        drive.leave_if_exhausted()
        _run(drive, siblings)
    for sibling in siblings:
        drive.bag.apply(sibling.step.state_patch)
    waiting = [sibling.step for sibling in siblings if not sibling.step.is_settled]
    if waiting:
        drive.leave_if_stopping()
        steps.park(drive, min(waiting, key=lambda step: step.due_at or clock.now()))
    return results([(sibling.step, sibling.call) for sibling in siblings])


class Sibling:
    """One of the steps, and when its next attempt may begin."""

    def __init__(self, drive: Drive, place: Place, call: Call):
        self.step: Step = steps.recall(drive, place, call)
        self.call = call

    def is_ready(self) -> bool:
        """Whether an attempt may begin in this drive: it is new, or its pause is over."""
        return not self.step.is_settled and not steps.is_early(self.step)


def _run(drive: Drive, siblings: Sequence[Sibling]) -> None:
    """Make attempts until every sibling has settled, or waits for longer than a drive does."""
    drive.go_on()
    outcomes: queue.SimpleQueue[tuple[Sibling, Outcome | None]] = queue.SimpleQueue()
    ready = [sibling for sibling in siblings if sibling.is_ready()]
    running = 0
    while ready or running:
        while ready and not drive.is_stopping() and running < WIDTH:
            _begin(drive, ready.pop(0), outcomes)
            running += 1
        if not running:
            break
        sibling, outcome = outcomes.get()
        running -= 1
        pause = steps.settle(drive, sibling.step, sibling.call, outcome) if outcome else None
        if pause is not None and pause < steps.LONGEST_PAUSE and not drive.is_stopping():
            _begin(drive, sibling, outcomes, pause)
            running += 1
    drive.leave_if_stopping()


def _begin(drive: Drive, sibling: Sibling, outcomes: Any, pause: float = 0.0) -> None:
    """Make one attempt in a thread of its own; inside a TestCase in this one, since no other sees its database (T8).

    It comes to nothing, and puts None, if the drive ends early during the pause before it.
    """

    def attempt() -> None:
        given_up = bool(pause) and (drive.abort.wait(pause) or drive.is_stopping())
        outcomes.put((sibling, None if given_up else steps.attempt(drive, sibling.step, sibling.call)))

    if in_test_case():
        attempt()
    else:
        in_thread(attempt, lambda error: outcomes.put((sibling, Outcome(error=error))))


def in_thread(work: Callable[[], None], failed: Callable[[BaseException], None]) -> None:
    """Do ``work`` in a thread of its own, with connections of its own; give ``failed`` what it raises."""

    def thread() -> None:
        try:
            work()
        except BaseException as error:
            failed(error)
        finally:
            connections.close_all()

    context = contextvars.copy_context()
    threading.Thread(target=context.run, args=(thread,), name="finoflow-sibling", daemon=True).start()


def future(work: Callable[[], Any]) -> asyncio.Future[Any]:
    """Begin ``work`` in a thread of its own, and return what an event loop awaits it by."""
    done: concurrent.futures.Future[Any] = concurrent.futures.Future()
    in_thread(lambda: done.set_result(work()), done.set_exception)
    return asyncio.wrap_future(done)


def results(settled: Sequence[tuple[Step, Call]]) -> list[Any]:
    """Return the results of steps that have settled.

    Raises:
        Exception: what failed, if anything did; of several, a ``FinoflowError`` that names them all.
    """
    errors = [failures.rebuild(step.error) for step, _call in settled if step.status == StepStatus.FAILED]
    if len(errors) == 1:
        raise errors[0]
    if errors:
        raise FinoflowError(f"{len(errors)} failures: " + "; ".join(str(error) for error in errors))
    return [schemas.rebuild(call.output_schema, step.result) for step, call in settled]
