"""Async bodies under attack: what broke them once, and what was tried to break them."""

from __future__ import annotations

import asyncio
import gc
import os
import random
import signal as signals
import threading
from collections import Counter
from collections.abc import AsyncIterator, Callable, Generator, Iterator
from contextlib import asynccontextmanager, suppress
from typing import Any

import pytest
from asgiref.sync import ThreadSensitiveContext, async_to_sync, sync_to_async
from django.db import connection
from django.db.models import F

from django_finoflow import (
    CheckpointRefused,
    Retry,
    WorkflowError,
    cancel,
    delete_run,
    registry,
    signal,
    start,
    workflow,
)
from django_finoflow.attempt import Abort
from django_finoflow.loop import Loop
from django_finoflow.models import Execution, Step, Wait
from django_finoflow.worker import Options, Worker
from tests.killing import killed_after, work
from tests.making import COMMITTED, Workshop, elsewhere, row
from tests.processes import Spawned, eventually
from tests.testapp.models import Entry

SOON = {"POLL_INTERVAL": "50ms"}

pytestmark = pytest.mark.django_db


@pytest.fixture
def impatience() -> Iterator[Abort]:
    """An abort that is set after a few seconds: a drive that should have ended by then ends, and is still running."""
    abort = Abort()
    timer = threading.Timer(4, abort.set)
    timer.start()
    yield abort
    timer.cancel()


def broken() -> None:
    """Fail, as a step's body."""
    raise LookupError("broken")


# -- replay ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("depth", [0, 1, 2, 5])
def test_d4_what_a_failing_sibling_had_kept_from_beginning_does_not_begin_in_a_replay_either(
    make: Workshop, depth: int
) -> None:
    calls = []

    @make
    async def flow(ctx: Any, input: Any) -> Any:
        charging = asyncio.Event()

        async def charge() -> None:
            charging.set()
            await asyncio.sleep(0.02)
            calls.append("charge")

        async def path() -> None:
            await ctx.step("charge", charge)  # in flight when the sibling fails, and so recorded
            await ctx.step("ship", lambda: calls.append("ship"))

        async def fail() -> None:
            await charging.wait()
            raise LookupError

        async def nested(depth: int) -> None:
            await (asyncio.gather(nested(depth - 1)) if depth else ctx.step("fail", fail))

        with suppress(ExceptionGroup):
            async with asyncio.TaskGroup() as group:
                group.create_task(path())
                group.create_task(nested(depth))
        return await ctx.wait_for_signal("go")

    run = flow.run()
    assert calls == ["charge"]
    signal(run.run_id, "go")
    assert flow.resume(run.run_id).status == "done"
    assert calls == ["charge"]


@pytest.mark.parametrize("seed", range(15))
def test_d1_and_d4_branches_that_are_cancelled_anywhere_replay_as_they_first_ran(make: Workshop, seed: int) -> None:
    chance, calls = random.Random(seed), Counter[str]()
    moment, failing_after = chance.randrange(8), chance.randrange(5)

    async def body(name: str) -> str:
        calls[name] += 1
        for _ in range(chance.randrange(5)):
            await asyncio.sleep(0)
        return name

    @make
    async def flow(ctx: Any, input: Any) -> Any:
        async def path(n: int) -> None:
            for k in range(3):
                await ctx.step(f"p{n}{k}", lambda k=k: body(f"p{n}{k}"), compensate=lambda ctx: None)
                if k == 1:
                    await asyncio.gather(ctx.step(f"g{n}", lambda: body(f"g{n}")), ctx.sleep("nap", 0))
            await ctx.wait_for_signal(f"s{n}")

        async def fail() -> None:
            for k in range(failing_after):
                await ctx.step(f"f{k}", lambda k=k: body(f"f{k}"))
            raise LookupError

        tasks = [asyncio.create_task(path(n)) for n in range(2)]
        for _ in range(moment):
            await asyncio.sleep(0)
        tasks[0].cancel()
        await asyncio.wait(tasks[:1])
        with suppress(ExceptionGroup):
            async with asyncio.TaskGroup() as group:
                group.create_task(path(2))
                group.create_task(fail())
        await ctx.wait_for_signal("go")
        tasks[1].cancel()
        await asyncio.wait(tasks[1:])
        return await ctx.step("last", lambda: body("last"))

    run = flow.run()
    before = Counter(calls)
    assert flow.resume(run.run_id).status == "waiting"
    assert calls == before
    signal(run.run_id, "go")
    assert flow.resume(run.run_id).result == "last"
    assert calls == before + Counter(["last"])
    assert set(calls.values()) == {1}


