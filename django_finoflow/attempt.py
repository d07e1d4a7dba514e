"""One attempt of a step, as its body sees it: ``current_step()``."""

from __future__ import annotations

import hashlib
import threading
import weakref
from contextvars import ContextVar
from dataclasses import dataclass, field
from datetime import datetime
from functools import cached_property
from typing import Any

from . import clock, payloads
from .exceptions import CheckpointRefused, FinoflowError

POLL = 0.05


class Abort:
    """Like a ``threading.Event``, set when work should end early; what is derived from it is set with it.

    Args:
        source: an event of the caller's (``is_set()``) that counts as well.
    """

    def __init__(self, source: Any = None):
        self._event = threading.Event()
        self._source = source
        self._derived: weakref.WeakSet[Abort] = weakref.WeakSet()

    def derive(self) -> Abort:
        """Return an abort of its own that is set with this one, but does not set it."""
        child = Abort(self._source)
        self._derived.add(child)
        if self.is_set():
            child.set()
        return child

    def set(self) -> None:
        """Ask for an early end."""
        self._event.set()
        for child in list(self._derived):
            child.set()

    def is_set(self) -> bool:
        """Whether an early end is asked for."""
        return self._event.is_set() or (self._source is not None and self._source.is_set())

    def wait(self, timeout: float | None = None) -> bool:
        """Wait until it is set, ``timeout`` seconds at the most; return whether it is."""
        if self._source is None:
            return self._event.wait(timeout)
        end = None if timeout is None else clock.monotonic() + timeout
        while not self.is_set() and (end is None or clock.monotonic() < end):
            self._event.wait(POLL if end is None else max(0.0, min(POLL, end - clock.monotonic())))
        return self.is_set()


@dataclass(eq=False)
class Attempt:
    """What ``current_step()`` returns.

    Attributes:
        run_id: the run.
        step_id: the step's id.
        attempt: which attempt this is, from 1.
        idempotency_key: the same over all attempts and restarts of this step of this run, and no other's: hand it to
            whoever you pay or order from. At most 200 characters.
        deadline: when the step's ``timeout`` ends, or None.
        abort: set when the result will not be wanted any more (timeout, cancel, lost lease, shutdown).
    """

    run_id: str
    step_id: str
    attempt: int
    deadline: datetime | None
    abort: Abort
    place: tuple[str, int, str] = field(repr=False)
    atomic: bool = field(default=False, repr=False)
    changes: dict[str, str | None] = field(default_factory=dict, repr=False)

    @cached_property
    def idempotency_key(self) -> str:
        return idempotency_key(self.run_id, *self.place)

    def state_patch(self) -> str | None:
        """Return what the body changed in ``ctx.state``, as the JSON text to record."""
        if not self.changes:
            return None
        return payloads.dumps(
            {key: [] if text is None else [payloads.loads(text)] for key, text in self.changes.items()}
        )


current_attempt: ContextVar[Attempt | None] = ContextVar("finoflow_attempt", default=None)


def current_step() -> Attempt:
    """Return the attempt whose body is being run.

    Raises:
        FinoflowError: no step is being run here.
    """
    attempt = current_attempt.get()
    if attempt is None:
        raise FinoflowError("current_step() is there only inside a step's body.")
    return attempt


def refuse_within(run_id: str, what: str) -> None:
    """Refuse to do ``what`` to a run in a transaction that only commits if the run is left alone.

    Raises:
        CheckpointRefused: an atomic step of that very run is being run.
    """
    attempt = current_attempt.get()
    if attempt is not None and attempt.atomic and attempt.run_id == run_id:
        raise CheckpointRefused(f"An atomic step cannot {what} its own run: it would take itself back. Do it outside.")


def idempotency_key(run_id: str, branch: str, index: int, step_id: str) -> str:
    """Return the key of one step of one run."""
    place = hashlib.sha256(f"{branch}\n{index}\n{step_id}".encode()).hexdigest()[:32]
    return f"{run_id}:{place}"
