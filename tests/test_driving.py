"""Driving a run: what is recorded is returned, what is not is done, and what no longer fits is set aside (D1–D16)."""

from __future__ import annotations

import threading
from contextlib import suppress
from dataclasses import dataclass
from decimal import Decimal
from typing import Any

import pytest
from django.contrib.auth import get_user_model
from django.db import DatabaseError, IntegrityError, connection, transaction

from django_finoflow import (
    CheckpointRefused,
    DefinitionError,
    DriveRefused,
    FinoflowError,
    KeyConflict,
    NonRetryable,
    PayloadError,
    RunExists,
    RunLeased,
    RunNotFound,
    RunNotResumable,
    StepFailed,
    UnknownWorkflow,
    ValidationFailed,
    WorkflowError,
    activity,
    cancel,
    current_step,
    delete_run,
    get_run,
    leases,
    retry_run,
    signal,
    start,
    stops,
)
from django_finoflow.models import Execution, Signal, Step, Wait
from tests.making import COMMITTED, Interruption, outline, row
from tests.testapp.models import Entry, Slot

pytestmark = pytest.mark.django_db


# -- D1, D2: done once, and the same each time -------------------------------------------------------------------------


def test_d1_a_step_that_is_done_is_never_called_again(make):
    calls = []

    @make
    def flow(ctx, input):
        first = ctx.step("first", lambda: calls.append("first") or "one")
        ctx.wait_for_signal("go")
        return [first, ctx.step("second", lambda: calls.append("second") or "two")]

    run = flow.run()
    assert run.status == "waiting"
    flow.signal(run.run_id, "go")
    assert flow.resume(run.run_id).result == ["one", "two"]
    assert calls == ["first", "second"]


@pytest.mark.parametrize("nothing", [None, False, 0, "", [], {}, 0.0])
def test_d1_a_step_that_returned_nothing_much_is_done_all_the_same(make, nothing):
    calls = []

    @make
    def flow(ctx, input):
        got = ctx.step("quiet", lambda: calls.append(1) or nothing)
        ctx.wait_for_signal("go")
        return [got]

    run = flow.run()
    flow.signal(run.run_id, "go")
    result = flow.resume(run.run_id).result
    assert result == [nothing]
    assert type(result[0]) is type(nothing)
    assert calls == [1]


def test_d1_an_activity_that_is_done_is_never_called_again(make):
    calls = []
    fetch = activity(id="fetch")(lambda input, ctx: calls.append(input) or {"got": input})

    @make
    def flow(ctx, input):
        got = ctx.call(fetch, {"n": 1})
        ctx.wait_for_signal("go")
        return got

    run = flow.run()
    signal(run.run_id, "go")
    assert flow.resume(run.run_id).result == {"got": {"n": 1}}
    assert calls == [{"n": 1}]


def test_d1_what_was_recorded_before_the_process_died_is_kept(make):
    calls, die = [], Interruption()

    @make
    def flow(ctx, input):
        ctx.step("charge", lambda: calls.append("charge"))
        ctx.step("mail", lambda: die() or calls.append("mail"))

    with pytest.raises(KeyboardInterrupt):
        flow.run(run_id="order-1")
    die.armed = False
    assert flow.resume("order-1").status == "done"
    assert calls == ["charge", "mail"]


def test_d2_the_caller_first_gets_what_a_replay_gets(make):
    seen = []

    class Loud(str):
        pass

    @make
    def flow(ctx, input):
        seen.append(ctx.step("make", lambda: {"b": (1, 2), "a": Loud("x"), 3: None}))
        ctx.wait_for_signal("go")

    run = flow.run()
    signal(run.run_id, "go")
    flow.resume(run.run_id)
    first, again = seen
    assert first == again == {"b": (1, 2), "a": "x", 3: None}
    assert [type(value) for value in first.values()] == [type(value) for value in again.values()]
    assert type(first["a"]) is str


def test_d2_changing_a_result_changes_nothing_recorded_and_nothing_of_the_steps_own(make):
    own, seen = {"items": [1]}, []

    @make
    def flow(ctx, input):
        got = ctx.step("make", lambda: own)
        seen.append(list(got["items"]))
        got["items"].append("changed by the body")
        ctx.wait_for_signal("go")
        return got

    run = flow.run()
    signal(run.run_id, "go")
    flow.resume(run.run_id)
    assert seen == [[1], [1]]
    assert own == {"items": [1]}
    assert row(run.run_id).steps.get(step_id="make").result == {"items": [1]}


def test_d2_what_the_body_does_to_its_input_is_not_stored(make):
    seen = []

    @make
    def flow(ctx, input):
        seen.append(dict(input))
        input["amount"] = 0
        ctx.wait_for_signal("go")

    run = flow.run({"amount": 100})
    signal(run.run_id, "go")
    flow.resume(run.run_id)
    assert seen == [{"amount": 100}, {"amount": 100}]
    assert row(run.run_id).input == {"amount": 100}


def test_d2_a_gate_shows_the_input_as_it_was_given_whatever_the_body_did_to_it(make):
    @make
    def flow(ctx, input):
        input["amount"] = 1
        ctx.wait_for_approval("pay")

    run = flow.run({"amount": 100})
    assert row(run.run_id).waits.get().approval["show"] == {"amount": 100}


# -- D3: known by position and id --------------------------------------------------------------------------------------


def plain_step(id):
    return lambda ctx: ctx.step(id, lambda: "done")


def a_call(id):
    return lambda ctx: ctx.call(activity(id=id)(lambda input, ctx: "done"))


def a_sleep(id):
    return lambda ctx: ctx.sleep(id, 0)


def a_signal(name):
    return lambda ctx: ctx.wait_for_signal(name)


def a_gate(name):
    return lambda ctx: ctx.wait_for_approval(name)


def parked_behind(make, checkpoint) -> tuple[Any, str]:
    """A run that did ``checkpoint`` at position 0 and then waits at position 1."""

    @make
    def flow(ctx, input):
        checkpoint(ctx)
        ctx.wait_for_signal("then")

    run_id = flow.run().run_id
    if row(run_id).waits.filter(index=0, outcome="open").exists():
        signal(run_id, row(run_id).waits.get().name)
        flow.resume(run_id)
    assert row(run_id).waits.get(name="then").index == 1
    return flow, run_id


MISMATCHES = {
    "a renamed step": (plain_step("pay"), plain_step("pay-twice"), 'step "pay"', 'step "pay-twice"'),
    "a step that became a call": (plain_step("pay"), a_call("pay"), 'step "pay"', 'activity "pay"'),
    "a call that became a step": (a_call("pay"), plain_step("pay"), 'activity "pay"', 'step "pay"'),
    "a renamed call": (a_call("pay"), a_call("collect"), 'activity "pay"', 'activity "collect"'),
    "a sleep that became a signal": (a_sleep("rest"), a_signal("rest"), 'sleep "rest"', 'signal "rest"'),
    "a sleep that became a step": (a_sleep("rest"), plain_step("rest"), 'sleep "rest"', 'step "rest"'),
    "a renamed sleep": (a_sleep("rest"), a_sleep("nap"), 'sleep "rest"', 'sleep "nap"'),
    "a step that became a sleep": (plain_step("rest"), a_sleep("rest"), 'step "rest"', 'sleep "rest"'),
    "a signal that became a gate": (a_signal("ok"), a_gate("ok"), 'signal "ok"', 'approval "ok"'),
    "a gate that became a signal": (a_gate("ok"), a_signal("ok"), 'approval "ok"', 'signal "ok"'),
    "a renamed signal": (a_signal("ok"), a_signal("yes"), 'signal "ok"', 'signal "yes"'),
}


