"""One thread and one connection that look at runs for all who watch in this process (rule W9).

The thread lives while somebody watches. It listens for notifications, looks at the runs that they name, and looks at
the others now and then: at those that are being driven more often while they change, because checkpoints notify nobody;
at those that rest, at the poll interval, for the case that a notification was lost. One look is one statement, however
many runs it is for; only a run that has changed is read, once, however many watch it. So those who watch hold no
connection and no thread of ours, and a busy system costs them only what they asked to see.

Only on PostgreSQL; elsewhere who watches looks for themselves (see ``watching``).
"""

from __future__ import annotations

import logging
import os
import threading
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from django.db import Error, connections

from . import clock, conf, wakeup
from .exceptions import RunNotFound
from .listener import Bell, Listener, wait_for_any
from .marks import Mark, marks
from .reading import snapshot
from .snapshots import RunState
from .statuses import RunStatus
from .watched import Watched, Watcher

logger = logging.getLogger("django_finoflow")

#: The longest pause, in seconds, between two tries to reconnect.
RECONNECT = 1.0
#: Seconds after which a database that refused to let us listen is asked again.
LISTEN_AGAIN = 60.0
#: The most runs that one look is for.
MOST = 1000
#: How many times as long as it looks the thread does not look, unless a notification has come.
REST = 4
AT_REST = (RunStatus.WAITING, RunStatus.STUCK)


class Lookout:
    """The thread, from when the first comes to watch until the last has left. All that is its own only it touches."""

    def __init__(self) -> None:
        self.arrivals: deque[Watcher] = deque()
        self.departures: deque[Watcher] = deque()
        self.bell = Bell()
        self.thread = threading.Thread(target=self._work, name="finoflow-lookout", daemon=True)
        self._runs: dict[int, Watched] = {}
        self._trouble = clock.Pause(RECONNECT)
        self._listen_at = self._rest_until = 0.0

    def _work(self) -> None:
        """Look until nobody watches. What is not the database's trouble ends it, and everybody gets that error."""
        self._connection = connections[conf.database()]
        self._listener = Listener(self._connection, wakeup.CHANGED)
        try:
            while self._is_wanted():
                self._watch()
        except Exception as error:
            logger.exception("event=watch-ended")
            self._end(error)
        finally:
            self._listener.close()
            connections.close_all()
            self.bell.close()

    def _is_wanted(self) -> bool:
        """Let in who has come and out who has gone; return whether anybody is there. If not, nobody else comes here."""
        global _lookout
        with _lock:
            while self.arrivals:
                watcher = self.arrivals.popleft()
                run = self._runs.setdefault(watcher.key, Watched(watcher.state.run_id))
                run.watchers.append(watcher)
                run.look_at_once()
            while self.departures:
                self._let_out(self.departures.popleft())
            if not self._runs:
                _lookout = None
            return bool(self._runs)

    def _let_out(self, watcher: Watcher) -> None:
        run = self._runs.get(watcher.key)
        if run is not None and watcher in run.watchers:
            run.watchers.remove(watcher)
            if not run.watchers:
                del self._runs[watcher.key]

    def _watch(self) -> None:
        try:
            self._connection.ensure_connection()
            self._listen()
            self._look()
            self._trouble.reset()
            self._wait()
        except Error as error:
            self._start_over(error)

    def _listen(self) -> None:
        """Listen, if that is possible; where it is not, as behind some poolers, looking must do."""
        if self._listener.is_listening or clock.monotonic() < self._listen_at:
            return
        try:
            self._listener.listen()
        except Error as error:
            logger.warning("event=listen-failed error=%r", str(error).strip())
            self._listen_at = clock.monotonic() + LISTEN_AGAIN

    def _look(self) -> None:
        """Look at the runs whose time has come, all in one statement, and tell the news."""
        keys = self._due()
        if not keys:
            return
        began = clock.monotonic()
        found = marks(pk__in=keys)
        for key in keys:
            self._compare(self._runs[key], found.get(key))
        now = clock.monotonic()
        self._rest_until = now + REST * (now - began)

    def _due(self) -> list[int]:
        now = clock.monotonic()
        if now >= self._rest_until and any(run.due <= now for run in self._runs.values()):
            return [key for key, run in self._runs.items() if run.nearly_due <= now][:MOST]
        return [key for key, run in self._runs.items() if run.is_urgent][:MOST]

    def _compare(self, run: Watched, mark: Mark | None) -> None:
        """Read a run if it has changed since somebody who watches it was told last, and tell them."""
        behind = [watcher for watcher in run.watchers if watcher.mark != mark]
        news = _read(run.run_id, mark) if behind else None
        told = [news is not None and watcher.tell(mark, news) for watcher in behind]
        self.departures.extend(watcher for watcher in behind if watcher.is_gone)
        rests = mark is None or (mark.status in AT_REST and self._listener.is_listening)
        run.look_later(has_changed=any(told), rests=rests)

    def _wait(self) -> None:
        """Wait until a run is due to be looked at, somebody comes or goes, or a notification names one of ours."""
        due = min(run.due for run in self._runs.values())
        end = max(due, self._rest_until)
        sources = [self.bell, self._listener] if self._listener.is_listening else [self.bell]
        while not self._hear() and (seconds := end - clock.monotonic()) > 0:
            if self.bell in wait_for_any(sources, seconds):
                self.bell.silence()
                return

    def _hear(self) -> bool:
        """Make those runs due that notifications name; return whether any is."""
        heard = set(self._listener.heard()) if self._listener.is_listening else set()
        # Anybody may send anything on the channel.
        keys = {int(key) for key in heard if key.isdecimal() and len(key) < 20}
        for key in keys & self._runs.keys():
            self._runs[key].look_at_once()
        return any(run.is_urgent for run in self._runs.values())

    def _start_over(self, error: Error) -> None:
        """Let go of a broken connection and wait a moment; then look at everything, for much may have been missed."""
        logger.warning("event=watch-failed error=%r", str(error).strip())
        self._listener.close()
        self._listen_at = self._rest_until = 0.0
        for run in self._runs.values():
            run.look_at_once()
        wait_for_any([self.bell], self._trouble.next())
        self.bell.silence()

    def _end(self, error: Exception) -> None:
        """Tell everybody that nobody looks for them any more."""
        global _lookout
        with _lock:
            _lookout = None
        for watcher in [*self.arrivals, *(watcher for run in self._runs.values() for watcher in run.watchers)]:
            watcher.tell(None, error)


