"""The API from async code: the same as the sync one, on the same rows, and waiting that holds nothing."""

from __future__ import annotations

import asyncio
import gc
import inspect
import threading
from collections.abc import AsyncIterator, Callable
from contextlib import aclosing
from typing import Any

import pytest
from asgiref.sync import async_to_sync, sync_to_async
from asgiref.testing import ApplicationCommunicator
from django.contrib.auth.models import User
from django.core.handlers.asgi import ASGIHandler
from django.db import transaction
from django.http import StreamingHttpResponse
from django.test import override_settings
from django.urls import path

import django_finoflow
from django_finoflow import (
    NotWaiting,
    RunLive,
    RunNotFound,
    WorkflowError,
    acancel,
    adecide,
    adelete_run,
    aget_run,
    alist_runs,
    aretry_run,
    asignal,
    astart,
    asynchronous,
    await_for_end,
    awatch_run,
    cancel,
    signal,
)
from tests.making import COMMITTED, elsewhere, row
from tests.processes import eventually
from tests.watchers import lookouts, nobody_is_left, other_connections, settled

TWINS = [name for name in asynchronous.__all__ if name != "awatch_run"]
MINUTE = override_settings(FINOFLOW={"POLL_INTERVAL": "60s"})
told = pytest.mark.only_postgresql(reason="there are no notifications elsewhere")


@pytest.fixture
def gate(make: Any) -> Any:
    """A workflow that asks a person, and waits for a signal if the answer is yes."""

    @make
    def gate(ctx: Any, input: Any) -> Any:
        decision = ctx.wait_for_approval("ok")
        return [decision["approved"], ctx.wait_for_signal("go")]

    return gate


# -- twins -------------------------------------------------------------------------------------------------------------


@pytest.mark.only_sqlite(reason="needs no database")
@pytest.mark.parametrize("name", TWINS)
def test_each_twin_takes_what_its_namesake_takes(name: str) -> None:
    twin, namesake = getattr(django_finoflow, name), getattr(django_finoflow, name.removeprefix("a"))
    assert inspect.iscoroutinefunction(twin)
    assert inspect.signature(twin) == inspect.signature(namesake)
    assert (twin.__name__, name.removeprefix("a") in twin.__doc__) == (name, True)


@pytest.mark.only_sqlite(reason="needs no database")
def test_everything_that_touches_a_run_has_a_twin() -> None:
    public = set(django_finoflow._HOMES["api"])
    assert {name.removeprefix("a") for name in asynchronous.__all__} == public
    assert set(asynchronous.__all__) <= set(django_finoflow.__all__)


@pytest.mark.django_db
def test_a_run_is_led_through_its_life_from_async_code_within_a_test_case(gate: Any) -> None:
    async def lead() -> None:
        boss = await User.objects.acreate_superuser("boss")
        run = await astart(gate.id, run_id="it")
        assert (await aget_run("it")).pk == run.pk
        assert [found.pk for found in await alist_runs(gate.id)] == [run.pk]
        await sync_to_async(gate.resume)("it")
        decision = await adecide("it", "ok", user=boss, approved=True)
        assert decision.user_name == "boss"
        with pytest.raises(NotWaiting):
            await asignal("it", "stop")
        await sync_to_async(gate.resume)("it")
        await asignal("it", "go", 5, sender="test")
        await sync_to_async(gate.resume)("it")
        assert await await_for_end("it") == [True, 5]
        assert await acancel("it") is False
        assert await adelete_run("it") is True
        assert await aget_run("it") is None

    async_to_sync(lead)()


@pytest.mark.django_db
def test_a_failed_run_is_tried_again_and_a_live_one_cancelled_from_async_code(make: Any) -> None:
    @make
    def flow(ctx: Any, input: Any) -> None:
        ctx.step("fails", lambda: 1 / 0)

    async def lead() -> None:
        await astart(flow, run_id="it")
        with pytest.raises(WorkflowError):
            await sync_to_async(flow.resume)("it")
        with pytest.raises(WorkflowError, match="division by zero"):
            await await_for_end("it")
        assert (await aretry_run("it")).status == "running"
        with pytest.raises(RunLive):
            await adelete_run("it")
        assert await acancel("it") is True

    async_to_sync(lead)()
    assert row("it").status == "cancelled"


