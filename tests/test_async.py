"""``async def`` workflows: the same names, awaitable, on one engine."""

from __future__ import annotations

import asyncio
import gc
import threading
from collections import Counter
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from asgiref.sync import async_to_sync, sync_to_async
from django.db import connection
from freezegun import freeze_time

from django_finoflow import (
    CheckpointRefused,
    DefinitionError,
    FinoflowError,
    NonRetryable,
    Retry,
    SignalTimeout,
    StepTimeout,
    WorkflowError,
    activity,
    cancel,
    current_step,
    decide,
    signal,
)
from django_finoflow.attempt import Abort
from django_finoflow.idle import awaits_others
from django_finoflow.models import Execution, Step, Wait
from django_finoflow.worker import Options, Worker
from tests.making import COMMITTED, Workshop, elsewhere, outline, row
from tests.processes import eventually
from tests.testapp.models import Entry

START = datetime(2030, 1, 1, tzinfo=UTC)
AT_ONCE = Retry(3, initial=0)

pytestmark = pytest.mark.django_db


def failure(flow: Any, input: Any = None) -> BaseException | None:
    """Run a workflow that fails, and return what failed it."""
    with pytest.raises(WorkflowError) as failed:
        flow.run(input)
    return failed.value.__cause__


def recorded(run_id: str) -> list[tuple[Any, ...]]:
    """Return what a run has stored, without what no two runs have in common."""
    steps = Step.objects.filter(execution__run_id=run_id).order_by("branch", "index")
    waits = Wait.objects.filter(execution__run_id=run_id).order_by("branch", "index")
    run = row(run_id)
    return [
        (run.status, run.cursor, run.result, run.state, run.current_step, run.lease_owner, run.due_at),
        *steps.values_list("branch", "index", "step_id", "kind", "status", "result", "attempts", "state_patch"),
        *waits.values_list("branch", "index", "name", "kind", "outcome"),
    ]


# -- the same names, awaitable -----------------------------------------------------------------------------------------


def test_every_name_of_ctx_is_awaitable(make: Workshop) -> None:
    @activity(id="add")
    async def add(input: int, ctx: Any) -> int:
        return input + 1

    @make(early_signals=True)
    async def flow(ctx: Any, input: Any) -> list[Any]:
        ctx.state.set("seen", 1)
        await ctx.sleep("moment", 0)
        await ctx.pivot()
        return [
            ctx.run_id == "r",
            ctx.input,
            ctx.requester,
            await ctx.step("step", lambda: 1),
            await ctx.call(add, 1),
            await ctx.parallel({"a": lambda: 3, "b": lambda: 4}),
            await ctx.wait_for_signal("go"),
            (await ctx.wait_for_approval("gate"))["approved"],
        ]

    run = flow.run("input", run_id="r")
    signal("r", "go", 5)
    signal("r", "gate", {"approved": True})
    run = flow.resume("r")
    assert run.result == [True, "input", None, 1, 2, {"a": 3, "b": 4}, 5, True]
    assert run.state.state == {"seen": 1}


@pytest.mark.parametrize("body", ["def", "async def", "lambda that calls an async def"])
def test_step_bodies_are_sync_or_async(make: Workshop, body: str) -> None:
    calls = []

    def plain() -> int:
        calls.append(current_step().step_id)
        return 7

    async def later() -> int:
        await asyncio.sleep(0)
        return plain()

    bodies: dict[str, Any] = {"def": plain, "async def": later, "lambda that calls an async def": lambda: later()}

    @make
    async def flow(ctx: Any, input: Any) -> Any:
        result = await ctx.step("s", bodies[body])
        await ctx.wait_for_signal("go")
        return result

    run = flow.run()
    signal(run.run_id, "go")
    assert flow.resume(run.run_id).result == 7
    assert calls == ["s"]


def test_d2_what_an_async_step_returns_is_what_replay_returns(make: Workshop) -> None:
    seen = []

    async def body() -> Any:
        return {"b": (1, 2), "a": datetime(2030, 1, 1, tzinfo=UTC)}

    @make
    async def flow(ctx: Any, input: Any) -> None:
        seen.append(await ctx.step("s", body))
        await ctx.wait_for_signal("go")

    run = flow.run()
    signal(run.run_id, "go")
    flow.resume(run.run_id)
    assert repr(seen[0]) == repr(seen[1])
    assert list(seen[0]) == ["a", "b"]


