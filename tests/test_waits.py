"""Sleeps, signals and their deadlines (T5–T7, S1–S3, S5–S7)."""

from __future__ import annotations

from contextlib import nullcontext, suppress
from datetime import UTC, datetime, timedelta

import pytest
from django.db import IntegrityError, connection, transaction
from freezegun import freeze_time

from django_finoflow import (
    Approval,
    DefinitionError,
    InvalidSignalName,
    NotWaiting,
    PayloadError,
    RunExists,
    RunNotFound,
    RunNotLive,
    SignalRefused,
    SignalTimeout,
    UnknownWorkflow,
    WorkflowError,
    cancel,
    events,
    get_run,
    leases,
    registry,
    signal,
    start,
    workflow,
)
from django_finoflow.models import Execution, Signal, Wait
from tests.making import COMMITTED, Interruption, elsewhere, outline, rolled_back, row
from tests.testapp.models import Entry

pytestmark = pytest.mark.django_db

START = datetime(2030, 1, 1, tzinfo=UTC)
HOUR = timedelta(hours=1)


def waiting_for_go(ctx, input):
    return ctx.wait_for_signal("go", timeout=input)


# -- T5: sleep ---------------------------------------------------------------------------------------------------------


def test_t5_a_sleep_parks_until_its_time_has_come(make):
    calls = []

    @make
    def flow(ctx, input):
        ctx.sleep("rest", "1h")
        return ctx.step("after", lambda: calls.append(1) or "rested")

    with freeze_time(START):
        run = flow.run()
    assert (run.status, run.waiting_on.kind, run.waiting_on.id, run.waiting_on.name) == ("waiting", "timer", "rest", "")
    assert (run.waiting_on.opened_at, run.waiting_on.due_at) == (START, START + HOUR)
    kept = row(run.run_id)
    assert (kept.due_at, kept.lease_until, kept.lease_owner) == (START + HOUR, None, "")
    with freeze_time(START + HOUR):
        assert flow.resume(run.run_id).result == "rested"
    assert row(run.run_id).waits.get().outcome == "fired"
    assert outline(run.run_id) == [(0, "rest", "done"), (1, "after", "done")]


def test_t5_an_early_resume_parks_again_with_the_same_due_time(make):
    flow = make(lambda ctx, input: ctx.sleep("rest", "1h"), id="flow")
    with freeze_time(START) as clock:
        run_id = flow.run().run_id
        for _ in range(3):
            clock.tick(timedelta(minutes=15))
            run = flow.resume(run_id)
            assert (run.status, run.waiting_on.due_at) == ("waiting", START + HOUR)
            assert row(run_id).due_at == START + HOUR
        clock.tick(timedelta(minutes=15))
        assert flow.resume(run_id).status == "done"
    assert Wait.objects.count() == 1


def test_t5_a_due_time_once_fixed_stays_whatever_newer_code_says(make):
    flow = make(lambda ctx, input: ctx.sleep("rest", "1h"), id="flow")
    with freeze_time(START):
        run_id = flow.run().run_id
        longer = make.redeploy(flow, lambda ctx, input: ctx.sleep("rest", "7d"))
        assert longer.resume(run_id).waiting_on.due_at == START + HOUR
    with freeze_time(START + HOUR):
        assert longer.resume(run_id).status == "done"


@pytest.mark.parametrize("past", [0, "0s", START, START - HOUR], ids=str)
@freeze_time(START)
def test_t5_a_sleep_that_is_already_due_does_not_park(make, past):
    run = make(lambda ctx, input: ctx.sleep("rest", past), id="flow").run()
    assert run.status == "done"
    assert outline(run.run_id) == [(0, "rest", "done")]


@freeze_time(START)
def test_t5_a_sleep_may_last_until_a_moment_in_any_zone(make):
    from zoneinfo import ZoneInfo

    moment = datetime(2030, 6, 1, 12, tzinfo=ZoneInfo("America/New_York"))
    run = make(lambda ctx, input: ctx.sleep("rest", moment), id="flow").run()
    assert run.waiting_on.due_at == moment == datetime(2030, 6, 1, 16, tzinfo=UTC)


