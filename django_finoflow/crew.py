"""The asyncio tasks of one async body: each is a branch of the run (see ``branches``)."""

from __future__ import annotations

import asyncio
import contextvars
import math
from collections.abc import Callable, Iterable
from typing import Any

from .attempt import current_attempt
from .branches import Branch, current_branch
from .drive import Drive
from .history import Place
from .models import Step, Wait
from .stops import DriveStopped


class Crew:
    """All tasks that a body has made, the one that it runs in first.

    Args:
        drive: the drive.
        told: called whenever one has ended.
    """

    def __init__(self, drive: Drive, told: Callable[[], None]):
        self._drive = drive
        self._told = told
        self.branches: dict[asyncio.Task[Any], Branch] = {}
        #: Those whose end has not been told yet to whoever awaits them.
        self.living: set[asyncio.Task[Any]] = set()

    def start(self, loop: asyncio.AbstractEventLoop, body: Any) -> asyncio.Task[Any]:
        """Run the body on ``loop``, and make a branch of each task that is made in it from now on."""
        loop.set_task_factory(self._make)
        return self._add(body, self._drive.root, contextvars.copy_context(), loop=loop)

    def leftover(self) -> Step | Wait | None:
        """Return a checkpoint that the run has recorded and no branch came to, if there is one.

        Of a body that failed, branches may have been cut short.
        """
        cut = self._cut()
        counts = {branch.path: branch.count for branch in self.branches.values()}
        unknown = 0 if self._is_whole() else math.inf
        for checkpoint in self._drive.recorded.in_order():
            if checkpoint.index >= counts.get(checkpoint.branch, unknown) and checkpoint.branch not in cut:
                return checkpoint
        return None

    def unawaited(self) -> list[Place]:
        """Return the positions that were taken for calls which nobody has awaited."""
        if not self._is_whole():
            return []
        taken = ((branch.path, index) for branch in self.branches.values() for index in range(branch.count))
        return [place for place in taken if place not in self._drive.visited]

    def _make(self, loop: Any, coro: Any, context: Any = None, **options: Any) -> asyncio.Task[Any]:
        """Make an asyncio task: a branch, if the body makes it; what a step's body makes is its own affair."""
        parent = current_branch.get(None)
        if parent is None or current_attempt.get() is not None or _closes_a_generator(coro):
            return asyncio.Task(coro, loop=loop, context=context, **options)
        return self._add(coro, parent.fork(), context or contextvars.copy_context(), loop=loop, **options)

    def _add(self, coro: Any, branch: Branch, context: Any, **options: Any) -> asyncio.Task[Any]:
        context.run(current_branch.set, branch)
        task = asyncio.Task(coro, context=context, **options)
        self.branches[task] = branch
        self.living.add(task)
        task.add_done_callback(self._end)
        return task

    def _end(self, task: asyncio.Task[Any]) -> None:
        self.branches[task].bag.join()
        self.living.discard(task)
        if isinstance(_glance(task), DriveStopped):
            task._log_traceback = False  # no error that somebody forgot
        self._told()

    def _cut(self) -> set[str]:
        """Return the branches that did not come to an end of their own."""
        return {branch.path for task, branch in self.branches.items() if task.cancelled() or task.cancelling()}

    def _is_whole(self) -> bool:
        return not self._cut() and not any(_glance(task) for task in self.branches)


def cancel(tasks: Iterable[asyncio.Task[Any]]) -> list[asyncio.Task[Any]]:
    """Cancel those tasks that are not done, and return them."""
    running = [task for task in tasks if not task.done()]
    for task in running:
        task.cancel()
    return running


def error_of(task: asyncio.Task[Any]) -> BaseException | None:
    """Return what a task that is done has raised, if it has."""
    return asyncio.CancelledError() if task.cancelled() else task.exception()


def _glance(task: Any) -> BaseException | None:
    """Return the same of a task whose error asyncio still reports should nobody await it."""
    error: BaseException | None = task._exception
    return asyncio.CancelledError() if task.cancelled() else error


def _closes_a_generator(coro: Any) -> bool:
    """Whether asyncio made this of an async generator that was broken off: when it does is not the body's to say."""
    return type(coro).__name__ == "async_generator_athrow"
