"""What the app can do with a run, by its id or on its row (design §5)."""

from __future__ import annotations

import threading
from contextlib import suppress
from dataclasses import FrozenInstanceError
from datetime import UTC, datetime, timedelta
from importlib import import_module

import pytest
from django.contrib.auth import get_user_model
from django.contrib.auth.models import AnonymousUser
from django.test import override_settings
from freezegun import freeze_time

import django_finoflow
from django_finoflow import (
    DurationError,
    FinoflowError,
    RunNotFound,
    UnknownWorkflow,
    ValidationFailed,
    WorkflowError,
    cancel,
    decide,
    delete_run,
    exceptions,
    get_run,
    list_runs,
    retry_run,
    signal,
    start,
    wait_for_end,
    watch_run,
)
from django_finoflow.models import Execution
from tests.making import COMMITTED, row

pytestmark = pytest.mark.django_db

START = datetime(2030, 1, 1, tzinfo=UTC)


def waiting(ctx, input):
    return ctx.wait_for_signal("go")


# -- everything has its place ------------------------------------------------------------------------------------------

OFFERED = [
    *("workflow", "activity", "Retry", "Approval", "current_step", "RunResult", "RunState"),
    *("start", "signal", "decide", "cancel", "retry_run"),
    *("get_run", "list_runs", "delete_run", "watch_run", "wait_for_end"),
]


def test_everything_in_the_design_is_importable_from_the_package():
    for name in OFFERED:
        assert getattr(django_finoflow, name) is not None
        assert name in django_finoflow.__all__
    with pytest.raises(AttributeError):
        django_finoflow.no_such_thing  # noqa: B018


def test_every_error_is_importable_from_the_package_and_derives_from_finoflow_error():
    errors = [e for e in vars(exceptions).values() if isinstance(e, type) and issubclass(e, Exception)]
    assert len(errors) > 20
    for error in errors:
        assert issubclass(error, FinoflowError)
        assert getattr(django_finoflow, error.__name__) is error
        assert error.__name__ in django_finoflow.__all__


@pytest.mark.parametrize("name", ["DefinitionError", "DurationError", "PayloadError"])
def test_what_is_wrong_with_a_value_is_a_value_error_too(name):
    assert issubclass(getattr(exceptions, name), ValueError)


@pytest.mark.parametrize("name", ["RunNotLive", "NotWaiting", "AlreadySignalled", "UnknownSignal", "InvalidSignalName"])
def test_every_refusal_of_a_signal_is_a_signal_refused(name):
    assert issubclass(getattr(exceptions, name), exceptions.SignalRefused)


# -- start -------------------------------------------------------------------------------------------------------------


@freeze_time(START)
def test_start_inserts_a_run_that_a_worker_drives(make):
    calls = []
    make(lambda ctx, input: calls.append(1), id="flow", version=3, queue="slow", priority=7)
    run = start("flow", {"n": 1})
    kept = row(run.run_id)
    assert (kept.workflow_id, kept.version, kept.queue, kept.priority, kept.input) == ("flow", 3, "slow", 7, {"n": 1})
    assert (kept.status, kept.due_at, kept.created_at, kept.lease_owner) == ("running", START, START, "")
    assert calls == []
    assert kept.started_at is None


@freeze_time(START)
def test_start_takes_queue_priority_and_time_of_its_own(make):
    flow = make(waiting)
    run = row(flow.start(queue="other", priority=-3, at="2h").run_id)
    assert (run.queue, run.priority, run.due_at) == ("other", -3, START + timedelta(hours=2))
    moment = START + timedelta(days=3)
    assert row(flow.start(at=moment).run_id).due_at == moment


def test_start_by_id_takes_the_newest_version(make):
    make(waiting, id="flow")
    old = start("flow")
    make(waiting, id="flow", version=2)
    assert (row(old.run_id).version, row(start("flow").run_id).version) == (1, 2)


def test_start_of_an_unknown_workflow_is_refused_and_says_what_is_known(make):
    make(waiting, id="flow")
    with pytest.raises(UnknownWorkflow, match=r"nowhere.*known:.*flow"):
        start("nowhere")


@pytest.mark.parametrize(
    "wrong",
    [{"priority": True}, {"priority": 1.5}, {"priority": 2**31}, {"key": ""}, {"key": "x" * 256}, {"key": 5}],
    ids=str,
)
def test_start_refuses_what_cannot_be_stored(make, wrong):
    with pytest.raises(ValidationFailed, match=next(iter(wrong))):
        make(waiting).start(**wrong)
    assert not Execution.objects.exists()


