"""Schemas: what checks an input or output, and turns it into plain data for the row (rule D10).

A schema is a pydantic model or ``TypeAdapter``, a dataclass, a Django ``Form`` class, or a callable that returns the
value to keep (None: keep it as it is). ``clean`` validates and gives what is stored; ``rebuild`` gives the body its
value back. A dataclass or pydantic value is rebuilt from the stored data each time, so nothing is stored that does
not rebuild to an equal one.

pydantic values are stored as their ``mode="python"`` dump, which keeps ``Decimal``, datetime or tuple as they are;
where the codec refuses that (a URL, a plain enum) as their ``mode="json"`` dump. What neither keeps, such as
``SecretStr``, is refused.
"""

from __future__ import annotations

import dataclasses
import inspect
import sys
import types
import typing
from collections.abc import Callable, Mapping
from enum import Enum
from functools import cache
from typing import Any

from django.core.exceptions import NON_FIELD_ERRORS, ValidationError
from django.forms import BaseForm

from . import payloads
from .exceptions import DefinitionError, PayloadError, ValidationFailed


def check(schema: Any, where: str) -> None:
    """Raise ``DefinitionError``, naming ``where``, unless ``schema`` is None or one of the kinds above."""
    if schema is None or _is_form(schema):
        return
    if _is_dataclass(schema):
        _check_hints(schema, where, set())
    elif _pydantic_adapter(schema) is None:
        if typing.get_origin(schema) is not None:
            raise DefinitionError(f"{where}: {schema!r} checks nothing when called; wrap it in pydantic's TypeAdapter.")
        if not callable(schema) or inspect.iscoroutinefunction(schema):
            raise DefinitionError(
                f"{where}: {schema!r} is no schema. Give a pydantic model or TypeAdapter, a dataclass, a Django Form "
                f"class, or a (synchronous) callable that returns the value to keep."
            )


def clean(schema: Any, value: Any, where: str) -> Any:
    """Validate ``value`` and return the plain data to store.

    Args:
        schema: see the module's docstring; None lets everything through.
        value: what was given, or what a body returned.
        where: what the value is, for messages, such as ``"input of workflow route-ticket"``.

    Raises:
        ValidationFailed: it does not satisfy the schema; ``errors`` holds what the schema reported.
        PayloadError: it does, but its plain data would not rebuild to an equal value.
    """
    if schema is None:
        return value
    if _is_form(schema):
        return _clean_form(schema, value, where)
    if _is_dataclass(schema):
        return _clean_dataclass(schema, value, where)
    if (adapter := _pydantic_adapter(schema)) is not None:
        return _clean_pydantic(adapter, value, where)
    return _clean_by_call(schema, value, where)


def rebuild(schema: Any, stored: Any) -> Any:
    """Return what a body gets for ``stored`` data: a dataclass or pydantic schema's instance, else the data itself.

    Raises:
        ValidationFailed: the schema was changed since, and refuses what it once let through.
    """
    if schema is None or _is_form(schema):
        return stored
    if _is_dataclass(schema):
        return _from_record(schema, stored, "stored data")
    if (adapter := _pydantic_adapter(schema)) is not None:
        return _from_pydantic(adapter, stored, "stored data", **_AS_DUMPED)
    return stored


# -- forms and callables -----------------------------------------------------------------------------------------------


def _is_form(schema: Any) -> bool:
    return isinstance(schema, type) and issubclass(schema, BaseForm)


def _clean_form(schema: Callable[..., BaseForm], value: Any, where: str) -> Any:
    if not isinstance(value, Mapping):
        raise ValidationFailed(f"{where} is invalid: a form takes a mapping, not {type(value).__name__}.")
    form = schema(data=value)
    if not form.is_valid():
        said = {
            "form" if name == NON_FIELD_ERRORS else name: " ".join(map(str, texts))
            for name, texts in form.errors.items()
        }
        raise _failure(where, said, form.errors.get_json_data())
    return form.cleaned_data


def _clean_by_call(schema: Callable[[Any], Any], value: Any, where: str) -> Any:
    try:
        kept = schema(value)
    except ValidationError as error:
        errors = error.message_dict if hasattr(error, "error_dict") else error.messages
        raise ValidationFailed(f"{where} is invalid: {'; '.join(error.messages)}", errors) from error
    except (ValueError, TypeError) as error:
        raise ValidationFailed(f"{where} is invalid: {error}") from error
    return value if kept is None else kept


def _failure(where: str, said: Mapping[str, str], errors: Any) -> ValidationFailed:
    return ValidationFailed(
        f"{where} is invalid: " + "; ".join(f"{name}: {text}" for name, text in said.items()), errors
    )


# -- dataclasses -------------------------------------------------------------------------------------------------------


