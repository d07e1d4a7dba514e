"""The one codec between Python values and the JSON that a row holds (rules P1 to P5).

What JSON has is stored as it is, so that ``filter(input__amount__gt=5)`` works. Everything else becomes a *tagged*
dict, such as ``{"$": "decimal", "v": "1.10"}``; a real dict that has the key ``"$"`` is itself tagged, so reading
back is never ambiguous. Floats and ints that some database would change are tagged too. An aware datetime keeps its
moment and its offset from UTC; the name of its zone becomes that offset. Nothing that a row says is imported or
called: its tag picks one of the readers below.
"""

from __future__ import annotations

import base64
import decimal
import json
import math
import uuid
from collections.abc import Callable, Iterator
from datetime import date, datetime, time, timedelta
from enum import Enum
from typing import Any

from django.utils.functional import Promise

from . import conf
from .exceptions import PayloadError

TAG, VALUE = "$", "v"

#: How deep lists and dicts may nest in the JSON. MySQL reads 100 levels; the tag of a leaf takes up to two of them.
MAX_DEPTH = 98

_DIGITS = 10**4300  # the first int that Python does not print
_STR_ONLY = frozenset({str})
_TOO_DEEP = f"it is nested too deep; {MAX_DEPTH} levels of JSON can be stored (a tuple, set or tagged dict takes two)"

#: Plain data to the text that rows hold. A lookup must write it just so: SQLite compares whole payloads as text.
to_json = json.JSONEncoder(ensure_ascii=False, allow_nan=False, check_circular=False, separators=(",", ":")).encode


class _Refusal(Exception):
    """Why a value cannot be stored; ``encode`` adds where."""


def dumps(value: Any) -> str:
    """Return ``value`` as compact JSON text, ready for a JSON column.

    Raises:
        PayloadError: it cannot be stored, or takes more than ``MAX_PAYLOAD_BYTES`` in UTF-8.
    """
    text = to_json(encode(value))
    limit = conf.get("MAX_PAYLOAD_BYTES")
    if len(text) * 4 > limit and (size := len(text.encode())) > limit:
        raise PayloadError(
            f"Cannot store the value at $: it takes {size:,} bytes of JSON, and FINOFLOW['MAX_PAYLOAD_BYTES'] is "
            f"{limit:,}. Keep large data in a model or a file, and store its key."
        )
    return text


def loads(text: str | None) -> Any:
    """Return the value that ``dumps`` turned into ``text``; None (SQL NULL) is None.

    Raises:
        PayloadError: the text is no JSON, or holds what this codec never wrote.
    """
    if text is None:
        return None
    try:
        plain = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise PayloadError(f"A stored payload is no JSON: {error}.") from error
    return decode(plain)


def roundtrip(value: Any) -> Any:
    """Return ``value`` as a replay would see it: encoded and decoded."""
    return loads(dumps(value))


def encode(value: Any) -> Any:
    """Return ``value`` as plain JSON data; see the module's docstring for its form.

    Raises:
        PayloadError: it, or something in it, cannot be stored; the message says which, where and what to do.
    """
    try:
        return _encode(value, 1)
    except (_Refusal, RecursionError):
        place, reason = _locate(value)
    raise PayloadError(f"Cannot store the value at {place}: {reason}.")


def decode(plain: Any) -> Any:
    """Return the value that ``encode`` turned into ``plain``. Dicts come back with their keys sorted (rule P2).

    Raises:
        PayloadError: a tag is unknown, or what it tags is malformed.
    """
    try:
        return _decode(plain)
    except RecursionError:
        raise PayloadError("A stored payload is nested too deep to be read.") from None


# -- writing -----------------------------------------------------------------------------------------------------------


def _encode(value: Any, depth: int) -> Any:
    kind = type(value)
    if kind is str:
        return value if value.isascii() and "\0" not in value else _text(value, depth)
    if value is None or value is True or value is False:
        return value
    writer = _WRITERS.get(kind)
    return _other(value, depth) if writer is None else writer(value, depth)


def _tagged(tag: str, data: Any) -> dict[str, Any]:
    return {TAG: tag, VALUE: data}


def _text(value: str, depth: int = 0) -> str:
    if "\0" in value:
        raise _Refusal("the text contains NUL (\\x00), which PostgreSQL cannot store; remove it, or store bytes")
    try:
        value.encode()
    except UnicodeEncodeError as error:
        raise _Refusal(
            f"the text contains a lone surrogate ({value[error.start]!a}); repair its encoding, or store bytes"
        ) from None
    return value


