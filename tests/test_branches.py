"""Branches of an async body (D4, D8): each replays by itself, whatever finished first, waits, fails or dies."""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from freezegun import freeze_time

from django_finoflow import (
    FinoflowError,
    Retry,
    SignalTimeout,
    WorkflowError,
    get_run,
    registry,
    retry_run,
    signal,
    workflow,
)
from django_finoflow.attempt import Abort
from django_finoflow.branches import LONGEST_PATH, Branch
from django_finoflow.history import order
from django_finoflow.models import Execution, Signal, Step, Wait
from tests.killing import killed_after, killed_everywhere, work
from tests.making import COMMITTED, Interruption, Workshop, elsewhere, row
from tests.testapp.models import Entry

START = datetime(2030, 1, 1, tzinfo=UTC)

pytestmark = pytest.mark.django_db


def failure(flow: Any, input: Any = None) -> BaseException | None:
    """Run a workflow that fails, and return what failed it."""
    with pytest.raises(WorkflowError) as failed:
        flow.run(input)
    return failed.value.__cause__


def places(run_id: str) -> list[tuple[str, int, str]]:
    """Return the branch, position and id of each step, in order of position."""
    steps = Step.objects.filter(execution__run_id=run_id)
    return sorted(
        [(step.branch, step.index, step.step_id) for step in steps], key=lambda place: order((place[0], place[1]))
    )


class Turns:
    """Lets async bodies finish in a given order: each waits until those before it have."""

    def __init__(self, order: list[Any]):
        self.order = order
        self.done: list[Any] = []

    async def __call__(self, name: Any) -> Any:
        while name in self.order and self.order.index(name) > len(self.done):
            await asyncio.sleep(0)
        self.done.append(name)
        return name


# -- positions ---------------------------------------------------------------------------------------------------------


def test_d4_a_position_is_taken_when_the_call_is_made_not_when_it_is_awaited(make: Workshop) -> None:
    @make
    async def flow(ctx: Any, input: Any) -> Any:
        first, second = ctx.step("first", lambda: 1), ctx.step("second", lambda: 2)
        return [await second, await first]

    run = flow.run()
    assert run.result == [2, 1]
    assert places(run.run_id) == [("", 0, "first"), ("", 1, "second")]


@pytest.mark.parametrize("order", [[0, 1, 2], [2, 1, 0], [1, 2, 0]], ids=str)
def test_d4_steps_of_a_gather_keep_their_positions_whatever_finishes_first(make: Workshop, order: list[int]) -> None:
    turns = Turns(order)

    @make
    async def flow(ctx: Any, input: Any) -> Any:
        return await asyncio.gather(*(ctx.step(f"s{n}", lambda n=n: turns(n)) for n in range(3)))

    run = flow.run()
    assert run.result == [0, 1, 2]
    assert turns.done == order
    assert places(run.run_id) == [("", n, f"s{n}") for n in range(3)]
    assert run.state.cursor == 3


def test_d4_cursor_is_the_first_position_not_yet_done_counted_without_gaps(make: Workshop) -> None:
    @make
    async def flow(ctx: Any, input: Any) -> Any:
        return await asyncio.gather(
            ctx.step("a", lambda: 1), ctx.wait_for_signal("go"), ctx.step("b", lambda: 2), ctx.step("c", lambda: 3)
        )

    run = flow.run()
    assert (run.status, run.state.cursor) == ("waiting", 1)
    signal(run.run_id, "go")
    assert flow.resume(run.run_id).state.cursor == 4


def test_d4_a_branch_is_named_by_where_in_its_parent_it_was_made(make: Workshop) -> None:
    async def leaf(ctx: Any, name: str) -> None:
        await ctx.step(name, lambda: name)

    async def twig(ctx: Any, name: str) -> None:
        await ctx.step(name, lambda: name)
        await asyncio.gather(leaf(ctx, f"{name}-x"), leaf(ctx, f"{name}-y"))

    @make
    async def flow(ctx: Any, input: Any) -> None:
        await ctx.step("before", lambda: 1)
        async with asyncio.TaskGroup() as group:
            for name in "ab":
                group.create_task(twig(ctx, name))
        await ctx.step("after", lambda: 1)

    assert places(flow.run().run_id) == [
        ("", 0, "before"),
        ("1.0", 0, "a"),
        ("1.0/1.0", 0, "a-x"),
        ("1.0/1.1", 0, "a-y"),
        ("1.1", 0, "b"),
        ("1.1/1.0", 0, "b-x"),
        ("1.1/1.1", 0, "b-y"),
        ("", 1, "after"),
    ]