class _Mismatch(Exception):
    """What does not fit its annotation: a text for each path."""

    def __init__(self, errors: dict[str, str]):
        super().__init__(errors)
        self.errors = errors


def _is_dataclass(schema: Any) -> bool:
    # A dataclass of pydantic's validates by itself, and better.
    return (
        isinstance(schema, type) and dataclasses.is_dataclass(schema) and "__pydantic_validator__" not in vars(schema)
    )


def _clean_dataclass(schema: type, value: Any, where: str) -> Any:
    instance = _from_record(schema, value, where)
    stored = payloads.roundtrip(_plain(instance))
    try:
        kept = _alike(instance, _build(schema, stored))
    except _Mismatch:
        kept = False
    if not kept:
        raise _not_kept(where, f"{schema.__qualname__} made from its own fields is not the same again")
    return stored


def _from_record(schema: type, value: Any, where: str) -> Any:
    try:
        return _build(schema, value)
    except _Mismatch as error:
        raise _failure(where, error.errors, error.errors) from error.__cause__


def _build(schema: type, value: Any, path: str = "") -> Any:
    """Make the dataclass ``schema`` from a mapping, or anew from an instance."""
    fields = {field.name: field for field in dataclasses.fields(schema) if field.init}
    if type(value) is schema:
        value = {name: getattr(value, name) for name in fields}
    if not isinstance(value, Mapping):
        raise _Mismatch({path or "value": f"must be a mapping or a {schema.__qualname__}, not {type(value).__name__}"})
    errors = {_join(path, name): "unknown field" for name in value if name not in fields}
    errors |= {_join(path, name): "missing" for name, field in fields.items() if name not in value and _required(field)}
    made = {}
    for name in fields.keys() & value.keys():
        try:
            # ``day: date = None`` is often written, and its default is not checked either.
            usual = value[name] is None and fields[name].default is None
            made[name] = None if usual else _fit(_hints(schema)[name], value[name], _join(path, name))
        except _Mismatch as error:
            errors |= error.errors
    if errors:
        raise _Mismatch(dict(sorted(errors.items())))
    try:
        return schema(**made)
    except (ValueError, TypeError, ValidationError) as error:
        raise _Mismatch({path or "value": str(error)}) from error


def _join(path: str, name: Any) -> str:
    return f"{path}.{name}" if path else str(name)


def _required(field: dataclasses.Field[Any]) -> bool:
    return field.default is dataclasses.MISSING and field.default_factory is dataclasses.MISSING


@cache
def _hints(schema: type) -> dict[str, Any]:
    return typing.get_type_hints(schema)


def _check_hints(schema: Any, where: str, seen: set[Any]) -> None:
    """Read the annotations of a dataclass, and of those nested in it, for the sake of the error."""
    if schema in seen or not _is_dataclass(schema):
        return
    seen.add(schema)
    try:
        hints = list(_hints(schema).values())
    except Exception as error:
        raise DefinitionError(f"{where}: the annotations of {schema.__qualname__} cannot be read: {error}") from error
    while hints:
        hint = hints.pop()
        hints += typing.get_args(hint)
        if isinstance(hint, type):
            _check_hints(hint, where, seen)


def _fit(hint: Any, value: Any, path: str) -> Any:
    """Return ``value`` as the annotation ``hint`` wants it; only dataclasses, enums and floats are converted."""
    kind, args = typing.get_origin(hint) or hint, typing.get_args(hint)
    if kind in (typing.Union, types.UnionType):
        return _fit_one_of(args, value, path)
    if kind is typing.Literal:
        fits = any(value == one and type(value) is type(one) for one in args)
    elif not isinstance(kind, type) or kind in (Any, object):
        return value  # a TypeVar and the like says nothing that could be checked
    elif _is_dataclass(kind):
        return _build(kind, value, path)
    elif issubclass(kind, Enum):
        return _fit_enum(kind, value, path)
    else:
        value = _converted(kind, value)
        fits = _is_a(kind, value)
    if not fits:
        raise _Mismatch({path: f"must be {_spelled(hint)}, not {type(value).__name__}"})
    return _fit_items(kind, args, value, path)


def _fit_one_of(hints: tuple[Any, ...], value: Any, path: str) -> Any:
    # The very type first: 1 is an int for "float | int".
    for hint in sorted(hints, key=lambda hint: hint is not type(value)):
        try:
            return _fit(hint, value, path)
        except _Mismatch as error:
            last = error
    if len(hints) == 2 and type(None) in hints:
        return _fit(next(hint for hint in hints if hint is not type(None)), value, path)
    raise _Mismatch({path: f"must be {' or '.join(map(_spelled, hints))}, not {type(value).__name__}"}) from last


