"""``ctx`` of an ``async def`` workflow: the same names, awaitable.

A call takes its position at once, and does its work when it is awaited. What a checkpoint is, ``steps`` and ``waits``
say for sync and async bodies alike; here is only what lets others go on meanwhile.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Generator, Sequence
from contextlib import nullcontext
from typing import Any

from . import steps, together, waits
from .attempt import Attempt
from .bodies import Outcome
from .branches import Branch, current_branch
from .context import Context
from .drive import Drive
from .exceptions import CheckpointRefused, DefinitionError
from .history import Place
from .loop import Loop
from .models import Step, Wait
from .state import Changes
from .statuses import Outcome as WaitOutcome
from .statuses import RunStatus
from .steps import Call
from .stops import Parked
from .waits import Asked
from .workflow import Definition, is_async

#: The pause before the next attempt, None if none follows; and what ended the one before.
Attempted = tuple[float | None, BaseException | None]


class Nothing:
    """What is awaited after a call that has done its work already."""

    def __await__(self) -> Generator[Any, None, None]:
        return
        yield


class AsyncContext(Context):
    """The handle of one run, for its async body; see ``Context`` for what the names mean."""

    _awaits = True

    def __init__(self, drive: Drive, definition: Definition, input: Any):
        super().__init__(drive, definition, input)
        self._loop = Loop(drive)
        _ = self.requester  # a query, which a body on an event loop could not make

    def play(self, body: Callable[..., Coroutine[Any, Any, Any]]) -> Any:
        """Run the body to its end, and return its result.

        Raises:
            CheckpointRefused: a call was not awaited, so it has done nothing.
        """
        result = self._loop.run(body, self)
        if self._drive.stopped is None and (forgotten := self._loop.crew.unawaited()):
            branch, index = forgotten[0]
            where = f'position {index} of branch "{branch}"' if branch else f"position {index}"
            raise CheckpointRefused(f"The call that took {where} was never awaited: write await ctx.step(...).")
        return result

    def pivot(self) -> Any:
        super().pivot()
        return Nothing()

    def leftover(self) -> Any:
        return self._loop.crew.leftover()

    @property
    def _branch(self) -> Branch:
        root = self._drive.root
        # Off the loop, what is found there is the branch of a run whose step drives this one.
        return current_branch.get(root) if self._drive.on_loop else root

    def _check_async(self, fn: Any, where: str, atomic: bool) -> None:
        if atomic and is_async(fn):
            raise DefinitionError(f"{where}: with atomic=True its function must be an ordinary def, not async.")

    def _take(self, call: Call) -> Any:
        return self._stepped(self._next(), self.state.reserve(), call)

    def _take_together(self, calls: Sequence[Call], then: Callable[[list[Any]], Any]) -> Any:
        places = [self._next() for _call in calls]
        changes = [self.state.reserve() for _call in calls]
        return self._together(places, changes, calls, then)

    def _wait(self, asked: Asked, then: Callable[[Wait, Any], Any]) -> Any:
        return self._waited(self._next(), asked, then)

    async def _stepped(self, place: Place, changes: Changes, call: Call) -> Any:
        step = steps.recall(self._drive, place, call)
        if step.is_settled:
            changes.settle(step.state_patch)
            await self._loop.take_turn(step.finished_at)
            return steps.recorded(self._drive, step, call)
        try:
            [error] = await self._loop.settled(self._loop.begin(self._try(asyncio.current_task(), step, call)))
        finally:  # who asked for it may have been cancelled meanwhile
            _keep(changes, step)
        return steps.fresh(step, call, error)

    async def _together(
        self,
        places: Sequence[Place],
        changes: Sequence[Changes],
        calls: Sequence[Call],
        then: Callable[[list[Any]], Any],
    ) -> Any:
        siblings = [(steps.recall(self._drive, place, call), call) for place, call in zip(places, calls, strict=True)]
        task, width = asyncio.current_task(), asyncio.Semaphore(together.WIDTH)
        tries = [self._try(task, step, call, width) for step, call in siblings if not step.is_settled]
        try:
            await self._loop.settled(*map(self._loop.begin, tries))
        finally:
            for (step, _call), change in zip(siblings, changes, strict=True):
                _keep(change, step)
        if not tries:
            moments = [step.finished_at for step, _call in siblings if step.finished_at is not None]
            await self._loop.take_turn(max(moments, default=None))
        return then(together.results(siblings))

    async def _waited(self, place: Place, asked: Asked, then: Callable[[Wait, Any], Any]) -> Any:
        wait: Any = self._drive.recall(place, asked.kind, asked.name)
        if wait is None or wait.is_open:
            wait = await self._pass(place, asked, wait)
        elif wait.outcome == WaitOutcome.CANCELLED:
            await self._loop.rest(asyncio.current_task())
        else:
            await self._loop.take_turn(wait.closed_at)
        return then(wait, waits.payload(self._drive, wait))

    async def _try(self, task: Any, step: Step, call: Call, width: asyncio.Semaphore | None = None) -> Any:
        """Make attempts until the step is settled; return the last one's error."""
        await self._loop.leave_if_over(task)
        if steps.is_early(step):
            await self._loop.rest(task, due_at=step.due_at)
        while True:
            await self._loop.leave_if_over(task)
            async with width or nullcontext():
                pause, error = await self._attempt(step, call, aside=width is not None)
            if pause is None:
                return error
            if pause >= steps.LONGEST_PAUSE:
                await self._loop.rest(task, due_at=step.due_at)
            else:
                await asyncio.sleep(pause)

    async def _attempt(self, step: Step, call: Call, *, aside: bool) -> Attempted:
        """Make one attempt and record it: async bodies on the loop, sync ones in the thread that drives or aside."""
        drive, loop = self._drive, self._loop
        drive.leave_if_stopping()
        if drive.run.status == RunStatus.WAITING:
            await loop.here(drive.go_on)
        seen = steps.begin_attempt(drive, step, call)
        if is_async(call.body):
            outcome = await loop.body(call.body, seen, call.timeout)
        elif aside and not loop.in_test_case:
            outcome = await together.future(lambda: steps.attempt_as(drive, step, call, seen))
        else:
            outcome, *settled = await loop.here(self._attempt_here, step, call, seen)
            if settled:
                return settled[0], outcome.error
        if outcome.awaitable is not None:
            awaitable = outcome.awaitable
            outcome = await loop.body(lambda: awaitable, seen, call.timeout)
        return await loop.here(self._record, step, call, seen, outcome)

    def _attempt_here(self, step: Step, call: Call, seen: Attempt) -> tuple[Any, ...]:
        outcome = steps.attempt_as(self._drive, step, call, seen)
        return (outcome,) if outcome.awaitable is not None else (outcome, self._settle(step, call, outcome))

    def _record(self, step: Step, call: Call, seen: Attempt, outcome: Outcome) -> Attempted:
        if outcome.error is None and not outcome.is_encoded and not outcome.stored:
            try:
                outcome = steps.encoded(call, seen, outcome.value)
            except Exception as refused:
                outcome = Outcome(error=refused)
        return self._settle(step, call, outcome), outcome.error

    def _settle(self, step: Step, call: Call, outcome: Outcome) -> float | None:
        return steps.settle(self._drive, step, call, outcome)

    async def _pass(self, place: Place, asked: Asked, wait: Wait | None) -> Wait:
        """Store a wait, and rest until it is over; a branch that is cancelled meanwhile gives it up."""
        loop, task = self._loop, asyncio.current_task()
        opening = loop.begin(self._open(task, place, asked, wait))
        try:
            [wait] = await loop.settled(opening)
            while wait.is_open:
                await loop.rest(task, wait=wait)
        except asyncio.CancelledError:
            if not loop.is_ending and not opening.cancelled() and not opening.exception():
                await loop.settled(loop.begin(loop.here(waits.withdraw, self._drive, opening.result())))
            raise
        return wait

    async def _open(self, task: Any, place: Place, asked: Asked, known: Wait | None) -> Wait:
        await self._loop.leave_if_over(task)
        alone = self._loop.is_alone(task)

        def store() -> Wait:
            wait = known or waits.draft(self._drive, place, asked)
            waits.settle(self._drive, wait, asked, alone=alone)
            return wait

        wait = await self._loop.here(store)
        if alone and wait.is_open:
            self._drive.stop(Parked())
        return wait


def _keep(changes: Changes, step: Step) -> None:
    """Let the changes of a step count, if it has settled."""
    if step.is_settled:
        changes.settle(step.state_patch)
