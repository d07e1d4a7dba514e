"""The reference (durable workflows as ordinary functions), sentence by sentence: what it says holds, in Django's idiom.

Each test names the sentence it holds, in its words as far as they go over: a store is the database, milliseconds are
seconds or texts such as "5m", ``waitForSignal`` is ``wait_for_signal``, a ``Promise.all`` comes later.
"""

from __future__ import annotations

import threading
from datetime import UTC, datetime, timedelta

import pytest
from freezegun import freeze_time

from django_finoflow import (
    NonRetryable,
    NotWaiting,
    Retry,
    RunNotResumable,
    SignalTimeout,
    ValidationFailed,
    WorkflowError,
    activity,
    cancel,
    delete_run,
    get_run,
    list_runs,
    signal,
    watch_run,
)
from django_finoflow.statuses import TERMINAL, RunStatus
from tests.making import Interruption

pytestmark = pytest.mark.django_db

START = datetime(2030, 1, 1, tzinfo=UTC)


def number(value):
    """A schema: a whole number, or what reads as one."""
    return int(value)


@pytest.fixture
def route_ticket(make):
    """The reference's own example."""

    @activity(id="create-ticket")
    def create_ticket(input, ctx):
        return {"id": f"ticket:{input['title']}"}

    @make(id="route-ticket")
    def route_ticket(ctx, input):
        ticket = ctx.call(create_ticket, input)
        approved = ctx.wait_for_signal("approval")
        return {"ticket_id": ticket["id"], "approved": approved}

    return route_ticket


# -- execution model ---------------------------------------------------------------------------------------------------


def test_the_first_example_does_what_it_shows(route_ticket):
    run = route_ticket.run({"title": "refund request"})
    assert run.status == "waiting"
    route_ticket.signal(run.run_id, "approval", True)
    assert route_ticket.resume(run.run_id).result == {"ticket_id": "ticket:refund request", "approved": True}


def test_an_operation_survives_process_restarts(make):
    calls, die = [], Interruption()

    @make
    def flow(ctx, input):
        ctx.step("one", lambda: calls.append("one"))
        die()
        ctx.step("two", lambda: calls.append("two"))

    with pytest.raises(KeyboardInterrupt):
        flow.run(run_id="r")
    die.armed = False
    flow.resume("r")
    assert calls == ["one", "two"]


def test_workflow_code_may_run_more_than_once(make):
    calls = []

    @make
    def flow(ctx, input):
        calls.append("body")
        ctx.wait_for_signal("go")

    run_id = flow.run().run_id
    signal(run_id, "go")
    flow.resume(run_id)
    assert calls == ["body", "body"]


def test_results_of_step_and_call_are_saved_and_reused_on_resume(make):
    calls = []
    act = activity(id="act")(lambda input, ctx: calls.append("call") or "of the call")

    @make
    def flow(ctx, input):
        got = [ctx.step("step", lambda: calls.append("step") or "of the step"), ctx.call(act)]
        ctx.wait_for_signal("go")
        return got

    run_id = flow.run().run_id
    signal(run_id, "go")
    assert flow.resume(run_id).result == ["of the step", "of the call"]
    assert calls == ["step", "call"]


def test_ordinary_control_flow_remains_the_workflow_structure(make):
    @make
    def flow(ctx, input):
        total = 0
        for n in range(4):
            if ctx.step("is-even", lambda n=n: n % 2 == 0):
                total += ctx.step("add", lambda n=n: n + 1)
        return total

    run = flow.run()
    assert run.result == 4
    assert [step.id for step in run.state.steps] == ["is-even", "add", "is-even", "is-even", "add", "is-even"]


# -- types -------------------------------------------------------------------------------------------------------------


def test_running_means_the_workflow_can_be_driven_immediately(route_ticket):
    run = route_ticket.start({"title": "x"})
    assert run.snapshot().status == "running"
    assert run.due_at <= run.created_at


