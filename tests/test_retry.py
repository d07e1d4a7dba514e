"""Rule T2: how often a step is tried, and how long the pauses are."""

import random
from datetime import timedelta

import pytest

from django_finoflow.exceptions import DefinitionError
from django_finoflow.retry import Retry


def even(max_attempts=3, **options):
    return Retry(max_attempts, jitter=0, **options)


def test_t2_the_defaults_are_half_a_second_doubled_up_to_thirty():
    policy = Retry(9)
    assert (policy.initial, policy.factor, policy.max_delay, policy.jitter) == ("500ms", 2, "30s", 0.5)
    assert [even().delay(failed) for failed in (1, 2, 3, 6, 7, 8)] == [0.5, 1, 2, 16, 30, 30]


def test_t2_pauses_take_every_form_of_duration():
    policy = even(initial=timedelta(seconds=2), factor=1.5, max_delay=4)
    assert [policy.delay(failed) for failed in (1, 2, 3)] == [2, 3, 4]


def test_t2_jitter_adds_up_to_its_share_and_never_takes_away():
    random.seed(1)
    pauses = [Retry(3).delay(1) for _ in range(500)]
    assert min(pauses) >= 0.5
    assert max(pauses) <= 0.75
    assert max(pauses) - min(pauses) > 0.2


def test_t2_jitter_comes_on_top_of_the_longest_pause():
    random.seed(1)
    pauses = [Retry(3, max_delay="500ms").delay(9) for _ in range(100)]
    assert 0.5 <= min(pauses) < max(pauses) <= 0.75


def test_t2_a_million_failures_overflow_nothing():
    assert even().delay(10**6) == 30
    assert even(factor=1).delay(10**6) == 0.5
    assert even(initial=0).delay(10**6) == 0


@pytest.mark.parametrize("attempts", [0, -1, -(10**9)])
def test_t2_below_one_attempt_counts_as_one(attempts):
    assert Retry(attempts).max_attempts == 1


@pytest.mark.parametrize("attempts", [True, False, 2.0, "3", None, float("inf")])
def test_t2_attempts_that_are_no_whole_number_are_refused(attempts):
    with pytest.raises(DefinitionError, match="max_attempts must be a whole number"):
        Retry(attempts)


@pytest.mark.parametrize(
    ("option", "value"),
    [
        ("initial", "soon"),
        ("initial", -1),
        ("initial", None),
        ("max_delay", True),
        ("max_delay", float("inf")),
        ("factor", 0.5),
        ("factor", float("nan")),
        ("factor", float("inf")),
        ("factor", "2"),
        ("factor", True),
        ("jitter", -0.1),
        ("jitter", float("nan")),
        ("jitter", 10**400),
        ("jitter", None),
    ],
)
def test_t2_options_out_of_range_are_refused_by_name_when_the_policy_is_made(option, value):
    with pytest.raises(DefinitionError, match=f"Retry: {option}"):
        Retry(3, **{option: value})


def test_t2_an_int_is_a_policy_of_so_many_attempts_and_none_is_the_default():
    default, own = Retry(1), Retry(7)
    assert Retry.of(5, default) == Retry(5)
    assert Retry.of(0, own) == Retry(1)
    assert Retry.of(own, default) is own
    assert Retry.of(None, default) is default


@pytest.mark.parametrize("value", [True, False, 1.5, "3", [3]])
def test_t2_a_retry_that_is_no_whole_number_is_refused(value):
    with pytest.raises(DefinitionError, match="whole number of attempts"):
        Retry.of(value, Retry(1))