def test_t5_sleeps_in_a_loop_each_have_their_own_time(make):
    @make
    def flow(ctx, input):
        for _ in range(3):
            ctx.sleep("rest", "1h")

    with freeze_time(START) as clock:
        run_id = flow.run().run_id
        for turn in (1, 2):
            clock.tick(HOUR)
            assert flow.resume(run_id).waiting_on.due_at == START + HOUR * (turn + 1)
        clock.tick(HOUR)
        assert flow.resume(run_id).status == "done"


# -- T6: timeouts of waits ---------------------------------------------------------------------------------------------


def a_signal(ctx, input):
    return ctx.wait_for_signal("go", timeout=input)


def a_gate(ctx, input):
    return ctx.wait_for_approval("go", timeout=input)


both = pytest.mark.parametrize("body", [a_signal, a_gate], ids=["signal", "gate"])


@both
def test_t6_a_timeout_counts_from_when_the_wait_first_opened_across_restarts_and_redeploys(make, body):
    die = Interruption()

    def first(ctx, input):
        try:
            return body(ctx, "1h")
        finally:
            die()  # the process dies as soon as the wait is open

    flow = make(first)
    with freeze_time(START), pytest.raises(KeyboardInterrupt):
        flow.run(run_id="r")
    redeployed = make.redeploy(flow, lambda ctx, input: body(ctx, "5h"))
    with freeze_time(START + timedelta(minutes=50)):
        run = redeployed.resume("r")
        assert (run.waiting_on.opened_at, run.waiting_on.due_at) == (START, START + HOUR)
        assert row("r").due_at == START + HOUR
    with freeze_time(START + HOUR), pytest.raises(WorkflowError) as failure:
        redeployed.resume("r")
    assert type(failure.value.__cause__) is SignalTimeout


@both
def test_t6_no_timeout_waits_for_ever(make, body):
    flow = make(body)
    with freeze_time(START):
        run_id = flow.run(None).run_id
    assert row(run_id).due_at is None
    with freeze_time(START + timedelta(days=36500)):
        assert flow.resume(run_id).status == "waiting"


@both
@pytest.mark.parametrize("nothing", [0, 0.0, "0s", "0ms", timedelta(0)], ids=repr)
def test_t6_a_timeout_of_nothing_has_already_passed_and_fails_at_once(make, body, nothing):
    flow = make(lambda ctx, input: body(ctx, nothing), id="flow")
    with pytest.raises(WorkflowError, match='Signal "go" timed out after 0s') as failure:
        flow.run()
    assert failure.value.state.steps[0].status == "timed-out"


@both
@pytest.mark.parametrize("days", [90, 400, 36500])
def test_t6_ninety_days_and_more_work(make, body, days):
    flow = make(body)
    with freeze_time(START):
        run_id = flow.run(f"{days}d").run_id
    assert row(run_id).due_at == START + timedelta(days=days)
    with freeze_time(START + timedelta(days=days) - timedelta(seconds=1)):
        assert flow.resume(run_id).status == "waiting"
    with freeze_time(START + timedelta(days=days)), pytest.raises(WorkflowError, match=f"after {days * 86400}s"):
        flow.resume(run_id)


# -- T7: what a timeout is to the body ---------------------------------------------------------------------------------


def test_t7_a_signal_timeout_is_raised_in_the_body_where_it_can_be_caught(make):
    caught = []

    @make
    def flow(ctx, input):
        try:
            ctx.wait_for_signal("go", timeout="24h")
        except SignalTimeout as error:
            caught.append(str(error))
        ctx.wait_for_signal("then")
        return "escalated"

    with freeze_time(START) as clock:
        run_id = flow.run().run_id
        clock.tick(timedelta(days=2))
        assert flow.resume(run_id).waiting_on.name == "then"
        signal(run_id, "then")
        assert flow.resume(run_id).result == "escalated"
    assert caught == ['Signal "go" timed out after 86400s'] * 2  # the second one is the replay


@pytest.mark.parametrize(
    ("timeout", "text"),
    [
        ("24h", "86400s"),
        ("90s", "90s"),
        (1.5, "1.5s"),
        ("250ms", "0.25s"),
        (START + HOUR, "3600s"),
        (START - HOUR, "0s"),
    ],
    ids=str,
)
def test_t7_the_message_tells_the_waits_whole_length_however_late_it_is_raised(make, timeout, text):
    said = []

    @make
    def flow(ctx, input):
        try:
            ctx.wait_for_signal("go", timeout=timeout)
        except SignalTimeout as error:
            said.append(str(error))

    with freeze_time(START) as clock:
        flow.run(run_id="r")
        clock.tick(timedelta(days=100))
        flow.resume("r")
    assert said == [f'Signal "go" timed out after {text}']


