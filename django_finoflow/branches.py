"""Branches: where the parts of a body that run side by side take their positions (rule D4).

The body itself is the root branch, whose path is empty. Each asyncio task that an async body makes is a branch of its
own, named by where in its parent it was made: ``3.0`` is the first that the root made when its next position was 3,
``3.0/2.1`` the second that this one made at its position 2. So what finishes first changes no name, and each branch
replays by itself.
"""

from __future__ import annotations

import hashlib
from contextvars import ContextVar

from .history import Place
from .state import StateBag

LONGEST_PATH = 200


class Branch:
    """One branch of a body: its path, its next position, and its view of the run's bag."""

    def __init__(self, path: str = "", bag: StateBag | None = None):
        self.path = path
        self.bag = bag or StateBag()
        self.count = 0
        self._made_at, self._made = 0, 0

    def take(self) -> Place:
        """Return the next position, and count it."""
        place = (self.path, self.count)
        self.count += 1
        return place

    def fork(self) -> Branch:
        """Return a branch that is made here and now."""
        if self._made_at != self.count:
            self._made_at, self._made = self.count, 0
        path = f"{self.path}/{self.count}.{self._made}".lstrip("/")
        self._made += 1
        if len(path) > LONGEST_PATH:
            path = f"#{hashlib.sha256(path.encode()).hexdigest()[:32]}"
        return Branch(path, self.bag.fork())


#: The branch that code of an async body belongs to.
current_branch: ContextVar[Branch] = ContextVar("finoflow_branch")
