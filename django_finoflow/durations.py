"""Durations as people write them: ``"30s"``, ``timedelta(hours=1)``, ``90``, or a moment for a deadline (rule T1).

Everything that waits, retries or times out takes the same forms, and refuses the same ones when the call is made or the
definition built, never later. ``seconds`` reads a duration, ``due`` turns one into a moment.
"""

from __future__ import annotations

import math
import re
from datetime import UTC, datetime, timedelta
from typing import Any

from . import clock
from .exceptions import DurationError

_UNITS = {"ms": 0.001, "s": 1, "m": 60, "h": 3600, "d": 86400}
_TEXT = re.compile(r"([0-9]+(?:\.[0-9]+)?|\.[0-9]+)(ms|s|m|h|d)", re.IGNORECASE)
_FORMS = 'a timedelta, a number of seconds, or a text such as "250ms", "30s", "5m", "1.5h" or "7d"'


def seconds(value: Any) -> float:
    """Return a duration in seconds.

    Args:
        value: a ``timedelta``, an int or float of seconds, or a text of one number and one unit (ms, s, m, h, d).

    Raises:
        DurationError: it is none of these, negative, not finite, or too large for a float.
    """
    if isinstance(value, str):
        length = _parse(value)
    elif isinstance(value, timedelta):
        length = value.total_seconds()
    elif isinstance(value, int | float) and not isinstance(value, bool):
        length = _as_float(value)
    else:
        raise _refusal(value, f"it must be {_FORMS}")
    if not math.isfinite(length):
        raise _refusal(value, "it must be finite")
    if length < 0:
        raise _refusal(value, "it must not be negative")
    return length


def due(value: Any, start: datetime) -> datetime:
    """Return the moment that lies ``value`` after ``start``.

    Args:
        value: a duration (see ``seconds``), or an aware ``datetime``, which is returned as it is.
        start: the aware moment to count from.

    Raises:
        DurationError: no duration, a naive datetime, or a moment beyond the years a datetime can hold.
    """
    try:
        if not isinstance(value, datetime):
            return start + timedelta(seconds=seconds(value))
        if value.utcoffset() is None:
            raise _refusal(value, "a deadline must be an aware datetime (see django.utils.timezone.make_aware)")
        value.astimezone(UTC)  # a database stores it in UTC, where the first and last day may not exist
    except OverflowError:
        raise _refusal(value, "it leads beyond the years a datetime can hold") from None
    return value


def check(value: Any) -> None:
    """Raise ``DurationError`` unless ``due`` takes ``value``; None, no duration at all, passes."""
    if value is not None:
        due(value, clock.now())


def _parse(text: str) -> float:
    match = _TEXT.fullmatch(text.strip())
    if match is None:
        raise _refusal(text, f"it must be {_FORMS}")
    return float(match[1]) * _UNITS[match[2].lower()]


def _as_float(number: int | float) -> float:
    try:
        return float(number)
    except OverflowError:
        return math.inf


def _refusal(value: Any, reason: str) -> DurationError:
    try:
        shown = repr(value)
    except ValueError:  # an int of more digits than Python prints
        shown = f"an {type(value).__name__} of very many digits"
    return DurationError(f"{shown[:200]} is no duration: {reason}.")