@pytest.mark.parametrize("case", MISMATCHES)
def test_d3_another_id_or_kind_at_a_position_makes_the_run_stuck_and_says_what_differs(make, case):
    before, after, recorded, asked = MISMATCHES[case]
    flow, run_id = parked_behind(make, before)
    calls = []

    def changed(ctx, input):
        after(ctx)
        ctx.step("new", lambda: calls.append("new"))

    result = make.redeploy(flow, changed).resume(run_id)
    run = row(run_id)
    assert (result.status, run.status, run.stuck_reason) == ("stuck", "stuck", "replay-mismatch")
    for part in ("position 0", recorded, asked):
        assert part in run.error["message"]
    assert calls == []
    assert run.finished_at is None
    assert run.rollback == ""
    assert not run.steps.exclude(compensation="").exists()
    assert run.waits.get(name="then").outcome == "open"


@pytest.mark.parametrize("how", ["returns", "raises", "raises SystemExit"])
def test_d3_a_body_that_ends_before_what_it_has_recorded_is_a_mismatch(make, how):
    flow, run_id = parked_behind(make, plain_step("pay"))

    def shorter(ctx, input):
        ctx.step("pay", lambda: None)
        if how == "raises":
            raise ValueError("not the run's error")
        if how == "raises SystemExit":
            raise SystemExit(1)

    assert make.redeploy(flow, shorter).resume(run_id).status == "stuck"
    run = row(run_id)
    assert run.stuck_reason == "replay-mismatch"
    for part in ("position 1", 'signal "then"', "nothing more"):
        assert part in run.error["message"]


def test_d3_the_mismatch_is_the_runs_error_until_the_old_code_is_back(make):
    flow, run_id = parked_behind(make, plain_step("pay"))
    old = flow.body
    other = make.redeploy(flow, lambda ctx, input: ctx.step("other", lambda: None))
    other.resume(run_id)
    assert set(row(run_id).snapshot().error) == {"type", "message", "traceback"}
    again = make.redeploy(other, old)
    assert again.resume(run_id).status == "waiting"
    assert row(run_id).error is None
    assert row(run_id).stuck_reason == ""
    signal(run_id, "then")
    assert again.resume(run_id).status == "done"


def test_d3_swallowing_the_mismatch_does_not_get_a_body_past_it(make):
    flow, run_id = parked_behind(make, plain_step("pay"))
    calls = []

    def stubborn(ctx, input):
        for id in ("other", "another"):
            with suppress(BaseException):
                ctx.step(id, lambda: calls.append(1))
        return "done after all"

    assert make.redeploy(flow, stubborn).resume(run_id).status == "stuck"
    assert calls == []
    assert 'step "other"' in row(run_id).error["message"]


def test_d3_a_step_that_waits_for_its_next_attempt_must_be_asked_for_again(make):
    def fails():
        raise ValueError("down")

    @make
    def flow(ctx, input):
        ctx.step("pay", fails, retry=5)

    from django_finoflow import Retry

    slow = make.redeploy(flow, lambda ctx, input: ctx.step("pay", fails, retry=Retry(5, initial="1h", max_delay="1h")))
    run_id = slow.run().run_id
    assert row(run_id).status == "waiting"
    renamed = make.redeploy(slow, lambda ctx, input: ctx.step("collect", lambda: None))
    assert renamed.resume(run_id).status == "stuck"


def test_d3_the_same_id_may_repeat_at_other_positions(make):
    calls = []

    @make
    def flow(ctx, input):
        got = [ctx.step("poll", lambda n=n: calls.append(n) or n) for n in range(3)]
        ctx.wait_for_signal("go")
        ctx.wait_for_signal("go")
        return [*got, ctx.step("poll", lambda: calls.append(3) or 3)]

    run = flow.run()
    for _ in range(2):
        signal(run.run_id, "go")
        result = flow.resume(run.run_id)
    assert result.result == [0, 1, 2, 3]
    assert calls == [0, 1, 2, 3]


def test_d3_code_added_behind_the_place_a_run_is_parked_at_takes_effect(make):
    flow, run_id = parked_behind(make, plain_step("pay"))

    def longer(ctx, input):
        ctx.step("pay", lambda: None)
        ctx.wait_for_signal("then")
        return ctx.step("added", lambda: "new code")

    again = make.redeploy(flow, longer)
    signal(run_id, "then")
    assert again.resume(run_id).result == "new code"


# -- D4: positions and cursor ------------------------------------------------------------------------------------------


def test_d4_positions_count_checkpoints_of_all_kinds_in_call_order(make):
    act = activity(id="act")(lambda input, ctx: None)

    @make
    def flow(ctx, input):
        ctx.step("one", lambda: None)
        ctx.call(act)
        ctx.sleep("rest", 0)
        ctx.wait_for_signal("go")

    state = flow.run().state
    assert [(step.index, step.id, step.kind) for step in state.steps] == [
        (0, "one", "step"),
        (1, "act", "activity"),
        (2, "rest", "timer"),
    ]
    assert (state.cursor, state.waiting_on.index) == (3, 3)


def test_d4_the_cursor_is_the_first_position_not_yet_done(make):
    @make
    def flow(ctx, input):
        ctx.step("fine", lambda: None)
        with pytest.raises(ValueError, match="broken"):
            ctx.step("broken", fails)
        ctx.step("fine again", lambda: None)

    def fails():
        raise ValueError("broken")

    run = flow.run()
    assert outline(run.run_id) == [(0, "fine", "done"), (1, "broken", "failed"), (2, "fine again", "done")]
    assert run.state.cursor == row(run.run_id).cursor == 1


def test_d4_a_refused_argument_takes_no_position(make):
    @make
    def flow(ctx, input):
        for wrong in (lambda: ctx.step("", print), lambda: ctx.step("x", "not a function"), lambda: ctx.sleep("x", -1)):
            with pytest.raises(ValueError, match=r"name|function|duration"):
                wrong()
        ctx.step("first", lambda: None)

    assert outline(flow.run().run_id) == [(0, "first", "done")]


# -- D5: the fence -----------------------------------------------------------------------------------------------------


def test_d5_a_checkpoint_is_stored_before_the_next_side_effect_begins(make):
    stored = []

    @make
    def flow(ctx, input):
        ctx.step("one", lambda: None)
        ctx.step("two", lambda: stored.append(outline(ctx.run_id)))

    flow.run()
    assert stored == [[(0, "one", "done")]]


