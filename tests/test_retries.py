"""Attempts, pauses and deadlines of steps, as a running workflow meets them (T1–T4, T8)."""

from __future__ import annotations

import threading
from datetime import UTC, datetime, timedelta

import pytest
from django.db import connections
from freezegun import freeze_time

from django_finoflow import (
    DefinitionError,
    DurationError,
    NonRetryable,
    Retry,
    RunNotResumable,
    StepTimeout,
    ValidationFailed,
    WorkflowError,
    activity,
    cancel,
    current_step,
    retry_run,
)
from django_finoflow.attempt import Abort
from django_finoflow.models import Execution
from tests.making import COMMITTED, Interruption, outline, row
from tests.testapp.models import Entry

pytestmark = pytest.mark.django_db

AT_ONCE = Retry(3, initial=0)
HOURLY = Retry(3, initial="1h", factor=1, max_delay="1h", jitter=0)
START = datetime(2030, 1, 1, tzinfo=UTC)


class Shaky:
    """A step's body that fails so many times before it succeeds, and counts."""

    def __init__(self, failures, error=ValueError):
        self.failures, self.error, self.attempts = failures, error, []

    def __call__(self):
        self.attempts.append(current_step().attempt)
        if len(self.attempts) <= self.failures:
            raise self.error(f"attempt {len(self.attempts)}")
        return "at last"


# -- T1: what a duration is, at the call -------------------------------------------------------------------------------

NO_DURATIONS = [
    True,
    float("nan"),
    float("inf"),
    -1,
    "-1s",
    "5 parsecs",
    "",
    "1h30m",
    datetime(2030, 1, 1),
    [],
    "1e400d",
]


@pytest.mark.parametrize("wrong", NO_DURATIONS, ids=repr)
@pytest.mark.parametrize("which", ["sleep", "signal", "approval", "step", "start"])
def test_t1_what_is_no_duration_is_refused_when_the_call_is_made(make, which, wrong):
    calls = []

    @make
    def flow(ctx, input):
        given = {
            "sleep": lambda: ctx.sleep("rest", wrong),
            "signal": lambda: ctx.wait_for_signal("go", timeout=wrong),
            "approval": lambda: ctx.wait_for_approval("go", timeout=wrong),
            "step": lambda: ctx.step("one", lambda: calls.append(1), timeout=wrong),
        }
        with pytest.raises(DurationError):
            given[which]()

    if which == "start":
        with pytest.raises(DurationError):
            flow.start(at=wrong)
        assert not Execution.objects.exists()
        return
    run = flow.run()
    assert (run.status, run.state.steps, calls) == ("done", (), [])


def test_t1_a_step_cannot_time_out_at_a_moment(make):
    @make
    def flow(ctx, input):
        with pytest.raises(DurationError):
            ctx.step("one", lambda: None, timeout=START)

    flow.run()


def test_t1_no_sleep_is_for_none(make):
    @make
    def flow(ctx, input):
        with pytest.raises(DurationError):
            ctx.sleep("rest", None)

    assert flow.run().status == "done"


@pytest.mark.parametrize(
    ("duration", "seconds"),
    [(timedelta(minutes=1), 60), (90, 90), (0.5, 0.5), (" 1.5H ", 5400), ("250ms", 0.25), ("7d", 604800)],
    ids=str,
)
@freeze_time(START)
def test_t1_every_form_of_a_duration_is_counted_right(make, duration, seconds):
    flow = make(lambda ctx, input: ctx.sleep("rest", duration), id="flow")
    assert flow.run().waiting_on.due_at == START + timedelta(seconds=seconds)
    waiting = make(lambda ctx, input: ctx.wait_for_signal("go", timeout=duration), id="waiting")
    assert waiting.run().waiting_on.due_at == START + timedelta(seconds=seconds)


@COMMITTED
def test_t1_a_timeout_longer_than_anybody_waits_is_no_error_but_one_beyond_the_calendar_is(make):
    @make
    def flow(ctx, input):
        with pytest.raises(DurationError, match="years"):
            ctx.step("one", print, timeout=10**13)
        # A moment's work, so that the deadline is really waited for.
        return ctx.step("one", lambda: threading.Event().wait(0.1), timeout=10**11)

    assert flow.run().result is False


# -- T2: attempts ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("retry", [Retry(3, initial=0), Retry(9, initial=0)], ids=["just enough", "more than enough"])
def test_t2_a_step_is_tried_until_it_succeeds(make, retry):
    shaky = Shaky(2)
    run = make(lambda ctx, input: ctx.step("shaky", shaky, retry=retry), id="flow").run()
    assert (run.result, shaky.attempts) == ("at last", [1, 2, 3])
    step = run.state.steps[0]
    assert (step.status, step.attempts, step.error, step.result) == ("done", 3, None, "at last")


