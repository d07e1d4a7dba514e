"""Rules P1, P2 and P5 in the database: what a payload column gives back, finds and carries through a dump."""

import io
from datetime import UTC, datetime, time, timedelta
from decimal import Decimal
from uuid import UUID

import pytest
from django.core import serializers
from django.core.exceptions import ValidationError
from django.core.management import call_command
from django.db import connection, models
from django.db.migrations.writer import MigrationWriter
from django.db.models import F, Value
from django.utils import timezone
from django.utils.translation import gettext_lazy

from django_finoflow.exceptions import PayloadError
from django_finoflow.fields import PayloadField
from django_finoflow.models import Execution

pytestmark = pytest.mark.django_db

VALUES = {
    "none": None,
    "true": True,
    "false": False,
    "int": 5,
    "big int": 2**70,
    "edge int": 2**63 - 1,
    "float": 1.5,
    "whole float": 1.0,
    "large float": 1e16,
    "negative zero": -0.0,
    "huge float": 1e300,
    "tiny float": 5e-324,
    "long float": 0.30000000000000004,
    "text": "grüße 😀 \x01 \"'\\",
    "text like json": '{"a": 1}',
    "text like null": "null",
    "empty text": "",
    "decimal": Decimal("1.10"),
    "datetime": datetime(2026, 3, 1, 12, tzinfo=UTC),
    "naive datetime": datetime(2026, 3, 1, 12, 0, 0, 5),
    "time": time(12, 30),
    "timedelta": timedelta(days=1, microseconds=1),
    "uuid": UUID(int=7),
    "bytes": b"\x00\xff",
    "tuple": (1, (2.0, Decimal("3"))),
    "set": {1, 2},
    "list": [1, [2, None]],
    "dict": {"b": {"z": 1, "y": (2,)}, "aa": 1e16},
    "int keys": {2: "b", 1: "a"},
    "dollar": {"$": "decimal", "v": "1"},
    "empty dict": {},
}


def run(run_id="r", **payloads):
    now = timezone.now().replace(microsecond=0)  # Django's dumps keep milliseconds only
    return Execution(run_id=run_id, workflow_id="w", created_at=now, updated_at=now, **payloads)


def saved(run_id="r", **payloads):
    made = run(run_id, **payloads)
    made.save(force_insert=True)
    return made


def exactly(one, other):
    return one == other and repr(one) == repr(other)


@pytest.fixture(params=VALUES.values(), ids=VALUES.keys())
def value(request):
    return request.param


def in_order(value):
    if not isinstance(value, dict) or 1 in value:
        return value
    return {key: in_order(value[key]) for key in sorted(value)}


# -- reading back ------------------------------------------------------------------------------------------------------


def test_p1_a_column_gives_back_the_value_itself(value):
    saved(input=value)
    assert exactly(Execution.objects.get().input, in_order(value))


def test_p1_every_way_of_reading_decodes():
    value = {"at": datetime(2026, 3, 1, tzinfo=UTC), "sum": Decimal("1.10")}
    made = saved(input=value, result=(1,))
    rows = Execution.objects
    assert rows.values("input").get() == {"input": value}
    assert rows.values_list("input", "result").get() == (value, (1,))
    assert rows.only("run_id").get().input == value
    assert rows.defer("input").get().input == value
    assert rows.annotate(copy=F("input")).get().copy == value
    assert rows.values_list("input__sum", flat=True).get() == Decimal("1.10")
    assert next(iter(rows.iterator())).input == value
    assert rows.raw("SELECT * FROM finoflow_execution")[0].input == value
    made.input = None
    made.refresh_from_db()
    assert made.input == value


def test_p1_a_part_that_is_selected_by_its_key_decodes_too():
    saved(input={"text": "x", "n": 5, "sum": Decimal("1.10"), "list": [1, (2,)], "none": None})
    parts = ("input__text", "input__n", "input__sum", "input__list", "input__none", "input__absent")
    assert Execution.objects.values_list(*parts).get() == ("x", 5, Decimal("1.10"), [1, (2,)], None, None)


def test_p1_every_way_of_writing_encodes(value):
    Execution.objects.bulk_create([run("a", input=value), run("b", input=value)])
    assert exactly(Execution.objects.get(run_id="a").input, in_order(value))
    Execution.objects.update(input=None)
    assert Execution.objects.filter(input=None).count() == 2
    Execution.objects.filter(run_id="a").update(input=value)
    assert exactly(Execution.objects.get(run_id="a").input, in_order(value))
    b = Execution.objects.get(run_id="b")
    b.input = value
    Execution.objects.bulk_update([b], ["input"])
    assert exactly(Execution.objects.get(run_id="b").input, in_order(value))
    Execution.objects.filter(run_id="b").update(result=F("input"))
    assert exactly(Execution.objects.get(run_id="b").result, in_order(value))


