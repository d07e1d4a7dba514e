"""How often a failing step is tried again, and how long to pause between attempts (rule T2).

``Retry(5)`` is five attempts in all, the first included. Pauses grow from ``initial`` by ``factor`` up to
``max_delay``; each gets a random extra, so that many runs that failed together do not come back together.
"""

from __future__ import annotations

import random
from dataclasses import dataclass
from typing import Any

from .durations import seconds
from .exceptions import DefinitionError, DurationError

_LARGEST = 1_000_000  # of a factor or a jitter; beyond it somebody mistook the unit


@dataclass(frozen=True)
class Retry:
    """A retry policy.

    Args:
        max_attempts: attempts in all, the first included; below 1 counts as 1.
        initial: the pause after the first failed attempt, a duration (rule T1).
        factor: what each pause is multiplied by to get the next; at least 1.
        max_delay: the longest pause before jitter is added, a duration.
        jitter: the largest random extra, as a share of the pause: 0.5 adds 0 to 50 %.

    Raises:
        DefinitionError: one of these is out of its range.
    """

    max_attempts: int
    initial: Any = "500ms"
    factor: float = 2
    max_delay: Any = "30s"
    jitter: float = 0.5

    def __post_init__(self) -> None:
        if not isinstance(self.max_attempts, int) or isinstance(self.max_attempts, bool):
            raise DefinitionError(f"Retry: max_attempts must be a whole number, not {self.max_attempts!r}.")
        object.__setattr__(self, "max_attempts", max(1, int(self.max_attempts)))
        for name in ("initial", "max_delay"):
            try:
                seconds(getattr(self, name))
            except DurationError as error:
                raise DefinitionError(f"Retry: {name}: {error}") from None
        _check_number("factor", self.factor, at_least=1)
        _check_number("jitter", self.jitter, at_least=0)

    @classmethod
    def of(cls, value: Retry | int | None, default: Retry) -> Retry:
        """Return the policy meant by ``retry=value``: a ``Retry`` is itself, an int its attempts, None is ``default``.

        Raises:
            DefinitionError: it is none of these.
        """
        if value is None:
            return default
        if isinstance(value, Retry):
            return value
        if isinstance(value, int) and not isinstance(value, bool):
            return cls(value)
        raise DefinitionError(f"retry must be a Retry or a whole number of attempts, not {value!r}.")

    def delay(self, failed: int) -> float:
        """Return the pause in seconds before the attempt that follows ``failed`` failed ones (1 or more)."""
        longest = seconds(self.max_delay)
        try:
            pause = min(seconds(self.initial) * float(self.factor) ** max(0, failed - 1), longest)
        except OverflowError:  # the power; a pause that began as nothing stays nothing
            pause = longest if seconds(self.initial) else 0.0
        return pause * (1 + random.uniform(0, self.jitter))


def _check_number(name: str, value: Any, *, at_least: float) -> None:
    number = isinstance(value, int | float) and not isinstance(value, bool)
    if not number or not at_least <= value <= _LARGEST:
        raise DefinitionError(f"Retry: {name} must be a number from {at_least} to {_LARGEST:,}, not {value!r}.")