@pytest.mark.parametrize("attempts", [1, 3])
def test_t2_and_d7_an_async_step_is_tried_again_and_its_last_error_surfaces(make: Workshop, attempts: int) -> None:
    calls, seen = [], []

    async def body() -> None:
        calls.append(current_step().attempt)
        raise LookupError(f"no {len(calls)}")

    @make
    async def flow(ctx: Any, input: Any) -> None:
        try:
            await ctx.step("s", body, retry=Retry(attempts, initial=0))
        except LookupError as error:
            seen.append(str(error))
        await ctx.wait_for_signal("go")

    run = flow.run()
    signal(run.run_id, "go")
    flow.resume(run.run_id)
    assert calls == list(range(1, attempts + 1))
    assert seen == [f"no {attempts}"] * 2


def test_t3_a_long_retry_pause_of_an_async_step_parks_the_run(make: Workshop) -> None:
    calls = []

    async def body() -> str:
        calls.append(1)
        if len(calls) == 1:
            raise ConnectionError
        return "done"

    @make
    async def flow(ctx: Any, input: Any) -> Any:
        return await ctx.step("s", body, retry=Retry(2, initial="1h", max_delay="1h", jitter=0))

    with freeze_time(START) as clock:
        run = flow.run()
        assert (run.status, run.waiting_on.kind, run.waiting_on.due_at) == (
            "waiting",
            "retry",
            START + timedelta(hours=1),
        )
        assert flow.resume(run.run_id).status == "waiting"
        clock.tick(timedelta(hours=1))
        assert flow.resume(run.run_id).result == "done"
    assert len(calls) == 2


def test_a_result_that_cannot_be_stored_fails_an_async_step_without_another_attempt(make: Workshop) -> None:
    calls = []

    async def body() -> Any:
        calls.append(1)
        return object()

    @make
    async def flow(ctx: Any, input: Any) -> Any:
        return await ctx.step("s", body, retry=3)

    assert "object" in str(failure(flow))
    assert calls == [1]


def test_d6_an_async_body_of_an_atomic_step_is_refused(make: Workshop) -> None:
    async def body() -> None: ...

    @make
    async def flow(ctx: Any, input: Any) -> None:
        with pytest.raises(DefinitionError, match="ordinary def"):
            ctx.step("s", body, atomic=True)
        with pytest.raises(DefinitionError, match="atomic"):
            await ctx.step("s", lambda: body(), atomic=True, retry=3)

    assert flow.run().status == "done"


def test_d6_an_atomic_step_of_an_async_workflow_commits_with_its_rows(make: Workshop) -> None:
    @make
    async def flow(ctx: Any, input: Any) -> Any:
        with pytest.raises(ValueError, match="broken"):
            await ctx.step("broken", lambda: Entry.objects.create(label="lost") and broken(), atomic=True)
        return await ctx.step("kept", lambda: Entry.objects.create(label="kept").label, atomic=True)

    def broken() -> None:
        raise ValueError("broken")

    assert flow.run().result == "kept"
    assert list(Entry.objects.values_list("label", flat=True)) == ["kept"]


def test_a_sync_workflow_cannot_await(make: Workshop) -> None:
    async def body() -> None: ...

    @activity(id="later")
    async def later(input: Any, ctx: Any) -> None: ...

    @make
    def flow(ctx: Any, input: Any) -> None:
        with pytest.raises(DefinitionError, match="async def workflow"):
            ctx.step("s", body)
        with pytest.raises(DefinitionError, match="async def workflow"):
            ctx.call(later)
        with pytest.raises(DefinitionError, match="async def workflow"):
            ctx.step("s", lambda: body(), retry=3)

    run = flow.run()
    assert run.status == "done"
    assert [step.attempts for step in run.state.steps] == [1]


def test_a_schema_of_an_async_activity_is_kept(make: Workshop) -> None:
    def whole(value: Any) -> int:
        Entry.objects.count()  # a schema may ask the database
        return int(value)

    @activity(id="double", input_schema=whole, output_schema=whole)
    async def double(input: int, ctx: Any) -> str:
        return str(input * 2)

    @make
    async def flow(ctx: Any, input: Any) -> Any:
        return await ctx.call(double, "21")

    assert flow.run().result == 42


# -- where bodies run --------------------------------------------------------------------------------------------------


