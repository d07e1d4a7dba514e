"""``ctx.state``: the run's durable bag, which reads the same on replay as the first time (rule D8).

It begins empty at each drive. What the body changes between steps, the body changes again on replay; what a step
changes is recorded with that step, if it is done, and applied again when the step is replayed. Values are held as JSON
text, so that nobody can change one behind the bag's back.

Changes are kept in the order of the calls that make them: whatever runs side by side, a step or a branch, has its place
from the moment it is called, and its changes count there once it has settled. What finishes first changes nothing.
"""

from __future__ import annotations

import threading
from collections.abc import Mapping
from typing import Any

from . import conf, payloads
from .attempt import current_attempt
from .exceptions import CheckpointRefused, PayloadError


class Changes(dict[str, str | None]):
    """Values by key as JSON text, None for what was cleared; they count once they are settled."""

    settled = True

    def settle(self, patch: dict[str, list[Any]] | None) -> None:
        """Let the changes count that a step has recorded: a key has its value in a list, or an empty one if cleared."""
        for key, value in (patch or {}).items():
            self[key] = payloads.dumps(value[0]) if value else None
        self.settled = True


class StateBag:
    """The run's bag, as the body, or one branch of it, sees it.

    Args:
        before: what was in it when the branch was made.
        place: the branch's place among the changes of its parent.
    """

    def __init__(self, before: Mapping[str, str | None] | None = None, place: Changes | None = None) -> None:
        self._before = dict(before or {})
        self._log = [Changes()]
        self._place = place
        self.follow_thread()

    def follow_thread(self) -> None:
        """Let this thread, and no other, change the bag outside of steps."""
        self._thread = threading.get_ident()

    def get(self, key: str, default: Any = None) -> Any:
        """Return a copy of the value of ``key``, or ``default``."""
        text = self._seen().get(key)
        return default if text is None else payloads.loads(text)

    def set(self, key: str, value: Any) -> None:
        """Set ``key`` to ``value``.

        Raises:
            PayloadError: the value cannot be stored.
        """
        if not isinstance(key, str):
            raise TypeError(f"ctx.state: a key is text, not {key!r}.")
        payloads.dumps(key)  # refused here, and not when the bag is stored
        text = payloads.dumps(value)
        held = {**self._seen(), key: text}
        if sum(len(f"{k}{t}".encode()) for k, t in held.items() if t) * 2 > conf.get("MAX_PAYLOAD_BYTES"):
            raise PayloadError(
                f'ctx.state: "{key}" makes it larger than half of FINOFLOW["MAX_PAYLOAD_BYTES"]. '
                f"Keep large data in a model."
            )
        self._change(key, text)

    def clear(self, key: str) -> None:
        """Remove ``key``, if it is there."""
        self._change(key, None)

    def entries(self) -> dict[str, Any]:
        """Return a copy of all entries."""
        return {key: payloads.loads(text) for key, text in self._seen().items() if text is not None}

    def apply(self, patch: dict[str, list[Any]] | None) -> None:
        """Make the changes that a step recorded."""
        if patch:
            self.reserve().settle(patch)

    def reserve(self) -> Changes:
        """Return a place for the changes of what is called now, to be settled when they are known."""
        if len(self._log) > 1 and all(changes.settled for changes in self._log):
            self._log = [self._settled()]
        self._log.append(Changes())
        self._log[-1].settled = False
        return self._log[-1]

    def fork(self) -> StateBag:
        """Return the bag of a branch that is made now: it sees what is here, and its own changes (rule D8)."""
        return StateBag(self._before | self._settled(), self.reserve())

    def join(self) -> None:
        """Hand the changes of a branch that has settled to its parent."""
        if self._place is not None:
            self._place.update(self._settled())
            self._place.settled = True

    def _settled(self) -> Changes:
        together = Changes()
        for changes in self._log:
            if changes.settled:
                together.update(changes)
        return together

    def _seen(self) -> dict[str, str | None]:
        attempt = current_attempt.get()
        return self._before | self._settled() | (attempt.changes if attempt else {})

    def _change(self, key: str, text: str | None) -> None:
        attempt = current_attempt.get()
        if attempt:
            attempt.changes[key] = text
            return
        if threading.get_ident() != self._thread:
            raise CheckpointRefused(
                "ctx.state was changed in a thread that does not drive the run: it would not be kept."
            )
        if self._log[-1].settled:
            self._log[-1][key] = text
        else:
            self._log.append(Changes({key: text}))