@pytest.mark.parametrize("kind", ["a query", "a generator"])
def test_d4_an_async_generator_that_is_broken_off_shifts_no_branch(make: Workshop, kind: str) -> None:
    calls = Counter[Any]()
    Entry.objects.bulk_create(Entry(label=label) for label in "xy")

    async def numbers() -> AsyncIterator[int]:
        for n in range(3):
            yield n

    @make
    async def flow(ctx: Any, input: Any) -> Any:
        async for _ in Entry.objects.all() if kind == "a query" else numbers():
            break  # asyncio closes it in a task of its own, some time later
        await ctx.step("first", lambda: calls.update(["first"]))

        async def handle(n: int) -> Any:
            await ctx.step("s", lambda: calls.update([n]))
            return await ctx.wait_for_signal(f"go-{n}")

        return await asyncio.gather(handle(0), handle(1))

    run = flow.run()
    for n in range(2):
        signal(run.run_id, f"go-{n}", n)
        run = flow.resume(run.run_id)
    assert run.result == [0, 1]
    assert set(calls.values()) == {1}


def test_s5_of_more_than_ten_branches_that_wait_for_one_name_the_lowest_gets_the_signal(make: Workshop) -> None:
    @make
    async def flow(ctx: Any, input: Any) -> Any:
        async def one() -> Any:
            return await ctx.wait_for_signal("go")

        return await asyncio.gather(*(one() for _ in range(12)), ctx.wait_for_signal("go"))

    run = flow.run()
    for n in range(13):
        signal(run.run_id, "go", n)
    assert flow.resume(run.run_id).result == [*range(1, 13), 0]  # that of the root was called first


# -- state -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("how", ["step", "parallel"])
def test_d8_what_a_step_changed_is_kept_though_its_branch_was_cancelled_meanwhile(make: Workshop, how: str) -> None:
    seen = []

    @make
    async def flow(ctx: Any, input: Any) -> None:
        charging = asyncio.Event()

        async def charge() -> None:
            charging.set()
            ctx.state.set("charged", True)
            await asyncio.sleep(0.02)

        async def fail() -> None:
            await charging.wait()
            raise LookupError

        with suppress(ExceptionGroup):
            async with asyncio.TaskGroup() as group:
                group.create_task(ctx.step("c", charge) if how == "step" else ctx.parallel({"c": charge}))
                group.create_task(ctx.step("fail", fail))
        seen.append(ctx.state.entries())
        await ctx.wait_for_signal("go")

    run = flow.run()
    assert run.state.state == {"charged": True}
    signal(run.run_id, "go")
    flow.resume(run.run_id)
    assert seen == [{"charged": True}] * 2


def test_d8_a_run_that_a_step_of_another_drives_undoes_with_its_own_state(make: Workshop) -> None:
    seen = []

    @make
    async def inner(ctx: Any, input: Any) -> None:
        ctx.state.set("who", "inner")
        await ctx.step("s", lambda: 1, compensate=lambda ctx: seen.append(ctx.state.entries()))
        broken()

    @make
    async def outer(ctx: Any, input: Any) -> None:
        ctx.state.set("who", "outer")
        with suppress(WorkflowError):
            await ctx.step("s", inner.run)

    outer.run()
    assert seen == [{"who": "inner"}]