def test_d4_a_path_that_is_too_long_is_shortened_and_stays_unique() -> None:
    branch, seen = Branch(), set()
    for _ in range(100):
        branch = branch.fork()
        assert len(branch.path) <= LONGEST_PATH
        assert branch.path not in seen
        seen.add(branch.path)
        order((branch.path, 0))
    assert branch.fork().path != branch.fork().path


def test_d4_tasks_that_a_step_makes_are_no_branches(make: Workshop) -> None:
    async def part(n: int) -> int:
        return n

    async def body() -> int:
        return sum(await asyncio.gather(*(part(n) for n in range(4))))

    @make
    async def flow(ctx: Any, input: Any) -> Any:
        async def handle(n: int) -> Any:
            return await ctx.step("inner", body)

        await ctx.step("outer", body)
        return await asyncio.gather(handle(1), handle(2))

    run = flow.run()
    assert run.result == [6, 6]
    assert places(run.run_id) == [("", 0, "outer"), ("1.0", 0, "inner"), ("1.1", 0, "inner")]


# -- replay ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", range(12))
def test_d4_a_handler_per_item_replays_after_any_order_of_finishing_and_of_signals(make: Workshop, seed: int) -> None:
    chance, calls = random.Random(seed), Counter[tuple[int, int]]()

    async def body(n: int, k: int) -> tuple[int, int]:
        calls[n, k] += 1
        for _ in range(chance.randrange(6)):
            await asyncio.sleep(0)
        return n, k

    @make
    async def flow(ctx: Any, input: Any) -> Any:
        async def handle(n: int) -> list[Any]:
            found: list[Any] = [await ctx.step("one", lambda: body(n, 1))]
            for _ in range(chance.randrange(3)):
                await asyncio.sleep(0)
            found.append(await ctx.wait_for_signal(f"go-{n}"))
            found.append(await ctx.step("two", lambda: body(n, 2)))
            found.append(await ctx.step("three", lambda: body(n, 3)))
            return found

        return await asyncio.gather(*(handle(n) for n in range(4)))

    run = flow.run()
    for n in chance.sample(range(4), 4):
        assert run.status == "waiting"
        signal(run.run_id, f"go-{n}", n)
        run = flow.resume(run.run_id)
    assert run.result == [[(n, 1), n, (n, 2), (n, 3)] for n in range(4)]
    assert set(calls.values()) == {1}


@COMMITTED
def test_d1_and_d4_branches_that_die_before_any_write_are_called_again_only_if_nothing_was_recorded(
    make: Workshop,
) -> None:
    seen = Counter[str]()

    @make
    async def flow(ctx: Any, input: Any) -> Any:
        async def handle(n: int) -> Any:
            await ctx.step("count", lambda: Entry.objects.create(run_id=ctx.run_id, label=f"{n}"), atomic=True)
            await ctx.step("plain", lambda: seen.update([ctx.run_id]))
            await ctx.sleep("moment", 0)
            return await ctx.step("last", lambda: n)

        parts = await asyncio.gather(*(handle(n) for n in range(2)))
        return [parts, await ctx.parallel({"x": lambda: 1, "y": lambda: 2})]

    def no_result(create: Any) -> None: ...

    def begin(died: int) -> str:
        return flow.start().run_id

    def settled(run_id: str) -> None:
        assert row(run_id).result == [[0, 1], {"x": 1, "y": 2}]
        assert sorted(Entry.objects.filter(run_id=run_id).values_list("label", flat=True)) == ["0", "1"]

    Entry.objects.all().delete()
    # An atomic step returns a row, which no payload can be.
    original = Entry.objects.create
    Entry.objects.create = lambda **kwargs: original(**kwargs) and None  # type: ignore[method-assign]
    try:
        assert killed_everywhere(begin, settled) > 10
    finally:
        del Entry.objects.create


