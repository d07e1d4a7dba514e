"""How a step's error is recorded, and raised again as an equal one when the step is replayed (rules D7 and P4).

A record holds the class's dotted name, the message, the traceback, the arguments that make it again and its
attributes. The class is looked up among modules that are loaded already, and must be an ``Exception``; what cannot be
made again just so becomes ``StepFailed``. The first time raises what a replay would, so ``except`` takes the same
branch both times.
"""

from __future__ import annotations

import sys
import traceback
from typing import Any

from django.utils.functional import Promise

from . import payloads
from .exceptions import StepFailed

#: The longest text in a record, in characters; the smaller ones are tried when a record would not fit its column.
_LENGTHS = (16_000, 4_000, 1_000, 250, 60)


def describe(error: BaseException) -> dict[str, Any]:
    """Return a record of ``error`` that every column can hold. Never raises.

    Returns:
        ``type``, ``message`` and ``traceback``, all text, cut where they are long; and where the codec takes them
        ``args``, a list of what the class is called with, and ``attributes``, a dict of what was set on the instance.
    """
    for length in _LENGTHS:
        try:
            return payloads.roundtrip(_record(error, length))
        except Exception:  # too large for MAX_PAYLOAD_BYTES
            continue
    return {"type": _cut(_type_name(type(error)), 60), "message": "", "traceback": ""}


def rebuild(record: dict[str, Any]) -> Exception:
    """Return the exception that ``record`` tells of: of the same class, or a ``StepFailed``. Never raises."""
    try:
        name, message = str(record["type"]), str(record["message"])
    except Exception:
        return StepFailed("unknown", "the record of the failure cannot be read")
    try:
        return _same(name, message, record["args"], record.get("attributes", {})) or StepFailed(name, message)
    except Exception:  # whatever the class does when it is called
        return StepFailed(name, message)


# -- recording ---------------------------------------------------------------------------------------------------------


def _record(error: BaseException, length: int) -> dict[str, Any]:
    given = _arguments(error)
    args = [_readable(item, length) for item in given]
    changed = any(isinstance(item, str) and item != one for item, one in zip(given, args, strict=True))
    record: dict[str, Any] = {
        "type": _cut(_type_name(type(error)), 300),
        # Cut arguments make a message that is somewhat longer than each of them; to cut it again would tell them apart.
        "message": _message(_twin(error, args), 4 * length) if changed else _message(error, length),
        "traceback": _traceback(error, length),
    }
    if _storable(args, length):
        attributes = {name: _readable(item, length) for name, item in vars(error).items()}
        record["args"] = args
        if kept := {name: item for name, item in attributes.items() if _storable(item, length)}:
            record["attributes"] = kept
    return record


def _twin(error: BaseException, args: list[Any]) -> BaseException:
    """Return the same kind of error with repaired arguments, to learn its message; ``error`` if there is none."""
    try:
        return type(error)(*args)
    except Exception:
        return error


def _type_name(kind: type) -> str:
    return kind.__qualname__ if kind.__module__ == "builtins" else f"{kind.__module__}.{kind.__qualname__}"


def _message(error: BaseException, length: int) -> str:
    try:
        return _cut(str(error), length)
    except Exception:
        return f"<{type(error).__name__} without a message: its __str__ failed>"


def _traceback(error: BaseException, length: int) -> str:
    try:
        return _cut("".join(traceback.format_exception(error)), length)
    except Exception:
        return ""


def _arguments(error: BaseException) -> tuple[Any, ...]:
    """Return what the class is called with: what it says itself for pickling (OSError's file name), else its args."""
    try:
        reduced: Any = error.__reduce__()
        return reduced[1] if reduced[0] is type(error) and isinstance(reduced[1], tuple) else error.args
    except Exception:
        return error.args


def _readable(item: Any, length: int) -> Any:
    try:
        return _cut(str(item), length) if isinstance(item, str | Promise) else item
    except Exception:  # a translation that cannot be made now
        return item


def _storable(item: Any, length: int) -> bool:
    """Tell whether the codec takes ``item``, and it is not out of proportion."""
    try:
        return len(payloads.dumps(item)) <= 4 * length
    except Exception:
        return False


def _cut(text: str, length: int) -> str:
    """Make a text storable: without NUL and lone surrogates, cut to ``length`` and a word on what was left out."""
    text = text.replace("\0", "\ufffd").encode("utf-8", "replace").decode()
    if len(text) <= length:
        return text
    # The end of a traceback tells most.
    head = length // 4
    tail = text[len(text) - (length - head) :]
    return f"{text[:head]} […{len(text) - length:,} characters left out…] {tail}"


# -- making again ------------------------------------------------------------------------------------------------------


def _same(name: str, message: str, args: list[Any], attributes: dict[str, Any]) -> Exception | None:
    kind = _loaded(name)
    if kind is None:
        return None
    made = kind(*args)
    if type(made) is not kind:
        return None
    vars(made).update(attributes)
    return made if list(_arguments(made)) == list(args) and str(made) == message else None


def _loaded(name: str) -> type[Exception] | None:
    """Find a class by its dotted name in modules that are loaded, without running a module's ``__getattr__``."""
    parts = name.split(".") if "." in name else ["builtins", name]
    for split in range(len(parts) - 1, 0, -1):
        found: Any = sys.modules.get(".".join(parts[:split]))
        for part in parts[split:]:
            found = vars(found).get(part) if hasattr(found, "__dict__") else None
        if isinstance(found, type) and issubclass(found, Exception) and _type_name(found) == name:
            return found
    return None