@COMMITTED
def test_d5_a_plain_step_is_one_statement_and_one_commit(make, django_assert_num_queries):
    @make
    def flow(ctx, input):
        with django_assert_num_queries(1):
            ctx.step("one", lambda: None)

    flow.run()


def take_over(run_id):
    """Let somebody else lease the run: what a claim does once the lease has run out."""
    Execution.objects.filter(run_id=run_id).update(lease_until=None)
    assert leases.take(row(run_id).pk, "somebody else")


@pytest.mark.parametrize("outcome", ["returns", "fails", "fails with another attempt"])
def test_d5_nothing_is_written_for_a_lease_that_is_gone(make, outcome):
    calls = []

    @make
    def flow(ctx, input):
        ctx.step("slow", body, retry=3 if "another" in outcome else 1)
        ctx.step("next", lambda: calls.append("next"))

    def body():
        take_over("contested")
        if outcome != "returns":
            raise ValueError("too late to matter")

    result = flow.run(run_id="contested")
    assert result.status == "running"
    assert not Step.objects.exists()
    assert calls == []
    assert row("contested").lease_owner == "somebody else"


@pytest.mark.parametrize("what", ["sleep", "signal", "end", "failure"])
def test_d5_a_drive_that_lost_its_lease_neither_parks_nor_ends_the_run(make, what):
    @make
    def flow(ctx, input):
        take_over("contested")
        if what == "sleep":
            ctx.sleep("rest", "1h")
        elif what == "signal":
            ctx.wait_for_signal("go")
        elif what == "failure":
            raise ValueError("not ours to fail")
        return "not ours to end"

    result = flow.run(run_id="contested")
    run = row("contested")
    assert (result.status, run.status, run.result, run.error) == ("running", "running", None, None)
    assert (run.lease_owner, run.waits.count()) == ("somebody else", 0)


def test_d5_cursor_and_state_are_computed_from_the_rows_until_the_next_park(make):
    seen = []

    @make
    def flow(ctx, input):
        ctx.step("one", lambda: ctx.state.set("k", 1))
        seen.append((row(ctx.run_id).cursor, row(ctx.run_id).state, row(ctx.run_id).snapshot()))
        ctx.wait_for_signal("go")

    run = flow.run()
    cursor, state, snapshot = seen[0]
    assert (cursor, state) == (0, None)
    assert (snapshot.cursor, snapshot.state) == (1, {"k": 1})
    assert snapshot.updated_at >= snapshot.steps[0].finished_at
    assert (row(run.run_id).cursor, row(run.run_id).state) == (1, {"k": 1})


def test_d5_a_run_cannot_be_driven_inside_the_callers_transaction(make):
    @make
    def flow(ctx, input):
        return "done"

    with transaction.atomic():
        with pytest.raises(DriveRefused, match="start"):
            flow.run(run_id="mine")
        assert get_run("mine") is None
        run = flow.start()
        with pytest.raises(DriveRefused):
            flow.resume(run.run_id)
    assert flow.resume(run.run_id).result == "done"


@COMMITTED
@pytest.mark.only_postgresql(reason="SQLite has no autocommit to leave")
def test_d5_nor_with_autocommit_off(make):
    flow = make(lambda ctx, input: None, id="flow")
    transaction.set_autocommit(False)
    try:
        with pytest.raises(DriveRefused):
            flow.run()
    finally:
        transaction.rollback()
        transaction.set_autocommit(True)


@COMMITTED
@pytest.mark.only_postgresql(reason="SQLite has no connection to lose")
@pytest.mark.parametrize("lost", ["the question", "the answer"])
@pytest.mark.parametrize("table", ["finoflow_step", "finoflow_wait"])
def test_d5_a_write_whose_answer_is_lost_is_read_again_before_anything_is_decided(make, lost, table):
    calls, cut = [], []

    def cutting(execute, sql, params, many, context):
        if f"INSERT INTO {table}" in sql.replace('"', "") and not cut:
            cut.append(sql)
            if lost == "the answer":
                execute(sql, params, many, context)
                connection.connection.commit()
            connection.connection.close()
        return execute(sql, params, many, context)

    @make
    def flow(ctx, input):
        ctx.step("pay", lambda: calls.append("pay"), retry=3)
        ctx.wait_for_signal("go")

    with connection.execute_wrapper(cutting):
        run = flow.run()
    assert cut
    assert run.status == "waiting"
    assert calls == ["pay"]
    assert run.state.steps[0].attempts == 1
    assert row(run.run_id).waits.count() == 1


# -- D7: failures are recorded -----------------------------------------------------------------------------------------


class OutOfStock(Exception):
    """An error of the kind that is easy to make again."""

    def __init__(self, item, left=0):
        super().__init__(item, left)
        self.item, self.left = item, left


class Awkward(Exception):
    """An error that cannot be made again from its arguments."""

    def __init__(self, *, code, response):
        super().__init__(f"code {code}")
        self.response = response


def raising(error):
    def body():
        raise error

    return body


def caught_twice(make, error) -> list[BaseException]:
    """What the body catches of a step that raises ``error``, the first time and on replay."""
    caught = []

    @make
    def flow(ctx, input):
        try:
            ctx.step("fails", raising(error))
        except Exception as raised:
            caught.append(raised)
        ctx.wait_for_signal("go")
        return "went on"

    run = flow.run()
    signal(run.run_id, "go")
    assert flow.resume(run.run_id).result == "went on"
    assert row(run.run_id).steps.get().status == "failed"
    return caught


@pytest.mark.parametrize(
    "error",
    [
        ValueError("bad", 7),
        KeyError("k"),
        OutOfStock("tea", left=2),
        OSError(2, "no such file", "x.txt"),
        Slot.DoesNotExist("s"),
    ],
    ids=lambda error: type(error).__name__,
)
def test_d7_a_failed_step_raises_an_equal_error_on_replay(make, error):
    first, again = caught_twice(make, error)
    assert type(first) is type(again) is type(error)
    assert first.args == again.args == error.args
    assert str(first) == str(again) == str(error)
    assert vars(again) == vars(error)


@pytest.mark.parametrize(
    ("error", "name", "message"),
    [
        (Awkward(code=5, response=object()), "tests.test_driving.Awkward", "code 5"),
        (SystemExit(3), "SystemExit", "3"),
        (GeneratorExit("x"), "GeneratorExit", "x"),
        (ExceptionGroup("two", [ValueError("a")]), "ExceptionGroup", "two (1 sub-exception)"),
        (type("Local", (Exception,), {})("gone"), "tests.test_driving.Local", "gone"),
    ],
    ids=["odd constructor", "SystemExit", "GeneratorExit", "group", "class that nothing finds"],
)
def test_d7_an_error_that_cannot_be_made_again_is_step_failed_both_times(make, error, name, message):
    for caught in caught_twice(make, error):
        assert type(caught) is StepFailed
        assert (caught.type, caught.message) == (name, message)


def test_d7_the_first_error_has_the_original_as_its_cause(make):
    original = OutOfStock("tea")
    first, again = caught_twice(make, original)
    assert first.__cause__ is original
    assert again.__cause__ is None


