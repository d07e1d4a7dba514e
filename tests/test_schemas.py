"""Rule D10: what each kind of schema lets through, stores and gives back."""

import enum
import re
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, date, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any, Literal, Optional, TypedDict
from uuid import UUID

import pydantic
import pytest
from django import forms
from django.core.exceptions import ValidationError

from django_finoflow import payloads, schemas
from django_finoflow.exceptions import DefinitionError, PayloadError, ValidationFailed


def clean(schema, value):
    return schemas.clean(schema, value, "The input of w")


def there_and_back(schema, value):
    """What a body gets, the first time and on each replay."""
    stored = clean(schema, value)
    assert payloads.roundtrip(stored) == stored
    return schemas.rebuild(schema, payloads.roundtrip(stored))


class Status(enum.Enum):
    OPEN = "open"
    PAIR = (1, 2)


@dataclass
class Line:
    text: str
    amount: Decimal = Decimal("0.00")


@dataclass
class Claim:
    id: int
    lines: list[Line]
    main: Line | None = None
    also: Optional[Line] = None  # noqa: UP045
    by_name: dict[str, Line] = field(default_factory=dict)
    pair: tuple[int, str] = (0, "")
    many: tuple[int, ...] = ()
    status: Status = Status.OPEN
    kind: Literal["travel", "meal"] = "meal"
    at: datetime | None = None
    rate: float = 1.0
    ok: bool = False
    extra: Any = None
    total: int = field(init=False, default=0)

    def __post_init__(self):
        self.total = len(self.lines)


FULL = {
    "id": 1,
    "lines": [{"text": "taxi", "amount": Decimal("9.90")}, Line("bus")],
    "main": {"text": "taxi"},
    "by_name": {"a": {"text": "x"}},
    "pair": (1, "a"),
    "many": [1, 2],
    "status": "open",
    "kind": "travel",
    "at": datetime(2026, 3, 1, tzinfo=UTC),
    "rate": 2,
    "ok": True,
    "extra": {"any": (1,)},
}


# -- none, and what is no schema ---------------------------------------------------------------------------------------


def test_d10_without_a_schema_everything_is_kept_as_it_is():
    value = object()
    assert clean(None, value) is value
    assert schemas.rebuild(None, value) is value
    schemas.check(None, "w")


class Model(pydantic.BaseModel):
    id: int
    amount: Decimal = Decimal(0)


class AForm(forms.Form):
    amount = forms.DecimalField(max_digits=6, decimal_places=2)
    day = forms.DateField(required=False)

    def clean(self):
        data = super().clean()
        if data.get("amount") == 13:
            raise ValidationError("unlucky")
        return data


@pytest.mark.parametrize(
    "schema", [Model, pydantic.TypeAdapter(list[int]), Claim, AForm, int, len, lambda value: None, print]
)
def test_d10_every_kind_of_schema_passes_the_check(schema):
    schemas.check(schema, "w")


async def coroutine(value):
    return value


@dataclass
class Unreadable:
    other: "Nowhere"  # noqa: F821


@dataclass
class Outer:
    inner: list[Unreadable]


@pytest.mark.parametrize(
    ("schema", "reason"),
    [
        (5, "is no schema"),
        ({"type": "object"}, "is no schema"),
        ("claims.Claim", "is no schema"),
        (Line("an instance"), "is no schema"),
        (Model(id=1), "is no schema"),
        (AForm(), "is no schema"),
        (coroutine, "is no schema"),
        (list[int], "TypeAdapter"),
        (dict[str, int], "TypeAdapter"),
        (Unreadable, "annotations of Unreadable.*Nowhere"),
        (Outer, "annotations of Unreadable.*Nowhere"),
    ],
    ids=lambda value: getattr(value, "__name__", type(value).__name__) if not isinstance(value, str) else "",
)
def test_d10_what_is_no_schema_is_refused_when_it_is_declared(schema, reason):
    with pytest.raises(DefinitionError, match=f"workflow w: .*{reason}"):
        schemas.check(schema, "workflow w")


