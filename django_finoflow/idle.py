"""Whether an asyncio task waits only for what other asyncio tasks do.

A run may park when nothing of it is in flight. A branch that awaits its siblings (``gather``, ``TaskGroup``, an
``Event``) has nothing in flight; one in ``asyncio.sleep`` or amidst a request has.
"""

from __future__ import annotations

import asyncio
import asyncio.locks
import asyncio.queues
import asyncio.taskgroups
import gc
import inspect
from collections.abc import Container
from types import CodeType
from typing import Any

#: Modules whose coroutines wait for nothing but what another task does.
OTHERS = frozenset(module.__file__ for module in (asyncio.locks, asyncio.queues, asyncio.taskgroups))

#: What stands between a coroutine and what it awaits, and only the garbage collector knows for what.
WRAPPERS = frozenset({"coroutine_wrapper", "async_generator_asend", "async_generator_athrow", "anext_awaitable"})


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
    if (shielded := _shielded(awaited)) is not None:
        return shielded in known
    children = getattr(awaited, "_children", None)  # of a gather
    if children is not None:
        return all(child.done() or child in known for child in children)
    code = _innermost(task.get_coro())
    if code is None:
        return False
    return code.co_filename in OTHERS or (code.co_filename == asyncio.tasks.__file__ and code.co_name == "_wait")


def _shielded(future: Any) -> Any:
    """Return the task that ``asyncio.shield`` has made ``future`` of, if it has."""
    for callback, _context in getattr(future, "_callbacks", None) or ():
        if getattr(callback, "__qualname__", "") == "shield.<locals>._outer_done_callback":
            return inspect.getclosurevars(callback).nonlocals.get("inner")
    return None


def _innermost(coro: Any) -> CodeType | None:
    while (inner := _awaited(coro)) is not None:
        coro = inner
    return getattr(coro, "cr_code", None) or getattr(coro, "ag_code", None)


def _awaited(coro: Any) -> Any:
    """Return the coroutine or async generator that ``coro`` awaits, if there is one."""
    inner = getattr(coro, "cr_await", None) or getattr(coro, "ag_await", None)
    if type(inner).__name__ in WRAPPERS:
        inner = next(filter(_is_code, gc.get_referents(inner)), None)
    return inner if _is_code(inner) else None


def _is_code(it: Any) -> bool:
    return hasattr(it, "cr_code") or hasattr(it, "ag_code")