def test_d7_a_step_that_failed_is_not_called_again_on_replay(make):
    calls = []

    @make
    def flow(ctx, input):
        with pytest.raises(ValueError, match="no"):
            ctx.step("fails", lambda: calls.append(1) or raising(ValueError("no"))())
        ctx.wait_for_signal("go")

    run = flow.run()
    signal(run.run_id, "go")
    flow.resume(run.run_id)
    assert calls == [1]


def test_d7_a_database_error_in_a_step_is_that_steps_error_and_the_run_goes_on(make):
    Slot.objects.create(label="taken")

    @make
    def flow(ctx, input):
        try:
            ctx.step("claim", lambda: Slot.objects.create(label="taken").pk)
        except Exception as error:
            name = type(error).__name__
        return [name, ctx.step("next", lambda: Slot.objects.create(label="free").label)]

    assert flow.run().result == ["IntegrityError", "free"]
    assert set(Slot.objects.values_list("label", flat=True)) == {"taken", "free"}


@COMMITTED
def test_d7_a_database_error_in_a_step_outside_a_test_case_too(make):
    test_d7_a_database_error_in_a_step_is_that_steps_error_and_the_run_goes_on(make)


@COMMITTED
@pytest.mark.only_postgresql(reason="SQLite has no connection to lose")
def test_d7_a_connection_lost_inside_a_step_is_that_steps_failure(make):
    def lose():
        with connection.cursor() as cursor:
            cursor.execute("SELECT pg_terminate_backend(pg_backend_pid())")

    @make
    def flow(ctx, input):
        try:
            ctx.step("lose", lose)
        except Exception as error:
            return [type(error).__name__, ctx.step("next", lambda: Entry.objects.count())]

    assert flow.run().result == ["OperationalError", 0]


def test_t8_a_database_error_that_a_body_hushes_up_inside_a_test_case_is_its_failure_and_the_run_goes_on(make):
    """A TestCase is one transaction, which such an error breaks: Django's own rule is to catch around atomic()."""
    Slot.objects.create(label="taken")

    def claim():
        with suppress(IntegrityError):
            Slot.objects.create(label="taken")

    @make
    def flow(ctx, input):
        with pytest.raises(DatabaseError):
            ctx.step("claim", claim)
        return ctx.step("next", Slot.objects.count)

    assert flow.run().result == 1


@COMMITTED
def test_d7_and_outside_of_one_no_failure_at_all(make):
    Slot.objects.create(label="taken")

    def claim():
        with suppress(IntegrityError):
            Slot.objects.create(label="taken")
        return Slot.objects.count()

    assert make(lambda ctx, input: ctx.step("claim", claim), id="flow").run().result == 1


def test_d7_a_database_error_that_a_step_catches_itself_does_not_stop_it_from_being_recorded(make):
    Slot.objects.create(label="taken")

    def claim():
        try:
            with transaction.atomic():
                Slot.objects.create(label="taken")
        except Exception:
            return "somebody has it"

    @make
    def flow(ctx, input):
        return ctx.step("claim", claim)

    assert flow.run().result == "somebody has it"


# -- D9: how a drive stops ---------------------------------------------------------------------------------------------


def test_d9_except_exception_does_not_swallow_a_park(make):
    @make
    def flow(ctx, input):
        try:
            ctx.wait_for_signal("go")
        except Exception:
            return "swallowed"

    assert flow.run().status == "waiting"


def test_d9_a_body_that_swallows_its_park_meets_it_again_and_is_parked_all_the_same(make):
    calls = []

    @make
    def flow(ctx, input):
        for checkpoint in (
            lambda: ctx.wait_for_signal("go"),
            lambda: ctx.step("later", lambda: calls.append("later")),
            lambda: ctx.sleep("rest", 0),
        ):
            with pytest.raises(stops.Parked):
                checkpoint()
        return "returned although parked"

    run = flow.run()
    assert (run.status, run.result, run.waiting_on.name) == ("waiting", None, "go")
    assert calls == []
    assert row(run.run_id).waits.count() == 1


def test_d9_a_body_that_raises_although_parked_is_parked(make):
    @make
    def flow(ctx, input):
        try:
            ctx.wait_for_signal("go")
        except BaseException:
            raise ValueError("instead") from None

    assert flow.run().status == "waiting"


def test_d9_finally_blocks_run_at_each_park(make):
    calls = []

    @make
    def flow(ctx, input):
        try:
            ctx.wait_for_signal("go")
        finally:
            calls.append("finally")

    run = flow.run()
    signal(run.run_id, "go")
    flow.resume(run.run_id)
    assert calls == ["finally", "finally"]


def test_d9_a_checkpoint_in_a_finally_block_is_not_made_while_parking(make):
    calls = []

    @make
    def flow(ctx, input):
        try:
            ctx.wait_for_signal("go")
        finally:
            ctx.step("clean-up", lambda: calls.append("clean-up"))

    run = flow.run()
    assert (run.status, calls) == ("waiting", [])
    signal(run.run_id, "go")
    assert flow.resume(run.run_id).status == "done"
    assert calls == ["clean-up"]


@pytest.mark.parametrize("which", ["step", "call", "sleep", "signal", "approval"])
def test_d9_a_checkpoint_inside_a_steps_body_is_refused(make, which):
    def inner(ctx):
        checkpoints = {
            "step": lambda: ctx.step("inner", lambda: None),
            "call": lambda: ctx.call(activity(id="inner")(lambda input, ctx: None)),
            "sleep": lambda: ctx.sleep("inner", "1h"),
            "signal": lambda: ctx.wait_for_signal("inner"),
            "approval": lambda: ctx.wait_for_approval("inner"),
        }
        return checkpoints[which]()

    @make
    def flow(ctx, input):
        with pytest.raises(CheckpointRefused, match="inside a step"):
            ctx.step("outer", lambda: inner(ctx))
        return ctx.step("next", lambda: "went on")

    run = flow.run()
    assert run.result == "went on"
    assert outline(run.run_id) == [(0, "outer", "failed"), (1, "next", "done")]


def test_d9_a_checkpoint_in_another_thread_is_refused(make):
    refused = []

    @make
    def flow(ctx, input):
        def elsewhere():
            try:
                ctx.step("elsewhere", lambda: None)
            except BaseException as error:
                refused.append(error)

        thread = threading.Thread(target=elsewhere)
        thread.start()
        thread.join()
        return ctx.step("here", lambda: "fine")

    run = flow.run()
    assert [type(error) for error in refused] == [CheckpointRefused]
    assert outline(run.run_id) == [(0, "here", "done")]


@pytest.mark.parametrize("transactional", [False, True], ids=["in a TestCase", "for real"])
def test_d9_a_checkpoint_inside_a_transaction_of_the_bodys_is_refused(make, transactional, request):
    if transactional:
        request.getfixturevalue("transactional_db")

    @make
    def flow(ctx, input):
        with transaction.atomic():
            Entry.objects.create(run_id=ctx.run_id, label="written by the body")
            ctx.step("inside", lambda: None)

    with pytest.raises(WorkflowError, match="atomic=True") as failure:
        flow.run()
    assert type(failure.value.__cause__) is CheckpointRefused
    assert failure.value.state.status == "error"
    assert failure.value.state.steps == ()
    assert not Entry.objects.exists()


