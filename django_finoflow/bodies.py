"""Calling user code for a step: with its ``current_step()``, and with a timeout in a thread that can be left behind.

A thread cannot be killed. So body and deadline race for one flag: a deadline that wins leaves the body alone, and
what that one returns is discarded, its atomic writes rolled back; the deadline that loses waits for the body's commit
(rule T4).
"""

from __future__ import annotations

import contextvars
import threading
from collections.abc import Awaitable, Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any

from asgiref.sync import async_to_sync
from django.db import DatabaseError, connections, transaction

from . import clock, conf
from .attempt import Attempt, current_attempt
from .drive import drop_connection, in_test_case, is_open_transaction
from .exceptions import CheckpointRefused, StepTimeout
from .stops import is_interrupt


class Overtaken(BaseException):
    """The deadline has won: the body's work is not wanted."""


class Outcome:
    """What an attempt came to: a value (with the JSON text to record it by), or an error.

    Or an awaitable, if an async workflow's body turned out to be async. ``stored`` says that the attempt has recorded
    itself.
    """

    def __init__(
        self,
        *,
        value: Any = None,
        text: str | None = None,
        patch: str | None = None,
        error: BaseException | None = None,
        awaitable: Awaitable[Any] | None = None,
    ):
        self.value, self.text, self.patch, self.error, self.awaitable = value, text, patch, error, awaitable
        self.stored = False
        self.is_encoded = False


class Race:
    """Whether the body or its deadline came first; decided once."""

    def __init__(self, expired: Callable[[], bool] = lambda: False) -> None:
        self._lock = threading.Lock()
        self._winner = ""
        self._late = False
        self._expired = expired
        self.over = threading.Event()
        self.outcome: Outcome | None = None

    def win(self, runner: str) -> bool:
        """Try to come first; return whether ``runner`` has."""
        with self._lock:
            self._late = self._late or runner == "deadline"
            if not self._winner:
                self._winner = "deadline" if runner == "body" and self._expired() else runner
            return self._winner == runner

    def claim(self) -> None:
        """Come first as the body, just before what cannot be taken back.

        Raises:
            Overtaken: the deadline was quicker.
        """
        if not self.win("body"):
            raise Overtaken

    def reopen(self) -> bool:
        """Give back a first place whose transaction did not commit; return whether there is time for another go."""
        with self._lock:
            if self._winner == "body":
                self._winner = "deadline" if self._late else ""
            return not self._winner

    def finish(self, outcome: Outcome) -> Outcome:
        """Note the body's outcome, if it is still wanted."""
        if self.win("body"):
            self.outcome = outcome
        self.over.set()
        return outcome


class NoRace(Race):
    """What a body without a deadline runs in: nobody else is there."""

    def __init__(self) -> None:
        pass

    def win(self, runner: str) -> bool:
        return True

    def reopen(self) -> bool:
        return True

    def finish(self, outcome: Outcome) -> Outcome:
        return outcome


NO_RACE = NoRace()


def run(once: Callable[[Race], Outcome], attempt: Attempt, timeout: float | None) -> Outcome:
    """Run a step's body once and return its outcome.

    Args:
        once: calls the body and returns the outcome, having entered it in the race.
        attempt: what ``current_step()`` returns to the body.
        timeout: seconds until the deadline; None: no deadline.
    """
    if timeout is None:
        return _called(once, NO_RACE, attempt)
    if in_test_case():
        return _judged_afterwards(once, attempt, timeout)
    race = Race()
    work = contextvars.copy_context()
    threading.Thread(target=work.run, args=(_thread, once, race, attempt), name="finoflow-step", daemon=True).start()
    if not race.over.wait(min(timeout, threading.TIMEOUT_MAX)) and race.win("deadline"):
        return timed_out(attempt, timeout)
    race.over.wait()
    return race.outcome or timed_out(attempt, timeout)


def plain(body: Callable[[], Outcome], race: Race) -> Outcome:
    """Call a body that records nothing itself, and return what came of it."""
    try:
        with mended_test_case():
            outcome = body()
    except BaseException as error:
        if is_interrupt(error):
            raise
        outcome = Outcome(error=error)
    if is_open_transaction():
        drop_connection()
        text = "The body left a transaction open, so what it wrote there is lost. Use atomic=True, or a with block."
        outcome = Outcome(error=CheckpointRefused(text))
    return race.finish(outcome)


def finish(awaitable: Awaitable[Any]) -> Any:
    """Await what an async function returned, on an event loop of its own, and return what comes of it."""

    async def wait() -> Any:
        return await awaitable

    return async_to_sync(wait, force_new_loop=True)()


def _called(once: Callable[[Race], Outcome], race: Race, attempt: Attempt) -> Outcome:
    token = current_attempt.set(attempt)
    try:
        return once(race)
    finally:
        current_attempt.reset(token)


def _thread(once: Callable[[Race], Outcome], race: Race, attempt: Attempt) -> None:
    try:
        _called(once, race, attempt)
    except BaseException as error:
        race.finish(Outcome(error=error))
    finally:
        connections.close_all()


def _judged_afterwards(once: Callable[[Race], Outcome], attempt: Attempt, timeout: float) -> Outcome:
    """Inside a TestCase the body has no thread of its own: its deadline is judged when it returns (rule T8)."""
    began = clock.now()
    race = Race(expired=lambda: (clock.now() - began).total_seconds() > timeout)
    _called(once, race, attempt)
    return race.outcome or timed_out(attempt, timeout)


def timed_out(attempt: Attempt, timeout: float) -> Outcome:
    """Return the outcome of an attempt that took too long, and tell its body, if that is still there."""
    attempt.abort.set()
    return Outcome(error=StepTimeout(f'Step "{attempt.step_id}" took longer than {timeout:g}s.'))


def mended_test_case() -> AbstractContextManager[None]:
    """Undo what a database error breaks inside a TestCase's transaction; outside of one every statement is its own."""
    return _savepoint() if in_test_case() else nullcontext()


@contextmanager
def _savepoint() -> Iterator[None]:
    using, raised = conf.database(), None
    savepoint: Any = connections[using].savepoint()
    try:
        try:
            yield
        except DatabaseError:
            raise
        except BaseException as error:
            raised = error
        transaction.savepoint_commit(savepoint, using=using)  # refused, if the body hushed up a database error
    except DatabaseError:
        transaction.set_rollback(False, using=using)
        transaction.savepoint_rollback(savepoint, using=using)
        raise
    if raised is not None:
        raise raised