def test_t7_the_length_is_whole_even_when_the_clock_goes_on_while_the_wait_is_stored(make):
    flow = make(lambda ctx, input: ctx.wait_for_signal("go", timeout="1h"), id="flow")
    with freeze_time(START, auto_tick_seconds=7):
        run_id = flow.run().run_id
    with freeze_time(START + timedelta(days=1)), pytest.raises(WorkflowError, match="timed out after 3600s"):
        flow.resume(run_id)


# -- S1: payloads ------------------------------------------------------------------------------------------------------


@both
@pytest.mark.parametrize("payload", [None, False, 0, "", [], {}, True, {"n": (1, 2)}], ids=repr)
def test_s1_a_wait_is_satisfied_by_the_signal_having_come_whatever_its_payload(make, body, payload):
    seen = []

    @make
    def flow(ctx, input):
        seen.append(body(ctx, None))
        ctx.wait_for_signal("then")
        return seen[-1]

    run_id = flow.run().run_id
    signal(run_id, "go", payload)
    assert flow.resume(run_id).waiting_on.name == "then"
    signal(run_id, "then")
    result = flow.resume(run_id).result
    assert result == payload
    assert type(result) is type(payload)
    assert seen == [payload, payload]


# -- S2: signalled or timed out ----------------------------------------------------------------------------------------


def test_s2_a_signal_that_is_stored_beats_a_deadline_that_has_passed(make):
    flow = make(waiting_for_go)
    with freeze_time(START) as clock:
        run_id = flow.run("1h").run_id
        clock.tick(timedelta(minutes=59))
        signal(run_id, "go", "in time")
        clock.tick(timedelta(days=1))
        assert flow.resume(run_id).result == "in time"
    assert row(run_id).waits.get().outcome == "signalled"


def test_s2_so_does_one_that_comes_after_it_while_the_run_still_waits(make):
    flow = make(waiting_for_go)
    with freeze_time(START) as clock:
        run_id = flow.run("1h").run_id
        clock.tick(HOUR * 2)
        signal(run_id, "go", "late, but nobody has looked")
        assert flow.resume(run_id).result == "late, but nobody has looked"


def test_s2_and_one_that_was_kept_beats_a_timeout_of_nothing(make):
    @make(early_signals=True)
    def flow(ctx, input):
        ctx.wait_for_signal("first")
        return ctx.wait_for_signal("go", timeout=0)

    run_id = flow.run().run_id
    signal(run_id, "go", "early")
    signal(run_id, "first")
    assert flow.resume(run_id).result == "early"


def test_s2_once_timed_out_a_signal_is_refused_and_the_run_goes_on_without_it(make):
    @make
    def flow(ctx, input):
        with pytest.raises(SignalTimeout):
            ctx.wait_for_signal("go", timeout="1h")
        return ctx.wait_for_signal("other")

    with freeze_time(START) as clock:
        run_id = flow.run().run_id
        clock.tick(HOUR)
        flow.resume(run_id)
    with pytest.raises(NotWaiting):
        signal(run_id, "go")
    assert not Signal.objects.exists()
    assert row(run_id).waits.get(name="go").outcome == "timed-out"


def test_s2_a_second_signal_for_one_wait_is_refused(make):
    flow = make(waiting_for_go)
    run_id = flow.run().run_id
    signal(run_id, "go", 1)
    with pytest.raises(NotWaiting):
        signal(run_id, "go", 2)
    assert flow.resume(run_id).result == 1


def test_s2_a_signal_makes_the_run_due_and_running(make):
    flow = make(waiting_for_go)
    with freeze_time(START) as clock:
        run_id = flow.run("9h").run_id
        clock.tick(HOUR)
        signal(run_id, "go")
        run = row(run_id)
    assert (run.status, run.due_at, run.lease_until) == ("running", START + HOUR, None)
    assert run.snapshot().waiting_on is None