def test_d3_another_id_in_a_branch_is_a_mismatch_that_names_the_branch(make: Workshop) -> None:
    def body(id: str) -> Any:
        async def flow(ctx: Any, input: Any) -> None:
            async def handle() -> None:
                await ctx.step(id, lambda: 1)
                await ctx.wait_for_signal("go")

            await asyncio.gather(handle())

        return flow

    flow = make(id="changed")(body("old"))
    run = flow.run()
    flow = make.redeploy(flow, body("new"))
    run = flow.resume(run.run_id)
    assert run.status == "stuck"
    assert (
        row(run.run_id)
        .error["message"]
        .startswith(
            'At position 0 of branch "0.0" the run has recorded step "old", but the workflow asked for step "new".'
        )
    )


@pytest.mark.parametrize("change", ["a branch less", "a step less"])
def test_d3_a_body_that_ends_before_all_that_its_branches_have_recorded_is_a_mismatch(
    make: Workshop, change: str
) -> None:
    def body(branches: int, steps: int) -> Any:
        async def flow(ctx: Any, input: Any) -> None:
            async def handle(n: int) -> None:
                for k in range(steps):
                    await ctx.step(f"s{n}-{k}", lambda: 1)

            await asyncio.gather(*(handle(n) for n in range(branches)))
            if steps == 2 and branches == 2:
                await ctx.wait_for_signal("go")

        return flow

    flow = make(id="shrunk")(body(2, 2))
    run = flow.run()
    Wait.objects.all().delete()
    flow = make.redeploy(flow, body(1, 2) if change == "a branch less" else body(2, 1))
    run = flow.resume(run.run_id)
    assert (run.status, row(run.run_id).stuck_reason) == ("stuck", "replay-mismatch")
    assert "nothing more" in row(run.run_id).error["message"]


# -- rest --------------------------------------------------------------------------------------------------------------


def test_a_parked_branch_neither_undoes_nor_hides_what_its_siblings_finish(make: Workshop) -> None:
    calls, finished = Counter[str](), []

    @make
    async def flow(ctx: Any, input: Any) -> Any:
        async def slow() -> None:
            for name in ("one", "two", "three"):
                await ctx.step(name, lambda name=name: body(name))
            finished.append(1)

        async def body(name: str) -> None:
            calls[name] += 1
            for _ in range(10):
                await asyncio.sleep(0.001)

        async with asyncio.TaskGroup() as group:
            group.create_task(slow())
            group.create_task(ctx.wait_for_signal("go"))

    run = flow.run()
    assert (run.status, finished) == ("waiting", [1])
    assert [step.id for step in run.state.steps] == ["one", "two", "three"]
    signal(run.run_id, "go")
    assert flow.resume(run.run_id).status == "done"
    assert set(calls.values()) == {1}


def test_a_sibling_in_a_plain_sleep_is_not_nothing_in_flight(make: Workshop) -> None:
    @make
    async def flow(ctx: Any, input: Any) -> Any:
        async def calm() -> Any:
            await asyncio.sleep(0.05)
            return await ctx.step("after the sleep", lambda: 1)

        return await asyncio.gather(ctx.wait_for_signal("go"), calm())

    run = flow.run()
    assert [step.id for step in run.state.steps] == ["after the sleep"]
    assert run.status == "waiting"


@pytest.mark.parametrize("how", ["gather", "group", "task", "event", "queue", "wait"])
def test_a_run_parks_whatever_its_root_awaits_its_branches_by(make: Workshop, how: str) -> None:
    @make
    async def flow(ctx: Any, input: Any) -> Any:
        event, queue = asyncio.Event(), asyncio.Queue[Any]()

        async def branch() -> None:
            queue.put_nowait(await ctx.wait_for_signal("go"))
            event.set()

        if how == "group":
            async with asyncio.TaskGroup() as group:
                group.create_task(branch())
            return await queue.get()
        task = asyncio.create_task(branch())
        if how == "queue":
            return await queue.get()
        await {
            "gather": lambda: asyncio.gather(task),
            "task": lambda: task,
            "event": lambda: event.wait(),
            "wait": lambda: asyncio.wait([task]),
        }[how]()
        return await queue.get()

    run = flow.run()
    assert run.status == "waiting"
    signal(run.run_id, "go", 7)
    assert flow.resume(run.run_id).result == 7