def test_d9_deep_recursion_in_a_body_is_an_error_like_any_other(make):
    @make
    def flow(ctx, input):
        def down(n):
            return down(n + 1)

        with pytest.raises(RecursionError):
            ctx.step("deep", lambda: down(0))
        return down(0)

    with pytest.raises(WorkflowError) as failure:
        flow.run()
    assert type(failure.value.__cause__) is RecursionError
    assert failure.value.state.error["type"] == "RecursionError"


@pytest.mark.parametrize("stops", ["abort", "cancel", "lost lease"])
def test_d9_a_body_that_swallows_any_other_stop_is_not_done_either(make, stops):
    abort, calls = threading.Event(), []

    @make
    def flow(ctx, input):
        ctx.step("one", lambda: {"abort": abort.set, "cancel": lambda: cancel("r"), "lost lease": lose}[stops]())
        return "not reached"

    def lose():
        take_over("r")

    def swallowing(ctx, input):
        with suppress(BaseException):
            flow.body(ctx, input)
            ctx.step("two", lambda: calls.append("two"))
        return "returned all the same"

    run = make.redeploy(flow, swallowing).run(run_id="r", abort=abort)
    assert run.status == ("cancelled" if stops == "cancel" else "running")
    assert (run.result, calls) == (None, [])


# -- D10: schemas at the borders ---------------------------------------------------------------------------------------


def whole(value):
    if not isinstance(value, int):
        raise ValueError(f"{value!r} is no whole number")


def test_d10_input_is_validated_before_a_row_exists(make):
    flow = make(lambda ctx, input: input, id="flow", input_schema=whole)
    for begin in (flow.start, flow.run, lambda input: start("flow", input)):
        with pytest.raises(ValidationFailed, match=r'The input of workflow "flow".*no whole number'):
            begin("many")
    assert not Execution.objects.exists()
    assert flow.run(3).result == 3


def test_d10_input_that_cannot_be_stored_makes_no_row(make):
    flow = make(lambda ctx, input: input, id="flow")
    for begin in (flow.start, flow.run):
        with pytest.raises(PayloadError):
            begin({"what": object()})
    assert not Execution.objects.exists()


def test_d10_output_is_validated_before_the_run_is_done(make):
    good = []
    flow = make(lambda ctx, input: 5 if good else "five", id="flow", output_schema=whole)
    with pytest.raises(WorkflowError, match="The result of workflow") as failure:
        flow.run(run_id="r")
    assert type(failure.value.__cause__) is ValidationFailed
    assert (row("r").status, row("r").result) == ("error", None)
    good.append(True)
    assert flow.resume("r").result == 5
    assert row("r").error is None


def test_d10_a_result_that_cannot_be_stored_makes_the_run_an_error(make):
    flow = make(lambda ctx, input: object(), id="flow")
    with pytest.raises(WorkflowError) as failure:
        flow.run()
    assert type(failure.value.__cause__) is PayloadError
    assert failure.value.state.status == "error"


def test_d10_a_callable_schema_gives_the_value_to_keep_and_is_not_run_again_on_replay(make):
    calls = []

    def trimmed(text):
        calls.append(text)
        return text.strip()

    @make(input_schema=trimmed)
    def flow(ctx, input):
        ctx.wait_for_signal("go")
        return input

    run = flow.run("  tea ")
    signal(run.run_id, "go")
    assert flow.resume(run.run_id).result == "tea"
    assert calls == ["  tea "]
    assert row(run.run_id).input == "tea"


@dataclass
class Claim:
    """An input with a shape of its own."""

    amount: Decimal
    note: str = ""


def test_d10_the_body_gets_the_schemas_instance_both_times_and_the_row_holds_its_plain_data(make):
    seen = []
    act = activity(id="act", input_schema=Claim, output_schema=Claim)(lambda input, ctx: Claim(input.amount * 2))

    @make(input_schema=Claim, output_schema=Claim)
    def flow(ctx, input):
        seen.append((input, ctx.call(act, input)))
        ctx.wait_for_signal("go")
        return seen[-1][1]

    run = flow.run({"amount": Decimal("1.50")})
    signal(run.run_id, "go")
    assert flow.resume(run.run_id).result == {"amount": Decimal("3.00"), "note": ""}
    assert seen == [(Claim(Decimal("1.50")), Claim(Decimal("3.00")))] * 2
    assert row(run.run_id).input == {"amount": Decimal("1.50"), "note": ""}


def test_d10_a_workflow_that_returns_none_ends(make):
    result = make(lambda ctx, input: None, id="flow").run()
    assert (result.status, result.result) == ("done", None)
    assert row(result.run_id).finished_at is not None


# -- D11: ids and keys -------------------------------------------------------------------------------------------------


def test_d11_a_run_id_in_use_is_refused_and_nothing_is_changed(make):
    flow = make(lambda ctx, input: input, id="flow")
    flow.run(1, run_id="mine")
    before = Execution.objects.values().get()
    for begin in (flow.start, flow.run):
        with pytest.raises(RunExists, match="mine"):
            begin(2, run_id="mine")
    assert Execution.objects.values().get() == before


def test_d11_a_key_in_use_returns_the_run_whatever_id_was_asked(make):
    flow = make(lambda ctx, input: input, id="flow")
    first = flow.start({"n": 1}, key="invoice-7")
    again = flow.start({"n": 1}, key="invoice-7", run_id="another")
    assert (first.created, again.created) == (True, False)
    assert again.run_id == first.run_id
    assert Execution.objects.count() == 1


def test_d11_a_key_in_use_with_another_input_is_a_conflict(make):
    flow = make(lambda ctx, input: input, id="flow")
    first = flow.start({"n": 1}, key="invoice-7")
    with pytest.raises(KeyConflict, match=first.run_id):
        flow.start({"n": 2}, key="invoice-7")
    with pytest.raises(KeyConflict):
        flow.start({"n": True}, key="invoice-7")  # equal in Python, another value all the same
    assert row(first.run_id).input == {"n": 1}


def test_d11_keys_belong_to_their_workflow(make):
    one, two = make(lambda ctx, input: None, id="one"), make(lambda ctx, input: None, id="two")
    assert one.start(key="k").run_id != two.start(key="k").run_id
    assert one.start().key is None
    assert one.start().created


def test_d11_run_with_a_key_drives_the_run_that_has_it(make):
    calls = []

    @make
    def flow(ctx, input):
        calls.append("body")
        return ctx.step("pay", lambda: calls.append("pay") or "paid")

    started = flow.start(key="k")
    run = flow.run(key="k")
    assert (run.run_id, run.result) == (started.run_id, "paid")
    again = flow.run(key="k", run_id="other")
    assert (again.run_id, again.result) == (started.run_id, "paid")
    assert calls == ["body", "pay"]


