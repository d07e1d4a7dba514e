"""Watching runs: a state now, and one for each change.

On PostgreSQL who watches waits to be told: ``lookout`` looks for all of them. On other databases, and within a
transaction, whose rows no other connection can see (a ``TestCase`` is one, rule T8), they look for themselves, on their
own thread and connection, less and less often while nothing changes.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncGenerator, Callable, Generator, Iterator
from contextlib import AbstractContextManager, aclosing, closing, contextmanager, suppress
from typing import Any

from asgiref.sync import sync_to_async
from django.db import connections

from . import clock, conf, durations, lookout, wakeup
from .exceptions import RunNotFound, WorkflowError
from .lookout import Watcher
from .marks import Mark, marks
from .names import LONGEST_ID, why_not
from .reading import snapshot
from .snapshots import RunState
from .statuses import TERMINAL, RunStatus


def watch_run(run_id: str, *, timeout: Any = None) -> Generator[RunState, None, None]:
    """Yield the run's state now and on each change, until the run ends or the time is up.

    Of changes that come faster than they are taken, the last is what counts. Parks, ends and what comes for a run are
    seen at once on PostgreSQL; steps, as they are done, within ``POLL_INTERVAL``.

    Args:
        run_id: the run.
        timeout: how long to watch, a duration; None: until the run ends.

    Raises:
        RunNotFound: no run has that id, or it was deleted while it was watched.
    """
    watch = _Watch(run_id, timeout)
    yield watch.begin()
    yield from _told(watch) if watch.is_told else _seen(watch)


async def awatch_run(run_id: str, *, timeout: Any = None) -> AsyncGenerator[RunState, None]:
    """Yield the run's state now and on each change, as ``watch_run`` does, to async code.

    While it waits it holds no thread and no database connection, and on PostgreSQL all that watch in this process share
    one of each. When the consumer goes away everything is let go of. Close it (``contextlib.aclosing``) if you leave it
    before its end.

    Args:
        run_id: the run.
        timeout: how long to watch, a duration; None: until the run ends.

    Raises:
        RunNotFound: no run has that id, or it was deleted while it was watched.
    """
    watch = _Watch(run_id, timeout)
    yield await sync_to_async(watch.begin)()
    async with aclosing(_atold(watch) if watch.is_told else _aseen(watch)) as states:
        async for state in states:
            yield state


def wait_for_end(run_id: str, *, timeout: Any = None) -> Any:
    """Block until the run ends and return its result.

    Args:
        run_id: the run.
        timeout: how long to wait, a duration; None: for ever.

    Raises:
        RunNotFound: no run has that id.
        WorkflowError: the run ended otherwise than done, or is stuck.
        TimeoutError: it has not ended in time.
    """
    with closing(watch_run(run_id, timeout=timeout)) as states:
        for state in states:
            if _is_done(state):
                return state.result
    raise _too_late(run_id, timeout)


async def await_for_end(run_id: str, *, timeout: Any = None) -> Any:
    """Wait until the run ends and return its result, as ``wait_for_end`` does, without blocking the event loop.

    Args:
        run_id: the run.
        timeout: how long to wait, a duration; None: for ever.

    Raises:
        RunNotFound: no run has that id.
        WorkflowError: the run ended otherwise than done, or is stuck.
        TimeoutError: it has not ended in time.
    """
    async with aclosing(awatch_run(run_id, timeout=timeout)) as states:
        async for state in states:
            if _is_done(state):
                return state.result
    raise _too_late(run_id, timeout)


class _Watch:
    """One watching of one run: until when, and what has been seen."""

    key: int
    mark: Mark
    state: RunState
    #: Whether the lookout tells of changes; else one looks for oneself.
    is_told: bool

    def __init__(self, run_id: str, timeout: Any):
        self.run_id = run_id
        self.end = None if timeout is None else clock.monotonic() + durations.seconds(timeout)

    def begin(self) -> RunState:
        """Return the run as it is, as this thread sees it, and find out who will look at it."""
        with _connection_as_found() as connection:
            # No autocommit: a transaction is open here, be it a block's or the project's way.
            self.is_told = wakeup.can_notify(connection.alias) and connection.get_autocommit()
            self.key, self.mark = self._marked()
            self.state = snapshot(self.run_id)
            return self.state

    def look(self) -> RunState | None:
        """Look for oneself; return the state if it is another."""
        with _connection_as_found():
            _key, mark = self._marked()
            if mark == self.mark:
                return None
            self.mark = mark
            return self.take(snapshot(self.run_id))

    def take(self, state: RunState | None) -> RunState | None:
        """Return ``state`` if it is new."""
        if state is None or state == self.state:
            return None
        self.state = state
        return state

    def told_by(self, wake: Callable[[], Any]) -> AbstractContextManager[Watcher]:
        """Be told of changes for a while."""
        return lookout.watching(self.key, self.mark, self.state, wake)

    @property
    def left(self) -> float | None:
        """Seconds that are left; None: no end."""
        return None if self.end is None else max(0.0, self.end - clock.monotonic())

    @property
    def is_over(self) -> bool:
        """Whether there is nothing more to see."""
        return self.state.status in TERMINAL or self.left == 0

    def _marked(self) -> tuple[int, Mark]:
        for found in () if why_not(self.run_id, LONGEST_ID) else marks(run_id=self.run_id).items():
            return found
        raise RunNotFound(f"There is no run {self.run_id!r}.")


def _seen(watch: _Watch) -> Iterator[RunState]:
    """Yield changes as this thread sees them."""
    pause = clock.Pause(conf.get("POLL_INTERVAL"))
    while not watch.is_over:
        pause(watch.end)
        if (state := watch.look()) is not None:
            pause.reset()
            yield state


def _told(watch: _Watch) -> Iterator[RunState]:
    """Yield changes as the lookout tells them, and look once more when the time is up."""
    rung = threading.Event()
    with watch.told_by(rung.set) as watcher:
        while not watch.is_over:
            rung.wait(watch.left)
            rung.clear()
            state = watch.take(watcher.news())
            if state is None and watch.left == 0:
                state = watch.look()
            if state is not None:
                yield state


async def _aseen(watch: _Watch) -> AsyncGenerator[RunState, None]:
    pause = clock.Pause(conf.get("POLL_INTERVAL"))
    while not watch.is_over:
        seconds = pause.next()
        await asyncio.sleep(seconds if watch.left is None else min(seconds, watch.left))
        if (state := await sync_to_async(watch.look)()) is not None:
            pause.reset()
            yield state


async def _atold(watch: _Watch) -> AsyncGenerator[RunState, None]:
    rung, loop = asyncio.Event(), asyncio.get_running_loop()
    with watch.told_by(lambda: loop.call_soon_threadsafe(rung.set)) as watcher:
        while not watch.is_over:
            with suppress(TimeoutError):
                async with asyncio.timeout(watch.left):
                    await rung.wait()
            rung.clear()
            state = watch.take(watcher.news())
            if state is None and watch.left == 0:
                state = await sync_to_async(watch.look)()
            if state is not None:
                yield state


@contextmanager
def _connection_as_found() -> Iterator[Any]:
    """Give this thread's connection to the runs, and close it afterwards if it was closed.

    Under ASGI a request has a thread of its own: a connection opened there would stay open as long as the response.
    """
    connection = connections[conf.database()]
    was_closed = connection.connection is None
    try:
        yield connection
    finally:
        if was_closed:
            connection.close()


def _is_done(state: RunState) -> bool:
    """Whether the run is done; raise if it is not, and will not be by itself."""
    if state.status in TERMINAL - {RunStatus.DONE} or state.status == RunStatus.STUCK:
        why = f": {state.error['message']}" if state.error else ""
        raise WorkflowError(f"Run {state.run_id} is {state.status}{why}", state)
    return state.status == RunStatus.DONE


def _too_late(run_id: str, timeout: Any) -> TimeoutError:
    return TimeoutError(f"Run {run_id} has not ended within {durations.seconds(timeout):g}s.")