def test_sync_bodies_run_one_at_a_time_in_the_thread_that_drives(make: Workshop) -> None:
    threads, inside, most = set(), [], []

    def body() -> None:
        threads.add(threading.get_ident())
        inside.append(1)
        most.append(len(inside))
        inside.pop()

    @make
    async def flow(ctx: Any, input: Any) -> None:
        await asyncio.gather(*(ctx.step(f"s{n}", body) for n in range(10)))

    flow.run()
    assert threads == {threading.get_ident()}
    assert set(most) == {1}


def test_async_bodies_run_side_by_side(make: Workshop) -> None:
    @make
    async def flow(ctx: Any, input: Any) -> Any:
        together = asyncio.Barrier(10)  # none comes through before all have come

        async def body() -> int:
            return await together.wait()

        return sorted(await asyncio.gather(*(ctx.step(f"s{n}", body) for n in range(10))))

    assert flow.run().result == list(range(10))


def test_an_async_body_sees_and_makes_the_rows_of_a_test_case(make: Workshop) -> None:
    Entry.objects.create(label="before")

    async def body() -> list[str]:
        await Entry.objects.acreate(label="within")
        await sync_to_async(Entry.objects.create)(label="by sync_to_async")
        return [label async for label in Entry.objects.order_by("pk").values_list("label", flat=True)]

    @make
    async def flow(ctx: Any, input: Any) -> Any:
        return await ctx.step("s", body)

    assert flow.run().result == ["before", "within", "by sync_to_async"]
    assert Entry.objects.count() == 3


def steps_of_all_kinds() -> Any:
    """Return an async body with steps, branches, a wait and state."""

    async def part(ctx: Any, n: int) -> int:
        await ctx.step("first", lambda: ctx.state.set(f"k{n}", n))
        await ctx.wait_for_signal("go")
        return await ctx.step("second", lambda: n)

    async def flow(ctx: Any, input: Any) -> Any:
        await ctx.step("before", lambda: "before")
        parts = await asyncio.gather(*(part(ctx, n) for n in range(3)))
        return [parts, ctx.state.entries()]

    return flow


def test_driven_from_an_async_view_by_a_worker_and_in_a_test_case_it_gives_the_same_rows(make: Workshop) -> None:
    flow = make(id="everywhere")(steps_of_all_kinds())

    def by_run() -> str:
        run_id = flow.run().run_id
        for n in range(3):
            signal(run_id, "go", n)
            flow.resume(run_id)
        return run_id

    def by_worker() -> str:
        run_id = flow.start().run_id
        Worker(Options(drain=True)).work()
        for n in range(3):
            signal(run_id, "go", n)
            Worker(Options(drain=True)).work()
        return run_id

    async def by_view() -> str:
        run_id = (await flow.arun()).run_id
        for n in range(3):
            await sync_to_async(signal)(run_id, "go", n)
            await flow.aresume(run_id)
        return run_id

    rows = [recorded(run_id) for run_id in (by_run(), by_worker(), async_to_sync(by_view)())]
    assert rows[0] == rows[1] == rows[2]
    assert rows[0][0][:4] == ("done", 1, [[0, 1, 2], {"k0": 0, "k1": 1, "k2": 2}], {"k0": 0, "k1": 1, "k2": 2})


def test_a_drive_from_an_async_view_leaves_the_tasks_of_others_alone(make: Workshop) -> None:
    loops = []

    @make
    async def flow(ctx: Any, input: Any) -> Any:
        loops.append(asyncio.get_running_loop())
        return await asyncio.gather(ctx.step("a", lambda: 1), ctx.step("b", lambda: 2))

    async def view() -> Any:
        loops.append(asyncio.get_running_loop())
        ticks = []

        async def other() -> None:
            while True:
                ticks.append(1)
                await asyncio.sleep(0)

        task = asyncio.get_running_loop().create_task(other())
        run = await flow.arun()
        assert ticks
        assert not task.done()
        task.cancel()
        return run.result

    assert async_to_sync(view)() == [1, 2]
    assert loops[0] is not loops[1]


def test_a_frozen_calendar_does_not_stop_the_loop(make: Workshop) -> None:
    @make
    async def flow(ctx: Any, input: Any) -> str:
        await asyncio.sleep(0.01)
        await ctx.step("s", lambda: 1, timeout="1h")
        return "through"

    with freeze_time(START):
        assert flow.run().result == "through"


# -- what a checkpoint refuses -----------------------------------------------------------------------------------------