def test_d10_schemas_work_without_pydantic_and_never_import_it():
    code = """
import sys
from dataclasses import dataclass
from django.conf import settings
settings.configure()
from django_finoflow import schemas
@dataclass
class A:
    x: int
for schema in (None, A, int):
    schemas.check(schema, "w")
    schemas.rebuild(schema, schemas.clean(schema, {"x": 1} if schema is A else 1, "w"))
assert "pydantic" not in sys.modules
"""
    subprocess.run([sys.executable, "-W", "error", "-c", code], check=True)


# -- dataclasses -------------------------------------------------------------------------------------------------------


def test_d10_a_dataclass_is_built_from_a_mapping_and_rebuilt_from_the_row():
    claim = there_and_back(Claim, FULL)
    assert claim == Claim(
        id=1,
        lines=[Line("taxi", Decimal("9.90")), Line("bus")],
        main=Line("taxi"),
        by_name={"a": Line("x")},
        pair=(1, "a"),
        many=(1, 2),
        status=Status.OPEN,
        kind="travel",
        at=datetime(2026, 3, 1, tzinfo=UTC),
        rate=2.0,
        ok=True,
        extra={"any": (1,)},
    )
    assert type(claim.rate) is float
    assert type(claim.lines[1]) is Line
    assert claim.total == 2


def test_d10_a_dataclass_is_stored_as_plain_data_that_lookups_can_read():
    stored = clean(Claim, FULL)
    assert stored["lines"][1] == {"text": "bus", "amount": Decimal("0.00")}
    assert stored["status"] == "open"
    assert "total" not in stored


def test_d10_an_instance_of_the_dataclass_is_taken_too():
    claim = Claim(1, [Line("taxi")], status=Status.PAIR)
    assert there_and_back(Claim, claim) == claim


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Strict:
    at: date
    tree: "tuple[Strict, ...]" = ()


def test_d10_frozen_slotted_recursive_dataclasses_without_equality_work():
    schemas.check(Strict, "w")
    rebuilt = there_and_back(Strict, {"at": date(2026, 1, 1), "tree": [{"at": date(2026, 1, 2)}]})
    assert rebuilt.tree[0].at == date(2026, 1, 2)


@pytest.mark.parametrize(
    ("change", "place", "text"),
    [
        ({"id": "1"}, "id", "must be int, not str"),
        ({"id": True}, "id", "must be int, not bool"),
        ({"id": None}, "id", "must be int, not NoneType"),
        ({"id": 1.0}, "id", "must be int, not float"),
        ({"rate": "2"}, "rate", "must be float, not str"),
        ({"rate": True}, "rate", "must be float, not bool"),
        ({"ok": 1}, "ok", "must be bool, not int"),
        ({"lines": {"text": "x"}}, "lines", r"must be list\[.*Line\], not dict"),
        ({"lines": "ab"}, "lines", "not str"),
        ({"lines": [{"text": 5}]}, "lines[0].text", "must be str, not int"),
        ({"lines": [{}]}, "lines[0].text", "missing"),
        ({"lines": [{"text": "x", "x": 1}]}, "lines[0].x", "unknown field"),
        ({"lines": ["x"]}, "lines[0]", "must be a mapping or a Line, not str"),
        ({"main": "x"}, "main", "must be a mapping or a Line, not str"),
        ({"main": {"text": 1}}, "main.text", "must be str, not int"),
        ({"by_name": {1: {"text": "x"}}}, "by_name", "must be str, not int"),
        ({"by_name": {"a": {}}}, "by_name['a'].text", "missing"),
        ({"pair": (1,)}, "pair", "must have 2 items, not 1"),
        ({"pair": ("a", "a")}, "pair[0]", "must be int, not str"),
        ({"many": [1, "2"]}, "many[1]", "must be int, not str"),
        ({"status": "closed"}, "status", "'closed' is not a valid Status"),
        ({"kind": "fun"}, "kind", "must be Literal.*travel"),
        ({"at": "2026-03-01"}, "at", "must be datetime or NoneType|must be datetime, not str"),
        ({"unknown": 1}, "unknown", "unknown field"),
        ({"total": 3}, "total", "unknown field"),
    ],
)
def test_d10_what_does_not_fit_the_dataclass_is_named_by_its_place(change, place, text):
    with pytest.raises(ValidationFailed, match="The input of w is invalid: ") as caught:
        clean(Claim, {**FULL, **change})
    assert list(caught.value.errors) == [place]
    assert re.search(text, caught.value.errors[place])
    assert f"{place}: {caught.value.errors[place]}" in str(caught.value)