def test_waiting_means_it_paused_on_a_timer_or_signal_and_records_that_wait(make, route_ticket):
    asleep = make(lambda ctx, input: ctx.sleep("rest", "1h"), id="asleep").run()
    assert (asleep.status, asleep.state.waiting_on.kind) == ("waiting", "timer")
    waiting = route_ticket.run({"title": "x"})
    assert (waiting.status, waiting.state.waiting_on.kind) == ("waiting", "signal")


def test_done_error_and_cancelled_are_terminal_states():
    assert {RunStatus.DONE, RunStatus.ERROR, RunStatus.CANCELLED} == TERMINAL


@freeze_time(START)
def test_timer_waits_record_an_absolute_due_at(make):
    wait = make(lambda ctx, input: ctx.sleep("rest", "90s"), id="flow").run().waiting_on
    assert (wait.id, wait.due_at) == ("rest", START + timedelta(seconds=90))


@freeze_time(START)
def test_signal_waits_record_the_signal_name_and_optional_absolute_timeout(make):
    flow = make(lambda ctx, input: ctx.wait_for_signal("go", timeout=input), id="flow")
    timed, endless = flow.run("24h").waiting_on, flow.run(None).waiting_on
    assert (timed.name, timed.due_at) == ("go", START + timedelta(days=1))
    assert (endless.name, endless.due_at) == ("go", None)


def test_the_step_index_ties_a_wait_back_to_the_checkpoint_position_that_created_it(make, route_ticket):
    assert route_ticket.run({"title": "x"}).waiting_on.index == 1
    assert make(lambda ctx, input: ctx.sleep("rest", "1h"), id="flow").run().waiting_on.index == 0


# -- retry -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("attempts", "calls"), [(3, 3), (1, 1), (0, 1), (-1, 1)])
def test_max_attempts_caps_the_total_and_values_below_1_behave_as_1(make, attempts, calls):
    made = []

    def fails():
        made.append(1)
        raise ValueError(f"attempt {len(made)}")

    flow = make(lambda ctx, input: ctx.step("s", fails, retry=Retry(attempts, initial=0)), id="flow")
    with pytest.raises(WorkflowError, match=f"attempt {calls}"):  # surfacing the last error
        flow.run()
    assert len(made) == calls


def test_a_thrown_non_retryable_error_stops_retrying_immediately(make):
    made = []

    def fails():
        made.append(1)
        raise NonRetryable("never mind")

    with pytest.raises(WorkflowError, match="never mind"):
        make(lambda ctx, input: ctx.step("s", fails, retry=Retry(5, initial=0)), id="flow").run()
    assert made == [1]


# -- step state --------------------------------------------------------------------------------------------------------


def test_each_record_stores_the_checkpoint_id_the_status_and_the_result(make):
    act = activity(id="create-ticket")(lambda input, ctx: {"id": 7})

    @make
    def flow(ctx, input):
        ctx.step("price", lambda: 5)
        ctx.call(act)
        ctx.sleep("rest", 0)
        ctx.wait_for_signal("approval")

    run_id = flow.run().run_id
    signal(run_id, "approval", True)
    steps = flow.resume(run_id).state.steps
    # The id supplied to ctx.step(), the called activity id, the sleep id, or the signal name.
    assert [(step.id, step.status, step.result) for step in steps] == [
        ("price", "done", 5),
        ("create-ticket", "done", {"id": 7}),
        ("rest", "done", None),
        ("approval", "done", True),
    ]


# -- run state ---------------------------------------------------------------------------------------------------------