def test_d9_a_checkpoint_inside_an_async_step_is_refused(make: Workshop) -> None:
    @make
    async def flow(ctx: Any, input: Any) -> None:
        async def inner() -> None:
            await asyncio.gather(ctx.step("inner", lambda: 1))

        with pytest.raises(CheckpointRefused):
            await ctx.step("outer", inner)

    run = flow.run()
    assert [(step.id, step.status) for step in run.state.steps] == [("outer", "failed")]


@pytest.mark.filterwarnings("ignore:coroutine .* was never awaited:RuntimeWarning")
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_a_call_that_is_not_awaited_fails_the_run_and_says_which(make: Workshop) -> None:
    @make
    async def flow(ctx: Any, input: Any) -> str:
        await ctx.step("first", lambda: 1)
        ctx.step("forgotten", lambda: 2)
        await ctx.step("last", lambda: 3)
        return "done"

    assert "position 1 was never awaited" in str(failure(flow))
    gc.collect()


def test_d9_a_checkpoint_in_a_thread_of_the_bodys_own_is_refused(make: Workshop) -> None:
    @make
    async def flow(ctx: Any, input: Any) -> None:
        with pytest.raises(CheckpointRefused):
            await asyncio.to_thread(lambda: ctx.step("s", lambda: 1))

    assert outline(flow.run().run_id) == []


def test_d9_a_body_that_swallows_what_parks_it_is_parked(make: Workshop) -> None:
    @make
    async def flow(ctx: Any, input: Any) -> str:
        with suppress(BaseException):
            await ctx.wait_for_signal("go")
        return "done"

    assert flow.run().status == "waiting"


# -- timeouts and abort ------------------------------------------------------------------------------------------------


@COMMITTED
def test_t4_a_timeout_cancels_an_async_body(make: Workshop) -> None:
    seen = []

    async def body() -> None:
        try:
            await asyncio.sleep(60)
        except asyncio.CancelledError:
            seen.append("cancelled")
            raise
        finally:
            seen.append(current_step().abort.is_set())

    @make
    async def flow(ctx: Any, input: Any) -> None:
        await ctx.step("s", body, timeout="20ms")

    assert isinstance(failure(flow), StepTimeout)
    assert seen == ["cancelled", False]


@COMMITTED
def test_t4_what_a_late_async_body_returns_is_discarded(make: Workshop) -> None:
    async def body() -> str:
        try:
            await asyncio.sleep(60)
        except asyncio.CancelledError:
            return "too late"
        raise AssertionError

    @make
    async def flow(ctx: Any, input: Any) -> None:
        await ctx.step("s", body, timeout="20ms")

    assert isinstance(failure(flow), StepTimeout)


def test_t8_a_timeout_of_an_async_step_is_judged_by_the_calendar_in_a_test_case(make: Workshop) -> None:
    with freeze_time(START) as clock:

        async def body() -> str:
            clock.tick(timedelta(minutes=2))
            return "too late"

        @make
        async def flow(ctx: Any, input: Any) -> None:
            await ctx.step("s", body, timeout="1m")

        assert isinstance(failure(flow), StepTimeout)


@COMMITTED
def test_t4_a_timeout_of_a_sync_body_sets_its_abort(make: Workshop) -> None:
    aborts = []

    def body() -> None:
        aborts.append(current_step().abort)
        aborts[0].wait(60)

    @make
    async def flow(ctx: Any, input: Any) -> None:
        await ctx.step("s", body, timeout="20ms")

    assert isinstance(failure(flow), StepTimeout)
    assert aborts[0].is_set()


@COMMITTED
def test_d14_an_abort_cancels_async_bodies_and_what_the_body_itself_awaits(make: Workshop) -> None:
    abort, ended = Abort(), []

    async def endless(name: str) -> None:
        try:
            await asyncio.sleep(60)
        finally:
            ended.append(name)

    @make
    async def flow(ctx: Any, input: Any) -> None:
        async def body() -> None:
            abort.set()
            await endless("step")

        await asyncio.gather(ctx.step("s", body), endless("body"))

    run = flow.run(abort=abort)
    assert (run.status, run.state.steps) == ("running", ())
    assert sorted(ended) == ["body", "step"]
    assert row(run.run_id).due_at is not None


@COMMITTED
def test_w4_what_an_async_body_still_returns_when_it_is_aborted_counts(make: Workshop) -> None:
    abort = Abort()

    async def body() -> str:
        abort.set()
        try:
            await asyncio.sleep(60)
        except asyncio.CancelledError:
            return "saved"
        raise AssertionError

    @make
    async def flow(ctx: Any, input: Any) -> Any:
        return await ctx.step("s", body)

    run = flow.run(abort=abort)
    assert [(step.id, step.result) for step in run.state.steps] == [("s", "saved")]


