"""Which names can be stored (rule S6)."""

from __future__ import annotations

import unicodedata
from typing import Any

from .exceptions import DefinitionError, InvalidSignalName

LONGEST = 200


def why_not(name: Any, longest: int = LONGEST) -> str | None:
    """Return what is wrong with ``name``, or None."""
    if not isinstance(name, str):
        return f"is {type(name).__name__}, not text"
    if not name.strip():
        return "is empty"
    if name.startswith("__"):
        return "begins with two underscores, which is kept for the engine"
    if any(unicodedata.category(c) in ("Cc", "Cs") for c in name):
        return "holds control characters"
    if len(name) > longest:
        return f"is longer than {longest} characters"
    return None


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