def _fit_enum(kind: type[Enum], value: Any, path: str) -> Enum:
    try:
        return kind(value)
    except ValueError as error:
        raise _Mismatch({path: str(error)}) from error


def _converted(kind: type, value: Any) -> Any:
    if kind is float and type(value) is int and abs(value) < 2**53:
        return float(value)
    if kind is tuple and isinstance(value, list):
        return tuple(value)
    return value


def _is_a(kind: type, value: Any) -> bool:
    if isinstance(value, bool) and kind in (int, float):
        return False
    try:
        return isinstance(value, dict if typing.is_typeddict(kind) else kind)
    except TypeError:
        return True  # a protocol that cannot be checked at run time


def _fit_items(kind: type, args: tuple[Any, ...], value: Any, path: str) -> Any:
    if isinstance(value, dict) and len(args) == 2:
        return {_fit(args[0], key, path): _fit(args[1], item, f"{path}[{key!r}]") for key, item in value.items()}
    if kind is tuple and args and args[-1] is not ...:
        if len(value) != len(args):
            raise _Mismatch({path: f"must have {len(args)} items, not {len(value)}"})
        return tuple(_fit(hint, item, f"{path}[{at}]") for at, (hint, item) in enumerate(zip(args, value, strict=True)))
    if isinstance(value, list | tuple | set | frozenset) and args:
        return type(value)(_fit(args[0], item, f"{path}[{at}]") for at, item in enumerate(value))
    return value


def _spelled(hint: Any) -> str:
    return hint.__name__ if isinstance(hint, type) and not typing.get_args(hint) else str(hint).replace("typing.", "")


def _plain(value: Any) -> Any:
    """Turn dataclasses into dicts and enums into their values, all the way down; the codec keeps the rest."""
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {field.name: _plain(getattr(value, field.name)) for field in dataclasses.fields(value) if field.init}
    if isinstance(value, Enum):
        return value.value
    if isinstance(value, dict):
        return {_plain(key): _plain(item) for key, item in value.items()}
    if type(value) in (list, tuple, set, frozenset):
        return type(value)(map(_plain, value))
    return value


def _alike(one: Any, other: Any) -> bool:
    """Tell whether two are equal, and of one type where they are dataclasses (which may be declared ``eq=False``)."""
    if dataclasses.is_dataclass(one):
        names = [field.name for field in dataclasses.fields(one)]
        return type(one) is type(other) and all(_alike(getattr(one, name), getattr(other, name)) for name in names)
    if isinstance(one, list | tuple) and isinstance(other, list | tuple):
        return len(one) == len(other) and all(map(_alike, one, other))
    if isinstance(one, dict) and isinstance(other, dict):
        return one.keys() == other.keys() and all(_alike(item, other[key]) for key, item in one.items())
    return bool(one == other)


# -- pydantic ----------------------------------------------------------------------------------------------------------


def _pydantic_adapter(schema: Any) -> Any:
    """Return the ``TypeAdapter`` of a pydantic schema, None for any other. Never imports pydantic."""
    pydantic = sys.modules.get("pydantic")
    if pydantic is None:
        return None
    if isinstance(schema, pydantic.TypeAdapter):
        return schema
    if isinstance(schema, type) and hasattr(schema, "__pydantic_validator__"):
        return _adapter_of(schema)
    return None


@cache
def _adapter_of(model: type) -> Any:
    return sys.modules["pydantic"].TypeAdapter(model)


#: How a dump is read back: by the fields' names, and lax, since a dump holds an enum as its value.
_AS_DUMPED = {"by_name": True, "by_alias": True, "strict": False}


def _clean_pydantic(adapter: Any, value: Any, where: str) -> Any:
    valid = _from_pydantic(adapter, value, where)
    refusal: Exception | None = None
    for mode in ("python", "json"):
        try:
            stored = payloads.roundtrip(adapter.dump_python(valid, mode=mode, round_trip=True, warnings=False))
            if _from_pydantic(adapter, stored, where, **_AS_DUMPED) == valid:
                return stored
        except (ValueError, ValidationFailed) as error:
            refusal = refusal or error
    raise _not_kept(where, str(refusal or "it validates to another value")) from refusal


def _from_pydantic(adapter: Any, value: Any, where: str, **how: bool) -> Any:
    try:
        return adapter.validate_python(value, **how)
    except sys.modules["pydantic"].ValidationError as error:
        errors = error.errors(include_url=False, include_context=False, include_input=False)
        said = {".".join(map(str, one["loc"])) or "value": one["msg"] for one in errors}
        raise _failure(where, said, errors) from error


def _not_kept(where: str, why: str) -> PayloadError:
    return PayloadError(f"{where} is valid, but its plain data would not give it back: {why}")