def test_p1_a_column_may_be_set_from_a_value_expression():
    made = saved()
    Execution.objects.update(input=Value((1, Decimal("2")), output_field=PayloadField()))
    made.refresh_from_db()
    assert made.input == (1, Decimal("2"))


def test_p2_dicts_read_from_a_row_have_their_keys_sorted():
    saved(input={"b": 1, "aaa": 2, "c": {"z": 1, "yy": 2}})
    stored = Execution.objects.get().input
    assert list(stored) == ["aaa", "b", "c"]
    assert list(stored["c"]) == ["yy", "z"]


def test_p3_what_cannot_be_stored_is_refused_before_any_sql(django_assert_num_queries, settings):
    settings.FINOFLOW = {"MAX_PAYLOAD_BYTES": 50}
    for value in (object(), {"a": float("nan")}, "x" * 60, gettext_lazy("run")):
        with django_assert_num_queries(0), pytest.raises(PayloadError):
            saved(input=value)


def test_p4_a_row_that_the_codec_never_wrote_is_a_payload_error():
    made = saved(input=1)
    with connection.cursor() as cursor:
        cursor.execute("UPDATE finoflow_execution SET input = %s", ['{"$": "os.system", "v": "true"}'])
    with pytest.raises(PayloadError, match=r"os\.system"):
        made.refresh_from_db()


# -- None --------------------------------------------------------------------------------------------------------------


def test_p5_none_is_sql_null():
    saved("null", input=None)
    saved("nested", input=[None])
    with connection.cursor() as cursor:
        cursor.execute("SELECT run_id FROM finoflow_execution WHERE input IS NULL")
        assert cursor.fetchall() == [("null",)]
    names = Execution.objects.values_list("run_id", flat=True)
    assert list(names.filter(input=None)) == ["null"]
    assert list(names.filter(input__isnull=True)) == ["null"]
    assert list(names.exclude(input=None)) == ["nested"]


def test_p5_a_json_null_that_somebody_stored_reads_as_none():
    Execution.objects.all().delete()
    saved("null")
    Execution.objects.update(input=Value(None, output_field=models.JSONField()))
    assert Execution.objects.get().input is None


def test_p5_a_payload_is_none_unless_given():
    assert run().input is None
    saved()
    assert Execution.objects.get().input is None


# -- lookups -----------------------------------------------------------------------------------------------------------


@pytest.fixture
def three_runs():
    saved("a", input={"amount": 5, "name": "x", "tags": ["red"], "deep": {"er": [10, 20]}, "rate": 0.5, "ok": True})
    saved("b", input={"amount": 50, "name": "Yé", "tags": ["red", "blue"], "none": None, "ok": False})
    saved("c", input=["x"])


def names(*conditions, **lookups):
    return "".join(Execution.objects.filter(*conditions, **lookups).order_by("run_id").values_list("run_id", flat=True))


@pytest.mark.parametrize(
    ("lookup", "value", "found"),
    [
        ("input__amount__gt", 5, "b"),
        ("input__amount__gte", 5, "ab"),
        ("input__amount__lt", 5.5, "a"),
        ("input__amount", 5, "a"),
        ("input__amount__in", [5, 7], "a"),
        ("input__amount__isnull", False, "ab"),
        ("input__name", "x", "a"),
        ("input__name", "Yé", "b"),
        ("input__name__in", ["x", "y"], "a"),
        ("input__name__icontains", "y", "b"),
        ("input__name__startswith", "Y", "b"),
        ("input__name__iexact", "X", "a"),
        ("input__ok", True, "a"),
        ("input__none", None, "b"),
        ("input__rate", 0.5, "a"),
        ("input__deep__er__1", 20, "a"),
        ("input__deep", {"er": [10, 20]}, "a"),
        ("input__tags", ["red", "blue"], "b"),
        ("input__0", "x", "c"),
        ("input", ["x"], "c"),
        ("input__in", [["x"], 5], "c"),
        ("input__has_key", "rate", "a"),
        ("input__has_keys", ["rate", "name"], "a"),
        ("input__has_any_keys", ["rate", "none"], "ab"),
    ],
)
def test_lookups_work_on_plain_json_types(three_runs, lookup, value, found):
    assert names(**{lookup: value}) == found