@pytest.mark.django_db
def test_the_row_does_the_same_from_async_code(make: Any) -> None:
    @make
    def flow(ctx: Any, input: Any) -> Any:
        return ctx.wait_for_signal("go")

    async def lead() -> None:
        run = await astart(flow)
        await sync_to_async(flow.resume)(run.run_id)
        assert (await run.asnapshot()).waiting_on.name == "go"
        await run.asignal("go", 5, sender="test")
        await sync_to_async(flow.resume)(run.run_id)
        assert await run.await_for_end(timeout=1) == 5
        other = await astart(flow)
        assert await other.acancel() is True
        failed = await astart(flow)
        await sync_to_async(flow.resume)(failed.run_id)
        await sync_to_async(make.redeploy(flow, lambda ctx, input: None).resume)(failed.run_id)
        assert (await failed.aretry()).status == "running"

    async_to_sync(lead)()


@pytest.mark.django_db
def test_a_workflow_has_its_own_verbs_for_async_code(make: Any) -> None:
    @make
    def flow(ctx: Any, input: Any) -> Any:
        return [input, ctx.wait_for_signal("go")]

    async def view() -> list[Any]:
        run = await flow.astart("a")
        waiting = await flow.aresume(run.run_id)
        await flow.asignal(run.run_id, "go", 7)
        done = await flow.aresume(run.run_id)
        return [waiting.status, done.result, (await flow.arun("b")).status]

    assert async_to_sync(view)() == ["waiting", ["a", 7], "waiting"]


@COMMITTED
def test_s7_what_async_code_starts_within_a_transaction_is_rolled_back_with_it(gate: Any) -> None:
    with transaction.atomic():
        async_to_sync(astart)(gate, run_id="it")
        assert async_to_sync(aget_run)("it") is not None
        transaction.set_rollback(True)
    assert async_to_sync(aget_run)("it") is None


# -- watching ----------------------------------------------------------------------------------------------------------


@pytest.mark.django_db
def test_t8_inside_a_test_case_async_code_watches_without_another_thread(gate: Any) -> None:
    gate.run(run_id="it")
    threads, seen = threading.active_count(), []

    async def watch() -> None:
        async for state in awatch_run("it", timeout=20):
            seen.append(state.status)
            await acancel("it")

    async_to_sync(watch)()
    assert seen == ["waiting", "cancelled"]
    assert lookouts() == 0
    assert threading.active_count() <= threads + 1  # the event loop's


@COMMITTED
def test_async_code_sees_each_change_until_the_run_ends(gate: Any) -> None:
    gate.run(run_id="it")
    acts: list[Callable[[], Any]] = [
        lambda: signal("it", "ok", {"approved": True}),
        lambda: gate.resume("it"),
        lambda: signal("it", "go"),
        lambda: cancel("it"),
    ]
    seen = []

    async def watch() -> None:
        async for state in awatch_run("it", timeout=20):
            seen.append(state.status)
            if acts:
                await sync_to_async(acts.pop(0))()

    async_to_sync(watch)()
    assert seen == ["waiting", "running", "waiting", "running", "cancelled"]


@COMMITTED
@pytest.mark.parametrize("timeout", [0, "50ms"])
def test_async_watching_ends_when_its_time_is_up_and_waiting_raises(gate: Any, timeout: Any) -> None:
    gate.run(run_id="it")

    async def watch() -> list[str]:
        return [state.status async for state in awatch_run("it", timeout=timeout)]

    assert async_to_sync(watch)() == ["waiting"]
    with pytest.raises(TimeoutError, match="has not ended"):
        async_to_sync(await_for_end)("it", timeout=timeout)


@COMMITTED
@pytest.mark.parametrize("run_id", ["nowhere", "no\0where", ""])
def test_async_watching_of_an_unknown_run_says_so(run_id: str) -> None:
    async def watch(run_id: str) -> None:
        await anext(awatch_run(run_id))

    for waiting in (watch, await_for_end):
        with pytest.raises(RunNotFound):
            async_to_sync(waiting)(run_id)


# -- letting go --------------------------------------------------------------------------------------------------------


async def close(states: Any, task: Any) -> None:
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    await states.aclose()


async def cancel_task(states: Any, task: Any) -> None:
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task