# -- failures and undoing ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("how", ["parallel", "gate", "raise after a signal", "raise after a step"])
def test_c1_a_branch_that_fails_in_a_later_drive_ends_no_sibling_before_that_one_is_where_it_was(
    make: Workshop, how: str
) -> None:
    undone = []

    @make
    async def flow(ctx: Any, input: Any) -> None:
        async def fail() -> None:
            if how == "gate":
                await ctx.wait_for_approval("go", on_reject="fail")
            await ctx.wait_for_signal("go")
            if how == "parallel":
                await ctx.parallel({"x": broken, "y": lambda: 1})
            if how == "raise after a step":
                await ctx.step("s", lambda: 1)
            broken()

        async def path() -> None:
            async def part(n: int) -> None:
                await ctx.step(f"r{n}", lambda: n, compensate=lambda ctx: undone.append(ctx.result))

            await asyncio.gather(part(1), part(2))
            await ctx.wait_for_signal("never")

        async with asyncio.TaskGroup() as group:
            group.create_task(fail())
            group.create_task(path())

    run = flow.run()
    signal(run.run_id, "go", {"approved": False})
    with pytest.raises(WorkflowError):
        flow.resume(run.run_id)
    assert undone == [2, 1]


def test_c6_a_pause_before_a_next_attempt_does_not_park_a_run_that_is_being_unwound(make: Workshop) -> None:
    is_broken, undone = [True], []

    @make
    async def flow(ctx: Any, input: Any) -> None:
        later = Retry(3, initial="1h", max_delay="1h")
        flaky = asyncio.create_task(ctx.step("flaky", broken, retry=later))
        await ctx.step("a", lambda: "a", compensate=lambda ctx: undone.append(ctx.result))
        await asyncio.sleep(0.1)  # flaky has failed once by then
        if is_broken[0]:
            broken()
        await flaky

    for writes in range(3, 12):
        run = flow.start()
        with killed_after(writes):
            work()
        if row(run.run_id).status == "compensating":
            break
    undone.clear()
    is_broken[0] = False  # so that the replay comes further than the run did
    work()
    assert (row(run.run_id).status, row(run.run_id).rollback, undone) == ("error", "completed", ["a"])


@pytest.mark.parametrize("pause", ["10ms", "1h"])
@pytest.mark.parametrize("when", ["in flight", "pausing"])
def test_a_step_whose_branch_is_cancelled_makes_no_further_attempt(make: Workshop, pause: str, when: str) -> None:
    calls = []

    @make
    async def flow(ctx: Any, input: Any) -> None:
        trying, failed = asyncio.Event(), asyncio.Event()

        async def flaky() -> None:
            calls.append(1)
            trying.set()
            if when == "in flight":
                await failed.wait()
                for _ in range(20):
                    await asyncio.sleep(0)  # the sibling's failure has cancelled this branch by then
            broken()

        async def fail() -> None:
            await trying.wait()
            if when == "pausing" and pause == "1h":
                await asyncio.sleep(0.05)
            failed.set()
            broken()

        async with asyncio.TaskGroup() as group:
            group.create_task(ctx.step("flaky", flaky, retry=Retry(3, initial=pause, max_delay="1h", jitter=0)))
            group.create_task(fail())

    with pytest.raises(WorkflowError):
        flow.run()
    assert calls == [1]
    assert Step.objects.get().status == "retrying"


@COMMITTED
def test_a_branch_that_fails_unawaited_is_reported_by_asyncio(make: Workshop, caplog: pytest.LogCaptureFixture) -> None:
    @make
    async def flow(ctx: Any, input: Any) -> None:
        async def forgotten() -> None:
            broken()

        asyncio.create_task(forgotten())  # noqa: RUF006
        await ctx.step("s", lambda: 1)

    assert flow.run().status == "done"
    gc.collect()
    assert "Task exception was never retrieved" in caplog.text


# -- rest and end ------------------------------------------------------------------------------------------------------


