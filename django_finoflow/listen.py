"""How an idle process learns that something is due: by notification where the database has it, else by looking.

On PostgreSQL one connection of its own listens. It is only an alarm: whoever is woken looks at the rows, and looks now
and then without being woken, so a lost notification (a pooler that drops them, a restarted server) costs a poll
interval and nothing more.
"""

from __future__ import annotations

import logging
import select
import socket
from contextlib import suppress
from typing import Any

from django.db import Error, connections

from . import wakeup

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
        self._listener: Any = None
        self._bell, self._rope = socket.socketpair()
        self._bell.setblocking(False)
        self._rope.setblocking(False)

    def ring(self) -> None:
        """Wake whoever waits, from another thread or from a signal handler."""
        with suppress(OSError):  # it has been rung often enough, or nobody waits any more
            self._rope.send(b"!")

    def wait(self, seconds: float) -> bool:
        """Wait until something may be due, ``seconds`` at the most; return whether something told so."""
        heard = [self._bell]
        if wakeup.can_notify(self._using):
            try:
                heard.append(self._listening())
            except Error as error:
                self._give_up(error)
        ready, _, _ = select.select(heard, [], [], seconds)
        if self._bell in ready:
            self._bell.recv(4096)
            return True
        return bool(ready) and self._notified()

    def close(self) -> None:
        """Close the listening connection and the bell."""
        self._give_up(None)
        self._bell.close()
        self._rope.close()

    def _listening(self) -> Any:
        """Return the driver's connection that listens, opened if it must be."""
        if self._listener is None:
            listener = connections[self._using].copy()
            listener.inc_thread_sharing()
            with listener.cursor() as cursor:
                cursor.execute(f"LISTEN {wakeup.DUE}")
            self._listener = listener
        return self._listener.connection

    def _notified(self) -> bool:
        """Read what has arrived; return whether it is about one of our queues. Trouble counts as a reason to look."""
        try:
            with self._listener.wrap_database_errors:
                queues = {notice.payload for notice in _notices(self._listener.connection)}
        except (Error, OSError) as error:
            self._give_up(error)
            return True
        return bool(queues & self._queues) if self._queues else bool(queues)

    def _give_up(self, error: Exception | None) -> None:
        if error is not None:
            logger.warning("event=listen-failed error=%r", str(error))
        listener, self._listener = self._listener, None
        if listener is not None:
            with suppress(Error):  # it was broken; that is why
                listener.close()


def _notices(connection: Any) -> list[Any]:
    if hasattr(connection, "poll"):  # psycopg2
        connection.poll()
        notices, connection.notifies = connection.notifies, []
        return notices
    return list(connection.notifies(timeout=0))
