"""How an idle worker learns that something is due: by notification where the database has it, else by looking.

On PostgreSQL one connection of its own listens.
"""

from __future__ import annotations

import logging
from typing import Any

from django.db import Error, connections

from . import wakeup
from .listener import Bell, Listener, wait_for_any

logger = logging.getLogger("django_finoflow")


class Alarm:
    """Wakes the thread that waits for it when something may be due.

    Args:
        using: alias of the runs' database.
        queues: the queues that matter; none: all.
    """

    def __init__(self, using: str, queues: tuple[str, ...] = ()):
        self._using = using
        self._queues = frozenset(queues)
        self._listener: Listener | None = None
        self._bell = Bell()

    def ring(self) -> None:
        """Wake whoever waits, from another thread or from a signal handler."""
        self._bell.ring()

    def wait(self, seconds: float) -> bool:
        """Wait until something may be due, ``seconds`` at the most; return whether something told so."""
        sources: list[Any] = [self._bell]
        try:
            if wakeup.can_notify(self._using):
                sources.append(self._listening())
            ready = wait_for_any(sources, seconds)
        except Error as error:
            self._give_up(error)
            ready = wait_for_any([self._bell], seconds)
        if self._bell in ready:
            self._bell.silence()
            return True
        return bool(ready) and self._notified()

    def close(self) -> None:
        """Close the listening connection and the bell."""
        self._give_up(None)
        self._bell.close()

    def _listening(self) -> Listener:
        """Return what listens, opened if it must be."""
        if self._listener is None:
            connection = connections[self._using].copy()
            connection.inc_thread_sharing()
            self._listener = Listener(connection, wakeup.DUE)
        self._listener.listen()
        return self._listener

    def _notified(self) -> bool:
        """Read what has arrived; return whether it is about one of our queues. Trouble counts as a reason to look."""
        try:
            queues = set(self._listening().heard())
        except (Error, OSError) as error:
            self._give_up(error)
            return True
        return bool(queues & self._queues) if self._queues else bool(queues)

    def _give_up(self, error: Exception | None) -> None:
        if error is not None:
            logger.warning("event=listen-failed error=%r", str(error))
        listener, self._listener = self._listener, None
        if listener is not None:
            listener.close()