def test_t2_the_last_error_surfaces_when_the_attempts_are_spent(make):
    shaky = Shaky(9)
    with pytest.raises(WorkflowError, match="attempt 3") as failure:
        make(lambda ctx, input: ctx.step("shaky", shaky, retry=AT_ONCE), id="flow").run()
    assert shaky.attempts == [1, 2, 3]
    step = failure.value.state.steps[0]
    assert (step.status, step.attempts, step.error["message"]) == ("failed", 3, "attempt 3")


@pytest.mark.parametrize("retry", [0, -5, 1, None, Retry(0)], ids=repr)
def test_t2_below_one_counts_as_one_and_one_is_the_default(make, retry):
    shaky = Shaky(1)
    with pytest.raises(WorkflowError):
        make(lambda ctx, input: ctx.step("shaky", shaky, retry=retry), id="flow").run()
    assert shaky.attempts == [1]


@pytest.mark.parametrize("wrong", [True, 1.5, "3", [3], float("nan")], ids=repr)
def test_t2_what_is_no_whole_number_of_attempts_is_refused_when_the_call_is_made(make, wrong):
    shaky = Shaky(0)

    @make
    def flow(ctx, input):
        with pytest.raises(DefinitionError, match="retry"):
            ctx.step("one", shaky, retry=wrong)
        with pytest.raises(DefinitionError, match="retry"):
            activity(id="act", retry=wrong)

    assert flow.run().state.steps == ()
    assert shaky.attempts == []


def test_t2_an_activity_brings_its_own_policy_and_a_call_may_say_otherwise(make):
    shaky = Shaky(2)
    act = activity(id="act", retry=AT_ONCE)(lambda input, ctx: shaky())

    @make
    def flow(ctx, input):
        return ctx.call(act, retry=input)

    assert flow.run(None).result == "at last"
    shaky.attempts.clear()
    with pytest.raises(WorkflowError):
        flow.run(1)
    assert shaky.attempts == [1]


class NoSuchCard(NonRetryable):
    """A user's own reason not to try again."""


@pytest.mark.parametrize("error", [NonRetryable, NoSuchCard])
def test_t2_non_retryable_stops_at_once(make, error):
    shaky = Shaky(9, error)
    with pytest.raises(WorkflowError) as failure:
        make(lambda ctx, input: ctx.step("shaky", shaky, retry=AT_ONCE), id="flow").run()
    assert shaky.attempts == [1]
    assert type(failure.value.__cause__) is error


def test_t2_failed_attempts_are_counted_across_restarts_but_not_one_that_died_with_its_process(make):
    attempts, die = [], Interruption()

    def body():
        attempts.append(current_step().attempt)
        if len(attempts) == 2:
            die()
        raise ValueError(f"call {len(attempts)}")

    flow = make(lambda ctx, input: ctx.step("shaky", body, retry=AT_ONCE), id="flow")
    with pytest.raises(KeyboardInterrupt):
        flow.run(run_id="r")
    assert row("r").steps.get().attempts == 1
    assert row("r").steps.get().status == "retrying"
    with pytest.raises(WorkflowError, match="call 4"):
        flow.resume("r")
    assert attempts == [1, 2, 2, 3]


def test_t2_a_result_that_the_codec_refuses_fails_the_step_without_another_attempt(make):
    calls = []
    flow = make(lambda ctx, input: ctx.step("one", lambda: calls.append(1) or object(), retry=AT_ONCE), id="flow")
    with pytest.raises(WorkflowError, match="object"):
        flow.run(run_id="r")
    assert calls == [1]
    assert outline("r") == [(0, "one", "failed")]


def test_t2_a_result_that_its_output_schema_refuses_is_an_attempt(make):
    answers = iter(["five", "six", 7])

    def whole(value):
        if not isinstance(value, int):
            raise ValueError(f"{value!r} is no whole number")
        return value * 2

    act = activity(id="act", retry=AT_ONCE, output_schema=whole)(lambda input, ctx: next(answers))

    @make
    def flow(ctx, input):
        return ctx.call(act)

    run = flow.run()
    assert (run.result, run.state.steps[0].attempts) == (14, 3)


def test_t2_when_no_result_satisfies_the_output_schema_the_step_fails(make):
    def never(value):
        raise ValueError("not good enough")

    act = activity(id="act", retry=AT_ONCE, output_schema=never)(lambda input, ctx: 1)
    with pytest.raises(WorkflowError) as failure:
        make(lambda ctx, input: ctx.call(act), id="flow").run()
    assert type(failure.value.__cause__) is ValidationFailed
    assert failure.value.state.steps[0].attempts == 3