def _int(value: int, depth: int) -> Any:
    if -0x8000_0000_0000_0000 <= value <= 0x7FFF_FFFF_FFFF_FFFF:
        return value
    if not -_DIGITS < value < _DIGITS:
        raise _Refusal("the int has more than 4,300 digits; store it as bytes (int.to_bytes)")
    return _tagged("int", str(value))


def _float(value: float, depth: int) -> Any:
    size = abs(value)
    # What repr writes without an exponent, less -0.0, is what every database gives back as the same float.
    if 1e-4 <= size < 1e16 or (value == 0 and math.copysign(1, value) > 0):
        return value
    if not math.isfinite(value):
        raise _Refusal(f"{value!r} is no number in JSON; store None or a text instead")
    return _tagged("float", repr(value))


def _decimal(value: decimal.Decimal, depth: int) -> Any:
    if not value.is_finite():
        raise _Refusal(f"{value!r} cannot be stored; store None or a text instead")
    return _tagged("decimal", str(value))


def _datetime(value: datetime, depth: int) -> Any:
    if value.tzinfo is not None and value.utcoffset() is None:
        raise _Refusal("the datetime has a time zone without an offset; use one that has, or none")
    return _tagged("datetime-fold" if value.fold else "datetime", _datetime_text(value))


def _time(value: time, depth: int) -> Any:
    if value.tzinfo is not None and value.utcoffset() is None:
        raise _Refusal("the time's zone has no offset without a date; store a datetime, or a time without a zone")
    return _tagged("time-fold" if value.fold else "time", value.isoformat())


def _list(value: list[Any], depth: int) -> list[Any]:
    if depth > MAX_DEPTH:
        raise _Refusal(_TOO_DEEP)
    depth += 1
    return [_encode(item, depth) for item in value]


def _tuple(value: tuple[Any, ...], depth: int) -> Any:
    return _tagged("tuple", _list(value, depth + 1))  # type: ignore[arg-type]


def _set(value: Any, depth: int) -> Any:
    # By its JSON, so that sets of mixed types have one order everywhere.
    return _tagged(type(value).__name__, sorted(_list(value, depth + 1), key=to_json))


def _dict(value: dict[Any, Any], depth: int) -> dict[str, Any]:
    if depth > MAX_DEPTH:
        raise _Refusal(_TOO_DEEP)
    if not _STR_ONLY.issuperset(map(type, value)):
        if not all(isinstance(key, str) for key in value):
            return _tagged("dict", _pairs(value.items(), depth + 1))
        value = _with_plain_keys(value)
    if TAG in value:
        return _tagged("dict", _pairs(sorted(value.items(), key=lambda pair: pair[0]), depth + 1))
    depth += 1
    return {_encode(key, 0): _encode(value[key], depth) for key in sorted(value)}


def _with_plain_keys(value: dict[str, Any]) -> dict[str, Any]:
    plain = {str.__str__(key): item for key, item in value.items()}
    if len(plain) < len(value):
        raise _Refusal("two keys of the dict are stored as the same text; make them differ")
    return plain


def _pairs(items: Any, depth: int) -> list[Any]:
    return _list([[key, item] for key, item in items], depth)


_datetime_text, _datetime_from = datetime.isoformat, datetime.fromisoformat
_date_text, _date_from = date.isoformat, date.fromisoformat
_time_from = time.fromisoformat

_WRITERS: dict[type, Callable[[Any, int], Any]] = {
    int: _int,
    float: _float,
    list: _list,
    dict: _dict,
    tuple: _tuple,
    set: _set,
    frozenset: _set,
    bytes: lambda value, depth: _tagged("bytes", base64.b64encode(value).decode()),
    datetime: _datetime,
    date: lambda value, depth: _tagged("date", _date_text(value)),
    time: _time,
    timedelta: lambda value, depth: _tagged("timedelta", [value.days, value.seconds, value.microseconds]),
    decimal.Decimal: _decimal,
    uuid.UUID: lambda value, depth: _tagged("uuid", str(value)),
}

#: How a subclass becomes its base. ``dict()`` and ``list()`` ask the subclass, which may keep its own order.
_BASES: tuple[tuple[type, Callable[[Any], Any]], ...] = (
    (str, str.__str__),
    (int, int.__int__),
    (float, float.__float__),
    (list, list),
    (dict, dict),
)


def _other(value: Any, depth: int) -> Any:
    for base, convert in _BASES:
        if isinstance(value, base):
            return _encode(convert(value), depth)
    if isinstance(value, date) and not isinstance(value, Enum):
        return _moment(value, depth)
    raise _Refusal(f"{_name(type(value))} cannot be stored; {_advice(value)}")


