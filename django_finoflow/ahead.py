"""Runs that a worker has claimed and not begun yet.

While its runs are quick, one claim takes several: a claim costs as much as a few steps. They wait here, leased like
those that are driven, for whichever slot is free first. What would wait for long goes back, so that a slow run never
keeps others from an idle worker elsewhere.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Iterable

from . import clock
from .models import Execution

#: The most runs that one claim takes.
MOST = 10
#: Seconds of work that one claim takes, by how long drives have lasted lately.
WORTH = 0.05
#: Seconds that a run may wait here.
PATIENCE = 0.2


class Ahead:
    """The runs of one worker that are claimed and not begun."""

    def __init__(self) -> None:
        self._runs: deque[tuple[float, Execution]] = deque()
        self._lock = threading.Lock()
        self._pace = WORTH

    def appetite(self) -> int:
        """Return how many runs the next claim should take: one, unless drives have been quick lately."""
        return max(1, min(MOST, int(WORTH / self._pace)))

    def note(self, seconds: float) -> None:
        """Note how long a drive has lasted. Slow ones count at once, quick ones by and by."""
        self._pace = max(seconds, 0.7 * self._pace + 0.3 * seconds, 1e-6)

    def put(self, runs: Iterable[Execution]) -> None:
        """Let claimed runs wait."""
        now = clock.monotonic()
        with self._lock:
            self._runs.extend((now, run) for run in runs)

    def take(self) -> Execution | None:
        """Return the run that is next, if one waits."""
        with self._lock:
            return self._runs.popleft()[1] if self._runs else None

    def take_stale(self, patience: float = PATIENCE) -> list[Execution]:
        """Return the runs that wait for more than ``patience`` seconds, to be given back."""
        end = clock.monotonic() - patience
        with self._lock:
            stale = [run for since, run in self._runs if since <= end]
            self._runs = deque(entry for entry in self._runs if entry[0] > end)
        return stale
