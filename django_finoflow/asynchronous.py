"""The API for async code: what ``api`` does, awaited.

Each is its sync namesake, called where Django calls all database code from async code
(``sync_to_async(thread_sensitive=True)``, as its own ``aget()`` and ``asave()`` do): so within a ``TestCase`` they see
its rows. ``awatch_run`` and ``await_for_end``, which wait, hold no thread meanwhile; they are in ``watching``.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from functools import update_wrapper
from typing import Any, ParamSpec, TypeVar

from asgiref.sync import sync_to_async

from . import api
from .watching import await_for_end, awatch_run

__all__ = [
    "aabandon_compensation",
    "acancel",
    "aclaim_gate",
    "adecide",
    "adelegate_gate",
    "adelete_run",
    "aget_run",
    "alist_runs",
    "arelease_gate",
    "aresume_compensation",
    "aretry_run",
    "asignal",
    "astart",
    "await_for_end",
    "awatch_run",
]

P = ParamSpec("P")
R = TypeVar("R")


def _twin(function: Callable[P, R]) -> Callable[P, Coroutine[Any, Any, R]]:
    """Return a coroutine function that does the same, with the same arguments."""

    async def twin(*args: P.args, **kwargs: P.kwargs) -> R:
        return await sync_to_async(function, thread_sensitive=True)(*args, **kwargs)

    update_wrapper(twin, function)
    twin.__module__, twin.__name__ = __name__, f"a{function.__name__}"
    twin.__qualname__ = twin.__name__
    twin.__doc__ = f"Do in async code what ``{function.__name__}`` does, with the same arguments."
    return twin


astart = _twin(api.start)
asignal = _twin(api.signal)
adecide = _twin(api.decide)
aclaim_gate = _twin(api.claim_gate)
arelease_gate = _twin(api.release_gate)
adelegate_gate = _twin(api.delegate_gate)
acancel = _twin(api.cancel)
aretry_run = _twin(api.retry_run)
aresume_compensation = _twin(api.resume_compensation)
aabandon_compensation = _twin(api.abandon_compensation)
aget_run = _twin(api.get_run)
alist_runs = _twin(api.list_runs)
adelete_run = _twin(api.delete_run)