def test_start_refuses_a_queue_without_a_name(make):
    with pytest.raises(ValueError, match="queue"):
        make(waiting).start(queue="")


def test_start_keeps_the_requester_and_their_name(make):
    flow = make(waiting)
    user = get_user_model().objects.create_user("ann")
    run = row(flow.start(requester=user).run_id)
    assert (run.requester, run.requester_name) == (user, "ann")
    for nobody in (None, AnonymousUser()):
        run = row(flow.start(requester=nobody).run_id)
        assert (run.requester, run.requester_name) == (None, "")


def test_new_run_ids_sort_by_age_and_do_not_repeat(make):
    flow = make(waiting)
    with freeze_time(START) as clock:
        ids = []
        for _ in range(20):
            ids.append(flow.start().run_id)
            clock.tick(timedelta(milliseconds=1))
    assert ids == sorted(set(ids))


# -- get, list ---------------------------------------------------------------------------------------------------------


def test_get_run_returns_the_row_or_none(make):
    run = make(waiting).start()
    assert get_run(run.run_id) == run
    assert get_run("nowhere") is None


def test_list_runs_is_newest_first_then_highest_id(make):
    flow = make(waiting)
    with freeze_time(START) as clock:
        first, second = flow.start(), flow.start()
        clock.tick(1)
        third = flow.start()
    assert list_runs() == [third, second, first]
    assert list_runs(limit=1) == [third]
    assert list_runs(limit=2, offset=1) == [second, first]
    assert list_runs(offset=3) == []


def test_list_runs_filters_by_workflow_and_status(make):
    one, two = make(waiting, id="one"), make(lambda ctx, input: None, id="two")
    parked, done, fresh = one.run(), two.run(), one.start()
    assert [run.run_id for run in list_runs("one")] == [fresh.run_id, parked.run_id]
    assert [run.run_id for run in list_runs(status="done")] == [done.run_id]
    assert [run.run_id for run in list_runs("one", "waiting")] == [parked.run_id]
    assert list_runs("two", "waiting") == []


@pytest.mark.parametrize(
    "wrong",
    [{"limit": 0}, {"limit": 1001}, {"limit": True}, {"limit": "5"}, {"offset": -1}, {"offset": None}, {"status": "x"}],
    ids=str,
)
def test_list_runs_refuses_what_cannot_be(wrong):
    with pytest.raises(ValueError, match=next(iter(wrong))):
        list_runs(**wrong)


def test_list_runs_takes_a_thousand_at_the_most():
    assert list_runs(limit=1000) == []


# -- unknown ids -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "act",
    [
        lambda: signal("nowhere", "go"),
        lambda: decide("nowhere", "go", user=AnonymousUser(), approved=True),
        lambda: cancel("nowhere"),
        lambda: retry_run("nowhere"),
        lambda: wait_for_end("nowhere"),
        lambda: next(watch_run("nowhere")),
    ],
    ids=["signal", "decide", "cancel", "retry_run", "wait_for_end", "watch_run"],
)
def test_an_unknown_id_is_not_found(act):
    with pytest.raises(RunNotFound, match="nowhere"):
        act()


def test_but_deleting_one_is_false():
    assert delete_run("nowhere") is False


# -- methods of the row ------------------------------------------------------------------------------------------------


def test_the_row_does_the_same(make):
    flow = make(waiting)
    run = flow.start()
    flow.resume(run.run_id)
    assert run.snapshot().waiting_on.name == "go"
    run.signal("go", 5, sender="test")
    flow.resume(run.run_id)
    assert run.wait_for_end() == 5
    other = flow.start()
    assert other.cancel() is True
    assert other.cancel() is False


def test_the_snapshot_is_detached(make):
    @make
    def flow(ctx, input):
        ctx.step("one", lambda: {"n": [1]})
        ctx.state.set("k", [1])
        ctx.wait_for_signal("go")

    run_id = flow.run({"n": [1]}, key="k7").run_id
    state = row(run_id).snapshot()
    assert (state.run_id, state.workflow_id, state.status, state.key) == (run_id, flow.id, "waiting", "k7")
    state.input["n"].append(2)
    state.state["k"].append(2)
    state.steps[0].result["n"].append(2)
    again = row(run_id).snapshot()
    assert (again.input, again.state, again.steps[0].result) == ({"n": [1]}, {"k": [1]}, {"n": [1]})
    with pytest.raises(FrozenInstanceError):
        state.status = "done"
    assert state.steps[0]._fields == (
        "index", "id", "kind", "status", "result", "error", "attempts", "started_at", "finished_at",
    )  # fmt: skip