def test_d10_all_that_is_wrong_is_told_at_once():
    with pytest.raises(ValidationFailed) as caught:
        clean(Claim, {"lines": [{}], "x": 1, 2: 3})
    assert set(caught.value.errors) == {"id", "lines[0].text", "x", "2"}


@pytest.mark.parametrize("value", [None, 5, [1], "x", Line("another")])
def test_d10_a_dataclass_is_not_made_from_anything_else(value):
    with pytest.raises(ValidationFailed, match="must be a mapping or a Claim"):
        clean(Claim, value)


@dataclass
class Positive:
    amount: int

    def __post_init__(self):
        if self.amount <= 0:
            raise ValueError("the amount must be positive")


def test_d10_what_a_post_init_refuses_is_a_failed_validation():
    with pytest.raises(ValidationFailed, match="value: the amount must be positive") as caught:
        clean(Positive, {"amount": 0})
    assert isinstance(caught.value.__cause__, ValueError)


@dataclass
class Cents:
    amount: int

    def __post_init__(self):
        self.amount *= 100


@dataclass
class Changed:
    amount: int
    note: str = field(init=False, default="")


def changed():
    value = Changed(1)
    value.note = "lost"
    return value


class Sub(Line):
    pass


@dataclass
class Loose:
    value: Any


class Misc(TypedDict):
    a: int


@dataclass
class Various:
    numbers: int | float | None = None
    sequence: Sequence[int] = ()
    mapping: Mapping[str, int] = field(default_factory=dict)
    tags: frozenset[str] = frozenset()
    typed: Misc | None = None
    either: float | int = 0
    step: Literal[1, 2] = 1
    on: date = None  # type: ignore[assignment]


def test_d10_other_annotations_are_checked_as_far_as_they_say():
    value = {"numbers": 1.5, "sequence": [1], "mapping": {"a": 1}, "tags": frozenset("a"), "typed": {"a": 1}}
    assert there_and_back(Various, value) == Various(**value)
    assert type(there_and_back(Various, {"numbers": 1, "on": None}).numbers) is int
    assert type(there_and_back(Various, {"either": 1}).either) is int
    assert there_and_back(Various, {"sequence": (1, 2, 3)}).sequence == (1, 2, 3)
    for wrong in (
        {"step": True},
        {"numbers": "1"},
        {"sequence": ["a"]},
        {"mapping": {1: 1}},
        {"tags": {"a"}},
        {"typed": 1},
    ):
        with pytest.raises(ValidationFailed):
            clean(Various, wrong)


@pytest.mark.parametrize(
    ("schema", "value"), [(Cents, {"amount": 1}), (Cents, Cents(1)), (Loose, {"value": Status.OPEN})]
)
def test_d10_a_dataclass_that_would_not_come_back_the_same_is_refused(schema, value):
    with pytest.raises(PayloadError, match=r"The input of w is valid, but .* give it back"):
        clean(schema, value)


def test_d10_fields_that_init_does_not_take_are_made_again():
    assert there_and_back(Changed, Changed(1)) == Changed(1)
    assert there_and_back(Changed, changed()) == Changed(1)