def test_two_waits_wake_at_the_earlier_deadline(make: Workshop) -> None:
    @make
    async def flow(ctx: Any, input: Any) -> Any:
        async def branch(name: str, timeout: str) -> str:
            try:
                return await ctx.wait_for_signal(name, timeout=timeout)
            except SignalTimeout:
                return await ctx.step(f"late-{name}", lambda: "late")

        return await asyncio.gather(branch("a", "3h"), branch("b", "1h"), ctx.sleep("long", "2h"))

    with freeze_time(START) as clock:
        run = flow.run()
        assert row(run.run_id).due_at == START + timedelta(hours=1)
        assert {wait.id for wait in run.state.waits} == {"a", "b", "long"}
        clock.tick(timedelta(hours=1))
        work()
        assert row(run.run_id).due_at == START + timedelta(hours=2)
        assert [step.id for step in row(run.run_id).snapshot().steps if step.status == "done"] == ["late-b"]
        signal(run.run_id, "a", "in time")
        clock.tick(timedelta(hours=1))
        work()
        assert row(run.run_id).result == ["in time", "late", None]


def test_two_waits_wake_by_whichever_signal_comes(make: Workshop) -> None:
    @make
    async def flow(ctx: Any, input: Any) -> Any:
        return await asyncio.gather(ctx.wait_for_signal("a"), ctx.wait_for_signal("b"))

    for first, second in ("ab", "ba"):
        run = flow.run()
        signal(run.run_id, first, first)
        assert {wait.id for wait in flow.resume(run.run_id).state.waits} == {second}
        signal(run.run_id, second, second)
        assert flow.resume(run.run_id).result == ["a", "b"]


def test_s5_each_delivery_satisfies_one_wait_of_its_name(make: Workshop) -> None:
    @make
    async def flow(ctx: Any, input: Any) -> Any:
        return await asyncio.gather(*(ctx.wait_for_signal("go") for _ in range(3)))

    run = flow.run()
    for n in range(3):
        signal(run.run_id, "go", n)
        run = flow.resume(run.run_id)
        assert len(run.state.waits) == 2 - n
    assert run.result == [0, 1, 2]
    assert Signal.objects.exclude(consumed_by=None).count() == 3


def test_s5_signals_that_came_early_are_consumed_oldest_first_by_branches(make: Workshop) -> None:
    @make(early_signals=True)
    async def flow(ctx: Any, input: Any) -> Any:
        return await asyncio.gather(*(ctx.wait_for_signal("go") for _ in range(3)))

    run = flow.start()
    for n in range(2):
        signal(run.run_id, "go", n)
    assert flow.resume(run.run_id).status == "waiting"
    signal(run.run_id, "go", 2)
    assert flow.resume(run.run_id).result == [0, 1, 2]


@COMMITTED
def test_s2_a_signal_that_comes_while_a_sibling_works_wakes_its_branch_before_that_one_is_done(
    make: Workshop, settings: Any
) -> None:
    settings.FINOFLOW = {"POLL_INTERVAL": "50ms"}

    @make
    async def flow(ctx: Any, input: Any) -> Any:
        told = asyncio.Event()

        async def working() -> str:
            await asyncio.sleep(0.2)  # the wait is open by then
            await asyncio.to_thread(elsewhere, lambda: signal(ctx.run_id, "go", "came"))
            await asyncio.wait_for(told.wait(), 20)
            return "done"

        async def waiting() -> Any:
            payload = await ctx.wait_for_signal("go")
            told.set()
            return payload

        return await asyncio.gather(ctx.step("work", working), waiting())

    assert flow.run().result == ["done", "came"]