def test_a_step_shows_its_error_in_the_snapshot(make):
    @make
    def flow(ctx, input):
        ctx.step("one", lambda: 1 / 0)

    with pytest.raises(WorkflowError) as failure:
        flow.run()
    for error in (failure.value.state.error, failure.value.state.steps[0].error):
        assert set(error) == {"type", "message", "traceback"}
        assert error["type"] == "ZeroDivisionError"
        assert "1 / 0" in error["traceback"]


# -- wait_for_end, watch_run -------------------------------------------------------------------------------------------


def test_wait_for_end_returns_the_result_of_a_done_run(make):
    run = make(lambda ctx, input: [input], id="flow").run(5)
    assert wait_for_end(run.run_id) == [5]


@pytest.mark.parametrize("status", ["error", "cancelled", "stuck"])
def test_wait_for_end_raises_for_a_run_that_ended_otherwise(make, status):
    def body(ctx, input):
        if status == "error":
            raise ValueError("broken")
        ctx.wait_for_signal("go")

    flow = make(body)
    with suppress(WorkflowError):
        flow.run(run_id="r")
    if status == "cancelled":
        cancel("r")
    if status == "stuck":
        make.redeploy(flow, lambda ctx, input: None).resume("r")
    with pytest.raises(WorkflowError, match=f"Run r is {status}") as failure:
        row("r").wait_for_end()
    assert failure.value.state.status == status


@pytest.mark.parametrize("timeout", [0, "20ms", timedelta(milliseconds=20)], ids=str)
def test_wait_for_end_gives_up_when_its_time_is_over(make, timeout):
    run = make(waiting).start()
    with pytest.raises(TimeoutError, match="has not ended"):
        run.wait_for_end(timeout)
    with freeze_time(START), pytest.raises(TimeoutError):  # a frozen clock does not make it wait for ever
        run.wait_for_end(timeout=timeout)


def test_wait_for_end_refuses_what_is_no_duration(make):
    with pytest.raises(DurationError):
        make(waiting).start().wait_for_end("soon")


def test_watch_run_yields_the_state_now_and_when_its_time_is_up_ends(make):
    run = make(waiting).run()
    assert [state.status for state in watch_run(run.run_id, timeout=0)] == ["waiting"]
    assert [state.status for state in watch_run(run.run_id, timeout="50ms")] == ["waiting"]


def test_watch_run_of_a_run_that_has_ended_yields_once(make):
    run = make(lambda ctx, input: None, id="flow").run()
    assert [state.status for state in watch_run(run.run_id)] == ["done"]


def test_watch_run_yields_each_change_until_the_run_ends(make):
    flow = make(waiting)
    run = flow.start()
    seen = []
    for state in watch_run(run.run_id, timeout=20):
        seen.append((state.status, state.waiting_on is not None))
        {1: lambda: flow.resume(run.run_id), 2: lambda: run.signal("go", 5), 3: lambda: flow.resume(run.run_id)}.get(
            len(seen), lambda: None
        )()
    assert seen == [("running", False), ("waiting", True), ("running", False), ("done", False)]


def test_watch_run_says_when_the_run_is_deleted_meanwhile(make):
    run = make(waiting).start()
    states = watch_run(run.run_id, timeout=20)
    next(states)
    delete_run(run.run_id, force=True)
    with pytest.raises(RunNotFound):
        next(states)


@COMMITTED
@override_settings(FINOFLOW={"POLL_INTERVAL": "20ms"})
def test_wait_for_end_sees_an_end_that_comes_from_elsewhere(make):
    from tests.making import elsewhere

    flow = make(waiting)
    run = flow.run()
    waits, result = threading.Event(), []

    def watch():
        for state in watch_run(run.run_id, timeout=20):
            waits.set()
            result.append(state.status)

    watcher = threading.Thread(target=elsewhere, args=(watch,))
    watcher.start()
    assert waits.wait(20)
    signal(run.run_id, "go", 5)
    flow.resume(run.run_id)
    watcher.join(20)
    assert (result[0], result[-1]) == ("waiting", "done")


def test_the_engine_is_handed_over_when_django_has_loaded():
    bridge = import_module("django_finoflow.bridge")
    assert bridge.engine() is import_module("django_finoflow.api")