def test_the_state_tells_all_that_is_said_of_it(route_ticket):
    with freeze_time(START) as clock:
        run_id = route_ticket.run({"title": "x"}, key="k").run_id
        clock.tick(60)
        signal(run_id, "approval", True)
        route_ticket.resume(run_id)
    state = get_run(run_id).snapshot()
    assert (state.run_id, state.workflow_id, state.status) == (run_id, "route-ticket", "done")
    assert state.cursor == 2  # the first contiguous checkpoint index not yet complete
    assert state.input == {"title": "x"}  # the original input
    assert [step.index for step in state.steps] == [0, 1]  # in call order
    assert (state.created_at, state.updated_at) == (START, START + timedelta(seconds=60))
    assert state.key == "k"
    assert state.waiting_on is None  # the current wait when status is waiting
    assert state.result == {"ticket_id": "ticket:x", "approved": True}  # the final output for done runs
    assert state.error is None  # failure details for error runs


def test_input_is_none_when_there_was_none(make):
    run = make(lambda ctx, input: input is None, id="flow").run()
    assert (run.state.input, run.result) == (None, True)


def test_error_holds_serialized_failure_details_for_error_runs(make):
    with pytest.raises(WorkflowError):
        make(lambda ctx, input: 1 / 0, id="flow").run(run_id="r")
    error = get_run("r").snapshot().error
    assert error["message"] == "division by zero"
    assert "1 / 0" in error["traceback"]


def test_signals_queues_delivered_signals_until_a_wait_consumes_them(make):
    @make(early_signals=True)
    def flow(ctx, input):
        ctx.wait_for_signal("first")
        return ctx.wait_for_signal("second")

    run_id = flow.run().run_id
    with freeze_time(START):
        signal(run_id, "second", 2)
    (kept,) = get_run(run_id).snapshot().signals
    assert (kept.name, kept.payload, kept.received_at) == ("second", 2, START)
    signal(run_id, "first", 1)
    run = flow.resume(run_id)
    assert (run.result, run.state.signals) == (2, ())


# -- activities --------------------------------------------------------------------------------------------------------


def test_an_activitys_id_is_the_stable_checkpoint_id_used_by_call(route_ticket):
    assert route_ticket.run({"title": "x"}).state.steps[0].id == "create-ticket"


def test_input_and_output_schemas_validate_activity_boundaries(make):
    calls = []

    @activity(id="act", input_schema=number, output_schema=number)
    def act(input, ctx):
        calls.append(input)
        return "17" if input == 1 else "many"

    flow = make(lambda ctx, input: ctx.call(act, input), id="flow")
    assert flow.run("1").result == 17
    for wrong, reached in (("one", [1]), ("2", [1, 2])):  # checked before, and after, run() is called
        with pytest.raises(WorkflowError) as failure:
            flow.run(wrong)
        assert type(failure.value.__cause__) is ValidationFailed
        assert calls == reached


def test_an_activitys_retry_is_the_default_policy_for_calls_to_it(make):
    made = []

    @activity(id="act", retry=Retry(3, initial=0))
    def act(input, ctx):
        made.append(1)
        if len(made) < 3:
            raise ValueError
        return "at last"

    assert make(lambda ctx, input: ctx.call(act), id="flow").run().result == "at last"


def test_the_context_is_passed_to_a_workflow_body_and_activity(make):
    act = activity(id="act")(lambda input, ctx: [ctx.run_id, ctx.workflow_id, ctx.state.get("k")])

    @make
    def flow(ctx, input):
        ctx.state.set("k", 1)
        return ctx.call(act)

    run = flow.run()
    assert run.result == [run.run_id, flow.id, 1]


# -- the state bag -----------------------------------------------------------------------------------------------------


def test_get_set_clear_and_entries_work_on_the_runs_persisted_state(make):
    @make
    def flow(ctx, input):
        before = ctx.state.get("k")
        ctx.state.set("k", 1)
        ctx.state.set("k", 2)
        ctx.state.set("gone", 3)
        ctx.state.clear("gone")
        ctx.state.clear("never there")
        copy = ctx.state.entries()
        copy["k"] = 99  # callers can inspect the bag without mutating it
        return [before, ctx.state.get("k"), ctx.state.entries()]

    run = flow.run()
    assert run.result == [None, 2, {"k": 2}]
    assert get_run(run.run_id).state == {"k": 2}


# -- checkpoints -------------------------------------------------------------------------------------------------------