@pytest.mark.only_postgresql(reason="SQLite has no such lookups")
@pytest.mark.parametrize(
    ("lookup", "value", "found"),
    [
        ("input__tags__contains", ["red"], "ab"),
        ("input__contains", {"name": "x"}, "a"),
        ("input__tags__contained_by", ["red", "green"], "a"),
    ],
)
def test_containment_works_on_plain_json_types(three_runs, lookup, value, found):
    assert names(**{lookup: value}) == found


def test_a_whole_payload_is_found_by_its_value_whatever_its_type_or_key_order(value):
    saved("a", input=value)
    saved("b", input=["another"])
    if isinstance(value, dict):
        value = dict(reversed(value.items())) if "b" in value else value
    assert names(input=value) == "a"


def test_a_tagged_part_is_found_by_its_value():
    saved("a", input={"sum": Decimal("1.10"), "at": (1, 2)})
    saved("b", input={"sum": Decimal("2")})
    assert names(input__sum=Decimal("1.10")) == "a"
    assert names(input__at=(1, 2)) == "a"


def test_rows_can_be_ordered_and_compared_with_each_other():
    saved("a", input={"n": 2}, result={"n": 2})
    saved("b", input={"n": 1}, result={"n": 2})
    assert list(Execution.objects.order_by("input__n").values_list("run_id", flat=True)) == ["b", "a"]
    assert names(input__n=F("result__n")) == "a"


# -- dumps -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("format", ["json", "jsonl", "xml", "python"])
def test_p5_a_dump_carries_every_payload_whole(format, value):
    # XML cannot hold control characters as such; JSON inside it escapes them.
    saved(input=value, result=[value])
    dumped = serializers.serialize(format, Execution.objects.all())
    Execution.objects.all().delete()
    for restored in serializers.deserialize(format, dumped):
        restored.save()
    back = Execution.objects.get()
    assert exactly(back.input, in_order(value))
    assert exactly(back.result, [in_order(value)])


@pytest.mark.parametrize("format", ["json", "jsonl", "xml"])
def test_p5_dumpdata_and_loaddata_bring_the_rows_back(format, tmp_path):
    saved("a", input=Decimal("1.10"), result=(1,), state={"$": 1})
    saved("b", input=None, error={"type": "ValueError"})
    path = tmp_path / f"runs.{format}"
    call_command("dumpdata", "finoflow.execution", format=format, output=str(path), stdout=io.StringIO())
    before = list(Execution.objects.order_by("run_id").values())
    Execution.objects.all().delete()
    call_command("loaddata", str(path), verbosity=0)
    assert list(Execution.objects.order_by("run_id").values()) == before


# -- the field itself --------------------------------------------------------------------------------------------------


def test_a_field_is_null_and_not_editable_unless_told_otherwise():
    usual, other = PayloadField(), PayloadField("input", null=False, editable=True, default=dict)
    assert (usual.null, usual.editable, usual.get_default()) == (True, False, None)
    assert (other.null, other.editable, other.get_default()) == (False, True, {})


@pytest.mark.parametrize(
    ("field", "options"),
    [
        (PayloadField(), {}),
        (PayloadField("input"), {"verbose_name": "input"}),
        (PayloadField(null=False, editable=True, default=list), {"null": False, "editable": True, "default": list}),
    ],
)
def test_a_migration_says_only_what_is_unusual(field, options):
    _name, path, args, kwargs = field.deconstruct()
    assert (path, args, kwargs) == ("django_finoflow.fields.PayloadField", [], options)
    again = PayloadField(**kwargs)
    assert again.deconstruct()[1:] == field.deconstruct()[1:]
    text, imports = MigrationWriter.serialize(field)
    assert text.startswith("django_finoflow.fields.PayloadField(")
    assert imports == {"import django_finoflow.fields"}


def test_full_clean_takes_the_value_itself_and_names_what_cannot_be_stored():
    made = run(input={"$": "decimal", "v": "1.10"}, result=Decimal("1"), state={})
    made.full_clean(validate_unique=False, exclude=["queue"])
    assert made.input == {"$": "decimal", "v": "1.10"}
    assert made.result == Decimal("1")
    made.input = {"a": object()}
    with pytest.raises(ValidationError) as caught:
        made.full_clean()
    assert "$.a" in caught.value.message_dict["input"][0]