@COMMITTED
def test_d14_what_an_async_step_returns_after_a_cancel_is_discarded(make: Workshop) -> None:
    @make
    async def flow(ctx: Any, input: Any) -> None:
        async def body() -> str:
            await asyncio.to_thread(elsewhere, lambda: cancel(ctx.run_id))
            return "discarded"

        await ctx.step("s", body)

    run = flow.run()
    assert (run.status, run.state.steps) == ("cancelled", ())


# -- other things that a body may do -----------------------------------------------------------------------------------


@pytest.mark.parametrize("error", [SystemExit, asyncio.CancelledError, GeneratorExit, StopIteration])
def test_whatever_an_async_step_raises_is_its_failure(make: Workshop, error: type[BaseException]) -> None:
    async def body() -> None:
        raise error("odd")

    @make
    async def flow(ctx: Any, input: Any) -> None:
        await ctx.step("s", body)

    with pytest.raises(WorkflowError):
        flow.run()
    assert row(Execution.objects.get().run_id).status == "error"
    assert [step.status for step in Execution.objects.get().snapshot().steps] == ["failed"]


@pytest.mark.parametrize("error", [SystemExit, asyncio.CancelledError, KeyError])
def test_whatever_an_async_body_raises_fails_its_run(make: Workshop, error: type[BaseException]) -> None:
    @make
    async def flow(ctx: Any, input: Any) -> None:
        raise error("odd")

    with pytest.raises(WorkflowError):
        flow.run()
    assert Execution.objects.get().status == "error"


def test_a_gate_of_an_async_workflow_is_decided_like_any_other(make: Workshop, admin_user: Any) -> None:
    @make
    async def flow(ctx: Any, input: Any) -> Any:
        title = lambda ctx: f"Pay {Entry.objects.count()}?"  # noqa: E731  (it may ask the database)
        return await ctx.wait_for_approval("gate", title=title)

    run = flow.run(requester=admin_user)
    assert Wait.objects.get().title == "Pay 0?"
    decide(run.run_id, "gate", user=admin_user, approved=True)
    assert flow.resume(run.run_id).result["by"] == "admin"


def test_the_requester_is_there_without_a_query_on_the_loop(make: Workshop, admin_user: Any) -> None:
    @make
    async def flow(ctx: Any, input: Any) -> str:
        return ctx.requester.username

    assert flow.run(requester=admin_user).result == "admin"


def test_t7_a_signal_timeout_can_be_caught(make: Workshop) -> None:
    @make
    async def flow(ctx: Any, input: Any) -> str:
        try:
            await ctx.wait_for_signal("go", timeout=0)
        except SignalTimeout as error:
            return str(error)
        raise AssertionError

    assert flow.run().result == 'Signal "go" timed out after 0s'


@COMMITTED
def test_a_drive_leaves_no_thread_behind(make: Workshop) -> None:
    @make
    async def flow(ctx: Any, input: Any) -> None:
        await asyncio.gather(ctx.wait_for_signal("a"), ctx.step("s", lambda: 1))

    before = threading.active_count()
    gc.disable()
    try:
        for _ in range(5):
            assert flow.run().status == "waiting"
        assert eventually(lambda: threading.active_count() <= before)
    finally:
        gc.enable()


# -- side by side in threads -------------------------------------------------------------------------------------------


@COMMITTED
def test_parallel_runs_sync_bodies_in_threads_with_connections_of_their_own(make: Workshop) -> None:
    together = threading.Barrier(3, timeout=20)

    def body() -> int:
        together.wait()
        Entry.objects.create(label=str(threading.get_ident()))
        return 1

    @make
    async def flow(ctx: Any, input: Any) -> Any:
        return await ctx.parallel(dict.fromkeys("abc", body))

    assert flow.run().result == {"a": 1, "b": 1, "c": 1}
    assert Entry.objects.exclude(label=str(threading.get_ident())).count() == 3


