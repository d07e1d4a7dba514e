"""The model field of every column that holds a payload: the row keeps JSON, Python sees the value itself.

Lookups work on plain JSON types (``filter(input__amount__gt=5)``, ``filter(input={"a": 1})``); ``dumpdata`` and
``loaddata`` carry the stored form, so that a ``Decimal`` or a tuple survives them. None is SQL NULL, and
``filter(input=None)`` finds it.
"""

from __future__ import annotations

import json
from typing import Any

from django.core.exceptions import ValidationError
from django.db import models
from django.db.models.fields.json import JSONExact, KeyTransform

from . import payloads
from .exceptions import PayloadError


class _Written(json.JSONEncoder):
    """Passes on what is JSON text already; Django's backends then wrap it as they would wrap a value."""

    def encode(self, text: str) -> str:
        return text


class _Decoding(json.JSONDecoder):
    """Reads JSON text to the value itself where Django asks a field's ``decoder``: for XML, forms and key lookups."""

    def decode(self, text: str, *args: Any) -> Any:
        return payloads.decode(super().decode(text, *args))


class PayloadField(models.JSONField):
    """A column for one payload (rules P1 to P5). Null and not editable unless told otherwise."""

    def __init__(self, *args: Any, **kwargs: Any):
        kwargs.setdefault("null", True)
        kwargs.setdefault("editable", False)
        super().__init__(*args, **kwargs)
        self.decoder = _Decoding

    def deconstruct(self) -> Any:
        name, path, args, kwargs = super().deconstruct()
        del kwargs["decoder"]
        for option, usual in (("null", True), ("editable", False)):
            if kwargs.pop(option, not usual) != usual:
                kwargs[option] = not usual
        return name, path, args, kwargs

    def get_prep_value(self, value: Any) -> Any:
        """Return the plain data for a lookup's right side."""
        return payloads.encode(super().get_prep_value(value))

    def get_db_prep_value(self, value: Any, connection: Any, prepared: bool = False) -> Any:
        plain = value if prepared else self.get_prep_value(value)
        return connection.ops.adapt_json_value(payloads.to_json(plain), _Written)

    def get_db_prep_save(self, value: Any, connection: Any) -> Any:
        if value is None or hasattr(value, "as_sql"):
            return super().get_db_prep_save(value, connection)
        return connection.ops.adapt_json_value(payloads.dumps(value), _Written)

    def from_db_value(self, value: Any, expression: Any, connection: Any) -> Any:
        if isinstance(expression, KeyTransform):
            return super().from_db_value(value, expression, connection)
        return payloads.loads(value)

    def value_from_object(self, obj: Any) -> Any:
        """Return the plain data: serializers would write a bare ``Decimal`` or datetime as a text."""
        return payloads.encode(super().value_from_object(obj))

    def to_python(self, value: Any) -> Any:
        """Return the value that a serializer wrote. Only deserializers ask: ``clean`` has the value itself."""
        return payloads.decode(value)

    def clean(self, value: Any, model_instance: Any) -> Any:
        self.validate(value, model_instance)
        self.run_validators(value)
        return value

    def validate(self, value: Any, model_instance: Any) -> None:
        try:
            super().validate(payloads.encode(value), model_instance)
        except PayloadError as error:
            raise ValidationError(str(error), code="invalid") from error


@PayloadField.register_lookup
class PayloadExact(JSONExact):
    """``filter(input=None)`` asks for SQL NULL, as None is stored; Django's own means JSON's null by it."""

    can_use_none_as_rhs = False
