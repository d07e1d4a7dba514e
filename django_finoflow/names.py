"""Which names can be stored (rule S6)."""

from __future__ import annotations

import unicodedata
from functools import lru_cache
from typing import Any

from .exceptions import DefinitionError, InvalidSignalName

LONGEST = 200
#: Of a run's id.
LONGEST_ID = 128


def why_not(name: Any, longest: int = LONGEST) -> str | None:
    """Return what is wrong with ``name``, or None."""
    return _why_not(name, longest) if isinstance(name, str) else f"is {type(name).__name__}, not text"


@lru_cache(maxsize=1024)
def _why_not(name: str, longest: int) -> str | None:
    if not name.strip():
        return "is empty"
    if name.startswith("__"):
        return "begins with two underscores, which is kept for the engine"
    if holds_control(name):
        return "holds control characters"
    if len(name) > longest:
        return f"is longer than {longest} characters"
    return None


def holds_control(text: str) -> bool:
    """Whether there is something in ``text`` that is no part of any name: control characters, halves of a character."""
    return any(unicodedata.category(c) in ("Cc", "Cs") for c in text)


def check_name(name: Any, what: str, longest: int = LONGEST) -> str:
    """Return ``name`` if it can name a ``what``.

    Raises:
        DefinitionError: it cannot.
    """
    if problem := why_not(name, longest):
        raise DefinitionError(f"{what}: the name {name!r} {problem}.")
    return str(name)


def check_signal_name(name: Any) -> str:
    """Return ``name`` if it can name a signal.

    Raises:
        InvalidSignalName: it cannot; nothing was written.
    """
    if problem := why_not(name):
        raise InvalidSignalName(f"The signal name {name!r} {problem}.")
    return str(name)
