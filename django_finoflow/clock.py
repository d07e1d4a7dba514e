"""The two clocks of a process.

``now()`` is the calendar: due times and deadlines come from it, and freezegun moves it. ``monotonic()`` measures delays
inside the process (a retry's pause, a heartbeat) and is out of freezegun's reach, so that frozen time never stops a
worker. Leases use
neither: they are measured by the database.
"""

from __future__ import annotations

import time
from datetime import datetime
from functools import partial

from django.utils import timezone


def now() -> datetime:
    """Return the present moment, aware, in UTC."""
    return timezone.now()


#: Seconds from a fixed point. freezegun swaps module attributes that *are* ``time.monotonic``; a partial is not one.
monotonic = partial(time.monotonic)


class Pause:
    """A pause that grows while nothing happens: for those who must look because nothing tells them.

    Args:
        longest: seconds it grows to.
    """

    def __init__(self, longest: float):
        self._longest = longest
        self.reset()

    def reset(self) -> None:
        """Begin with a short pause again."""
        self._seconds = min(0.02, self._longest)

    def next(self) -> float:
        """Return the seconds to wait now; the next pause is twice as long."""
        seconds, self._seconds = self._seconds, min(self._seconds * 2, self._longest)
        return seconds

    def __call__(self, end: float | None = None) -> None:
        """Wait, but not beyond the moment ``end`` of ``monotonic()``."""
        seconds = self.next()
        _sleep(seconds if end is None else max(0.0, min(seconds, end - monotonic())))


_sleep = partial(time.sleep)