@pytest.mark.parametrize("kind", ["def", "async def"])
def test_parallel_gives_results_by_id_and_one_failure_as_it_is(make: Workshop, kind: str) -> None:
    def broken() -> None:
        raise LookupError("broken")

    def flows(fns: dict[str, Any]) -> Any:
        if kind == "def":
            return make(lambda ctx, input: ctx.parallel(fns))

        async def flow(ctx: Any, input: Any) -> Any:
            return await ctx.parallel(fns)

        return make(flow)

    assert flows({"a": lambda: 1, "b": lambda: 2}).run().result == {"a": 1, "b": 2}
    assert flows({}).run().result == {}
    assert isinstance(failure(flows({"a": lambda: 1, "b": broken})), LookupError)
    both = failure(flows({"a": broken, "b": broken, "c": lambda: 1}))
    assert (type(both), str(both)) == (FinoflowError, "2 failures: broken; broken")


@pytest.mark.parametrize("wrong", [{"a": 1}, {"": lambda: 1}, ["a"], None], ids=repr)
def test_parallel_refuses_what_is_no_function_by_an_id(make: Workshop, wrong: Any) -> None:
    @make
    def flow(ctx: Any, input: Any) -> None:
        with pytest.raises(DefinitionError):
            ctx.parallel(wrong)

    assert outline(flow.run().run_id) == []


def test_parallel_takes_the_options_of_a_step_for_each(make: Workshop) -> None:
    calls, undone = Counter[str](), []

    def body() -> None:
        step = current_step()
        calls[step.step_id] += 1
        if step.attempt < 3:
            raise ConnectionError

    @make
    async def flow(ctx: Any, input: Any) -> None:
        await ctx.parallel({"a": body, "b": body}, retry=AT_ONCE, compensate=lambda ctx: undone.append(ctx.steps))
        raise NonRetryable

    failure(flow)
    assert calls == {"a": 3, "b": 3}
    assert len(undone) == 2


@COMMITTED
@pytest.mark.parametrize("kind", ["def", "async def"])
def test_parallel_has_a_bound_on_its_width(make: Workshop, kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("django_finoflow.together.WIDTH", 3)
    lock, inside, most, three = threading.Lock(), [], [], threading.Barrier(3, timeout=20)

    def body() -> None:
        with lock:
            inside.append(1)
            most.append(len(inside))
        three.wait()
        with lock:
            inside.pop()

    fns = {f"s{n}": body for n in range(12)}
    if kind == "def":
        flow = make(lambda ctx, input: len(ctx.parallel(fns)))
    else:

        @make
        async def flow(ctx: Any, input: Any) -> int:
            return len(await ctx.parallel(fns))

    assert flow.run().result == 12
    assert max(most) == 3


def test_an_awaited_task_is_told_from_one_that_has_something_in_flight() -> None:
    async def scenes() -> dict[str, bool]:
        async def forever() -> None:
            await asyncio.Event().wait()

        blocked = asyncio.ensure_future(forever())

        async def group() -> None:
            async with asyncio.TaskGroup() as tasks:
                tasks.create_task(forever())

        async def reader() -> None:
            await asyncio.get_running_loop().create_future()

        async def awaits(it: Any) -> Any:
            return await it

        queue: asyncio.Queue[int] = asyncio.Queue()
        bodies = {
            "a task": awaits(blocked),
            "a gather": awaits(asyncio.gather(blocked)),
            "a group": group(),
            "an event": awaits(asyncio.Event().wait()),
            "a queue": awaits(queue.get()),
            "wait()": awaits(asyncio.wait([blocked])),
            "a sleep": awaits(asyncio.sleep(60)),
            "something else": reader(),
        }
        tasks = {name: asyncio.ensure_future(body) for name, body in bodies.items()}
        for _ in range(3):
            await asyncio.sleep(0)
        found = {name: awaits_others(task, {blocked}) for name, task in tasks.items()}
        for task in [*tasks.values(), blocked]:
            task.cancel()
        await asyncio.gather(*tasks.values(), blocked, return_exceptions=True)
        return found

    found = asyncio.run(scenes())
    assert {name for name, others in found.items() if not others} == {"a sleep", "something else"}


def test_the_engine_asks_no_more_of_the_database_for_an_async_body(make: Workshop) -> None:
    from django.test.utils import CaptureQueriesContext

    @make
    def sync(ctx: Any, input: Any) -> None:
        for n in range(5):
            ctx.step(f"s{n}", lambda: 1)
        ctx.wait_for_signal("go")

    @make
    async def later(ctx: Any, input: Any) -> None:
        for n in range(5):
            await ctx.step(f"s{n}", lambda: 1)
        await ctx.wait_for_signal("go")

    counts = []
    for flow in (sync, later):
        with CaptureQueriesContext(connection) as queries:
            flow.run()
        counts.append(len(queries))
    assert counts[0] == counts[1]