def test_s2_a_signal_that_comes_while_the_run_is_driven_leaves_the_lease_alone_and_makes_it_due(make):
    flow = make(waiting_for_go)
    run_id = flow.run("1h").run_id
    lease_epoch = row(run_id).lease_epoch
    assert leases.take(row(run_id).pk, "a worker")
    signal(run_id, "go", "meanwhile")
    run = row(run_id)
    assert (run.lease_owner, run.lease_epoch) == ("a worker", lease_epoch + 1)
    assert run.lease_until is not None
    assert run.due_at is not None


def test_s2_a_park_keeps_a_run_due_that_was_made_due_while_it_was_driven(make):
    with freeze_time(START) as clock:

        @make
        def flow(ctx, input):
            Execution.objects.filter(run_id=ctx.run_id).update(due_at=START)  # as a signal for another branch does
            clock.tick(HOUR)
            ctx.wait_for_signal("go", timeout="7d")

        assert flow.run(run_id="r").status == "waiting"
    assert row("r").due_at == START


def test_s2_a_signal_that_comes_while_a_drive_replays_is_seen_when_it_comes_to_the_wait(make):
    replayed = []

    @make
    def flow(ctx, input):
        replayed.append(1)
        if len(replayed) == 2:
            signal(ctx.run_id, "go", "during the replay")
        return ctx.wait_for_signal("go", timeout="1h")

    run_id = flow.run().run_id
    assert flow.resume(run_id).result == "during the replay"


@COMMITTED
@pytest.mark.only_postgresql(reason="SQLite has no connection to lose")
@pytest.mark.parametrize(
    "lost_at", ['INSERT INTO "finoflow_wait"', 'UPDATE "finoflow_wait"', 'UPDATE "finoflow_signal"', "COMMIT"]
)
def test_s2_a_kept_signal_survives_a_connection_lost_while_it_is_consumed(make, lost_at):
    cut = []

    def cutting(execute, sql, params, many, context):
        if sql.startswith(lost_at) and not cut:
            cut.append(sql)
            connection.connection.close()
        return execute(sql, params, many, context)

    def lose_commit():
        real = connection._commit

        def commit():
            del connection._commit
            cut.append("COMMIT")
            connection.connection.close()
            real()

        connection._commit = commit

    @make(early_signals=True)
    def flow(ctx, input):
        ctx.wait_for_signal("first")
        if lost_at == "COMMIT" and not cut:
            lose_commit()
        return ctx.wait_for_signal("go")

    run_id = flow.run().run_id
    signal(run_id, "go", "kept")
    signal(run_id, "first")
    with connection.execute_wrapper(cutting) if lost_at != "COMMIT" else nullcontext():
        run = flow.resume(run_id)
    assert cut
    assert run.result == "kept"
    assert Signal.objects.get(name="go").consumed_by.outcome == "signalled"


# -- S3: only live runs take signals -----------------------------------------------------------------------------------


@pytest.mark.parametrize("status", ["done", "error", "cancelled", "stuck"])
@pytest.mark.parametrize("early", [False, True])
def test_s3_a_run_that_is_not_live_cannot_receive_a_signal(make, status, early, django_capture_on_commit_callbacks):
    def body(ctx, input):
        if status == "error":
            raise ValueError
        return ctx.wait_for_signal("go") if status in ("cancelled", "stuck") else None

    flow = make(body, early_signals=early)
    with suppress(WorkflowError):
        flow.run(run_id="r")
    if status == "cancelled":
        cancel("r")
    if status == "stuck":
        make.redeploy(flow, lambda ctx, input: None, early_signals=early).resume("r")
    before = Execution.objects.values().get()
    assert before["status"] == status
    heard = []
    events.signal_received.connect(lambda **facts: heard.append(facts), weak=False, dispatch_uid="s3")
    try:
        for name in ("go", "unheard-of"):
            refused = pytest.raises(RunNotLive, match=f'{status} and cannot receive the signal "{name}"')
            with refused, django_capture_on_commit_callbacks(execute=True):
                signal("r", name)
    finally:
        events.signal_received.disconnect(dispatch_uid="s3")
    assert Execution.objects.values().get() == before
    assert not Signal.objects.exists()
    assert heard == []


def test_s3_an_unknown_run_is_not_found():
    with pytest.raises(RunNotFound, match="nowhere"):
        signal("nowhere", "go")


# -- S5: only what is waited for ---------------------------------------------------------------------------------------