@pytest.mark.parametrize("wrong", ["", "__x", "a\nb", "x" * 129, 5], ids=["empty", "kept", "control", "long", "number"])
def test_d11_an_id_that_cannot_be_stored_is_refused(make, wrong):
    flow = make(lambda ctx, input: None, id="flow")
    with pytest.raises(ValidationFailed, match="run_id"):
        flow.start(run_id=wrong)
    assert not Execution.objects.exists()


# -- D12, D13: resume --------------------------------------------------------------------------------------------------


def test_d12_resuming_a_done_run_returns_its_result_and_calls_nothing(make):
    calls = []
    flow = make(lambda ctx, input: calls.append(1) or {"n": 1}, id="flow")
    run = flow.run()
    seen = []
    again = flow.resume(run.run_id, on_checkpoint=seen.append)
    assert (again.status, again.result, calls, seen) == ("done", {"n": 1}, [1], [])


def test_d12_a_cancelled_run_cannot_be_resumed(make):
    flow = make(lambda ctx, input: ctx.wait_for_signal("go"), id="flow")
    run = flow.run()
    cancel(run.run_id)
    with pytest.raises(RunNotResumable, match="cancelled"):
        flow.resume(run.run_id)


def test_d12_another_workflows_run_cannot_be_resumed(make):
    one, two = make(lambda ctx, input: None, id="one"), make(lambda ctx, input: None, id="two")
    run = one.start()
    with pytest.raises(RunNotResumable, match=r'"one".*"two"'):
        two.resume(run.run_id)
    assert row(run.run_id).lease_owner == ""


def test_d12_an_unknown_run_is_not_found(make):
    flow = make(lambda ctx, input: None, id="flow")
    with pytest.raises(RunNotFound, match="nowhere"):
        flow.resume("nowhere")


def test_d12_an_error_run_tries_its_failed_step_again_from_the_checkpoints(make):
    calls, mended = [], []

    @make
    def flow(ctx, input):
        ctx.step("before", lambda: calls.append("before"))
        return ctx.step("shaky", lambda: calls.append("shaky") or (mended or raising(OutOfStock("tea"))()))

    with pytest.raises(WorkflowError):
        flow.run(run_id="r")
    with pytest.raises(WorkflowError):
        flow.resume("r")
    mended.append("fine")
    assert flow.resume("r").result == ["fine"]
    assert calls == ["before", "shaky", "shaky", "shaky"]
    run = row("r")
    assert (run.error, run.rollback, run.status) == (None, "", "done")
    assert run.steps.get(step_id="shaky").attempts == 1


def test_d12_a_run_that_a_worker_holds_is_leased(make):
    flow = make(lambda ctx, input: None, id="flow")
    run = flow.start()
    assert leases.take(run.pk, "a worker")
    with pytest.raises(RunLeased):
        flow.resume(run.run_id)
    assert row(run.run_id).lease_owner == "a worker"


def test_d12_a_run_of_a_version_that_is_not_here_is_refused_before_it_is_leased(make):
    flow = make(lambda ctx, input: ctx.wait_for_signal("go"), id="flow")
    run = flow.run()
    new = make.redeploy(flow, flow.body)
    from django_finoflow import registry, workflow

    registry.unregister("flow")
    new = workflow(id="flow", version=2)(flow.body)
    with pytest.raises(UnknownWorkflow, match="version 1"):
        new.resume(run.run_id)
    assert row(run.run_id).lease_owner == ""
    assert row(run.run_id).status == "waiting"


def test_d13_run_and_resume_raise_workflow_error_when_the_body_fails(make):
    @make
    def flow(ctx, input):
        ctx.step("one", lambda: None)
        raise OutOfStock("tea", left=1)

    with pytest.raises(WorkflowError, match="tea") as failure:
        flow.run(run_id="r")
    with pytest.raises(WorkflowError) as again:
        flow.resume("r")
    for raised in (failure.value, again.value):
        assert type(raised.__cause__) is OutOfStock
        assert raised.state.status == "error"
        assert raised.state.run_id == "r"
        assert raised.state.error["type"] == "tests.test_driving.OutOfStock"
        assert "test_driving.py" in raised.state.error["traceback"]
    assert (row("r").rollback, row("r").finished_at is None) == ("not-applicable", False)


def test_d13_the_cause_of_a_failed_step_leads_to_the_steps_own_error(make):
    original = OutOfStock("tea")
    flow = make(lambda ctx, input: ctx.step("fails", raising(original)), id="flow")
    with pytest.raises(WorkflowError) as failure:
        flow.run()
    assert type(failure.value.__cause__) is OutOfStock
    assert failure.value.__cause__.__cause__ is original


@pytest.mark.parametrize("error", [SystemExit(2), GeneratorExit()], ids=lambda error: type(error).__name__)
def test_d13_an_exit_inside_a_body_fails_the_run_and_not_the_process(make, error):
    def body(ctx, input):
        raise error

    with pytest.raises(WorkflowError) as failure:
        make(body).run()
    assert failure.value.__cause__ is error
    assert failure.value.state.status == "error"


def test_d13_ctrl_c_leaves_the_run_due_and_counts_no_crash(make):
    def body(ctx, input):
        raise KeyboardInterrupt

    flow = make(body)
    with pytest.raises(KeyboardInterrupt):
        flow.run(run_id="r")
    run = row("r")
    assert (run.status, run.lease_owner, run.lease_until, run.recoveries) == ("running", "", None, 0)
    assert run.due_at is not None


# -- D14: cancel -------------------------------------------------------------------------------------------------------


def test_d14_cancel_ends_a_waiting_run_and_closes_its_waits(make):
    flow = make(lambda ctx, input: ctx.wait_for_approval("ok"), id="flow")
    run_id = flow.run().run_id
    assert cancel(run_id) is True
    run = row(run_id)
    assert (run.status, run.due_at, run.waits.get().outcome) == ("cancelled", None, "cancelled")
    assert run.finished_at is not None
    assert run.snapshot().waiting_on is None
    assert run.snapshot().waits == ()


@pytest.mark.parametrize("how", ["done", "error", "cancelled"])
def test_d14_a_run_that_has_ended_is_not_changed(make, how):
    def body(ctx, input):
        if how == "error":
            raise ValueError
        if how == "cancelled":
            cancel(ctx.run_id)
        return 5

    flow = make(body)
    with suppress(WorkflowError):
        flow.run(run_id="r")
    before = Execution.objects.values().get()
    assert before["status"] == how
    assert cancel("r") is False
    assert Execution.objects.values().get() == before


@pytest.mark.parametrize("outcome", ["returns", "fails", "fails with another attempt", "sleeps", "ends"])
def test_d14_what_an_interrupted_drive_comes_to_is_discarded(make, outcome):
    calls = []

    @make
    def flow(ctx, input):
        ctx.step("one", lambda: None)
        if outcome in ("sleeps", "ends"):
            cancel(ctx.run_id)
            return ctx.sleep("rest", "1h") if outcome == "sleeps" else "ended"
        ctx.step("two", interrupted, retry=3 if "another" in outcome else 1)
        return ctx.step("three", lambda: calls.append("three"))

    def interrupted():
        cancel(current_step().run_id)
        calls.append("two")
        if outcome != "returns":
            raise ValueError("whatever")

    result = flow.run()
    assert result.status == "cancelled"
    assert outline(result.run_id) == [(0, "one", "done")]
    assert calls in (["two"], [])
    assert row(result.run_id).result is None


