"""The event loop of one drive of an async body.

The loop runs in a thread of its own. Async bodies run there, side by side; whatever touches the database, sync bodies
and the engine's own writes, goes one by one through the thread that drives, and so through its connection.

A branch that must wait rests: it does not raise, which would undo its siblings, and it holds nothing. What its siblings
have in flight settles first; the run parks when each of its asyncio tasks rests, or awaits one that does.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Iterator
from contextlib import contextmanager, suppress
from datetime import datetime
from typing import Any

from asgiref.sync import SyncToAsync, async_to_sync, sync_to_async

from . import bodies, clock, conf, waits
from .attempt import Attempt, current_attempt
from .bodies import Outcome
from .crew import Crew, cancel, error_of
from .drive import Drive, in_test_case
from .idle import awaits_others
from .resting import Rest, Resting
from .stops import Exhausted, Interrupted, Mismatch, Parked

#: Seconds between looks at what nobody tells the loop: the drive's abort, and whether all rest.
TICK = 0.1
#: Seconds that branches get to come to what they have recorded once the body has failed, and to end once cancelled.
LAST_WORDS = 5.0

Work = Coroutine[Any, Any, Any]


class Loop:
    """What one drive's event loop does: branches, what they have in flight, and how they rest."""

    def __init__(self, drive: Drive):
        self._drive = drive
        self.in_test_case = in_test_case()
        #: The body's own asyncio tasks.
        self.crew = Crew(drive, self.look_soon)
        #: The engine's: each makes or stores one checkpoint, and settles whatever becomes of who asked for it.
        self._works: set[asyncio.Task[Any]] = set()
        self._unwanted: set[asyncio.Task[Any]] = set()
        self._resting = Resting()
        #: Those of them that are in an async body of a step.
        self._bodies: set[Any] = set()
        self._is_over = self._is_cut = self._is_abandoned = self._is_hurried = self._is_looking = False
        self._is_replaying = bool(drive.recorded.checkpoints)
        self._looked_at = clock.monotonic()

    def run(self, body: Callable[..., Work], ctx: Any) -> Any:
        """Run ``body(ctx, ctx.input)`` to its end on a loop that is there for this drive only; return its result.

        The loop is never the caller's: what other tasks do there is no business of this run.
        """
        self._drive.on_loop = True
        try:
            with out_of_reach():
                result, error = async_to_sync(self._play, force_new_loop=True)(body, ctx)
        except KeyboardInterrupt:
            self._is_abandoned = True
            with suppress(RuntimeError, AttributeError):  # the loop is closed already, or not there yet
                self._loop.call_soon_threadsafe(self._cancel_all)
            raise
        finally:
            self._drive.on_loop = False
            self._drive.follow_thread()
        if error is not None:
            raise error
        return result

    async def _play(self, body: Callable[..., Work], ctx: Any) -> tuple[Any, BaseException | None]:
        # An error that async_to_sync raises would keep its frames, and so the loop's thread, until they are collected.
        self._loop = asyncio.get_running_loop()
        vars(self._loop)["time"] = clock.monotonic  # one that a frozen calendar does not stop
        self._drive.follow_thread()
        self._replays_until = self._loop.time() + LAST_WORDS
        main = self.crew.start(self._loop, body(ctx, ctx.input))
        watch = asyncio.Task(self._watch(), loop=self._loop)
        await asyncio.wait([main])
        error = error_of(main)
        await self._wind_up(failed=error is not None)
        watch.cancel()
        return None if error else main.result(), error

    # ── Work of the engine ──────────────────────────────────────────────────────────────────────

    async def here(self, work: Callable[..., Any], *args: Any) -> Any:
        """Do something in the thread that drives, and return what it returns."""
        if self._is_abandoned:
            raise asyncio.CancelledError
        return await _in_driving_thread(work, *args)

    def begin(self, work: Work) -> asyncio.Task[Any]:
        """Begin to make a checkpoint."""
        task = asyncio.Task(work, loop=self._loop)
        self._works.add(task)
        task.add_done_callback(self._works.discard)
        return task

    async def settled(self, *works: asyncio.Task[Any]) -> list[Any]:
        """Return the results of checkpoints that have been begun, once all have settled.

        Whoever asked for them may be cancelled meanwhile (a ``TaskGroup`` does that): what is in flight is recorded all
        the same, so that it can be replayed or undone, and then the cancellation goes on.
        """
        cancelled: asyncio.CancelledError | None = None
        while pending := [work for work in works if not work.done()]:
            try:
                await asyncio.wait(pending)
            except asyncio.CancelledError as error:
                if self._is_abandoned:
                    raise
                cancelled = error
                self._unwanted.update(pending)
                self._resting.cancel(pending)
        errors = [error_of(work) for work in works]
        if cancelled is not None:
            raise cancelled
        for failure in errors:
            if failure is not None:
                raise failure
        return [work.result() for work in works]

    async def body(self, make: Callable[[], Any], seen: Attempt, timeout: float | None) -> Outcome:
        """Await an async body of a step; its deadline, or the drive's abort, cancels it (rule T4)."""
        token = current_attempt.set(seen)
        began, deadline, task = clock.now(), asyncio.timeout(timeout), asyncio.current_task()
        self._bodies.add(task)
        try:
            async with deadline:
                value = await make()
            outcome = Outcome(value=value)
        except BaseException as error:
            outcome = Outcome(error=error)
        finally:
            self._bodies.discard(task)
            current_attempt.reset(token)
        if self._drive.abort.is_set():
            if outcome.error is not None:
                self._drive.stop(Interrupted())
        elif timeout is not None:
            late = self.in_test_case and (clock.now() - began).total_seconds() > timeout
            if late or deadline.expired():
                return bodies.timed_out(seen, timeout)
        return outcome

    # ── Rest ────────────────────────────────────────────────────────────────────────────────────

    async def rest(self, task: Any, **until: Any) -> None:
        """Block a branch until its ``wait`` has ended, or ``due_at`` or its ``turn`` has come; or for good.

        Raises:
            DriveStopped: nothing else of the run is in flight, so the drive is over.
        """
        work = asyncio.current_task()
        if work in self._unwanted:
            raise asyncio.CancelledError
        if self._drive.stopped is not None:
            raise self._drive.stopped
        await self._resting.block(Rest(task, work, **until), self.look_soon)

    async def take_turn(self, settled_at: datetime | None) -> None:
        """Let what is recorded come again behind all that had been recorded before it, as it did the first time.

        What follows from it may end its siblings, which must first come to what they have done: that may have to be
        undone. And a sibling that had been ended must not get further this time. Clocks are not to be trusted, so no
        turn is waited for long.
        """
        end = self._loop.time() + LAST_WORDS

        def has_come() -> bool:
            return not self._drive.is_behind(settled_at) or self._loop.time() > end

        if not has_come():
            await self.rest(asyncio.current_task(), turn=has_come)

    async def leave_if_over(self, task: Any) -> None:
        """Rest where something new would begin before the replay has come to rest: it may still end this branch.

        And for good, if the body has ended meanwhile, or the run is being unwound.

        Raises:
            CancelledError: what the body has left is being cancelled.
        """
        if not self._is_live():
            await self.rest(task, turn=self._is_live)
        if self._is_cut:
            raise asyncio.CancelledError
        if self._is_over or self._drive.unwinding or asyncio.current_task() in self._unwanted:
            await self.rest(task)

    def _is_live(self) -> bool:
        """Whether the replay is over; it is waited for only so long, since a branch may be in a sleep of its own."""
        return not self._is_replaying or self._loop.time() > self._replays_until

    def is_alone(self, task: Any) -> bool:
        """Whether nothing but ``task``, and the work that it waits for, is going on."""
        return len(self._works) <= 1 and self.crew.living <= {task}

    def look_soon(self) -> None:
        """Look at what rests, once what happens now has been told to those who wait for it."""
        self._loop.call_soon(self._loop.call_soon, self._look)

    @property
    def is_ending(self) -> bool:
        """Whether branches end because the drive does."""
        return self._is_over or self._drive.stopped is not None

    def _look(self) -> None:
        """Park the run, or end its drive, if nothing of it is in flight."""
        if self._drive.stopped is not None:
            if not self._resting.wake(lambda rest: True, self._drive.stopped) and self._is_at_rest():
                cancel(self.crew.branches)  # those who wait for a branch that is no more
        elif not self._resting.wake(self._can_go_on) and any(self._resting) and self._is_at_rest():
            self._go_on_from_rest()

    def _go_on_from_rest(self) -> None:
        if self._resting.wake(self._is_out_of_turn):
            return
        if self._is_replaying:
            self._is_replaying = False
            self.look_soon()
        elif not self._is_over:
            self.begin(self._come_to_rest(park=True))

    def _is_out_of_turn(self, rest: Rest) -> bool:
        """Whether a branch waits for something to come again that does not, now that all are at rest."""
        return rest.turn is not None and rest.turn != self._is_live

    def _can_go_on(self, rest: Rest) -> bool:
        # A wait that is being looked at may look ended before the transaction that ends it has committed.
        return not (rest.wait and self._is_looking) and rest.is_over()

    def _is_at_rest(self) -> bool:
        tasks = {rest.task for rest in self._resting}
        known = self.crew.branches
        return not self._flying() and all(task in tasks or awaits_others(task, known) for task in self.crew.living)

    def _flying(self) -> set[Any]:
        """Return the engine's work that is in flight."""
        return self._works - {rest.work for rest in self._resting}

    async def _come_to_rest(self, *, park: bool) -> None:
        """Look which waits have ended, and wake their branches; if none has, park the run if that is asked for."""
        rests = list(self._resting)
        if self._is_looking or not rests or self._drive.stopped is not None:
            return
        self._is_looking = True
        waiting = [rest.wait for rest in rests if rest.wait is not None]
        moments = [rest.due_at for rest in rests if rest.due_at is not None]
        drive = self._drive
        self._looked_at = clock.monotonic()
        try:
            if not waiting and not moments:
                drive.stop(Exhausted() if drive.unwinding else Mismatch(GIVEN_UP))
            if await self.here(lambda: waits.rest(drive, waiting, min(moments, default=None), park=park)):
                drive.stop(Parked())
        except BaseException as error:
            self._resting.wake(lambda rest: True, error)
        self._is_looking = False
        self.look_soon()

    async def _watch(self) -> None:
        """Look now and then at what nobody tells this loop."""
        while True:
            await asyncio.sleep(TICK)
            if self._drive.abort.is_set() and not self._is_hurried:
                self._hurry()
            self._look()
            waiting = any(rest.wait for rest in self._resting)
            if waiting and clock.monotonic() - self._looked_at > conf.get("POLL_INTERVAL"):
                await self._come_to_rest(park=False)

    # ── The end ─────────────────────────────────────────────────────────────────────────────────

    def _hurry(self) -> None:
        """End early: nobody wants what is being done."""
        self._is_hurried = True
        self._drive.stopped = self._drive.stopped or Interrupted()
        cancel([*self._bodies, *self.crew.branches])

    async def _wind_up(self, *, failed: bool) -> None:
        """End the other branches, as the body has ended: what they have in flight settles, and nothing new begins.

        If the body failed they first come to all that they have recorded, so that it can be undone.
        """
        self._is_over = True
        end = self._loop.time() + LAST_WORDS
        while True:
            if flying := self._flying():
                await asyncio.wait(flying, timeout=TICK, return_when=asyncio.FIRST_COMPLETED)  # one may come to rest
            elif failed and self._drive.missed() and not self._is_at_rest() and self._loop.time() < end:
                await asyncio.sleep(0)
            else:
                break
        self._is_cut = True
        if rest := cancel(self.crew.branches):
            await asyncio.wait(rest, timeout=LAST_WORDS)

    def _cancel_all(self) -> None:
        cancel(asyncio.all_tasks(self._loop))


GIVEN_UP = (
    "The workflow waits for something that it had given up when it first ran: which branch is cancelled must not "
    "depend on what finishes first."
)


def _call(work: Callable[..., Any], *args: Any) -> Any:
    return work(*args)


#: Made once, since making it takes as long as calling it.
_in_driving_thread = sync_to_async(_call, thread_sensitive=True)


@contextmanager
def out_of_reach() -> Iterator[None]:
    """Whoever gives up awaiting this thread, as an ASGI server does when a browser goes away, cancels nothing of ours.

    asgiref would do it, from another thread, and the run would fail by it. What it notes of this thread meanwhile, a
    loop that is closed by then, is forgotten afterwards, and the drive with it.
    """
    thread = vars(SyncToAsync.threadlocal)
    held = dict(thread)
    thread.pop("task_context", None)
    try:
        yield
    finally:
        thread.clear()
        thread.update(held)