@COMMITTED
@told
@MINUTE
@pytest.mark.parametrize("go_away", [close, cancel_task])
def test_a_consumer_that_goes_away_leaves_no_thread_and_no_connection(gate: Any, go_away: Any) -> None:
    gate.run(run_id="it")

    async def watch() -> None:
        states = awatch_run("it")
        await anext(states)
        task = asyncio.ensure_future(anext(states))
        await asyncio.sleep(0.2)
        assert lookouts() == 1
        await go_away(states, task)

    async_to_sync(watch)()
    nobody_is_left()


@COMMITTED
@told
@MINUTE
def test_a_consumer_that_forgets_its_watching_leaves_nothing_either(gate: Any) -> None:
    gate.run(run_id="it")

    async def watch() -> None:
        async for state in awatch_run("it"):
            if state.status == "running":
                break
            await asignal("it", "ok", {"approved": True})
        gc.collect()
        await asyncio.sleep(0.2)

    async_to_sync(watch)()
    nobody_is_left()


@COMMITTED
@told
@MINUTE
def test_an_event_loop_that_is_closed_under_a_watcher_disturbs_no_other(gate: Any) -> None:
    """As a server does that stops in a hurry."""
    gate.run(run_id="it")
    left: list[Any] = []

    async def begin() -> None:
        states = awatch_run("it")
        await anext(states)
        left.append(asyncio.ensure_future(anext(states)))
        await asyncio.sleep(0.2)

    def close_in_a_hurry() -> None:
        loop = asyncio.new_event_loop()
        loop.run_until_complete(begin())
        loop.close()

    elsewhere(close_in_a_hurry)
    assert lookouts() == 1

    async def watch() -> list[str]:
        seen = []
        async for state in awatch_run("it", timeout=20):
            seen.append(state.status)
            if len(seen) == 1:
                asyncio.get_running_loop().call_later(0.5, asyncio.ensure_future, acancel("it"))
        return seen

    assert async_to_sync(watch)() == ["waiting", "cancelled"]
    nobody_is_left()  # though the other one has not even been closed
    [task] = left
    task._log_destroy_pending = False
    with pytest.raises(asyncio.CancelledError):
        task.get_coro().throw(asyncio.CancelledError)


# -- under ASGI --------------------------------------------------------------------------------------------------------


async def stream(request: Any, run_id: str) -> StreamingHttpResponse:
    async def lines() -> AsyncIterator[str]:
        async with aclosing(awatch_run(run_id)) as states:
            async for state in states:
                yield f"{state.status}\n"

    return StreamingHttpResponse(lines())


urlpatterns = [path("<run_id>/", stream)]

SCOPE = {"type": "http", "method": "GET", "headers": [], "query_string": b"", "http_version": "1.1"}
#: As a project without sessions has it: what Django's own do with connections is not ours to test.
BARE = override_settings(ROOT_URLCONF=__name__, MIDDLEWARE=[], FINOFLOW={"POLL_INTERVAL": "60s"})


async def request(application: Any, run_id: str) -> ApplicationCommunicator:
    """Send a request and read the first line of its answer."""
    browser = ApplicationCommunicator(application, {**SCOPE, "path": f"/{run_id}/"})
    await browser.send_input({"type": "http.request"})
    assert (await browser.receive_output(10))["status"] == 200
    assert (await browser.receive_output(10))["body"] == b"waiting\n"
    return browser


@COMMITTED
@told
@BARE
def test_requests_that_wait_under_asgi_hold_no_connection_and_leave_none_behind_when_the_browser_goes_away(
    gate: Any,
) -> None:
    for number in range(20):
        gate.run(run_id=f"{number}")

    async def visit() -> None:
        application = ASGIHandler()
        browsers = [await request(application, f"{number}") for number in range(20)]
        await sync_to_async(settled)(20)
        assert await sync_to_async(other_connections)() == 1
        await acancel("0")
        assert (await browsers[0].receive_output(10))["body"] == b"cancelled\n"
        for browser in browsers[1:]:
            await browser.send_input({"type": "http.disconnect"})
        for browser in browsers:
            await browser.wait(10)

    async_to_sync(visit)()
    nobody_is_left()
    assert eventually(lambda: threading.active_count() < 10, 5)
