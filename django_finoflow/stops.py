"""How the engine stops a drive: exceptions that are no errors.

They derive from ``BaseException``, so that ``except Exception`` in a workflow cannot swallow them (rule D9). Never
catch them.
"""

import threading
from typing import Any


def is_interrupt(error: BaseException) -> bool:
    """Whether ``error`` is a person's Ctrl-C: such a one reaches the main thread only, any other is the body's own."""
    return isinstance(error, KeyboardInterrupt) and threading.current_thread() is threading.main_thread()


class DriveStopped(BaseException):
    """Base of the reasons why a body is left before its end."""


class Parked(DriveStopped):
    """The run waits; its rows say for what."""


class LeaseLost(DriveStopped):
    """The run is no longer ours: cancelled, deleted, or driven by another worker. Nothing more is written."""


class WriteRefused(DriveStopped):
    """The database refuses a write of the engine's, and would again: no body may go on without its checkpoint."""

    def __init__(self, error: Exception):
        super().__init__(str(error))
        self.error = error


class Interrupted(DriveStopped):
    """The worker stops, or the caller's ``abort`` is set. The run is due again for whoever comes next."""


class Exhausted(DriveStopped):
    """A replay that only gathers what can be undone has come to the end of what is recorded."""


class Mismatch(DriveStopped):
    """The body asked for another checkpoint than the one recorded at its position (rule D3).

    Args:
        text: what is wrong, and what to do.
        pair: ``branch`` and ``position``, and as (kind, id) what is ``recorded`` there and what was ``asked`` for; the
            latter is None where the body asked for nothing more. None: it is not about a position.
    """

    def __init__(self, text: str, pair: dict[str, Any] | None = None):
        super().__init__(text)
        self.pair = pair