def test_s5_a_signal_nobody_waits_for_is_refused_saying_what_is_waited_for(make):
    flow = make(waiting_for_go)
    run_id = flow.run().run_id
    with pytest.raises(NotWaiting, match='does not wait for the signal "stop": it waits for the signal "go"'):
        signal(run_id, "stop")
    asleep = make(lambda ctx, input: ctx.sleep("rest", "1h"), id="asleep").run().run_id
    with pytest.raises(NotWaiting, match='it waits for the timer "rest"'):
        signal(asleep, "rest")
    fresh = flow.start().run_id
    with pytest.raises(NotWaiting, match="it waits for nothing now"):
        signal(fresh, "go")
    assert not Signal.objects.exists()
    assert issubclass(NotWaiting, SignalRefused)


def test_s5_each_delivery_satisfies_one_wait(make):
    @make
    def flow(ctx, input):
        return [ctx.wait_for_signal("go"), ctx.wait_for_signal("go"), ctx.wait_for_signal("go")]

    run_id = flow.run().run_id
    for number in (1, 2):
        signal(run_id, "go", number)
        run = flow.resume(run_id)
        assert run.waiting_on.index == number
        assert run.state.signals == ()
    signal(run_id, "go", 3)
    assert flow.resume(run_id).result == [1, 2, 3]
    assert list(Signal.objects.values_list("sequence", flat=True).order_by("sequence")) == [0, 1, 2]


def test_s5_early_signals_are_queued_and_consumed_oldest_first(make):
    @make(early_signals=True)
    def flow(ctx, input):
        ctx.wait_for_signal("first")
        return [ctx.wait_for_signal("go"), ctx.wait_for_signal("go"), ctx.wait_for_signal("go")]

    run_id = flow.run().run_id
    with freeze_time(START):  # a clock that stands still does not upset the order
        for number in (1, 2):
            signal(run_id, "go", number)
        signal(run_id, "other", "never asked for")
    queued = row(run_id).snapshot().signals
    assert [(kept.name, kept.payload) for kept in queued] == [("go", 1), ("go", 2), ("other", "never asked for")]
    signal(run_id, "first")
    run = flow.resume(run_id)
    assert (run.status, run.waiting_on.index) == ("waiting", 3)
    assert [kept.name for kept in run.state.signals] == ["other"]
    signal(run_id, "go", 3)
    assert flow.resume(run_id).result == [1, 2, 3]


def test_s5_an_early_signal_may_come_before_the_run_was_ever_driven_and_does_not_hasten_it(make):
    flow = make(waiting_for_go, early_signals=True)
    run = flow.start(at="1h")
    signal(run.run_id, "go", "early")
    assert row(run.run_id).due_at == run.due_at
    assert flow.resume(run.run_id).result == "early"


def test_s5_an_early_signal_answers_a_gate_as_well(make):
    @make(early_signals=True)
    def flow(ctx, input):
        return ctx.wait_for_approval("ok")

    run = flow.start()
    signal(run.run_id, "ok", {"approved": True})
    assert flow.resume(run.run_id).result == {"approved": True}


def test_s5_the_signal_says_who_sent_it_and_who_consumed_it(make):
    flow = make(waiting_for_go)
    with freeze_time(START):
        run = flow.run()
        sent = flow.signal(run.run_id, "go", {"n": 1}, sender="webhook")
    assert (sent.name, sent.payload, sent.sender, sent.received_at) == ("go", {"n": 1}, "webhook", START)
    assert sent.consumed_by == row(run.run_id).waits.get()
    assert row(run.run_id).signals.get() == sent


def test_s5_signalling_needs_the_workflow_here_only_where_nothing_waits(make):
    flow = make(waiting_for_go)
    waiting, fresh = flow.run().run_id, flow.start().run_id
    registry.unregister(flow.id)
    signal(waiting, "go", "fine")
    with pytest.raises(UnknownWorkflow):
        signal(fresh, "go")


# -- S6: names ---------------------------------------------------------------------------------------------------------

NO_NAMES = ["", " ", "__proto__", "__", "a\nb", "nul\0", "x" * 201, "\ud800", None, 5, b"go"]


@pytest.mark.parametrize("name", NO_NAMES, ids=lambda name: repr(name)[:12])
def test_s6_a_name_that_cannot_be_is_refused_at_delivery_and_in_the_body(make, name):
    @make
    def flow(ctx, input):
        for ask in (ctx.wait_for_signal, ctx.wait_for_approval):
            with pytest.raises(InvalidSignalName):
                ask(name)
        return ctx.wait_for_signal("go")

    run_id = flow.run().run_id
    with pytest.raises(InvalidSignalName):
        signal(run_id, name)
    assert Wait.objects.get().name == "go"
    assert not Signal.objects.exists()


