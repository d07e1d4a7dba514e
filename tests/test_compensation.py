"""What a failed run undoes, and how it is seen through (rules C1 to C6), for both kinds of workflow."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from django.contrib.auth import get_user_model
from django.db import connection
from freezegun import freeze_time

from django_finoflow import (
    DecisionRefused,
    DefinitionError,
    GateRejected,
    RunNotLive,
    RunNotResumable,
    SignalTimeout,
    Workflow,
    WorkflowError,
    abandon_compensation,
    activity,
    cancel,
    current_step,
    decide,
    events,
    registry,
    resume_compensation,
    retry_run,
    signal,
)
from django_finoflow.attempt import Abort
from django_finoflow.claiming import Claimer
from django_finoflow.driver import drive
from django_finoflow.models import Execution, Wait
from tests.killing import work
from tests.making import COMMITTED, Interruption, Workshop, outline, row
from tests.testapp.models import Entry

pytestmark = pytest.mark.django_db

START = datetime(2030, 1, 1, tzinfo=UTC)


@pytest.fixture
def build() -> Iterator[Callable[..., Workflow]]:
    """Make builder workflows that are forgotten when the test ends; the second of one id is a redeployment."""
    made = set()

    def build(id: str = "flow", **options: Any) -> Workflow:
        registry.unregister(id)
        made.add(id)
        return Workflow(id, **options)

    yield build
    for id in made:
        registry.unregister(id)


class Calls(list):
    """What was called, in order; whatever is named in ``broken`` fails."""

    def __init__(self) -> None:
        self.broken: set[str] = set()

    def __call__(self, name: str, result: Any = None) -> Callable[..., Any]:
        def called(*_ctx: Any) -> Any:
            self.append(name)
            if name in self.broken:
                raise ValueError(f"{name} is broken")
            return result

        return called

    def undo(self, name: str) -> Callable[[Any], Any]:
        return self(f"undo {name}")


@pytest.fixture
def calls() -> Calls:
    return Calls()


@pytest.fixture(params=["function", "builder"])
def saga(request: Any, make: Workshop, build: Any, calls: Calls) -> Callable[..., Any]:
    """Make a workflow of steps with compensators, of either kind; the second is a redeployment of the first."""
    made: list[Any] = []

    def saga(*names: str, **options: Any) -> Any:
        if request.param == "builder":
            flow = build("saga")
            for name in names:
                flow.step(name, calls(name, f"{name} done"), retry=1, compensate=calls.undo(name), **options)
            return flow

        def body(ctx: Any, input: Any) -> None:
            for name in names:
                ctx.step(name, calls(name, f"{name} done"), compensate=calls.undo(name), **options)

        made.append(make.redeploy(made[-1], body) if made else make(body))
        return made[-1]

    return saga


def failure(flow: Any, input: Any = None, **options: Any) -> WorkflowError:
    """Run a workflow that fails, and return its error."""
    with pytest.raises(WorkflowError) as failed:
        flow.run(input, **options)
    return failed.value


def undone(run_id: str) -> list[str]:
    return [step.compensation for step in row(run_id).steps.order_by("index")]


# -- C1: what is undone, and in which order ----------------------------------------------------------------------------


def test_c1_steps_are_undone_in_reverse_order_the_failed_one_too(saga: Any, calls: Calls) -> None:
    calls.broken.add("c")
    run_id = failure(saga("a", "b", "c", "d")).state.run_id
    assert calls == ["a", "b", "c", "undo c", "undo b", "undo a"]
    assert (undone(run_id), row(run_id).rollback) == (["compensated"] * 3, "completed")


def test_c1_steps_without_a_compensator_are_passed_over(make: Workshop, calls: Calls) -> None:
    @make
    def body(ctx: Any, input: Any) -> None:
        ctx.step("a", calls("a"), compensate=calls.undo("a"))
        ctx.step("b", calls("b"))
        raise KeyError("body")

    run_id = failure(body).state.run_id
    assert (calls, undone(run_id)) == (["a", "b", "undo a"], ["compensated", ""])


def test_c1_a_failure_that_the_body_caught_is_undone_in_its_place(make: Workshop, calls: Calls) -> None:
    calls.broken |= {"b", "d"}

    @make
    def body(ctx: Any, input: Any) -> None:
        for name in "abcd":
            try:
                ctx.step(name, calls(name), compensate=calls.undo(name))
            except ValueError:
                if name == "d":
                    raise

    failure(body)
    assert calls == [*"abcd", "undo d", "undo c", "undo b", "undo a"]


def test_c1_each_turn_of_a_loop_is_undone_with_what_it_had(make: Workshop) -> None:
    seen = []

    @make
    def body(ctx: Any, input: Any) -> None:
        for number in range(3):
            ctx.step("turn", lambda n=number: n * 10, compensate=lambda ctx, n=number: seen.append((n, ctx.result)))
        raise ValueError

    failure(body)
    assert seen == [(2, 20), (1, 10), (0, 0)]


def test_c1_an_activity_brings_its_compensator_and_a_call_may_bring_another(make: Workshop, calls: Calls) -> None:
    @activity(id="reserve", compensate=lambda ctx: calls.append(("free", ctx.step_input, ctx.result)))
    def reserve(input: Any, ctx: Any) -> Any:
        return input["n"] + 1

    @make
    def body(ctx: Any, input: Any) -> None:
        ctx.call(reserve, {"n": 1})
        ctx.call(reserve, {"n": 2}, compensate=lambda ctx: calls.append(("other", ctx.step_input, ctx.result)))
        raise ValueError

    failure(body)
    assert calls == [("other", {"n": 2}, 3), ("free", {"n": 1}, 2)]


def test_c1_a_compensator_may_be_async(make: Workshop) -> None:
    undone = []

    async def undo(ctx: Any) -> None:
        await asyncio.sleep(0)
        undone.append((ctx.result, dict(ctx.signals), ctx.requester, ctx.steps, current_step().step_id))

    @make
    def body(ctx: Any, input: Any) -> None:
        ctx.step("a", lambda: 1, compensate=undo)
        raise ValueError

    failure(body)
    assert undone == [(1, {}, None, {"a": 1}, "a")]


def test_c1_an_async_compensator_that_fails_is_a_failed_one(make: Workshop) -> None:
    async def undo(ctx: Any) -> None:
        raise LookupError("gone")

    @make
    def body(ctx: Any, input: Any) -> None:
        ctx.step("a", lambda: 1, compensate=undo)
        raise ValueError

    run = body.run()
    assert (run.status, run.state.steps[0].id) == ("stuck", "a")
    assert row(run.run_id).steps.get().compensation_error["message"] == "gone"


def test_c1_an_async_compensator_of_an_atomic_step_is_refused(make: Workshop) -> None:
    async def undo(ctx: Any) -> None: ...

    @make
    def body(ctx: Any, input: Any) -> None:
        ctx.step("a", lambda: 1, atomic=True, compensate=undo)

    assert "ordinary def" in str(failure(body).__cause__)


def test_c1_a_compensator_is_a_function() -> None:
    with pytest.raises(DefinitionError):
        activity(id="x", compensate="undo")(lambda input, ctx: None)


@pytest.mark.parametrize("undo", ["undo", 7])
def test_c1_what_is_no_compensator_is_refused_where_it_is_given(make: Workshop, undo: Any) -> None:
    @make
    def body(ctx: Any, input: Any) -> None:
        ctx.step("a", lambda: 1, compensate=undo)

    assert "compensate=" in str(failure(body).__cause__)


# -- what a compensator sees -------------------------------------------------------------------------------------------


def test_c1_a_compensator_sees_its_step_and_the_run(saga: Any, make: Workshop, build: Any, calls: Calls) -> None:
    seen: list[Any] = []

    def look(ctx: Any) -> None:
        seen.append((ctx.result, ctx.error and (type(ctx.error), str(ctx.error)), (type(ctx.run_error), ctx.steps)))
        around = (ctx.input, ctx.run_id, dict(ctx.signals), ctx.requester, ctx.state.entries(), ctx.abort.is_set())
        seen.append(around)

    calls.broken.add("b")
    calls.undo = lambda name: look  # type: ignore[method-assign]
    ann = get_user_model().objects.create_user("ann")
    run_id = failure(saga("a", "b"), {"x": 1}, requester=ann).state.run_id
    around = ({"x": 1}, run_id, {}, ann, {}, False)
    b = (None, (ValueError, "b is broken"), (ValueError, {"a": "a done"}))
    assert seen == [b, around, ("a done", None, (ValueError, {"a": "a done"})), around]


def test_c1_a_compensator_sees_the_same_after_a_restart(make: Workshop) -> None:
    seen: list[Any] = []
    die = Interruption()

    @activity(id="spoil")
    def spoil(input: Any, ctx: Any) -> Any:
        ctx.state.set("mark", input["items"].pop())
        return {"left": input["items"]}

    def undo(ctx: Any) -> None:
        seen.append((ctx.step_input, ctx.result, ctx.steps, ctx.input, ctx.state.entries(), str(ctx.run_error)))
        seen.append((ctx.idempotency_key, ctx.forward_idempotency_key))
        die()

    @make
    def body(ctx: Any, input: Any) -> None:
        ctx.call(spoil, {"items": [1, 2]}, compensate=undo)
        raise LookupError("why")

    with pytest.raises(KeyboardInterrupt):
        body.run([0], run_id="r")
    die.armed = False
    with pytest.raises(WorkflowError):
        body.resume("r")
    assert seen[:2] == seen[2:]
    result = {"left": [1]}
    assert seen[0] == ({"items": [1, 2]}, result, {"spoil": result}, [0], {"mark": 2}, "why")


def test_c1_what_a_compensator_does_to_what_it_sees_changes_nothing_for_the_next(saga: Any, calls: Calls) -> None:
    seen = []

    def vandal(ctx: Any) -> None:
        seen.append((dict(ctx.input), dict(ctx.steps), ctx.state.get("k")))
        ctx.input.clear()
        ctx.steps.clear()
        ctx.state.set("k", "spoilt")

    calls.undo = lambda name: vandal  # type: ignore[method-assign]
    calls.broken.add("c")
    run_id = failure(saga("a", "b", "c"), {"x": 1}).state.run_id
    assert seen == [({"x": 1}, {"a": "a done", "b": "b done"}, None)] * 3
    assert row(run_id).state is None


def test_c1_results_shown_to_a_compensator_are_copies(build: Any) -> None:
    seen = []

    flow = build().step("a", lambda ctx: {"id": 1}, compensate=lambda ctx: seen.append((ctx.input, ctx.result)))
    flow.step("b", lambda ctx: {"id": 2}, compensate=lambda ctx: (ctx.steps["a"].clear(), ctx.input.clear()))
    failure(flow.step("c", lambda ctx: 1 / 0, retry=1), {"x": 1})
    assert seen == [({"x": 1}, {"id": 1})]


def test_c1_idempotency_keys_are_forwards_and_backwards_the_same_over_attempts_and_restarts(build: Any) -> None:
    forth: list[str] = []
    back: list[tuple[str, str]] = []
    broken = [True]

    def pay(ctx: Any) -> None:
        forth.append(ctx.idempotency_key)
        if len(forth) == 1:
            raise ValueError

    def refund(ctx: Any) -> None:
        assert current_step().idempotency_key == ctx.idempotency_key
        back.append((ctx.idempotency_key, ctx.forward_idempotency_key))
        if broken[0]:
            raise ValueError

    flow = build().step("pay", pay, retry=2, compensate=refund)
    flow.step("again", lambda ctx: forth.append(ctx.idempotency_key), compensate=lambda ctx: back.append(ctx))
    flow.step("bad", lambda ctx: 1 / 0, retry=1)
    run_id = flow.run().run_id
    broken[0] = False
    resume_compensation(run_id)
    work()
    other, *refunds = back
    assert (len(set(forth[:2])), len(forth)) == (1, 3)
    assert refunds == [(refunds[0][0], forth[0])] * 2
    keys = {*forth, refunds[0][0], other.idempotency_key}
    assert len(keys) == 4
    assert all(key.startswith(f"{run_id}:") and len(key) <= 200 for key in keys)


# -- C2 and C6: a process that dies ------------------------------------------------------------------------------------


def test_c2_an_outcome_that_is_recorded_is_not_sought_again(saga: Any, calls: Calls) -> None:
    die, undo = Interruption(), calls.undo
    calls.broken.add("c")

    def dying(ctx: Any) -> None:
        calls.append("undo a")
        die()

    calls.undo = lambda name: dying if name == "a" else undo(name)  # type: ignore[method-assign]
    flow = saga("a", "b", "c")
    with pytest.raises(KeyboardInterrupt):
        flow.run(run_id="r")
    assert (row("r").status, undone("r")) == ("compensating", ["", "compensated", "compensated"])
    assert row("r").error["message"] == "c is broken"
    die.armed = False
    with pytest.raises(WorkflowError, match="c is broken"):
        flow.resume("r")
    assert calls == [*"abc", "undo c", "undo b", "undo a", "undo a"]
    assert (row("r").status, row("r").rollback) == ("error", "completed")


def test_c6_a_run_that_died_between_failing_and_unwinding_is_unwound_when_it_is_next_claimed(
    saga: Any, calls: Calls
) -> None:
    calls.broken.add("b")
    flow = saga("a", "b")
    run = flow.start(run_id="r")
    (leased,) = Claimer("dies", registry.known()).due()

    def die_on_the_failure(run: Any) -> None:
        if row("r").steps.filter(status="failed").exists():
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        drive(leased, abort=Abort(), on_checkpoint=lambda: die_on_the_failure(run))
    assert (row("r").status, calls) == ("running", ["a", "b"])
    work()
    assert calls == ["a", "b", "undo b", "undo a"]
    assert (row("r").status, row("r").rollback) == ("error", "completed")


def test_c2_and_w4_a_graceful_stop_amidst_the_unwinding_goes_on_elsewhere(saga: Any, calls: Calls) -> None:
    stopping: list[bool] = []
    undo = calls.undo

    def stop(ctx: Any) -> None:
        calls.append("undo b")
        stopping.append(True)

    calls.undo = lambda name: stop if name == "b" else undo(name)  # type: ignore[method-assign]
    calls.broken.add("c")
    saga("a", "b", "c").start(run_id="r")
    (leased,) = Claimer("stops", registry.known()).due()
    drive(leased, abort=Abort(), stopping=lambda: bool(stopping))
    assert (row("r").status, calls[3:], row("r").lease_until) == ("compensating", ["undo c", "undo b"], None)
    work()
    assert calls[3:] == ["undo c", "undo b", "undo a"]
    assert (row("r").status, row("r").recoveries) == ("error", 0)


def test_w2_a_compensator_that_kills_its_workers_sets_the_unwinding_aside_with_its_error_kept(
    saga: Any, calls: Calls
) -> None:
    calls.broken.add("b")
    die = Interruption()
    calls.undo = lambda name: lambda ctx: die()  # type: ignore[method-assign]
    flow = saga("a", "b")
    with pytest.raises(KeyboardInterrupt):
        flow.run(run_id="r")
    found = row("r").steps.count()
    Execution.objects.filter(run_id="r").update(recoveries=11, checkpoints=found)
    work()
    stuck = row("r")
    assert (stuck.status, stuck.stuck_reason) == ("stuck", "compensation-failed")
    assert stuck.error["message"] == "b is broken"
    with pytest.raises(RunNotResumable):
        retry_run("r")
    die.armed = False
    resume_compensation("r")
    work()
    assert (row("r").status, row("r").rollback) == ("error", "completed")


def test_w2_compensators_that_went_well_count_as_progress(saga: Any, calls: Calls) -> None:
    calls.broken.add("c")
    die = Interruption()
    undo = calls.undo
    calls.undo = lambda name: undo(name) if name == "c" else lambda ctx: die()  # type: ignore[method-assign]
    flow = saga("a", "b", "c")
    with pytest.raises(KeyboardInterrupt):
        flow.run(run_id="r")
    Execution.objects.filter(run_id="r").update(recoveries=11, checkpoints=row("r").steps.count())
    die.armed = False
    work()
    assert row("r").status == "error"


# -- C3: a compensator that fails --------------------------------------------------------------------------------------


@pytest.fixture
def stuck(saga: Any, calls: Calls) -> Any:
    """A run whose second compensator of four failed."""
    calls.broken |= {"d", "undo c"}
    flow = saga("a", "b", "c", "d")
    assert flow.run(run_id="r").status == "stuck"
    calls.clear()
    return flow


def test_c3_a_compensator_that_fails_stops_the_unwinding_and_those_behind_it_have_no_outcome(stuck: Any) -> None:
    run = row("r")
    assert (run.status, run.stuck_reason, run.rollback, run.finished_at) == ("stuck", "compensation-failed", "", None)
    assert undone("r") == ["", "", "failed", "compensated"]
    assert run.error["message"] == "d is broken"
    step = run.steps.get(step_id="c")
    assert step.compensation_error["message"] == "undo c is broken"
    assert step.compensated_at is not None
    assert step.status == "done"


def test_c3_resuming_tries_it_again_and_goes_on(stuck: Any, calls: Calls) -> None:
    calls.broken.remove("undo c")
    run = resume_compensation("r")
    assert (run.status, run.stuck_reason) == ("compensating", "")
    work()
    assert calls == ["undo c", "undo b", "undo a"]
    assert (row("r").status, row("r").rollback, undone("r")) == ("error", "completed", ["compensated"] * 4)
    assert row("r").error["message"] == "d is broken"
    assert row("r").steps.get(step_id="c").compensation_error is None


def test_c3_resuming_before_it_is_mended_gets_stuck_again(stuck: Any, calls: Calls) -> None:
    for _ in range(2):
        resume_compensation("r")
        work()
    assert calls == ["undo c", "undo c"]
    assert (row("r").status, undone("r")) == ("stuck", ["", "", "failed", "compensated"])


def test_c3_abandoning_marks_the_rest_skipped_and_ends_the_run(stuck: Any, calls: Calls) -> None:
    run = abandon_compensation("r")
    assert (run.status, run.rollback, run.stuck_reason) == ("error", "stuck", "")
    assert undone("r") == ["skipped", "skipped", "failed", "compensated"]
    assert run.error["message"] == "d is broken"
    assert run.finished_at is not None
    work()
    assert calls == []
    with pytest.raises(RunNotResumable):
        retry_run("r")
    with pytest.raises(RunNotResumable):
        stuck.resume("r")


def test_c3_abandoning_marks_nothing_that_had_no_compensator(build: Any, calls: Calls) -> None:
    calls.broken |= {"undo b"}
    flow = build().step("plain", calls("plain")).step("a", calls("a"), compensate=calls.undo("a"))
    flow.step("b", calls("b"), compensate=calls.undo("b")).step("bad", lambda ctx: 1 / 0, retry=1)
    run_id = flow.run().run_id
    abandon_compensation(run_id)
    assert undone(run_id) == ["", "skipped", "failed", ""]


def test_c3_retrying_and_resuming_the_run_itself_are_refused_while_it_is_stuck_there(stuck: Any, calls: Calls) -> None:
    with pytest.raises(RunNotResumable, match="compensation-failed"):
        retry_run("r")
    with pytest.raises(RunNotResumable):
        stuck.resume("r")
    assert not cancel("r")
    assert (row("r").status, calls) == ("stuck", [])


@pytest.mark.parametrize("verb", [resume_compensation, abandon_compensation])
def test_c3_both_are_only_for_an_unwinding_that_is_stuck(saga: Any, calls: Calls, verb: Any) -> None:
    flow = saga("a")
    done = flow.run().run_id
    calls.broken.add("a")
    failed = failure(flow).state.run_id
    waiting = flow.start().run_id
    for run_id in (done, failed, waiting):
        before = row(run_id).updated_at
        with pytest.raises(RunNotResumable):
            verb(run_id)
        assert row(run_id).updated_at == before


def test_c3_a_mismatch_is_not_one(saga: Any) -> None:
    run_id = saga("a", "b").run().run_id
    Execution.objects.filter(run_id=run_id).update(status="stuck", stuck_reason="replay-mismatch")
    for verb in (resume_compensation, abandon_compensation):
        with pytest.raises(RunNotResumable):
            verb(run_id)


def test_c3_a_compensators_failure_is_told_once_it_is_committed(
    saga: Any, calls: Calls, django_capture_on_commit_callbacks: Any
) -> None:
    heard: list[Any] = []

    def listen(sender: Any, **facts: Any) -> None:
        heard.append((facts["signal"], facts.get("step_id"), (facts.get("error") or {}).get("message")))

    for event in (events.compensation_done, events.compensation_failed, events.run_stuck, events.run_failed):
        event.connect(listen)
    try:
        calls.broken |= {"b", "undo a"}
        with django_capture_on_commit_callbacks(execute=True):
            saga("a", "b").run(run_id="r")
    finally:
        for event in (events.compensation_done, events.compensation_failed, events.run_stuck, events.run_failed):
            event.disconnect(listen)
    assert heard == [
        (events.compensation_done, "b", None),
        (events.compensation_failed, "a", "undo a is broken"),
        (events.run_stuck, None, "undo a is broken"),
    ]


def test_c3_a_compensator_gets_no_second_attempt_by_itself(build: Any, calls: Calls) -> None:
    calls.broken |= {"a", "undo a"}
    build().step("a", calls("a"), retry=1, compensate=calls.undo("a")).run()
    assert calls == ["a", "undo a"]


def test_c3_a_compensator_that_asks_for_a_checkpoint_fails(make: Workshop) -> None:
    @make
    def body(ctx: Any, input: Any) -> None:
        ctx.step("a", lambda: 1, compensate=lambda undo: ctx.step("b", lambda: 2))
        raise ValueError

    run_id = body.run().run_id
    assert row(run_id).steps.get().compensation_error["type"].endswith("CheckpointRefused")


# -- C3: the timeout ---------------------------------------------------------------------------------------------------


def test_c3_a_compensator_that_exceeds_the_steps_timeout_has_failed(saga: Any, calls: Calls) -> None:
    with freeze_time(START) as clock:
        calls.broken.add("b")
        calls.undo = lambda name: lambda ctx: clock.tick(6)  # type: ignore[method-assign]
        assert saga("a", "b", timeout="5s").run(run_id="r").status == "stuck"
    step = row("r").steps.get(step_id="b")
    assert (step.compensation, step.compensation_error["type"].rpartition(".")[2]) == ("failed", "StepTimeout")


@COMMITTED
@pytest.mark.parametrize("atomic", [False, pytest.param(True, marks=pytest.mark.only_postgresql)])
def test_c3_a_late_compensators_work_is_not_wanted(saga: Any, calls: Calls, atomic: bool) -> None:
    """An atomic one on SQLite holds the one write lock, which the record of its lateness waits for."""
    aborted, late = threading.Event(), threading.Event()

    def slow(ctx: Any) -> None:
        Entry.objects.create(run_id=ctx.run_id, label="undone")
        ctx.abort.wait(10)
        aborted.set() if ctx.abort.is_set() else None
        late.set()

    calls.broken.add("a")
    calls.undo = lambda name: slow  # type: ignore[method-assign]
    assert saga("a", timeout="100ms", atomic=atomic).run(run_id="r").status == "stuck"
    assert late.wait(10)
    assert aborted.is_set()
    assert (undone("r"), Entry.objects.count()) == (["failed"], 0 if atomic else 1)


# -- atomic compensators -----------------------------------------------------------------------------------------------


@COMMITTED
def test_d6_an_atomic_steps_compensator_commits_with_its_outcome(saga: Any, calls: Calls) -> None:
    seen = []

    def undo(ctx: Any) -> None:
        Entry.objects.create(run_id=ctx.run_id, label="undone")
        seen.append(connection.in_atomic_block)

    calls.broken.add("b")
    calls.undo = lambda name: undo  # type: ignore[method-assign]
    failure(saga("a", "b", atomic=True))
    assert (seen, Entry.objects.count()) == ([True, True], 2)


@COMMITTED
def test_d6_an_atomic_compensator_that_fails_leaves_no_writes(saga: Any, calls: Calls) -> None:
    def undo(ctx: Any) -> None:
        Entry.objects.create(run_id=ctx.run_id, label="undone")
        if calls.broken:
            raise ValueError

    calls.broken.add("a")
    calls.undo = lambda name: undo  # type: ignore[method-assign]
    flow = saga("a", atomic=True)
    assert flow.run(run_id="r").status == "stuck"
    assert not Entry.objects.exists()
    calls.broken.clear()
    resume_compensation("r")
    work()
    assert (Entry.objects.count(), undone("r")) == (1, ["compensated"])


@COMMITTED
@pytest.mark.parametrize("atomic", [False, True])
def test_d15_an_unwinding_whose_lease_is_gone_records_nothing(saga: Any, calls: Calls, atomic: bool) -> None:
    def lose(ctx: Any) -> None:
        calls.append("undo")
        Entry.objects.create(run_id=ctx.run_id, label="undone")

    calls.broken.add("b")
    calls.undo = lambda name: lose  # type: ignore[method-assign]
    flow = saga("a", "b", atomic=atomic)
    run = flow.start(run_id="r")
    (leased,) = Claimer("loses", registry.known()).due()

    def stolen() -> bool:
        if row("r").status == "compensating":
            Execution.objects.filter(pk=run.pk).update(lease_epoch=99)
        return False

    drive(leased, abort=Abort(), stopping=stolen)
    assert (row("r").status, undone("r")) == ("compensating", ["", ""])
    assert (calls, Entry.objects.count()) in [(["a", "b", "undo"], 0 if atomic else 1), (["a", "b"], 0)]


# -- C4: rollback and error --------------------------------------------------------------------------------------------


def test_c4_a_failed_run_with_nothing_to_undo_says_not_applicable_and_can_be_tried_again(make: Workshop) -> None:
    broken = [True]

    @make
    def body(ctx: Any, input: Any) -> Any:
        return ctx.step("a", lambda: 1 / 0 if broken else 7)

    run_id = failure(body).state.run_id
    assert row(run_id).rollback == "not-applicable"
    broken.clear()
    retry_run(run_id)
    work()
    assert (row(run_id).status, row(run_id).result, row(run_id).rollback) == ("done", 7, "")


def test_c4_after_a_pivot_nothing_is_undone_and_the_run_can_be_tried_again(make: Workshop, calls: Calls) -> None:
    calls.broken.add("c")

    @make
    def body(ctx: Any, input: Any) -> None:
        ctx.step("a", calls("a"), compensate=calls.undo("a"))
        ctx.pivot()
        for name in "bc":
            ctx.step(name, calls(name), compensate=calls.undo(name))

    run_id = failure(body).state.run_id
    assert (calls, row(run_id).rollback, undone(run_id)) == ([*"abc"], "not-applicable", ["", "", ""])
    calls.broken.clear()
    retry_run(run_id)
    work()
    assert (row(run_id).status, calls) == ("done", [*"abcc"])


def test_c4_before_its_pivot_a_run_is_undone(make: Workshop, calls: Calls) -> None:
    @make
    def body(ctx: Any, input: Any) -> None:
        ctx.step("a", calls("a"), compensate=calls.undo("a"))
        if input:
            ctx.pivot()
        raise ValueError

    assert row(failure(body, False).state.run_id).rollback == "completed"
    assert row(failure(body, True).state.run_id).rollback == "not-applicable"
    assert calls == ["a", "undo a", "a"]


def test_c4_a_run_that_was_unwound_cannot_be_tried_again(saga: Any, calls: Calls) -> None:
    calls.broken.add("b")
    flow = saga("a", "b")
    run_id = failure(flow).state.run_id
    calls.clear()
    for again in (retry_run, flow.resume):
        with pytest.raises(RunNotResumable, match="rolled back"):
            again(run_id)
    assert (calls, row(run_id).status) == ([], "error")


def test_c4_a_result_that_is_refused_at_the_end_unwinds(make: Workshop, calls: Calls) -> None:
    @make
    def body(ctx: Any, input: Any) -> Any:
        ctx.step("a", calls("a"), compensate=calls.undo("a"))
        return object()

    run_id = failure(body).state.run_id
    assert (calls, row(run_id).error["type"].rpartition(".")[2]) == (["a", "undo a"], "PayloadError")


def test_c4_an_input_that_cannot_be_read_any_more_leaves_an_unwinding_to_an_operator(saga: Any, calls: Calls) -> None:
    calls.broken.add("b")
    die = Interruption()
    calls.undo = lambda name: lambda ctx: die()  # type: ignore[method-assign]
    flow = saga("a", "b")
    with pytest.raises(KeyboardInterrupt):
        flow.run(run_id="r")
    with connection.cursor() as cursor:
        cursor.execute("""UPDATE finoflow_execution SET input = '{"$": "no such type"}'""")
    work()
    with connection.cursor() as cursor:
        cursor.execute("SELECT status, stuck_reason FROM finoflow_execution")
        assert cursor.fetchone() == ("stuck", "compensation-failed")
        cursor.execute("UPDATE finoflow_execution SET input = NULL")
    assert row("r").error["message"] == "b is broken"
    die.armed = False
    resume_compensation("r")
    work()
    assert row("r").rollback == "completed"


def test_c4_what_the_state_and_cursor_were_when_the_run_failed_is_kept(make: Workshop, calls: Calls) -> None:
    @make
    def body(ctx: Any, input: Any) -> None:
        ctx.step("a", calls("a"), compensate=lambda undo: undo.state.set("k", 2))
        ctx.state.set("k", 1)
        raise ValueError

    run_id = failure(body).state.run_id
    assert (row(run_id).state, row(run_id).cursor, row(run_id).snapshot().state) == ({"k": 1}, 1, {"k": 1})


# -- C5: what unwinds, and what does not -------------------------------------------------------------------------------


def test_c5_a_signal_timeout_unwinds_a_function_workflow_too(make: Workshop, calls: Calls) -> None:
    @make
    def body(ctx: Any, input: Any) -> None:
        ctx.step("a", calls("a"), compensate=lambda undo: calls.append(type(undo.run_error)))
        ctx.wait_for_signal("go", timeout="1h")

    with freeze_time(START) as clock:
        run_id = body.run().run_id
        clock.tick(timedelta(hours=2))
        work()
    assert (calls, row(run_id).status) == (["a", SignalTimeout], "error")


def test_c5_a_rejected_gate_unwinds(make: Workshop, calls: Calls) -> None:
    @make
    def body(ctx: Any, input: Any) -> None:
        ctx.step("a", calls("a"), compensate=lambda undo: calls.append(type(undo.run_error)))
        ctx.wait_for_approval("ok", on_reject="fail")

    run_id = body.run().run_id
    decide(run_id, "ok", user=get_user_model().objects.create_superuser("ann"), approved=False, reason="no")
    work()
    assert (calls, row(run_id).rollback) == (["a", GateRejected], "completed")


def test_c5_cancelling_and_a_mismatch_undo_nothing(make: Workshop, calls: Calls) -> None:
    @make
    def body(ctx: Any, input: Any) -> None:
        ctx.step("a", calls("a"), compensate=calls.undo("a"))
        ctx.wait_for_signal("go")

    cancelled, mismatched = body.run().run_id, body.run().run_id
    assert cancel(cancelled)
    make.redeploy(body, lambda ctx, input: ctx.step("b", calls("b"), compensate=calls.undo("b")))
    signal(mismatched, "go")
    work()
    assert (row(cancelled).status, row(mismatched).status) == ("cancelled", "stuck")
    assert (calls, row(cancelled).rollback, row(mismatched).rollback) == (["a", "a"], "", "")


def test_c5_too_many_crashes_undo_nothing(make: Workshop, calls: Calls) -> None:
    @make
    def body(ctx: Any, input: Any) -> None:
        ctx.step("a", calls("a"), compensate=calls.undo("a"))
        ctx.wait_for_signal("go")

    run_id = body.run().run_id
    signal(run_id, "go")
    Execution.objects.filter(run_id=run_id).update(recoveries=11, checkpoints=99)
    work()
    assert (row(run_id).status, row(run_id).stuck_reason, calls) == ("stuck", "too-many-crashes", ["a"])


# -- the code changed, and doors that are closed -----------------------------------------------------------------------


@pytest.fixture
def half_undone(saga: Any, calls: Calls) -> Any:
    """A run that died amidst its unwinding; returns what deploys other steps in its place."""
    die, undo = Interruption(), calls.undo

    def dying(ctx: Any) -> None:
        die()
        calls.append("undo b")

    calls.undo = lambda name: dying if name == "b" else undo(name)  # type: ignore[method-assign]
    calls.broken.add("c")
    with pytest.raises(KeyboardInterrupt):
        saga("a", "b", "c").run(run_id="r")
    die.armed = False
    calls.clear()
    return saga


def test_d3_code_that_changed_amidst_an_unwinding_leaves_it_to_an_operator_and_may_be_brought_back(
    half_undone: Any, calls: Calls
) -> None:
    half_undone("a", "x", "c")
    work()
    run = row("r")
    assert (run.status, run.stuck_reason, run.error["message"]) == ("stuck", "compensation-failed", "c is broken")
    assert (calls, undone("r")) == ([], ["", "", "compensated"])
    resume_compensation("r")
    work()
    assert (row("r").status, calls) == ("stuck", [])
    half_undone("a", "b", "c")
    resume_compensation("r")
    work()
    assert (calls, row("r").rollback) == (["undo b", "undo a"], "completed")


def test_d3_code_that_has_fewer_steps_is_a_mismatch_too(half_undone: Any, calls: Calls) -> None:
    half_undone("a", "b")
    work()
    assert (row("r").stuck_reason, row("r").error["message"], calls) == ("compensation-failed", "c is broken", [])


def test_c2_code_that_was_mended_meanwhile_does_nothing_new_and_undoes_what_was_done(
    half_undone: Any, calls: Calls
) -> None:
    calls.broken.clear()
    half_undone("a", "b", "c", "d")
    work()
    assert (calls, row("r").status, outline("r")[-1][1]) == (["undo b", "undo a"], "error", "c")


def test_a7_what_is_still_waited_for_elsewhere_in_a_run_is_closed_before_its_unwinding_begins(
    saga: Any, calls: Calls
) -> None:
    seen: list[str] = []
    calls.broken.add("b")
    calls.undo = lambda name: lambda ctx: seen.append(row("r").waits.get().outcome)  # type: ignore[method-assign]
    run = saga("a", "b").start(run_id="r")
    Wait.objects.create(execution=run, branch="another", index=0, kind="signal", name="ok", opened_at=START)
    work()
    assert (seen, row("r").status) == (["cancelled"] * 2, "error")


def test_resuming_a_compensating_run_in_process_goes_on_with_it(half_undone: Any, calls: Calls) -> None:
    flow = registry.get(row("r").workflow_id)
    with pytest.raises(WorkflowError, match="c is broken"):
        flow.resume("r")
    assert calls == ["undo b", "undo a"]


def test_d14_and_d16_a_compensating_run_is_neither_cancelled_nor_tried_again(half_undone: Any, calls: Calls) -> None:
    assert not cancel("r")
    for verb in (retry_run, resume_compensation, abandon_compensation):
        with pytest.raises(RunNotResumable):
            verb("r")
    assert (row("r").status, calls) == ("compensating", [])


@pytest.mark.parametrize("then", ["compensating", "stuck"])
def test_s3_and_a7_an_unwinding_run_takes_no_signals_and_no_decisions_and_its_gates_are_closed(
    build: Any, calls: Calls, then: str
) -> None:
    die = Interruption()
    calls.broken |= {"undo a"}
    undo = (lambda ctx: die()) if then == "compensating" else calls.undo("a")
    flow = build().step("a", calls("a"), compensate=undo).wait_for("ok", timeout="1h").wait_for("later")
    with freeze_time(START) as clock:
        run_id = flow.run().run_id
        clock.tick(timedelta(hours=2))
        try:
            flow.resume(run_id)
        except KeyboardInterrupt:
            assert then == "compensating"
    assert row(run_id).status == then
    assert not Wait.objects.open().exists()
    for name in ("ok", "later", "unheard of"):
        with pytest.raises(RunNotLive, match="cannot receive the signal"):
            signal(run_id, name)
    with pytest.raises(DecisionRefused) as refused:
        decide(run_id, "ok", user=get_user_model().objects.create_superuser("ann"), approved=True)
    assert refused.value.code == "not-open"
    assert not row(run_id).signals.exists()
