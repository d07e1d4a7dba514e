"""Branches of an async body that rest: blocked in a future, and holding nothing, until something wakes them."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from . import clock
from .models import Wait


@dataclass(eq=False)
class Rest:
    """What one branch rests for: the end of a wait, a moment, its turn, or nothing that could come in this drive.

    ``task`` is the branch's, ``work`` the one that is blocked: the same, or the engine's on behalf of it.
    """

    task: Any
    work: Any
    wait: Wait | None = None
    due_at: datetime | None = None
    turn: Callable[[], bool] | None = None

    def is_over(self) -> bool:
        """Whether the branch can go on."""
        if self.turn is not None:
            return self.turn()
        if self.wait is not None:
            return not self.wait.is_open
        return self.due_at is not None and self.due_at <= clock.now()


class Resting:
    """All who rest. Iterating gives those that nothing has woken yet."""

    def __init__(self) -> None:
        self._futures: dict[asyncio.Future[None], Rest] = {}

    def __iter__(self) -> Iterator[Rest]:
        return iter([rest for future, rest in self._futures.items() if not future.done()])

    async def block(self, rest: Rest, told: Callable[[], None]) -> None:
        """Block until somebody wakes this one; ``told`` is called once it rests."""
        future = asyncio.get_running_loop().create_future()
        self._futures[future] = rest
        told()
        try:
            await future
        finally:
            del self._futures[future]

    def wake(self, chosen: Callable[[Rest], bool], error: BaseException | None = None) -> int:
        """Let the chosen ones go on, or end by ``error``; return how many."""
        woken = [future for future, rest in self._futures.items() if chosen(rest) and not future.done()]
        for future in woken:
            if error is None:
                future.set_result(None)
            else:
                future.set_exception(error)
        return len(woken)

    def cancel(self, works: list[Any]) -> None:
        """Cancel those of ``works`` that rest: nothing of theirs is in flight."""
        for rest in self._futures.values():
            if rest.work in works:
                rest.work.cancel()