def test_a_step_that_waits_for_its_next_attempt_lets_its_siblings_go_on(make: Workshop) -> None:
    calls = Counter[str]()

    async def flaky() -> str:
        calls["flaky"] += 1
        if calls["flaky"] == 1:
            raise ConnectionError
        return "at last"

    @make
    async def flow(ctx: Any, input: Any) -> Any:
        async def steady() -> None:
            for n in range(3):
                await ctx.step(f"s{n}", lambda: calls.update(["steady"]))

        later = Retry(2, initial="1m", max_delay="1m", jitter=0)
        return await asyncio.gather(ctx.step("flaky", flaky, retry=later), steady(), ctx.sleep("nap", "5m"))

    with freeze_time(START) as clock:
        run = flow.run()
        assert calls == {"flaky": 1, "steady": 3}
        assert row(run.run_id).due_at == START + timedelta(minutes=1)
        clock.tick(timedelta(minutes=1))
        work()
        assert row(run.run_id).due_at == START + timedelta(minutes=5)
        clock.tick(timedelta(minutes=4))
        work()
    assert row(run.run_id).result == ["at last", None, None]
    assert calls == {"flaky": 2, "steady": 3}


# -- failures ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("how", ["gather", "group"])
def test_what_a_sibling_has_in_flight_is_recorded_when_another_fails_and_both_are_undone(
    make: Workshop, how: str
) -> None:
    undone: list[Any] = []

    @make
    async def flow(ctx: Any, input: Any) -> None:
        charging = asyncio.Event()

        async def charge() -> str:
            charging.set()
            await asyncio.sleep(0.05)
            return "receipt"

        async def fail() -> None:
            await charging.wait()
            raise LookupError("no such account")

        def undo(ctx: Any) -> None:
            undone.append(ctx.result)

        async def path() -> None:
            await ctx.step("reserve", lambda: "reservation", compensate=undo)
            await ctx.step("charge", charge, compensate=undo)
            await ctx.step("never", lambda: undone.append("never"))

        if how == "gather":
            await asyncio.gather(path(), ctx.step("fail", fail))
            return
        async with asyncio.TaskGroup() as group:
            group.create_task(path())
            group.create_task(ctx.step("fail", fail))

    failure(flow)
    run = Execution.objects.get()
    assert (run.status, run.rollback) == ("error", "completed")
    assert undone == ["receipt", "reservation"]
    assert sorted(step.id for step in run.snapshot().steps) == ["charge", "fail", "reserve"]


@COMMITTED
@pytest.mark.parametrize("how", ["gather", "group"])
def test_c6_a_run_that_dies_anywhere_while_its_branches_fail_and_unwind_undoes_all_of_them_once(
    make: Workshop, how: str
) -> None:
    undone = Counter[tuple[str, str]]()

    @make
    async def flow(ctx: Any, input: Any) -> None:
        def undo(ctx: Any) -> None:
            undone[ctx.run_id, ctx.result] += 1

        async def path(n: int) -> None:
            await ctx.step("a", lambda: f"a{n}", compensate=undo)
            await ctx.step("b", lambda: f"b{n}", compensate=undo)
            if n == 1:
                await ctx.step("fail", broken)

        def broken() -> None:
            raise LookupError

        if how == "gather":
            await asyncio.gather(*(path(n) for n in range(3)))
            return
        async with asyncio.TaskGroup() as group:
            for n in range(3):
                group.create_task(path(n))

    def settled(run_id: str) -> None:
        run = row(run_id)
        assert (run.status, run.rollback) == ("error", "completed")
        for step in Step.objects.filter(execution=run, compensable=True, status="done"):
            assert step.compensation == "compensated"
            assert undone[run_id, step.result] >= 1

    assert killed_everywhere(lambda died: flow.start().run_id, settled) > 10


def test_a_wait_that_its_branch_gives_up_is_closed_and_takes_no_signal(make: Workshop) -> None:
    @make
    async def flow(ctx: Any, input: Any) -> Any:
        def broken() -> None:
            raise LookupError

        async def fail() -> None:
            await ctx.sleep("moment", 0)
            await ctx.step("fail", broken)

        try:
            async with asyncio.TaskGroup() as group:
                group.create_task(ctx.wait_for_signal("given up"))
                group.create_task(fail())
        except* LookupError:
            pass
        return await ctx.wait_for_signal("go")

    run = flow.run()
    assert [wait.id for wait in run.state.waits] == ["go"]
    assert Wait.objects.get(name="given up").outcome == "cancelled"
    signal(run.run_id, "go", "done")
    assert flow.resume(run.run_id).result == "done"


