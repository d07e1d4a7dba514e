"""``ctx.state``: the run's durable bag, which reads the same on replay as the first time (rule D8).

It begins empty at each drive. What the body changes between steps, the body changes again on replay; what a step
changes is recorded with that step, if it is done, and applied again when the step is replayed. Values are held as JSON
text, so that nobody can change one behind the bag's back.
"""

from __future__ import annotations

import threading
from typing import Any

from . import conf, payloads
from .attempt import current_attempt
from .exceptions import CheckpointRefused, PayloadError


class StateBag:
    """The run's bag, as the body sees it."""

    def __init__(self) -> None:
        self._texts: dict[str, str] = {}
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
        if sum(len(f"{k}{t}".encode()) for k, t in held.items()) * 2 > conf.get("MAX_PAYLOAD_BYTES"):
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
        """Make the changes that a step recorded: a key has its value in a list, or an empty one if it was cleared."""
        for key, value in (patch or {}).items():
            self._texts.pop(key, None)
            if value:
                self._texts[key] = payloads.dumps(value[0])

    def _seen(self) -> dict[str, Any]:
        attempt = current_attempt.get()
        return {**self._texts, **attempt.changes} if attempt else self._texts

    def _change(self, key: str, text: str | None) -> None:
        attempt = current_attempt.get()
        if attempt:
            attempt.changes[key] = text
        elif threading.get_ident() != self._thread:
            raise CheckpointRefused(
                "ctx.state was changed in a thread that does not drive the run: it would not be kept."
            )
        elif text is None:
            self._texts.pop(key, None)
        else:
            self._texts[key] = text
