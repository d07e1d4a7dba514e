"""``ctx.state`` reads the same on replay as the first time (D8)."""

from __future__ import annotations

from contextlib import nullcontext, suppress

import pytest
from freezegun import freeze_time

from django_finoflow import PayloadError, Retry, WorkflowError, activity, signal
from tests.making import Interruption, row

pytestmark = pytest.mark.django_db


def raising(error):
    def body():
        raise error

    return body


def test_d8_the_bag_reads_the_same_at_each_point_on_replay(make):
    readings = []

    @make
    def flow(ctx, input):
        seen = [ctx.state.get("n")]
        ctx.state.set("n", 1)
        seen.append(ctx.state.get("n"))
        ctx.step("add", lambda: ctx.state.set("n", ctx.state.get("n") + 1))
        seen.append(ctx.state.get("n"))
        ctx.state.clear("n")
        seen.append(ctx.state.get("n", "none"))
        readings.append(seen)
        ctx.wait_for_signal("go")
        return ctx.state.entries()

    run = flow.run()
    signal(run.run_id, "go")
    assert flow.resume(run.run_id).result == {}
    assert readings == [[None, 1, 2, "none"]] * 2


def test_d8_what_a_step_changes_is_recorded_with_it(make):
    calls = []

    @make
    def flow(ctx, input):
        ctx.step("fill", lambda: calls.append(1) or [ctx.state.set("a", 1), ctx.state.set("b", 2)])
        ctx.step("empty", lambda: calls.append(2) or ctx.state.clear("a"))
        ctx.wait_for_signal("go")
        return ctx.state.entries()

    run = flow.run()
    assert run.state.state == row(run.run_id).state == {"b": 2}
    signal(run.run_id, "go")
    assert flow.resume(run.run_id).result == {"b": 2}
    assert calls == [1, 2]


def test_d8_a_step_sees_its_own_changes_at_once(make):
    def body(ctx):
        ctx.state.set("n", 1)
        ctx.state.clear("before")
        return [ctx.state.get("n"), ctx.state.get("before", "cleared"), ctx.state.entries()]

    @make
    def flow(ctx, input):
        ctx.state.set("before", 0)
        return ctx.step("one", lambda: body(ctx))

    assert flow.run().result == [1, "cleared", {"n": 1}]


def test_d8_a_step_that_fails_changes_nothing_the_first_time_nor_on_replay(make):
    seen = []

    @make
    def flow(ctx, input):
        ctx.state.set("kept", 1)
        with pytest.raises(ValueError, match="no"):
            ctx.step("fails", lambda: ctx.state.set("kept", 2) or ctx.state.set("n", 1) or raising(ValueError("no"))())
        seen.append(ctx.state.entries())
        ctx.wait_for_signal("go")

    run = flow.run()
    signal(run.run_id, "go")
    assert flow.resume(run.run_id).state.state == {"kept": 1}
    assert seen == [{"kept": 1}] * 2


def test_d8_only_the_attempt_that_succeeds_counts(make):
    attempts = []

    @make
    def flow(ctx, input):
        def body():
            attempts.append(ctx.state.get("tries", 0))
            ctx.state.set("tries", ctx.state.get("tries", 0) + 1)
            if len(attempts) == 1:
                raise ValueError

        ctx.step("twice", body, retry=Retry(2, initial=0))
        return ctx.state.get("tries")

    assert flow.run().result == 1
    assert attempts == [0, 0]


def test_d8_what_a_step_changed_survives_a_process_that_died_before_the_next_park(make):
    die = Interruption()

    @make
    def flow(ctx, input):
        ctx.step("one", lambda: ctx.state.set("n", 1))
        die()
        return ctx.state.get("n")

    with pytest.raises(KeyboardInterrupt):
        flow.run(run_id="r")
    assert row("r").state is None
    assert row("r").snapshot().state == {"n": 1}
    die.armed = False
    assert flow.resume("r").result == 1