def test_a_branch_that_waits_again_for_what_it_had_given_up_is_a_mismatch(make: Workshop) -> None:
    async def given_up(ctx: Any, input: Any) -> None:
        waiting = asyncio.create_task(ctx.wait_for_signal("first"))
        await ctx.step("s", lambda: 1)
        waiting.cancel()
        await asyncio.wait([waiting])
        await ctx.wait_for_signal("go")

    async def not_given_up(ctx: Any, input: Any) -> None:
        waiting = asyncio.create_task(ctx.wait_for_signal("first"))
        await ctx.step("s", lambda: 1)
        await waiting

    flow = make(id="mind")(given_up)
    run = flow.run()
    assert [wait.id for wait in run.state.waits] == ["go"]
    Wait.objects.filter(name="go").delete()
    run = make.redeploy(flow, not_given_up).resume(run.run_id)
    assert (run.status, row(run.run_id).stuck_reason) == ("stuck", "replay-mismatch")


def test_what_the_body_leaves_unawaited_ends_with_it(make: Workshop) -> None:
    @make
    async def flow(ctx: Any, input: Any) -> str:
        asyncio.create_task(ctx.wait_for_signal("never"))  # noqa: RUF006
        await ctx.step("s", lambda: 1)
        return "done"

    run = flow.run()
    assert (run.status, run.result) == ("done", "done")
    assert Wait.objects.get().outcome == "cancelled"


def test_d16_a_failed_step_of_each_branch_is_tried_again(make: Workshop) -> None:
    calls, broken = Counter[str](), {"a", "b"}

    @make
    async def flow(ctx: Any, input: Any) -> Any:
        def body(name: str) -> str:
            calls[name] += 1
            if name in broken:
                raise LookupError(name)
            return name

        async def path(name: str) -> Any:
            await ctx.step("before", lambda: body(f"before-{name}"))
            return await ctx.step("at", lambda: body(name))

        return await asyncio.gather(*(path(name) for name in "abc"))

    failure(flow)
    broken.clear()
    run_id = Execution.objects.get().run_id
    retry_run(run_id)
    work()
    assert row(run_id).result == ["a", "b", "c"]
    assert {name: count for name, count in calls.items() if count > 1} == {"a": 2, "b": 2}


def test_an_exception_group_of_the_body_fails_the_run_by_its_name(make: Workshop) -> None:
    @make
    async def flow(ctx: Any, input: Any) -> None:
        def broken() -> None:
            raise LookupError("no account")

        async with asyncio.TaskGroup() as group:
            group.create_task(ctx.step("s", broken))

    failure(flow)
    assert row(Execution.objects.get().run_id).error["type"].endswith("ExceptionGroup")
    with pytest.raises(FinoflowError):
        get_run(Execution.objects.get().run_id).wait_for_end()  # type: ignore[union-attr]


@COMMITTED
def test_w4_a_worker_that_stops_lets_the_steps_in_flight_of_all_branches_settle(make: Workshop) -> None:
    from django_finoflow.worker import Options, Worker

    @make
    async def flow(ctx: Any, input: Any) -> None:
        async def path(n: int) -> None:
            await ctx.step("first", lambda: body(n))
            await ctx.step("second", lambda: n)

        async def body(n: int) -> int:
            if n == 0:
                worker.stop()
            await asyncio.sleep(0.05)
            return n

        await asyncio.gather(*(path(n) for n in range(3)))

    run = flow.start()
    worker = Worker(Options(concurrency=1))
    worker.work()
    assert [(step.id, step.status) for step in row(run.run_id).snapshot().steps] == [("first", "done")] * 3
    assert row(run.run_id).due_at is not None
    assert row(run.run_id).lease_until is None