@pytest.mark.parametrize("name", NO_NAMES, ids=lambda name: repr(name)[:12])
def test_s6_nor_can_a_gate_be_declared_by_it(name):
    with pytest.raises(DefinitionError):
        workflow(id="never", gates={name: Approval()})(lambda ctx, input: None)
    assert ("never", 1) not in registry.known()


@pytest.mark.parametrize("name", ["x" * 200, "_private", "höhe ✓", "a b", "constructor", "sub:x"])
def test_s6_any_other_name_will_do(make, name):
    flow = make(lambda ctx, input: ctx.wait_for_signal(name), id="flow")
    run_id = flow.run().run_id
    signal(run_id, name, 1)
    assert flow.resume(run_id).result == 1


# -- S7: in the caller's transaction -----------------------------------------------------------------------------------


def test_s7_a_start_that_is_rolled_back_never_was(make):
    flow = make(waiting_for_go)
    with rolled_back():
        Entry.objects.create(run_id="r", label="mine")
        flow.start(run_id="r")
        assert get_run("r") is not None
    assert get_run("r") is None
    assert not Entry.objects.exists()


def test_s7_a_signal_that_is_rolled_back_never_came(make):
    flow = make(waiting_for_go)
    run_id = flow.run("9h").run_id
    before = Execution.objects.values().get()
    with rolled_back():
        signal(run_id, "go", 1)
        assert row(run_id).status == "running"
    assert Execution.objects.values().get() == before
    assert (Signal.objects.count(), row(run_id).waits.get().outcome) == (0, "open")
    signal(run_id, "go", 2)
    assert flow.resume(run_id).result == 2


@COMMITTED
@pytest.mark.only_postgresql(reason="SQLite lets nobody read while it is being written to, in the mode it is tested in")
def test_s7_a_run_started_inside_a_transaction_is_seen_only_when_it_commits(make):
    flow = make(waiting_for_go)
    seen = []
    with transaction.atomic():
        flow.start(run_id="r")
        elsewhere(lambda: seen.append(get_run("r")))
    elsewhere(lambda: seen.append(get_run("r").run_id))
    assert seen == [None, "r"]


def test_s7_the_callers_transaction_stays_usable_after_each_conflict(make):
    flow = make(waiting_for_go, id="flow")
    flow.run(run_id="taken")
    with transaction.atomic():
        for refused, act in [
            (RunExists, lambda: start("flow", run_id="taken")),
            (RunExists, lambda: start("flow", run_id="taken", key="new")),
            (NotWaiting, lambda: signal("taken", "other")),
            (RunNotFound, lambda: signal("nowhere", "go")),
            (PayloadError, lambda: signal("taken", "go", object())),
            (PayloadError, lambda: start("flow", {1, object()})),
        ]:
            with pytest.raises(refused):
                act()
            Entry.objects.create(run_id="r", label=refused.__name__)
    assert Entry.objects.count() == 6
    assert Execution.objects.count() == 1


@COMMITTED
def test_s7_and_when_a_key_is_taken_between_the_look_and_the_insert(make, monkeypatch):
    from django_finoflow import starting

    flow = make(waiting_for_go, id="flow")
    first = flow.start({"n": 1}, key="k")
    found, looks = starting._found, []

    def blind_at_first(run):
        looks.append(1)
        return None if len(looks) == 1 else found(run)

    monkeypatch.setattr(starting, "_found", blind_at_first)
    with transaction.atomic():
        again = flow.start({"n": 1}, key="k")
        Entry.objects.create(run_id="r", label="still usable")
    assert (again.pk, again.created, len(looks)) == (first.pk, False, 2)
    assert Entry.objects.count() == 1


@pytest.mark.only_postgresql(reason="once is enough")
def test_s7_any_other_integrity_error_is_the_callers_to_see(make):
    flow = make(waiting_for_go)
    ghost = type("Ghost", (), {"pk": 99_999, "get_username": lambda self: "ghost"})()
    flow.start(requester=ghost)
    with pytest.raises(IntegrityError):
        connection.check_constraints()