def test_d14_the_abort_of_a_cancelled_drive_is_set(make):
    aborts = []

    @make
    def flow(ctx, input):
        aborts.append(ctx.abort)
        ctx.step("one", lambda: aborts.append(current_step().abort) or cancel(ctx.run_id))

    flow.run()
    assert [abort.is_set() for abort in aborts] == [True, True]


def test_d14_a_cancelled_run_keeps_the_state_that_its_steps_have_left(make):
    @make
    def flow(ctx, input):
        ctx.step("one", lambda: ctx.state.set("paid", 5))
        ctx.step("two", lambda: cancel(ctx.run_id))

    run = flow.run()
    assert run.state.status == "cancelled"
    assert run.state.cursor == row(run.run_id).cursor == 1
    assert run.state.state == {"paid": 5}


def test_d14_cancel_ends_the_live_children_too(make):
    flow = make(lambda ctx, input: ctx.wait_for_signal("go"), id="flow")
    parent, live, over = (flow.run().run_id for _ in range(3))
    cancel(over)
    Execution.objects.filter(run_id__in=[live, over]).update(parent=row(parent))
    finished = row(over).finished_at
    assert cancel(parent)
    assert [row(run_id).status for run_id in (parent, live, over)] == ["cancelled"] * 3
    assert row(over).finished_at == finished


def test_d14_a_stuck_run_can_be_cancelled(make):
    flow, run_id = parked_behind(make, plain_step("pay"))
    make.redeploy(flow, lambda ctx, input: None).resume(run_id)
    assert row(run_id).status == "stuck"
    assert cancel(run_id)
    assert row(run_id).waits.get().outcome == "cancelled"


def test_d14_cancelling_an_unknown_run_is_an_error():
    with pytest.raises(RunNotFound):
        cancel("nowhere")


@pytest.mark.parametrize("force", [False, True])
def test_d14_only_a_run_that_is_over_is_deleted_without_force(make, force):
    from django_finoflow import RunLive

    flow = make(lambda ctx, input: ctx.wait_for_signal("go"), id="flow")
    run_id = flow.run().run_id
    if force:
        assert delete_run(run_id, force=True) is True
    else:
        with pytest.raises(RunLive, match="waiting"):
            delete_run(run_id)
        assert get_run(run_id) is not None
        cancel(run_id)
        assert delete_run(run_id) is True
    assert not any(model.objects.exists() for model in (Execution, Step, Wait, Signal))
    assert delete_run(run_id) is False


def test_d14_a_stuck_run_is_live(make):
    from django_finoflow import RunLive

    flow, run_id = parked_behind(make, plain_step("pay"))
    make.redeploy(flow, lambda ctx, input: None).resume(run_id)
    with pytest.raises(RunLive, match="stuck"):
        delete_run(run_id)


def test_d14_a_run_that_is_deleted_under_its_drive_leaves_nothing_behind(make):
    calls = []

    @make
    def flow(ctx, input):
        ctx.step("one", lambda: delete_run(ctx.run_id, force=True))
        ctx.step("two", lambda: calls.append("two"))

    with pytest.raises(RunNotFound):
        flow.run()
    assert calls == []
    assert not Execution.objects.exists()
    assert not Step.objects.exists()


# -- D15, D16 ----------------------------------------------------------------------------------------------------------


def test_d15_only_the_lease_holders_checkpoints_are_stored(make):
    """A first drive is overtaken in the middle of a step by a second one, which finishes the run; then it goes on."""
    calls, inner = [], []

    @make
    def flow(ctx, input):
        who = len(inner)
        calls.append((who, ctx.step("slow", lambda: overtaken(ctx, who))))
        calls.append((who, ctx.step("next", lambda: f"next by {who}")))
        return who

    def overtaken(ctx, who):
        if who == 0:
            inner.append("second drive")
            Execution.objects.filter(run_id=ctx.run_id).update(lease_until=None, due_at=None)
            thread_free_resume(ctx.run_id)
        return f"slow by {who}"

    def thread_free_resume(run_id):
        from contextvars import Context

        Context().run(lambda: inner.append(flow.resume(run_id).result))

    result = flow.run(run_id="r")
    assert inner == ["second drive", 1]
    assert result.result == 1
    assert calls == [(1, "slow by 1"), (1, "next by 1")]
    assert [step.result for step in row("r").snapshot().steps] == ["slow by 1", "next by 1"]


def fail_once(make, after=lambda ctx: None, error=ValueError):
    """A workflow whose step fails until it is mended."""
    mended, calls = [], []

    @make
    def flow(ctx, input):
        ctx.step("before", lambda: calls.append("before"))
        try:
            ctx.step("shaky", lambda: calls.append("shaky") or (mended or raising(error("shaky"))()), retry=2)
        except error:
            after(ctx)
            raise
        return "done"

    with pytest.raises(WorkflowError):
        flow.run(run_id="r")
    calls.clear()
    return flow, mended, calls


@pytest.fixture
def no_pause(monkeypatch):
    """Let retries follow at once."""
    from django_finoflow import Retry

    monkeypatch.setattr(Retry, "delay", lambda self, failed: 0.0)


def test_d16_retry_run_makes_an_error_run_due_and_its_attempts_start_afresh(make, no_pause):
    flow, mended, calls = fail_once(make)
    assert row("r").steps.get(step_id="shaky").attempts == 2
    run = retry_run("r")
    assert (run.status, run.error, run.rollback, run.finished_at) == ("running", None, "", None)
    assert run.due_at is not None
    assert calls == []
    with pytest.raises(WorkflowError):
        flow.resume("r")
    assert calls == ["shaky", "shaky"]
    mended.append(1)
    assert flow.resume("r").result == "done"


def test_d16_a_failed_step_with_something_recorded_after_it_stays_failed(make, no_pause):
    flow, mended, calls = fail_once(make, after=lambda ctx: ctx.step("apologise", lambda: None))
    mended.append(1)
    with pytest.raises(WorkflowError):
        flow.resume("r")
    assert calls == []
    assert outline("r") == [(0, "before", "done"), (1, "shaky", "failed"), (2, "apologise", "done")]


@pytest.mark.parametrize("status", ["running", "waiting", "done", "cancelled"])
def test_d16_any_other_run_cannot_be_retried(make, status):
    flow = make(lambda ctx, input: ctx.wait_for_signal("go") if status != "done" else None, id="flow")
    run = flow.start(run_id="r")
    if status != "running":
        flow.resume("r")
    if status == "cancelled":
        run.cancel()
    before = Execution.objects.values().get()
    assert before["status"] == status
    for again in (lambda: retry_run("r"), run.retry):
        with pytest.raises(RunNotResumable, match=status):
            again()
    assert Execution.objects.values().get() == before