@COMMITTED
def test_a_replay_that_does_not_come_to_rest_holds_up_what_is_new_for_a_while_only(
    make: Workshop, impatience: Abort, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("django_finoflow.loop.LAST_WORDS", 0.3)
    drives = []

    @make
    async def flow(ctx: Any, input: Any) -> str:
        told = asyncio.get_running_loop().create_future()  # whoever awaits it has something in flight
        drives.append(1)

        async def busy() -> None:
            if len(drives) > 1:
                await told

        async def path() -> None:
            await ctx.wait_for_signal("go")
            await ctx.step("new", lambda: 1)
            told.set_result(None)

        await asyncio.gather(busy(), path())
        return "done"

    run = flow.run()
    signal(run.run_id, "go")
    assert flow.resume(run.run_id, abort=impatience).result == "done"


@COMMITTED
@pytest.mark.parametrize("how", ["shield", "context manager", "generator", "awaitable"])
def test_a_run_parks_though_its_root_awaits_its_branches_in_a_roundabout_way(
    make: Workshop, impatience: Abort, how: str
) -> None:
    @asynccontextmanager
    async def grouped() -> AsyncIterator[asyncio.TaskGroup]:
        async with asyncio.TaskGroup() as group:
            yield group

    class Awaitable:
        def __init__(self, event: asyncio.Event):
            self.event = event

        def __await__(self) -> Generator[Any, None, Any]:
            return self.event.wait().__await__()

    @make
    async def flow(ctx: Any, input: Any) -> None:
        event = asyncio.Event()

        async def branch() -> None:
            await ctx.wait_for_signal("go")
            event.set()

        async def generated() -> AsyncIterator[bool]:
            yield await event.wait()

        if how == "context manager":
            async with grouped() as group:
                group.create_task(branch())
            return
        task = asyncio.create_task(branch())
        if how == "shield":
            await asyncio.shield(task)
        elif how == "generator":
            async for _ in generated():
                pass
        else:
            await Awaitable(event)

    run = flow.run(abort=impatience)
    assert run.status == "waiting"
    signal(run.run_id, "go")
    assert flow.resume(run.run_id).status == "done"


@COMMITTED
def test_s2_a_branch_goes_on_only_when_what_ended_its_wait_is_committed_and_known(
    make: Workshop, monkeypatch: pytest.MonkeyPatch
) -> None:
    looks, look = [], Loop._look

    def counted(self: Loop) -> None:
        look(self)
        looks.append(1)

    monkeypatch.setattr(Loop, "_look", counted)

    def slow(execute: Any, sql: str, params: Any, many: bool, context: Any) -> Any:
        """Let the loop look twice between reading that a wait has ended and reading its signal."""
        if sql.startswith("SELECT") and 'FROM "finoflow_signal"' in sql and "LIMIT 21" in sql:
            seen = len(looks)
            eventually(lambda: len(looks) >= seen + 2)
        return execute(sql, params, many, context)

    @make
    async def flow(ctx: Any, input: Any) -> Any:
        def tell() -> None:
            elsewhere(lambda: signal(ctx.run_id, "go", "came"))

        return await asyncio.gather(ctx.wait_for_signal("go"), ctx.step("tell", tell))

    with connection.execute_wrapper(slow):
        assert flow.run().result == ["came", None]


@COMMITTED
def test_w4_a_drive_that_is_aborted_while_a_branch_waits_leaves_the_run_due_and_not_stuck(
    make: Workshop, settings: Any
) -> None:
    settings.FINOFLOW, abort = SOON, Abort()

    @make
    async def flow(ctx: Any, input: Any) -> None:
        async def working() -> None:
            await asyncio.sleep(0.3)  # the wait has been looked at by then
            abort.set()
            await asyncio.sleep(60)

        await asyncio.gather(working(), ctx.wait_for_signal("go"))

    run = flow.run(abort=abort)
    assert (run.status, row(run.run_id).stuck_reason) == ("running", "")
    assert row(run.run_id).due_at is not None


@COMMITTED
def test_d14_an_abort_reaches_a_body_that_heeds_no_deadline_and_its_siblings(make: Workshop) -> None:
    abort, ended = Abort(), []

    @make
    async def flow(ctx: Any, input: Any) -> None:
        async def body() -> None:
            with suppress(asyncio.CancelledError):
                await asyncio.sleep(60)
            abort.set()
            await endless("step")

        async def endless(name: str) -> None:
            try:
                await asyncio.sleep(10)
            except asyncio.CancelledError:
                ended.append(name)
                raise

        await asyncio.gather(ctx.step("s", body, timeout="20ms"), endless("body"))

    assert flow.run(abort=abort).status == "running"
    assert sorted(ended) == ["body", "step"]


@COMMITTED
def test_a_branch_that_is_left_cannot_hold_up_the_end_by_a_new_checkpoint(
    make: Workshop, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("django_finoflow.loop.LAST_WORDS", 60.0)
    calls = []

    @make
    async def flow(ctx: Any, input: Any) -> str:
        async def branch() -> None:
            try:
                await ctx.wait_for_signal("go")
            finally:
                await ctx.step("late", lambda: calls.append(1))

        asyncio.create_task(branch())  # noqa: RUF006
        await ctx.step("s", lambda: 1)
        await asyncio.sleep(0.05)
        return "done"

    found: list[Any] = []
    thread = threading.Thread(target=lambda: elsewhere(lambda: found.append(flow.run())), daemon=True)
    thread.start()
    thread.join(20)
    assert [run.result for run in found] == ["done"]
    assert calls == []


@COMMITTED
def test_a_request_that_is_given_up_cancels_nothing_of_the_run_that_it_drives(make: Workshop) -> None:
    started, given_up, undone = threading.Event(), threading.Event(), []

    @make
    async def flow(ctx: Any, input: Any) -> str:
        async def slow() -> str:
            started.set()
            await asyncio.to_thread(given_up.wait, 20)
            return "slow"

        return await ctx.step("slow", slow, compensate=lambda ctx: undone.append(1))

    async def view() -> None:
        async with ThreadSensitiveContext():
            request = asyncio.ensure_future(flow.arun())
            await asyncio.to_thread(started.wait, 20)
            request.cancel()  # as an ASGI server does when the browser goes away
            with suppress(asyncio.CancelledError):
                await request
            given_up.set()
            await sync_to_async(lambda: connection.close())()  # once the drive, in the same thread, is over

    elsewhere(lambda: asyncio.run(view()))
    eventually(lambda: Execution.objects.get().status != "running")
    assert (Execution.objects.get().result, undone) == ("slow", [])


@COMMITTED
def test_a_request_that_is_given_up_cancels_no_async_compensator(make: Workshop) -> None:
    started, given_up, undone = threading.Event(), threading.Event(), []

    async def undo(ctx: Any) -> None:
        started.set()
        await asyncio.to_thread(given_up.wait, 20)
        undone.append(ctx.result)

    @make
    def flow(ctx: Any, input: Any) -> None:
        ctx.step("a", lambda: "a", compensate=undo)
        broken()

    async def view() -> None:
        async with ThreadSensitiveContext():
            request = asyncio.ensure_future(flow.arun())
            await asyncio.to_thread(started.wait, 20)
            request.cancel()
            with suppress(asyncio.CancelledError):
                await request
            given_up.set()
            await sync_to_async(lambda: connection.close())()  # once the drive, in the same thread, is over

    elsewhere(lambda: asyncio.run(view()))
    eventually(lambda: Execution.objects.get().status != "compensating")
    assert (Execution.objects.get().rollback, undone) == ("completed", ["a"])


# -- what held ---------------------------------------------------------------------------------------------------------


@COMMITTED
@pytest.mark.parametrize(
    "how", ["async_to_sync", "sync_to_async", "a thread", "an async run", "a sync run", "arun", "arun in the body"]
)
def test_a_step_of_a_branch_may_cross_between_sync_and_async_as_it_likes(make: Workshop, how: str) -> None:
    @make
    async def other(ctx: Any, input: Any) -> int:
        return sum(await asyncio.gather(*(ctx.step(f"s{n}", lambda n=n: n) for n in range(4))))

    @make
    def plain(ctx: Any, input: Any) -> int:
        return ctx.parallel({"a": lambda: 2, "b": lambda: 4})["a"] + 4

    async def counted() -> int:
        return await Entry.objects.acount() + 6

    def counted_aside() -> int:
        try:
            return Entry.objects.count() + 6
        finally:
            connection.close()

    bodies: dict[str, Callable[[], Any]] = {
        "async_to_sync": lambda: async_to_sync(counted)(),
        "sync_to_async": lambda: sync_to_async(lambda: Entry.objects.count() + 6)(),
        "a thread": lambda: asyncio.to_thread(counted_aside),
        "an async run": lambda: other.run().result,
        "a sync run": lambda: plain.run().result,
        "arun": lambda: result(other.arun()),
    }

    async def result(running: Any) -> Any:
        return (await running).result

    @make
    async def flow(ctx: Any, input: Any) -> Any:
        async def one() -> Any:
            await ctx.step("before", lambda: 1)
            return await (ctx.step("s", bodies[how]) if how in bodies else result(other.arun()))

        return await asyncio.gather(*(one() for _ in range(3)))

    assert flow.run().result == [6, 6, 6]


def test_d9_a_checkpoint_is_refused_in_sync_to_async_and_taken_on_the_way_back(make: Workshop) -> None:
    @make
    async def flow(ctx: Any, input: Any) -> Any:
        async def back() -> Any:
            return await ctx.step("s", lambda: "back")

        with pytest.raises(CheckpointRefused):
            await sync_to_async(lambda: ctx.step("s", lambda: 1))()
        return await sync_to_async(lambda: async_to_sync(back)())()

    assert flow.run().result == "back"


@COMMITTED
@pytest.mark.parametrize("context", ["one for each request", "none"])
def test_several_requests_at_once_drive_runs_of_their_own(make: Workshop, context: str) -> None:
    @make
    async def flow(ctx: Any, input: int) -> int:
        async def body(n: int) -> int:
            await asyncio.sleep(0.01)
            return n * input

        return sum(await asyncio.gather(*(ctx.step(f"s{n}", lambda n=n: body(n)) for n in range(4))))

    async def request(n: int) -> Any:
        try:
            return (await flow.arun(n)).result
        finally:
            await sync_to_async(lambda: connection.close())()

    async def server() -> list[Any]:
        async def served(n: int) -> Any:
            async with ThreadSensitiveContext():
                return await request(n)

        return await asyncio.gather(*((request if context == "none" else served)(n) for n in range(5)))

    found: list[Any] = []
    elsewhere(lambda: found.extend(asyncio.run(server())))
    assert found == [0, 6, 12, 18, 24]


@COMMITTED
def test_parked_runs_leave_no_thread_file_or_object_behind(make: Workshop) -> None:
    @make
    async def flow(ctx: Any, input: Any) -> Any:
        async def one(n: int) -> Any:
            await ctx.step("s", lambda: asyncio.sleep(0))
            return await ctx.wait_for_signal(f"go-{n}")

        await ctx.parallel({"a": lambda: 1, "b": lambda: 2})
        return await asyncio.gather(*(one(n) for n in range(4)))

    def measured(runs: int) -> tuple[int, int, int]:
        for _ in range(runs):
            assert flow.run().status == "waiting"
        gc.collect()
        files = len(os.listdir("/proc/self/fd")) if os.path.exists("/proc/self/fd") else 0
        return threading.active_count(), files, len(gc.get_objects())

    threads, files, objects = measured(5)
    more_threads, more_files, more_objects = measured(30)
    assert more_threads <= threads
    assert more_files <= files + 1
    assert more_objects - objects < 300


@COMMITTED
@pytest.mark.parametrize("how", ["lost", "cancelled", "deleted"])
def test_d14_and_d15_a_run_that_is_taken_away_ends_all_its_branches_and_records_nothing_more(
    make: Workshop, how: str
) -> None:
    ended = []

    @make
    async def flow(ctx: Any, input: Any) -> None:
        def take_away() -> None:
            if how == "lost":
                Execution.objects.update(lease_epoch=F("lease_epoch") + 1)
            else:
                cancel(ctx.run_id) if how == "cancelled" else delete_run(ctx.run_id, force=True)

        async def body(n: int) -> None:
            if n == 0:
                await asyncio.sleep(0.05)
                await asyncio.to_thread(elsewhere, take_away)
                return
            try:
                await asyncio.sleep(60)
            finally:
                ended.append(n)

        await asyncio.gather(*(ctx.step("s", lambda n=n: body(n)) for n in range(3)), ctx.wait_for_signal("go"))

    flow.start()
    Worker(Options(drain=True)).work()
    assert sorted(ended) == [1, 2]
    assert not Step.objects.exists()
    assert (
        list(Execution.objects.values_list("status", flat=True))
        == {
            "lost": ["running"],
            "cancelled": ["cancelled"],
            "deleted": [],
        }[how]
    )
    assert Wait.objects.open().exists() == (how == "lost")


@pytest.mark.only_postgresql
@COMMITTED
@pytest.mark.parametrize("seed", range(3))
def test_w5_lost_connections_while_branches_work_lose_and_repeat_nothing(make: Workshop, seed: int) -> None:
    chance, calls, begun, over = random.Random(seed), Counter[Any](), threading.Event(), threading.Event()

    def kill() -> None:
        begun.wait(20)
        with connection.cursor() as cursor:
            for _ in range(8):
                if over.wait(chance.uniform(0.005, 0.08)):
                    return
                cursor.execute(
                    "SELECT pg_terminate_backend(pid) FROM pg_stat_activity "
                    "WHERE pid <> pg_backend_pid() AND datname = current_database()"
                )

    @make
    async def flow(ctx: Any, input: Any) -> int:
        async def body(n: int, k: int) -> None:
            calls[n, k] += 1
            await asyncio.sleep(0.005)

        async def path(n: int) -> int:
            for k in range(12):
                await (ctx.sleep("z", 0) if (n + k) % 3 == 0 else ctx.step("s", lambda k=k: body(n, k)))
            return n

        begun.set()
        try:
            return sum(await asyncio.gather(*(path(n) for n in range(6))))
        finally:
            over.set()
            await asyncio.to_thread(killer.join)

    killer = threading.Thread(target=lambda: elsewhere(kill))
    killer.start()
    assert flow.run().result == 15
    assert len(calls) == Step.objects.count() == 48
    assert set(calls.values()) == {1}


# -- processes ---------------------------------------------------------------------------------------------------------

FLOW = """
import asyncio, os, sys, time
from django.core.management import call_command
from django_finoflow import workflow
from tests.testapp.models import Entry

@workflow(id="parts")
async def parts(ctx, input):
    async def body(n):
        await Entry.objects.acreate(run_id=ctx.run_id, label=f"s{n}", amount=os.getpid())
        await asyncio.sleep(input.get(f"part {n}", 0))
        return n

    async def path(n):
        part = await ctx.step(f"s{n}", lambda: body(n))
        await ctx.step(f"t{n}", lambda: n)
        return part

    found = await asyncio.gather(*(path(n) for n in range(4)))
    await asyncio.sleep(input.get("body", 0))
    await ctx.parallel({"x": lambda: time.sleep(input.get("parallel", 0)), "y": lambda: 1})
    return sum(found)
"""
WORKER = f'{FLOW}\ncall_command("finoflow_worker", "--poll-interval", "0.05", *sys.argv[1:])'


@pytest.fixture
def parts() -> Iterator[str]:
    """The id of a workflow that processes find in ``FLOW``."""

    @workflow(id="parts")
    async def parts(ctx: Any, input: Any) -> None: ...

    yield "parts"
    registry.unregister("parts")


def labels() -> list[str]:
    return sorted(Entry.objects.values_list("label", flat=True))


def done() -> list[str]:
    return sorted(Step.objects.filter(status="done").values_list("step_id", flat=True))


@COMMITTED
@pytest.mark.parametrize("grace", ["enough", "too little"])
def test_w4_a_worker_that_stops_lets_branches_settle_or_cancels_them_and_no_part_that_settled_is_done_again(
    parts: str, spawn_code: Callable[..., Spawned], grace: str
) -> None:
    run = start(parts, {"part 0": 0.5 if grace == "enough" else 60, "part 1": 0.5})
    worker = spawn_code(WORKER, "--grace", "30" if grace == "enough" else "1")
    eventually(lambda: len(labels()) == 4)
    worker.terminate()
    output = worker.finish(20)
    assert "Traceback" not in output
    assert "never" not in output
    stopped = row(run.run_id)
    assert (stopped.status, stopped.lease_until, stopped.recoveries) == ("running", None, 0)
    assert stopped.due_at is not None
    settled = {"s1", "s2", "s3"} | ({"s0"} if grace == "enough" else set())
    assert settled <= set(done())
    Execution.objects.update(input={})
    spawn_code(WORKER, "--drain").finish()
    assert row(run.run_id).result == 6
    assert labels() == sorted(["s0", "s1", "s2", "s3", *({"s0"} - settled)])


@COMMITTED
@pytest.mark.parametrize("how", ["kill -9", "a second SIGTERM"])
def test_w2_and_w4_a_worker_that_dies_in_a_gather_leaves_only_what_was_in_flight_to_be_done_again(
    parts: str, spawn_code: Callable[..., Spawned], how: str
) -> None:
    run = start(parts, {"part 0": 60, "part 1": 60})
    worker = spawn_code(WORKER, "--lease", "1")
    eventually(lambda: {"t2", "t3"} <= set(done()) and len(labels()) == 4)
    if how == "kill -9":
        worker.kill()
    else:
        worker.terminate()
        worker.wait_for_output("event=worker-stopping")
        eventually(lambda: worker.terminate() or worker.poll() is not None, 10)
    worker.wait(10)
    Execution.objects.update(input={})
    other = spawn_code(WORKER, "--lease", "1")
    eventually(lambda: row(run.run_id).status == "done")
    other.terminate()
    other.finish()
    assert labels() == ["s0", "s0", "s1", "s1", "s2", "s3"]
    assert row(run.run_id).recoveries == 1


@COMMITTED
@pytest.mark.parametrize("where", ["part 0", "body", "parallel"])
def test_ctrl_c_ends_a_drive_of_branches_at_once_and_leaves_the_run_due(
    spawn_code: Callable[..., Spawned], where: str
) -> None:
    source = f"""{FLOW}
import signal
signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell's background jobs ignore it
try:
    parts.run({{{where!r}: {1.5 if where == "parallel" else 60}}}, run_id="it")
except KeyboardInterrupt:
    print("interrupted", flush=True)
"""
    process = spawn_code(source)
    eventually(lambda: set(done()) >= ({"t1", "t2", "t3"} if where == "part 0" else {"t0", "t1", "t2", "t3"}))
    if where == "parallel":
        eventually(lambda: "y" in done())
    process.send_signal(signals.SIGINT)
    process.wait(10)
    assert process.output == "interrupted\n"
    run = row("it")
    assert (run.status, run.lease_until) == ("running", None)
    assert run.due_at is not None


#: A workflow whose body listens to nobody, and a worker for it.
DEAF = """
import asyncio, sys, time
from django.core.management import call_command
from django_finoflow import workflow
from tests.testapp.models import Entry

@workflow(id="deaf")
async def deaf(ctx, how):
    async def body():
        await Entry.objects.acreate(run_id=ctx.run_id, label="deaf")
        while True:
            try:
                time.sleep(60) if how == "blocks" else await asyncio.sleep(60)
            except asyncio.CancelledError:
                pass

    await body() if how == "in the body" else await ctx.step("deaf", body)

call_command("finoflow_worker", "--poll-interval", "0.05", "--grace", "0.2", *sys.argv[1:])
"""


@COMMITTED
@pytest.mark.parametrize("how", ["blocks", "swallows", "in the body"])
def test_w4_a_worker_leaves_an_async_body_behind_that_listens_to_nobody(
    make: Workshop, spawn_code: Callable[..., Spawned], how: str
) -> None:
    @make(id="deaf")
    async def deaf(ctx: Any, input: Any) -> None: ...

    run = deaf.start(how)
    worker = spawn_code(DEAF)
    eventually(lambda: labels() == ["deaf"])
    worker.terminate()
    assert "event=worker-stopped" in worker.finish(30)
    stopped = row(run.run_id)
    assert (stopped.lease_until, stopped.recoveries) == (None, 0)
    assert stopped.due_at is not None
