"""Whether an asyncio task waits only for what other asyncio tasks do.

A run may park when nothing of it is in flight. A branch that awaits its siblings (``gather``, ``TaskGroup``, an
``Event``) has nothing in flight; one in ``asyncio.sleep`` or amidst a request has.
"""

from __future__ import annotations

import asyncio
import asyncio.locks
import asyncio.queues
import asyncio.taskgroups
from collections.abc import Container
from types import CodeType
from typing import Any

#: Modules whose coroutines wait for nothing but what another task does.
OTHERS = frozenset(module.__file__ for module in (asyncio.locks, asyncio.queues, asyncio.taskgroups))


def awaits_others(task: asyncio.Task[Any], known: Container[Any]) -> bool:
    """Whether ``task`` is blocked on one of the ``known`` tasks, or on what some other task will do.

    asyncio does not say what a task awaits, so this looks: ``_fut_waiter`` has been there in every supported Python. If
    it were gone, a run that parks while its root awaits a ``gather`` would hold its worker instead.
    """
    awaited = getattr(task, "_fut_waiter", None)
    if awaited is None or awaited.done():
        return False
    if isinstance(awaited, asyncio.Task):
        return awaited in known
    children = getattr(awaited, "_children", None)  # of a gather
    if children is not None:
        return all(child.done() or child in known for child in children)
    code = _innermost(task.get_coro())
    if code is None:
        return False
    return code.co_filename in OTHERS or (code.co_filename == asyncio.tasks.__file__ and code.co_name == "_wait")


def _innermost(coro: Any) -> CodeType | None:
    while hasattr(inner := getattr(coro, "cr_await", None), "cr_code"):
        coro = inner
    return getattr(coro, "cr_code", None)