def test_d10_a_subclass_of_the_dataclass_is_refused_rather_than_cut():
    with pytest.raises(ValidationFailed, match="must be a mapping or a Line, not Sub"):
        clean(Line, Sub("x"))


# -- pydantic ----------------------------------------------------------------------------------------------------------


class Item(pydantic.BaseModel):
    text: str


class Rich(pydantic.BaseModel):
    id: int
    amount: Decimal = Decimal("1.10")
    at: datetime | None = None
    key: UUID = UUID(int=1)
    items: tuple[Item, ...] = ()
    tags: set[str] = set()
    raw: bytes = b""

    @pydantic.computed_field
    @property
    def double(self) -> int:
        return self.id * 2

    model_config = pydantic.ConfigDict(extra="forbid")


def test_d10_a_pydantic_model_is_validated_stored_as_plain_data_and_rebuilt():
    value = {"id": "1", "amount": "2.50", "at": "2026-03-01T12:00:00Z", "items": [{"text": "a"}], "tags": ["x"]}
    rich = there_and_back(Rich, value)
    assert rich == Rich(**value)
    stored = clean(Rich, value)
    assert stored["id"] == 1
    assert stored["amount"] == Decimal("2.50")
    assert stored["items"] == ({"text": "a"},)
    assert "double" not in stored
    assert there_and_back(Rich, rich) == rich


def test_d10_a_type_adapter_is_a_schema():
    adapter = pydantic.TypeAdapter(list[Item])
    assert clean(adapter, [{"text": "a"}]) == [{"text": "a"}]
    assert there_and_back(adapter, [{"text": "a"}]) == [Item(text="a")]


@pydantic.dataclasses.dataclass
class Validated:
    id: int


def test_d10_a_dataclass_of_pydantic_validates_as_pydantic_does():
    assert there_and_back(Validated, {"id": "5"}) == Validated(5)


def test_d10_what_pydantic_refuses_is_a_failed_validation_with_its_errors():
    with pytest.raises(ValidationFailed, match=r"The input of w is invalid: id: .*; items\.0\.text: ") as caught:
        clean(Rich, {"id": "x", "items": [{}]})
    assert [error["loc"] for error in caught.value.errors] == [("id",), ("items", 0, "text")]
    assert isinstance(caught.value.__cause__, pydantic.ValidationError)
    assert payloads.roundtrip([{**error, "loc": list(error["loc"])} for error in caught.value.errors])


def test_d10_an_error_does_not_tell_the_value_that_was_refused():
    class Login(pydantic.BaseModel):
        password: int

    with pytest.raises(ValidationFailed) as caught:
        clean(Login, {"password": "hunter2"})
    assert "hunter2" not in str(caught.value) + str(caught.value.errors)


class Aliased(pydantic.BaseModel, strict=True):
    ticket_id: int = pydantic.Field(alias="ticketId")
    status: Status = pydantic.Field(validation_alias="state", serialization_alias="STATE")


def test_d10_aliases_and_strict_models_come_back():
    value = {"ticketId": 1, "state": Status.OPEN}
    assert there_and_back(Aliased, value) == Aliased(**value)
    assert clean(Aliased, value) == {"ticket_id": 1, "status": "open"}
    with pytest.raises(ValidationFailed, match="ticketId"):
        clean(Aliased, {"ticket_id": 1, "state": Status.OPEN})


class Web(pydantic.BaseModel):
    url: pydantic.HttpUrl
    path: Path
    status: Status


def test_d10_what_the_codec_does_not_take_is_stored_as_pydantics_json():
    value = {"url": "https://example.org/a", "path": "/tmp/x", "status": "open"}
    assert clean(Web, value) == value
    assert there_and_back(Web, value) == Web(**value)


class Secret(pydantic.BaseModel):
    token: pydantic.SecretStr