# -- state -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("finish", [[0, 1, 2], [2, 1, 0]], ids=str)
def test_d8_changes_of_branches_merge_by_position_whatever_finishes_first(make: Workshop, finish: list[int]) -> None:
    seen: list[Any] = []

    @make
    async def flow(ctx: Any, input: Any) -> Any:
        turns = Turns(finish)

        async def path(n: int) -> None:
            await turns(n)
            ctx.state.set("last", n)
            await ctx.step("s", lambda: ctx.state.set(f"k{n}", n))
            ctx.state.clear("first") if n == 1 else None

        ctx.state.set("first", "set")
        await asyncio.gather(*(path(n) for n in range(3)))
        seen.append(ctx.state.entries())
        await ctx.wait_for_signal("go")
        return ctx.state.entries()

    run = flow.run()
    assert run.state.state == {"k0": 0, "k1": 1, "k2": 2, "last": 2}
    signal(run.run_id, "go")
    assert flow.resume(run.run_id).result == {"k0": 0, "k1": 1, "k2": 2, "last": 2}
    assert seen[0] == seen[1]


def test_d8_a_branch_sees_its_own_changes_and_those_made_before_it(make: Workshop) -> None:
    @make
    async def flow(ctx: Any, input: Any) -> Any:
        async def path(n: int) -> Any:
            before = ctx.state.entries()
            ctx.state.set("own", n)
            await ctx.step("s", lambda: 1)
            return before, ctx.state.entries()

        ctx.state.set("before", 1)
        tasks = [asyncio.ensure_future(path(n)) for n in range(2)]
        ctx.state.set("after", 1)
        within = await asyncio.gather(*tasks)
        return [within, ctx.state.entries()]

    within, after = flow.run().result
    assert within == [({"before": 1}, {"before": 1, "own": n}) for n in range(2)]
    assert after == {"before": 1, "after": 1, "own": 1}


def test_d8_a_later_change_of_the_parent_beats_a_branch_that_was_made_before_it(make: Workshop) -> None:
    @make
    async def flow(ctx: Any, input: Any) -> Any:
        async def path() -> None:
            await ctx.step("s", lambda: ctx.state.set("k", "branch"))

        task = asyncio.ensure_future(path())
        ctx.state.set("k", "parent")
        await task
        return ctx.state.get("k")

    assert flow.run().result == "parent"


# -- random bodies -----------------------------------------------------------------------------------------------------


def tree(chance: random.Random, depth: int) -> list[Any]:
    """Return a random body: steps, waits and groups of bodies, nested."""
    kinds = ["step", "step", "wait", "sleep", "group"] if depth else ["step", "wait"]
    parts: list[Any] = []
    for _ in range(chance.randint(1, 3)):
        kind = chance.choice(kinds)
        size = chance.randint(1, 3) if kind == "group" else 0
        parts.append((kind, [tree(chance, depth - 1) for _ in range(size)]))
    return parts


@pytest.mark.parametrize("seed", range(25))
def test_any_tree_of_branches_ends_well_through_any_interruptions_and_calls_no_recorded_step_again(seed: int) -> None:
    chance = random.Random(seed)
    body, done, hurry = tree(chance, 2), Counter[str](), Interruption()
    hurry.armed = False
    abort = Abort()

    async def run_part(ctx: Any, parts: list[Any], path: str) -> list[Any]:
        found: list[Any] = []
        for n, (kind, inner) in enumerate(parts):
            name = f"{path}.{n}"
            if kind == "step":
                found.append(await ctx.step(name, lambda name=name: step(name)))
            elif kind == "wait":
                found.append(await ctx.wait_for_signal(name))
            elif kind == "sleep":
                found.append(await ctx.sleep(name, 0))
            else:
                parts_within = [run_part(ctx, part, f"{name}/{k}") for k, part in enumerate(inner)]
                found.append(await asyncio.gather(*parts_within))
            ctx.state.set(name, n)
        return found

    async def step(name: str) -> str:
        for _ in range(chance.randrange(4)):
            await asyncio.sleep(0)
        done[name] += 1
        return name

    @workflow(id="tree")
    async def flow(ctx: Any, input: Any) -> Any:
        return [await run_part(ctx, body, "r"), ctx.state.entries()]

    def expected(parts: list[Any], path: str) -> list[Any]:
        found: list[Any] = []
        for n, (kind, inner) in enumerate(parts):
            name = f"{path}.{n}"
            within = [expected(part, f"{name}/{k}") for k, part in enumerate(inner)]
            found.append({"step": name, "wait": f"for {name}", "sleep": None, "group": within}[kind])
        return found

    try:
        run = flow.run()
        for _ in range(200):
            if run.status == "done":
                break
            for wait in run.state.waits:
                if chance.random() < 0.6:
                    signal(run.run_id, wait.name, f"for {wait.name}")
            abort, left = Abort(), chance.randrange(4)

            def count(state: Any, left: list[int] = [left], abort: Abort = abort) -> None:  # noqa: B006
                left[0] -= 1
                if left[0] == 0:
                    abort.set()

            run = flow.resume(run.run_id, abort=abort, on_checkpoint=count)
        assert run.status == "done"
        assert run.result[0] == expected(body, "r")
        recorded = Step.objects.filter(execution__run_id=run.run_id)
        assert sorted(done) == sorted(recorded.values_list("step_id", flat=True))
        assert not Wait.objects.open().exists()
    finally:
        registry.unregister("tree")