def _read(run_id: str, mark: Mark | None) -> RunState | Exception:
    if mark is None:
        return RunNotFound(f"There is no run {run_id!r}.")
    try:
        return snapshot(run_id)
    except Error:
        raise
    except Exception as error:  # whatever it is, it is the trouble of those who watch this run
        return error


_lock = threading.Lock()
_lookout: Lookout | None = None
#: Those of a parent process: kept, so that their connections are not closed here for the parent, too.
_left_behind: list[Lookout] = []


@contextmanager
def watching(key: int, mark: Mark, state: RunState, wake: Callable[[], Any]) -> Iterator[Watcher]:
    """Have a run watched for a while; arguments as for ``Watcher``. What has changed since the mark is told soon."""
    watcher = Watcher(key, mark, state, wake)
    lookout = _join(watcher)
    try:
        yield watcher
    finally:
        # Without the lock: the garbage collector may end a generator here, in a thread that holds it.
        lookout.departures.append(watcher)
        lookout.bell.ring()


def _join(watcher: Watcher) -> Lookout:
    global _lookout
    with _lock:
        lookout = _lookout or Lookout()
        lookout.arrivals.append(watcher)
        if _lookout is None:
            lookout.thread.start()
            _lookout = lookout
    lookout.bell.ring()
    return lookout


def _after_fork() -> None:
    """Begin anew in a child process, where the thread is not; what a parent watches is the parent's."""
    global _lock, _lookout
    if _lookout is not None:
        _left_behind.append(_lookout)
    _lock, _lookout = threading.Lock(), None


os.register_at_fork(after_in_child=_after_fork)