def test_sleep_and_wait_return_a_waiting_run_result_until_the_wait_can_complete(make):
    @make
    def flow(ctx, input):
        ctx.sleep("rest", "1h")
        return ctx.wait_for_signal("go")

    with freeze_time(START) as clock:
        run_id = flow.run().run_id
        assert flow.resume(run_id).waiting_on.id == "rest"
        clock.tick(3600)
        assert flow.resume(run_id).waiting_on.id == "go"
        assert flow.resume(run_id).status == "waiting"
        signal(run_id, "go", "now")
        assert flow.resume(run_id).result == "now"


@pytest.mark.parametrize(
    ("duration", "seconds"),
    [
        ("500ms", 0.5),
        ("30s", 30),
        ("5m", 300),
        ("2h", 7200),
        ("7d", 604_800),
        (1.5, 1.5),
        (START + timedelta(hours=3), 10_800),
    ],
    ids=str,
)
@freeze_time(START)
def test_sleep_takes_a_relative_duration_a_duration_string_or_an_absolute_date(make, duration, seconds):
    run = make(lambda ctx, input: ctx.sleep("rest", duration), id="flow").run()
    assert run.waiting_on.due_at == START + timedelta(seconds=seconds)


def test_when_a_timeout_is_already_expired_during_resume_the_workflow_throws_a_timeout_error(make):
    flow = make(lambda ctx, input: ctx.wait_for_signal("go", timeout="1h"), id="flow")
    with freeze_time(START) as clock:
        run_id = flow.run().run_id
        clock.tick(3600)
        with pytest.raises(WorkflowError) as failure:
            flow.resume(run_id)
    assert type(failure.value.__cause__) is SignalTimeout


# -- workflows ---------------------------------------------------------------------------------------------------------


def test_the_input_schema_is_checked_before_the_run_is_first_saved(make):
    flow = make(lambda ctx, input: input, input_schema=number, id="flow")
    with pytest.raises(ValidationFailed):
        flow.run("many", run_id="r")
    assert get_run("r") is None


def test_the_output_schema_is_checked_before_a_run_completes_as_done(make):
    flow = make(lambda ctx, input: input, output_schema=number, id="flow")
    assert flow.run("7").result == 7  # the final validated output
    with pytest.raises(WorkflowError):
        flow.run("many", run_id="r")
    assert get_run("r").status == "error"


def test_run_id_and_key_let_callers_supply_identifiers_and_else_one_is_generated(make):
    flow = make(lambda ctx, input: None, id="flow")
    run = flow.run(run_id="mine", key="my-key")
    assert (run.run_id, run.state.key) == ("mine", "my-key")
    assert flow.run().run_id not in ("", "mine")


def test_the_abort_signal_passed_to_run_or_resume_is_observed_through_the_context(make):
    abort, seen = threading.Event(), []

    @make
    def flow(ctx, input):
        seen.append(ctx.abort.is_set())
        ctx.wait_for_signal("go")

    run_id = flow.run(abort=abort).run_id
    abort.set()
    flow.resume(run_id, abort=abort)
    flow.resume(run_id)
    assert seen == [False, True, False]


def test_on_checkpoint_runs_after_each_new_checkpoint_snapshot_is_persisted(route_ticket):
    told = []

    def tell(state):
        told.append((state.status, [step.id for step in state.steps], get_run(state.run_id).snapshot() == state))

    run = route_ticket.run({"title": "x"}, on_checkpoint=tell)
    assert told == [("running", ["create-ticket"], True), ("waiting", ["create-ticket"], True)]
    told.clear()
    route_ticket.resume(run.run_id, on_checkpoint=tell)
    assert told == [("waiting", ["create-ticket"], True)]  # it parked again