def test_t2_an_activitys_input_is_validated_and_its_body_gets_what_the_schema_gives(make):
    def whole(value):
        return int(value)

    act = activity(id="act", input_schema=whole)(lambda input, ctx: input + 1)

    @make
    def flow(ctx, input):
        with pytest.raises(ValidationFailed, match='activity "act"'):
            ctx.call(act, "many")
        return ctx.call(act, "41")

    assert flow.run().result == 42


# -- T3: a pause of a second or more parks -----------------------------------------------------------------------------


def test_t3_a_retry_delay_parks_the_run_without_a_lease(make):
    shaky = Shaky(1)
    flow = make(lambda ctx, input: ctx.step("shaky", shaky, retry=HOURLY), id="flow")
    with freeze_time(START):
        run = flow.run()
    assert run.status == "waiting"
    kept = row(run.run_id)
    assert (kept.due_at, kept.lease_owner, kept.lease_until) == (START + timedelta(hours=1), "", None)
    assert kept.current_step == "shaky"
    wait = run.waiting_on
    assert (wait.kind, wait.id, wait.index, wait.due_at) == ("retry", "shaky", 0, START + timedelta(hours=1))
    step = kept.steps.get()
    assert (step.status, step.attempts, step.error["message"]) == ("retrying", 1, "attempt 1")
    with freeze_time(START + timedelta(hours=1)):
        assert flow.resume(run.run_id).result == "at last"
    assert shaky.attempts == [1, 2]


def test_t3_an_early_resume_does_not_hasten_the_attempt(make):
    shaky = Shaky(1)
    flow = make(lambda ctx, input: ctx.step("shaky", shaky, retry=HOURLY), id="flow")
    with freeze_time(START):
        run_id = flow.run().run_id
    with freeze_time(START + timedelta(minutes=59)):
        run = flow.resume(run_id)
    assert (run.status, run.waiting_on.due_at) == ("waiting", START + timedelta(hours=1))
    assert row(run_id).due_at == START + timedelta(hours=1)
    assert shaky.attempts == [1]


def test_t3_nor_does_a_signal(make):
    shaky = Shaky(1)

    @make(early_signals=True)
    def flow(ctx, input):
        ctx.step("shaky", shaky, retry=HOURLY)
        return ctx.wait_for_signal("go")

    with freeze_time(START) as clock:
        run_id = flow.run().run_id
        flow.signal(run_id, "go", "early")
        assert row(run_id).due_at == START + timedelta(hours=1)
        assert flow.resume(run_id).status == "waiting"
        assert shaky.attempts == [1]
        clock.tick(timedelta(hours=1))
        assert flow.resume(run_id).result == "early"


def test_t3_retrying_the_run_by_hand_is_refused_while_it_waits_for_its_attempt(make):
    flow = make(lambda ctx, input: ctx.step("shaky", Shaky(1), retry=HOURLY), id="flow")
    with pytest.raises(RunNotResumable):
        retry_run(flow.run().run_id)


def test_t3_a_shorter_pause_is_waited_out(make, monkeypatch):
    pauses = []
    monkeypatch.setattr(Abort, "wait", lambda self, timeout=None: pauses.append(timeout) and False)
    run = make(
        lambda ctx, input: ctx.step("s", Shaky(2), retry=Retry(3, initial=0.4, factor=2, jitter=0)), id="f"
    ).run()
    assert run.result == "at last"
    assert pauses == [0.4, 0.8]


def test_t3_a_run_cancelled_while_it_waits_for_its_attempt_makes_none(make):
    shaky = Shaky(1)
    flow = make(lambda ctx, input: ctx.step("shaky", shaky, retry=HOURLY), id="flow")
    run_id = flow.run().run_id
    assert cancel(run_id)
    assert row(run_id).snapshot().waiting_on is None
    assert shaky.attempts == [1]


@pytest.mark.parametrize("atomic", [False, True], ids=["plain", "atomic"])
def test_t3_the_attempt_after_a_park_is_recorded_whole(make, atomic):
    calls = []

    def body():
        calls.append(1)
        if len(calls) == 1:
            raise ValueError("once")
        return Entry.objects.create(run_id="r", label="paid").label

    @make
    def flow(ctx, input):
        def body_with_state():
            ctx.state.set("tries", len(calls) + 1)
            return body()

        got = ctx.step("pay", body_with_state, retry=HOURLY, atomic=atomic)
        ctx.wait_for_signal("go")
        return [got, ctx.state.get("tries")]

    with freeze_time(START) as clock:
        run_id = flow.run().run_id
        clock.tick(timedelta(hours=2))
        flow.resume(run_id)
        flow.signal(run_id, "go")
        assert flow.resume(run_id).result == ["paid", 2]
    step = row(run_id).steps.get(step_id="pay")
    assert (step.status, step.attempts, step.error, step.due_at) == ("done", 2, None, None)
    assert step.finished_at == START + timedelta(hours=2)
    assert Entry.objects.count() == 1