@pytest.mark.parametrize("rollback", ["completed", "stuck"])
def test_d16_a_run_that_was_unwound_cannot_be_retried(make, rollback, no_pause):
    flow, *_ = fail_once(make)
    Execution.objects.update(rollback=rollback)
    for again in (retry_run, flow.resume):
        with pytest.raises(RunNotResumable, match=rollback):
            again("r")


@pytest.mark.parametrize("reason", ["replay-mismatch", "too-many-crashes"])
def test_d16_a_run_stuck_for_a_mismatch_or_crashes_can_be_retried(make, reason):
    flow = make(lambda ctx, input: "done", id="flow")
    flow.start(run_id="r")
    Execution.objects.update(status="stuck", stuck_reason=reason, recoveries=11, due_at=None, error={"message": "x"})
    run = retry_run("r")
    assert (run.status, run.stuck_reason, run.recoveries, run.error) == ("running", "", 0, None)
    assert flow.resume("r").result == "done"


def test_d16_retrying_an_unknown_run_is_an_error():
    with pytest.raises(RunNotFound):
        retry_run("nowhere")


# -- the rest of .run() ------------------------------------------------------------------------------------------------


def test_d5_on_checkpoint_is_told_after_each_stored_checkpoint(make):
    @make
    def flow(ctx, input):
        ctx.step("one", lambda: ctx.state.set("k", 1))
        with pytest.raises(ValueError, match="x"):
            ctx.step("two", raising(ValueError("x")))
        ctx.wait_for_signal("go")
        ctx.step("three", lambda: None)

    states = []
    run = flow.run(on_checkpoint=states.append)
    assert [[step.id for step in state.steps] for state in states] == [["one"], ["one", "two"], ["one", "two"]]
    assert [state.state for state in states] == [{"k": 1}] * 3
    assert states[-1].waiting_on.name == "go"
    states.clear()
    signal(run.run_id, "go")
    flow.resume(run.run_id, on_checkpoint=states.append)
    assert [len(state.steps) for state in states] == [4]


def test_d5_an_on_checkpoint_that_raises_is_logged_and_changes_nothing(make, caplog):
    flow = make(lambda ctx, input: ctx.step("one", lambda: "done"), id="flow")
    assert flow.run(on_checkpoint=lambda state: 1 / 0).result == "done"
    assert "on-checkpoint-failed" in caplog.text


def test_d5_abort_stops_the_drive_at_the_next_step_and_leaves_the_run_due(make):
    abort, calls = threading.Event(), []

    @make
    def flow(ctx, input):
        ctx.step("one", lambda: calls.append("one") or abort.set())
        assert ctx.abort.is_set() == abort.is_set()
        ctx.step("two", lambda: calls.append("two"))
        return "done"

    run = flow.run(abort=abort)
    assert (run.status, calls) == ("running", ["one"])
    abort.clear()
    kept = row(run.run_id)
    assert (kept.lease_owner, kept.lease_until, kept.recoveries) == ("", None, 0)
    assert kept.due_at is not None
    assert flow.resume(run.run_id).result == "done"
    assert calls == ["one", "two"]


def test_d5_a_run_that_begins_later_is_not_driven_now(make):
    calls = []
    flow = make(lambda ctx, input: calls.append(1), id="flow")
    run = flow.run(at="1h")
    assert (run.status, calls) == ("running", [])
    assert row(run.run_id).lease_owner == ""
    assert row(run.run_id).due_at > row(run.run_id).created_at


def test_d5_a_workflow_may_run_another_inside_a_step(make):
    inner = make(
        lambda ctx, input: ctx.step("inner", lambda: current_step().run_id) and ctx.state.entries(), id="inner"
    )

    @make
    def outer(ctx, input):
        ctx.state.set("mine", 1)
        return ctx.step("outer", lambda: [inner.run().result, current_step().step_id])

    assert outer.run().result == [{}, "outer"]


def test_t2_the_idempotency_key_is_the_same_over_attempts_and_restarts_and_no_other_steps(make, no_pause):
    keys, die = [], Interruption()

    def note():
        step = current_step()
        keys.append((step.step_id, step.attempt, step.idempotency_key))
        if step.attempt == 1:
            raise ValueError("again")
        die()

    @make
    def flow(ctx, input):
        ctx.step("pay", note, retry=3)
        ctx.step("pay", lambda: keys.append(("second", 1, current_step().idempotency_key)))

    with pytest.raises(KeyboardInterrupt):
        flow.run(run_id="r")
    die.armed = False
    flow.resume("r")
    flow.run(run_id="other")
    of_r, of_other = keys[:4], keys[4:]
    assert [attempt for name, attempt, _ in of_r if name == "pay"] == [1, 2, 2]
    first = {key for name, _, key in of_r if name == "pay"}
    second = {key for name, _, key in of_r if name == "second"}
    others = {key for _, _, key in of_other}
    assert len(first) == len(second) == 1
    assert len(first | second | others) == 4
    assert all(0 < len(key) <= 200 for key in first | second | others)


def test_d9_current_step_is_there_only_inside_a_step(make):
    with pytest.raises(FinoflowError, match="inside a step"):
        current_step()

    @make
    def flow(ctx, input):
        with pytest.raises(FinoflowError):
            current_step()
        step = ctx.step("one", lambda: vars(current_step()).copy() and [current_step().run_id, current_step().attempt])
        with pytest.raises(FinoflowError):
            current_step()
        return step

    run = flow.run()
    assert run.result == [run.run_id, 1]


def test_d10_the_requester_is_in_the_context_until_deleted(make):
    user = get_user_model().objects.create_user("ann")
    seen = []

    @make
    def flow(ctx, input):
        seen.append(ctx.requester)
        ctx.wait_for_signal("go")

    run = flow.run(requester=user)
    user.delete()
    signal(run.run_id, "go")
    flow.resume(run.run_id)
    assert [getattr(requester, "username", None) for requester in seen] == ["ann", None]
    assert row(run.run_id).requester_name == "ann"


def test_d5_resuming_a_run_of_many_checkpoints_takes_a_constant_number_of_queries(make, django_assert_max_num_queries):
    @make
    def flow(ctx, input):
        for n in range(input):
            ctx.step("one", lambda n=n: n)
        ctx.wait_for_signal("go")

    few, many = flow.run(2).run_id, flow.run(60).run_id
    for run_id in (few, many):
        with django_assert_max_num_queries(35):
            flow.resume(run_id)


@pytest.mark.parametrize("error", [NonRetryable("no"), DefinitionError("no")])
def test_d9_async_and_what_is_no_function_are_refused_as_steps(make, error):
    async def later():
        raise AssertionError

    @make
    def flow(ctx, input):
        for wrong in (later, "text", None):
            with pytest.raises(DefinitionError, match='step "s"'):
                ctx.step("s", wrong)
        with pytest.raises(DefinitionError, match="@activity"):
            ctx.call(lambda input, ctx: None)

    assert flow.run().status == "done"


def test_d13_an_error_without_a_text_is_named_by_its_type(make):
    @make
    def flow(ctx, input):
        raise TimeoutError

    with pytest.raises(WorkflowError, match=r"failed: TimeoutError$"):
        flow.run()
