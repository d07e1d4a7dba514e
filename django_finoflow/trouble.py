"""Database trouble that passes: a lost connection, a deadlock, a locked SQLite file.

The engine insists on its own writes through such trouble, as long as the run is its to write (rules W5 and S7).
Everything else that a database reports is an error like any other.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any, TypeVar

from django.db import DatabaseError, Error, InterfaceError, OperationalError, connections

logger = logging.getLogger("django_finoflow")
T = TypeVar("T")

#: SQLSTATE of a serialization failure and of a deadlock: the same work may be tried again from its start.
CONFLICTS = frozenset({"40001", "40P01"})
#: Classes of SQLSTATE that say nothing about the statement: connection exceptions, no resources, operator intervention.
PASSING_CLASSES = frozenset({"08", "53", "57"})
SQLITE_BUSY = frozenset({5, 6})
PAUSES = (0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0)


def is_conflict(error: BaseException) -> bool:
    """Whether ``error`` says that a transaction met another one and may simply be run again."""
    cause = error.__cause__
    if getattr(cause, "sqlstate", None) in CONFLICTS:
        return True
    return getattr(cause, "sqlite_errorcode", 0) & 0xFF in SQLITE_BUSY


def is_lost(error: BaseException, using: str) -> bool:
    """Whether ``error`` came of a connection that is no more.

    Such a connection is closed, so that the next use opens another.
    """
    if not isinstance(error, InterfaceError | OperationalError):
        return False
    connection = connections[using]
    usable = connection.connection is not None and connection.is_usable()
    if not usable and not connection.in_atomic_block:
        connection.close()
    # What the server has said has a state. An atomic block that lost its connection may have a new one when it is left.
    state = getattr(error.__cause__, "sqlstate", "")
    return not usable or state is None or state[:2] in PASSING_CLASSES


def passes(error: BaseException, using: str) -> bool:
    """Whether a write that met ``error`` may be tried again.

    Never inside a caller's transaction: that one is broken.
    """
    if connections[using].in_atomic_block or not isinstance(error, Error):
        return False
    return is_conflict(error) or is_lost(error, using)


def insist(write: Callable[[], T], *, using: str, pause: Callable[[float], Any]) -> T:
    """Return ``write()``, tried again through trouble that passes.

    Args:
        write: does its own transaction, and may be called again after its answer was lost: so it reads before it
            decides.
        using: alias of the database.
        pause: waits the given seconds, and raises when there is no point in going on.

    Raises:
        DatabaseError: the database refused, and would again.
    """
    for tried in range(10**9):
        try:
            return write()
        except (DatabaseError, InterfaceError) as error:
            if not passes(error, using):
                raise
            if tried % 5 == 2:
                logger.warning("event=database-trouble database=%s tried=%d error=%r", using, tried + 1, str(error))
        pause(PAUSES[min(tried, len(PAUSES) - 1)])
    raise AssertionError("unreachable")
