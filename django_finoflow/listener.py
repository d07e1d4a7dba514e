"""A database connection that listens, and a bell for the thread that waits for it.

Notifications are only ever an alarm: whoever hears one looks at the rows, and looks now and then without one, so that
a lost one (a pooler that drops them, a restarted server) costs a poll interval and nothing more.
"""

from __future__ import annotations

import selectors
import socket
from collections.abc import Iterable
from contextlib import suppress
from typing import Any

from django.db import Error


class Bell:
    """What one thread waits for and any other, or a signal handler, can ring."""

    def __init__(self) -> None:
        self._bell, self._rope = socket.socketpair()
        self._bell.setblocking(False)
        self._rope.setblocking(False)

    def ring(self) -> None:
        """Wake whoever waits."""
        with suppress(OSError):  # it has been rung often enough, or nobody waits any more
            self._rope.send(b"!")

    def silence(self) -> None:
        """Forget that it has been rung."""
        with suppress(OSError):  # it has not
            self._bell.recv(4096)

    def close(self) -> None:
        """Take it down."""
        self._bell.close()
        self._rope.close()

    def fileno(self) -> int:
        """Return what can be waited for."""
        return self._bell.fileno()


class Listener:
    """Listens on one of Django's connections, which its owner opens, uses for other things or not, and closes.

    Args:
        connection: Django's connection to PostgreSQL.
        channel: the channel to listen to.
    """

    def __init__(self, connection: Any, channel: str):
        self._connection = connection
        self._channel = channel
        self._listening_on: Any = None

    @property
    def is_listening(self) -> bool:
        """Whether it listens, as far as one knows before something fails."""
        return self._listening_on is not None and self._listening_on is self._connection.connection

    def listen(self) -> None:
        """Begin to listen, unless it does."""
        if not self.is_listening:
            with self._connection.cursor() as cursor:
                cursor.execute(f"LISTEN {self._channel}")
            self._listening_on = self._connection.connection

    def heard(self) -> list[str]:
        """Return the payloads of what has come since it was asked last, and while the connection did other things."""
        with self._connection.wrap_database_errors:
            return [notice.payload for notice in _notices(self._listening_on)]

    def close(self) -> None:
        """Stop listening and close the connection."""
        raw, self._listening_on = self._listening_on, None
        with suppress(Error), self._connection.wrap_database_errors:  # it may be broken; that may be why
            if raw is not None and getattr(self._connection, "pool", None):
                raw.execute("UNLISTEN *")  # for it goes back to the pool, and others would hear
        with suppress(Error):
            self._connection.close()

    def fileno(self) -> int:
        """Return what can be waited for."""
        with self._connection.wrap_database_errors:
            return int(self._listening_on.fileno())


def wait_for_any(sources: Iterable[Any], seconds: float) -> list[Any]:
    """Wait until there is something at one of ``sources``, ``seconds`` at the most; return those where there is."""
    with selectors.DefaultSelector() as selector:  # unlike select(), it takes the high numbers of a busy web process
        for source in sources:
            selector.register(source, selectors.EVENT_READ)
        return [key.fileobj for key, _events in selector.select(max(0.0, seconds))]


def _notices(connection: Any) -> list[Any]:
    if hasattr(connection, "poll"):  # psycopg2
        connection.poll()
        notices, connection.notifies = connection.notifies, []
        return notices
    return list(connection.notifies(timeout=0))
