"""Rule T1: which durations are understood, and which are refused at once."""

from datetime import UTC, datetime, timedelta, timezone

import pytest
from freezegun import freeze_time

from django_finoflow import durations
from django_finoflow.exceptions import DurationError, FinoflowError

START = datetime(2026, 3, 1, 12, tzinfo=UTC)


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        ("250ms", 0.25),
        ("30s", 30),
        ("5m", 300),
        ("1.5h", 5400),
        (".5h", 1800),
        ("7d", 604800),
        (" 30S ", 30),
        ("2H", 7200),
        ("0s", 0),
        (timedelta(minutes=1, microseconds=5), 60.000005),
        (90, 90),
        (0.5, 0.5),
        (0, 0),
    ],
)
def test_t1_a_duration_is_a_timedelta_a_number_or_a_number_with_a_unit(value, expected):
    read = durations.seconds(value)
    assert read == pytest.approx(expected)
    assert type(read) is float


@pytest.mark.parametrize(
    "value",
    [
        True,
        False,
        None,
        "",
        "30",
        "s",
        "30 s",
        "1h30m",
        "-5s",
        "+5s",
        "1e3s",
        "3w",
        "5 minutes",
        "٣s",
        "30s\n30s",
        "9" * 400 + "d",
        float("nan"),
        float("inf"),
        float("-inf"),
        -1,
        -0.5,
        timedelta(seconds=-1),
        10**400,
        10**5000,
        b"30s",
        [30],
        START,
    ],
    ids=lambda value: f"{type(value).__name__}-{str(value)[:12] if not isinstance(value, int) else '…'}",
)
def test_t1_anything_else_is_refused_with_the_value_in_the_message(value):
    with pytest.raises(DurationError, match="is no duration: it must") as caught:
        durations.seconds(value)
    assert isinstance(caught.value, FinoflowError)
    shown = "of very many digits" if value == 10**5000 else repr(value)[:100]
    assert shown in str(caught.value)
    assert len(str(caught.value)) < 400


def test_t1_the_message_says_which_forms_are_taken():
    with pytest.raises(DurationError) as caught:
        durations.seconds("5 minutes")
    for form in ("timedelta", "number of seconds", "250ms", "1.5h", "7d"):
        assert form in str(caught.value)


def test_t1_a_deadline_lies_a_duration_after_its_start():
    assert durations.due("90d", START) == START + timedelta(days=90)
    assert durations.due(0, START) == START


def test_t1_an_aware_datetime_is_a_deadline_as_it_is():
    moment = datetime(2020, 1, 1, tzinfo=timezone(timedelta(hours=5)))
    assert durations.due(moment, START) is moment


@pytest.mark.parametrize(
    ("value", "reason"),
    [
        (datetime(2026, 3, 1), "aware"),
        ("99999999d", "beyond the years"),
        (1e300, "beyond the years"),
        (timedelta.max, "beyond the years"),
        (datetime.max.replace(tzinfo=timezone(timedelta(hours=-12))), "beyond the years"),
        (datetime.min.replace(tzinfo=timezone(timedelta(hours=12))), "beyond the years"),
        (True, "must be"),
        (None, "must be"),
    ],
)
def test_t1_a_deadline_that_no_datetime_can_hold_is_refused(value, reason):
    with pytest.raises(DurationError, match=reason):
        durations.due(value, START)


@pytest.mark.parametrize("value", [None, "30s", 0, timedelta(days=1), START])
def test_t1_a_definition_takes_what_a_deadline_takes(value):
    durations.check(value)


@pytest.mark.parametrize("value", ["soon", True, datetime(2026, 3, 1), 1e300])
def test_t1_a_definition_refuses_what_a_deadline_refuses(value):
    with pytest.raises(DurationError):
        durations.check(value)


@freeze_time("2026-03-01T12:00:00Z")
def test_t1_frozen_time_does_not_hide_naive_datetimes():
    with pytest.raises(DurationError, match="aware"):
        durations.due(datetime.now(), START)
    now = datetime.now(UTC)
    assert durations.due(now, START) is now
