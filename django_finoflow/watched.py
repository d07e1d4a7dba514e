"""Those who watch, and the runs that they watch, as the lookout keeps them."""

from __future__ import annotations

import copy
from collections import deque
from collections.abc import Callable
from typing import Any

from . import clock, conf
from .marks import Mark
from .snapshots import RunState


class Watcher:
    """Somebody who watches one run.

    Args:
        key: the run's primary key.
        mark: how it stood when it was read last.
        state: what the watcher has seen of it.
        wake: called from another thread when there is news.
    """

    def __init__(self, key: int, mark: Mark, state: RunState, wake: Callable[[], Any]):
        self.key, self.mark, self.state = key, mark, state
        self._wake = wake
        #: Whether nobody can be told any more.
        self.is_gone = False
        #: The latest only: to somebody who is slow, what has passed since is no news.
        self._news: deque[RunState | Exception] = deque(maxlen=1)

    def tell(self, mark: Mark | None, news: RunState | Exception) -> bool:
        """Give the watcher something to see, or to raise, unless they have seen it; return whether that was news."""
        if mark is not None:
            self.mark = mark
        if news == self.state:
            return False
        if isinstance(news, RunState):
            self.state, news = news, copy.deepcopy(news)  # theirs to change
        self._news.append(news)
        try:
            self._wake()
        except RuntimeError:  # the watcher's event loop has been closed
            self.is_gone = True
        return True

    def news(self) -> RunState | None:
        """Return what has come since it was asked last, if anything has; raise it, if it is an error."""
        try:
            news = self._news.popleft()
        except IndexError:
            return None
        if isinstance(news, Exception):
            raise news
        return news


class Watched:
    """A run, those who watch it, and when to look at it next."""

    def __init__(self, run_id: str):
        self.run_id = run_id
        self.watchers: list[Watcher] = []
        self._interval = conf.get("POLL_INTERVAL")
        self._pause = clock.Pause(self._interval)
        self.look_at_once()

    def look_at_once(self) -> None:
        """Make it due now: something has come."""
        self.is_urgent, self.due, self.nearly_due = True, 0.0, 0.0

    def look_later(self, *, has_changed: bool, rests: bool) -> None:
        """Choose when to look next. Of what ``rests`` a notification tells; what is driven may change again soon."""
        if has_changed:
            self._pause.reset()
        seconds = self._interval if rests else self._pause.next()
        self.is_urgent, self.due = False, clock.monotonic() + seconds
        # Who is nearly due comes along with those who are: those of one pace soon share their looks.
        self.nearly_due = self.due - seconds / 10