# -- T4: timeouts of steps ---------------------------------------------------------------------------------------------


def join_step_threads():
    for thread in threading.enumerate():
        if thread.name == "finoflow-step":
            thread.join(20)


@COMMITTED
def test_t4_an_attempt_that_takes_too_long_fails_and_its_late_result_is_discarded(make):
    go, aborts = threading.Event(), []

    def slow():
        aborts.append(current_step().abort)
        go.wait(20)
        return "late"

    @make
    def flow(ctx, input):
        with pytest.raises(StepTimeout, match=r'Step "slow" took longer than 0\.05s'):
            ctx.step("slow", slow, timeout="50ms")
        assert not ctx.abort.is_set()
        return ctx.step("next", lambda: "went on")

    run = flow.run()
    assert aborts[0].is_set()
    go.set()
    join_step_threads()
    assert run.result == "went on"
    step = row(run.run_id).snapshot().steps[0]
    assert (step.status, step.result, step.error["type"]) == ("failed", None, "django_finoflow.exceptions.StepTimeout")


@COMMITTED
def test_t4_the_timeout_is_for_each_attempt(make):
    go, attempts = threading.Event(), []

    def slow_at_first():
        attempts.append(current_step().attempt)
        if len(attempts) == 1:
            go.wait(20)
        return "done"

    run = make(lambda ctx, input: ctx.step("s", slow_at_first, timeout=0.3, retry=AT_ONCE), id="f").run()
    go.set()
    join_step_threads()
    assert (run.result, attempts, run.state.steps[0].attempts) == ("done", [1, 2], 2)


@COMMITTED
def test_t4_a_body_in_time_is_like_any_other(make):
    where = []

    def body():
        where.append(threading.current_thread())
        return [current_step().step_id, current_step().deadline is not None, Entry.objects.count()]

    @make
    def flow(ctx, input):
        with pytest.raises(ValueError, match="attempt 1"):
            ctx.step("fails", Shaky(1), timeout="20s")
        return ctx.step("quick", body, timeout="20s")

    assert flow.run().result == ["quick", True, 0]
    assert where[0].daemon
    assert where[0] is not threading.main_thread()


@COMMITTED
def test_t4_the_thread_of_a_body_closes_its_connections(make):
    used = []

    def body():
        Entry.objects.count()
        used.append(connections["default"])

    make(lambda ctx, input: ctx.step("s", body, timeout="20s"), id="f").run()
    join_step_threads()
    assert used[0] is not connections["default"]
    assert used[0].connection is None


@COMMITTED
@pytest.mark.parametrize("timeout", [None, 0, "0s", timedelta(0)], ids=repr)
def test_t4_none_and_nothing_are_unbounded(make, timeout):
    def body():
        return [threading.current_thread() is threading.main_thread(), current_step().deadline]

    assert make(lambda ctx, input: ctx.step("s", body, timeout=timeout), id="f").run().result == [True, None]


@COMMITTED
def test_t4_an_exit_in_the_thread_of_a_body_is_its_failure(make):
    def leave():
        raise SystemExit(3)

    with pytest.raises(WorkflowError, match="SystemExit"):
        make(lambda ctx, input: ctx.step("s", leave, timeout="20s"), id="f").run()


@COMMITTED
def test_t4_a_checkpoint_in_the_thread_of_a_body_is_refused_too(make):
    with pytest.raises(WorkflowError, match="inside a step"):
        make(lambda ctx, input: ctx.step("s", lambda: ctx.step("t", print), timeout="20s"), id="f").run()


# -- T8: inside a TestCase ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("atomic", [False, True], ids=["plain", "atomic"])
def test_t8_inside_a_test_case_a_timeout_is_judged_when_the_body_returns(make, atomic):
    where = []
    with freeze_time(START) as clock:

        def body(seconds):
            where.append(threading.current_thread())
            Entry.objects.create(run_id="r", label=str(seconds))
            clock.tick(timedelta(seconds=seconds))
            return "in time"

        @make
        def flow(ctx, input):
            return ctx.step("s", lambda: body(input), timeout="10s", atomic=atomic)

        assert flow.run(10).result == "in time"
        with pytest.raises(WorkflowError) as failure:
            flow.run(11)
    assert type(failure.value.__cause__) is StepTimeout
    assert set(where) == {threading.main_thread()}
    assert Entry.objects.filter(label="11").count() == (0 if atomic else 1)


def test_t8_inside_a_test_case_no_other_thread_is_started(make):
    before = set(threading.enumerate())
    seen = []
    flow = make(lambda ctx, input: ctx.step("s", lambda: seen.extend(threading.enumerate()), timeout="20s"), id="f")
    flow.run()
    assert set(seen) == before