@COMMITTED
def test_a_branch_killed_in_the_middle_calls_none_again_that_had_finished(make: Workshop) -> None:
    calls = Counter[str]()

    @make
    async def flow(ctx: Any, input: Any) -> int:
        async def body(n: int) -> int:
            calls[f"{n}"] += 1
            for _ in range(n):
                await asyncio.sleep(0.002)
            return n

        return sum(await asyncio.gather(*(ctx.step(f"s{n}", lambda n=n: body(n)) for n in range(10))))

    run = flow.start()
    with killed_after(6):
        work()
    finished = set(Step.objects.values_list("step_id", flat=True))
    assert 0 < len(finished) < 10
    before = Counter(calls)
    work()
    assert row(run.run_id).result == 45
    assert {f"s{n}" for n in range(10) if calls[f"{n}"] == before[f"{n}"]} == finished


@pytest.mark.parametrize("how", ["gather", "group"])
def test_c6_a_replay_comes_to_all_that_can_be_undone_before_a_recorded_failure_ends_its_branch(
    make: Workshop, how: str
) -> None:
    undone: list[Any] = []

    @make
    async def flow(ctx: Any, input: Any) -> None:
        both_done = asyncio.Event()

        async def path() -> None:
            await ctx.step("a", lambda: "a", compensate=lambda ctx: undone.append(ctx.result))
            await asyncio.sleep(0.05)
            await ctx.step("b", lambda: "b", compensate=lambda ctx: undone.append(ctx.result))
            both_done.set()
            await asyncio.sleep(60)

        async def fail() -> None:
            await both_done.wait()
            raise LookupError

        if how == "gather":
            await asyncio.gather(path(), ctx.step("fail", fail))
            return
        async with asyncio.TaskGroup() as group:
            group.create_task(path())
            group.create_task(ctx.step("fail", fail))

    run = flow.start()
    with killed_after(6):  # the claim, two steps, the failure, and then amidst the unwinding
        work()
    assert Step.objects.filter(status="failed").exists()
    work()
    assert (row(run.run_id).status, row(run.run_id).rollback) == ("error", "completed")
    assert undone[-2:] == ["b", "a"]


def test_c3_an_unwinding_whose_body_no_longer_comes_to_what_can_be_undone_is_left_to_an_operator(
    make: Workshop,
) -> None:
    def body(wait: bool) -> Any:
        async def flow(ctx: Any, input: Any) -> None:
            async def path() -> None:
                await ctx.step("a", lambda: "a", compensate=lambda ctx: None)

            def broken() -> None:
                raise LookupError

            parts = [path()] if wait else []
            await asyncio.gather(*parts)
            await ctx.step("fail", broken)

        return flow

    flow = make(id="lost")(body(True))
    run = flow.start()
    with killed_after(4):  # the claim, two steps, and the note that it unwinds
        work()
    assert Step.objects.filter(status="failed").exists()
    flow = make.redeploy(flow, body(False))
    work()
    assert (row(run.run_id).status, row(run.run_id).stuck_reason) == ("stuck", "compensation-failed")