def _moment(value: date, depth: int) -> Any:
    """Write a subclass of datetime or date, such as freezegun's, if it holds nothing that its base does not."""
    if isinstance(value, datetime):
        base: date = _datetime_from(_datetime_text(value)).replace(tzinfo=value.tzinfo, fold=value.fold)
    else:
        base = _date_from(_date_text(value))
    if base == value:
        return _WRITERS[type(base)](base, depth)
    raise _Refusal(f"{_name(type(value))} cannot be stored; turn it into a datetime or date of the standard library")


# -- saying what is wrong ----------------------------------------------------------------------------------------------


def _name(kind: type) -> str:
    return kind.__qualname__ if kind.__module__ == "builtins" else f"{kind.__module__}.{kind.__qualname__}"


def _advice(value: Any) -> str:
    if isinstance(value, Enum):
        return "store its .value"
    if isinstance(value, Promise):
        return "turn the lazy text into text with str()"
    if isinstance(value, tuple):
        return "store tuple(value), or its ._asdict()"
    if hasattr(type(value), "__dataclass_fields__"):
        return "store dataclasses.asdict(value), or declare the dataclass as the schema"
    if hasattr(type(value), "_meta"):
        return "store the object's pk"
    return "store plain data that stands for it, or let a schema turn it into that"


def _children(value: Any) -> Iterator[tuple[str, Any]]:
    if isinstance(value, dict):
        for key, item in value.items():
            shown = f"{key!a:.60}" if isinstance(key, str) else f"{_name(type(key))} key"
            yield f"[the key {shown}]" if isinstance(key, str) else f"[a {shown}]", key
            yield f".{key}" if isinstance(key, str) and key.isidentifier() else f"[{shown}]", item
    elif isinstance(value, list | tuple):
        yield from ((f"[{index}]", item) for index, item in enumerate(value))
    elif isinstance(value, set | frozenset):
        yield from (("[an element]", item) for item in value)


def _locate(value: Any) -> tuple[str, str]:
    """Find the innermost thing that is refused: its path from ``$``, and the reason."""
    place, seen, reason = TAG, [value], _refused(value, 1) or _TOO_DEEP
    while len(seen) <= MAX_DEPTH:
        for segment, child in _children(value):
            if any(child is one for one in seen):
                return place + segment, "it contains itself; store a tree, not a cycle"
            if why := _refused(child, len(seen) + 1):
                place, value, reason = place + segment, child, why
                seen.append(child)
                break
        else:
            break
    return (place if len(place) < 400 else place[:200] + "…"), reason


def _refused(value: Any, depth: int) -> str | None:
    try:
        _encode(value, depth)
    except _Refusal as refusal:
        return str(refusal)
    except RecursionError:
        return _TOO_DEEP
    return None


# -- reading -----------------------------------------------------------------------------------------------------------


def _decode(plain: Any) -> Any:
    kind = type(plain)
    if kind is dict:
        if TAG in plain:
            return _read(plain)
        return {key: _decode(plain[key]) for key in sorted(plain)}
    if kind is list:
        return [_decode(item) for item in plain]
    return plain


def _read(plain: dict[str, Any]) -> Any:
    tag = plain[TAG]
    reader = _READERS.get(tag) if isinstance(tag, str) and plain.keys() == {TAG, VALUE} else None
    if reader is None:
        raise PayloadError(
            f"A stored payload has the tag {tag!r:.60}, which this version of django_finoflow does not know."
        )
    try:
        return reader(plain[VALUE])
    except (ValueError, TypeError, AttributeError, ArithmeticError) as error:
        if isinstance(error, PayloadError):
            raise
        raise PayloadError(f"A stored payload has a malformed {tag}: {error!r:.200}.") from error


_READERS: dict[str, Callable[[Any], Any]] = {
    "int": int,
    "float": float,
    "dict": lambda pairs: {_decode(key): _decode(item) for key, item in pairs},
    "tuple": lambda items: tuple(_decode(items)),
    "set": lambda items: set(_decode(items)),
    "frozenset": lambda items: frozenset(_decode(items)),
    "bytes": lambda text: base64.b64decode(text, validate=True),
    "datetime": _datetime_from,
    "datetime-fold": lambda text: _datetime_from(text).replace(fold=1),
    "date": _date_from,
    "time": _time_from,
    "time-fold": lambda text: _time_from(text).replace(fold=1),
    "timedelta": lambda parts: timedelta(*parts),
    "decimal": decimal.Decimal,
    "uuid": uuid.UUID,
}