@pytest.mark.parametrize("frozen", [False, True], ids=["moving clock", "frozen clock"])
def test_d8_the_snapshot_of_a_parked_run_shows_what_the_body_left_whatever_its_steps_did_before(make, frozen):
    @make
    def flow(ctx, input):
        ctx.step("one", lambda: [ctx.state.set("n", "by the step"), ctx.state.set("gone", 1)])
        ctx.state.set("n", "by the body")
        ctx.state.clear("gone")
        ctx.wait_for_signal("go")

    with freeze_time("2030-01-01") if frozen else nullcontext():
        run = flow.run()
        assert run.state.state == row(run.run_id).snapshot().state == {"n": "by the body"}
        signal(run.run_id, "go")
        assert row(run.run_id).snapshot().state == {"n": "by the body"}
        assert flow.resume(run.run_id).state.state == {"n": "by the body"}


@freeze_time("2030-01-01")
def test_d8_nor_does_a_failure_that_was_caught_bring_back_what_the_body_has_changed(make):
    @make
    def flow(ctx, input):
        with pytest.raises(ValueError, match="no"):
            ctx.step("fails", raising(ValueError("no")))  # the cursor stays here
        ctx.step("one", lambda: ctx.state.set("n", "by the step"))
        ctx.state.set("n", "by the body")
        ctx.wait_for_signal("go")

    assert flow.run().state.state == {"n": "by the body"}


def test_d8_changing_a_value_that_was_set_or_read_changes_nothing(make):
    @make
    def flow(ctx, input):
        mine = {"items": [1]}
        ctx.state.set("k", mine)
        mine["items"].append(2)
        ctx.state.get("k")["items"].append(3)
        ctx.state.entries()["k"]["items"].append(4)
        return ctx.state.get("k")

    assert flow.run().result == {"items": [1]}


@pytest.mark.parametrize("value", [None, False, 0, "", (1, 2), {1: b"x"}], ids=repr)
def test_d8_every_storable_value_comes_back(make, value):
    @make
    def flow(ctx, input):
        ctx.step("set", lambda: ctx.state.set("k", value))
        ctx.wait_for_signal("go")
        return [ctx.state.get("k", "absent"), "k" in ctx.state.entries()]

    run = flow.run()
    signal(run.run_id, "go")
    assert flow.resume(run.run_id).result == [value, True]


def test_d8_what_cannot_be_stored_is_refused_where_it_is_set(make):
    @make
    def flow(ctx, input):
        with pytest.raises(PayloadError):
            ctx.state.set("k", object())
        with pytest.raises(TypeError, match="a key is text"):
            ctx.state.set(1, 1)
        with pytest.raises(PayloadError, match="MAX_PAYLOAD_BYTES"):
            ctx.state.set("k", "x" * 600_000)
        for key in ("nul \0", "\ud800"):
            with pytest.raises(PayloadError):
                ctx.state.set(key, 1)
        return ctx.state.entries()

    assert flow.run().result == {}


def test_d8_a_bag_that_was_taken_can_be_stored_however_many_bytes_its_letters_have(make):
    taken = []

    @make
    def flow(ctx, input):
        for key in ("a", "b", "c", "d", "e"):
            with suppress(PayloadError):
                ctx.state.set(key, "😀" * 60_000)
                taken.append(key)
        ctx.wait_for_signal("go")

    run = flow.run()
    assert run.status == "waiting"
    assert list(run.state.state) == taken == ["a", "b"]


def test_d8_an_activity_shares_the_runs_bag(make):
    count = activity(id="count")(lambda input, ctx: ctx.state.set("n", ctx.state.get("n", 0) + input))

    @make
    def flow(ctx, input):
        ctx.call(count, 2)
        ctx.call(count, 3)
        ctx.wait_for_signal("go")
        return ctx.state.get("n")

    run = flow.run()
    signal(run.run_id, "go")
    assert flow.resume(run.run_id).result == 5


def test_d8_the_bag_is_stored_with_the_end_of_the_run_too(make):
    @make
    def flow(ctx, input):
        ctx.state.set("n", 1)
        if input == "fails":
            raise ValueError

    assert row(flow.run().run_id).state == {"n": 1}
    with pytest.raises(WorkflowError) as failure:
        flow.run("fails")
    assert failure.value.state.state == {"n": 1}