class Doubling(pydantic.BaseModel):
    amount: int

    @pydantic.field_validator("amount")
    @classmethod
    def double(cls, amount):
        return amount * 2


class Hidden(pydantic.BaseModel):
    id: int = pydantic.Field(exclude=True)


class NotANumber(pydantic.BaseModel):
    rate: float


@pytest.mark.parametrize(
    ("schema", "value"),
    [
        (Secret, {"token": "x"}),
        (Doubling, {"amount": 1}),
        (Hidden, {"id": 1}),
        (NotANumber, {"rate": float("nan")}),
        (pydantic.TypeAdapter(Any), object()),
    ],
    ids=["secret", "validator that changes again", "excluded field", "nan", "anything"],
)
def test_d10_a_model_whose_dump_would_not_give_it_back_is_refused(schema, value):
    with pytest.raises(PayloadError, match=r"The input of w is valid, but .* give it back"):
        clean(schema, value)


# -- forms -------------------------------------------------------------------------------------------------------------


def test_d10_a_form_gives_its_cleaned_data():
    stored = clean(AForm, {"amount": "9.90", "day": "2026-03-01"})
    assert stored == {"amount": Decimal("9.90"), "day": date(2026, 3, 1)}


def test_d10_what_a_form_refuses_is_named_by_field():
    with pytest.raises(ValidationFailed, match=r"The input of w is invalid: amount: .*; day: ") as caught:
        clean(AForm, {"amount": "x", "day": "y"})
    assert caught.value.errors["amount"][0]["code"] == "invalid"
    with pytest.raises(ValidationFailed, match="form: unlucky"):
        clean(AForm, {"amount": 13})


@pytest.mark.parametrize("value", [None, 5, "x", [("amount", 1)]])
def test_d10_a_form_takes_a_mapping_only(value):
    with pytest.raises(ValidationFailed, match="takes a mapping"):
        clean(AForm, value)


# -- callables ---------------------------------------------------------------------------------------------------------


def test_d10_a_callable_returns_the_value_to_keep_or_none_to_keep_it_as_it_is():
    assert clean(str.strip, " x ") == "x"
    assert clean(lambda value: None, " x ") == " x "
    assert clean(lambda value: 0, 5) == 0


def complains(error):
    def schema(value):
        raise error

    return schema


@pytest.mark.parametrize(
    ("error", "text", "errors"),
    [
        (ValueError("too small"), "too small", None),
        (TypeError("no number"), "no number", None),
        (ValidationError("too %(how)s", params={"how": "late"}), "too late", ["too late"]),
        (ValidationError({"day": ["too late"]}), "too late", {"day": ["too late"]}),
        (ValidationError(["a", "b"]), "a; b", ["a", "b"]),
    ],
)
def test_d10_what_a_callable_raises_to_refuse_is_a_failed_validation(error, text, errors):
    with pytest.raises(ValidationFailed, match=f"The input of w is invalid: {text}") as caught:
        clean(complains(error), 1)
    assert caught.value.__cause__ is error
    assert caught.value.errors == errors


def test_d10_any_other_error_of_a_callable_is_its_own():
    with pytest.raises(ZeroDivisionError):
        clean(lambda value: 1 / 0, 1)


def test_d10_on_replay_neither_forms_nor_callables_run_again():
    class Exploding(forms.Form):
        def __init__(self, **kwargs):
            raise AssertionError

    stored = {"amount": Decimal(1)}
    assert schemas.rebuild(Exploding, stored) is stored
    assert schemas.rebuild(complains(AssertionError()), stored) is stored


def test_d10_stored_data_that_a_changed_schema_refuses_says_so():
    with pytest.raises(ValidationFailed, match="stored data is invalid: id: missing"):
        schemas.rebuild(Claim, {"lines": []})
    with pytest.raises(ValidationFailed, match="stored data is invalid: id: "):
        schemas.rebuild(Rich, {})