def test_the_signals_name_must_match_the_runs_current_wait_and_its_payload_is_what_the_wait_returns(route_ticket):
    run_id = route_ticket.run({"title": "x"}).run_id
    with pytest.raises(NotWaiting, match="approval"):
        route_ticket.signal(run_id, "rejection", True)
    route_ticket.signal(run_id, "approval", {"by": "ann"})
    assert route_ticket.resume(run_id).result["approved"] == {"by": "ann"}


def test_run_id_status_and_state_are_always_present_in_a_result(route_ticket):
    waiting = route_ticket.run({"title": "x"})
    assert (waiting.run_id, waiting.status, waiting.result) == (waiting.state.run_id, waiting.state.status, None)
    assert waiting.waiting_on == waiting.state.waiting_on is not None
    signal(waiting.run_id, "approval", False)
    done = route_ticket.resume(waiting.run_id)
    assert (done.run_id, done.status, done.waiting_on) == (done.state.run_id, done.state.status, None)
    assert done.result == done.state.result


# -- functions ---------------------------------------------------------------------------------------------------------


def test_loading_a_run_gives_one_detached_snapshot_or_nothing(route_ticket):
    run_id = route_ticket.run({"title": "x"}).run_id
    get_run(run_id).snapshot().input["title"] = "changed"
    assert get_run(run_id).snapshot().input == {"title": "x"}
    assert get_run("nowhere") is None


def test_runs_are_listed_newest_first_by_workflow_and_status(make, route_ticket):
    other = make(lambda ctx, input: None, id="other").run()
    older, newer = route_ticket.run({"title": "a"}), route_ticket.run({"title": "b"})
    assert [run.run_id for run in list_runs()] == [newer.run_id, older.run_id, other.run_id]
    assert [run.run_id for run in list_runs(workflow_id="route-ticket")] == [newer.run_id, older.run_id]
    assert [run.run_id for run in list_runs(status="done")] == [other.run_id]


def test_one_run_can_be_deleted(route_ticket):
    one, two = route_ticket.run({"title": "a"}), route_ticket.run({"title": "b"})
    delete_run(one.run_id, force=True)
    assert [run.run_id for run in list_runs()] == [two.run_id]


def test_one_run_can_be_watched(route_ticket):
    run_id = route_ticket.run({"title": "x"}).run_id
    watched = watch_run(run_id, timeout=20)
    assert next(watched).status == "waiting"
    signal(run_id, "approval", True)
    assert next(watched).status == "running"
    route_ticket.resume(run_id)
    assert [state.status for state in watched] == ["done"]


# -- classes -----------------------------------------------------------------------------------------------------------


def test_a_workflow_error_holds_the_durable_state_of_the_failed_workflow(make):
    def body(ctx, input):
        ctx.step("one", lambda: "kept")
        raise ValueError("broken")

    with pytest.raises(WorkflowError, match="broken") as failure:
        make(body).run()
    assert failure.value.state.steps[0].result == "kept"


def test_start_drives_a_run_until_it_completes_fails_or_waits(make, route_ticket):
    """Here that is ``.run()``; ``.start()`` leaves the driving to a worker."""
    assert make(lambda ctx, input: 1, id="completes").run().status == "done"
    assert route_ticket.run({"title": "x"}).status == "waiting"
    with pytest.raises(WorkflowError) as failure:
        make(lambda ctx, input: 1 / 0, id="fails").run()
    assert failure.value.state.status == "error"


def test_resume_goes_on_from_the_last_checkpoint(route_ticket):
    run_id = route_ticket.run({"title": "x"}).run_id
    signal(run_id, "approval", True)
    told = []
    route_ticket.resume(run_id, on_checkpoint=told.append)
    assert told == []  # nothing was left to be recorded


def test_cancel_marks_the_run_as_cancelled_and_clears_any_pending_wait(route_ticket):
    run_id = route_ticket.run({"title": "x"}).run_id
    cancel(run_id)
    state = get_run(run_id).snapshot()
    assert (state.status, state.waiting_on, state.waits) == ("cancelled", None, ())
    with pytest.raises(RunNotResumable):
        route_ticket.resume(run_id)
