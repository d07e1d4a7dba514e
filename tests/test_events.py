"""Our Django signals: sent after the commit of what they tell, and their listeners are isolated (W7)."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Any

import pytest
from django.contrib.auth import get_user_model
from django.db import transaction
from freezegun import freeze_time

from django_finoflow import NotWaiting, Retry, WorkflowError, cancel, decide, events, get_run, signal
from tests.making import COMMITTED, rolled_back, row
from tests.testapp.models import Entry

pytestmark = COMMITTED

NAMES = [name for name, value in vars(events).items() if isinstance(value, events.Signal)]


class Heard(list):
    """What was sent: the name of the event, and its facts."""

    def named(self, name: str) -> list[dict[str, Any]]:
        return [facts for heard, facts in self if heard == name]

    @property
    def names(self) -> list[str]:
        return [name for name, _ in self]


@pytest.fixture
def heard() -> Iterator[Heard]:
    heard = Heard()

    def listen(name):
        def hear(sender, signal, **facts):
            heard.append((name, {"sender": sender, **facts}))

        return hear

    for name in NAMES:
        getattr(events, name).connect(listen(name), weak=False, dispatch_uid=f"test-{name}")
    yield heard
    for name in NAMES:
        getattr(events, name).disconnect(dispatch_uid=f"test-{name}")


def test_w7_the_story_of_a_run_is_told_in_order(make, heard):
    attempts = []

    def shaky():
        attempts.append(1)
        if len(attempts) == 1:
            raise ValueError("once")

    @make
    def flow(ctx, input):
        ctx.step("one", shaky, retry=Retry(2, initial=0))
        ctx.wait_for_signal("go")
        return "done"

    run = flow.run({"n": 1})
    signal(run.run_id, "go", 5)
    flow.resume(run.run_id)
    assert heard.names == ["run_started", "step_retrying", "step_done", "run_waiting", "signal_received", "run_done"]
    for _, facts in heard:
        assert (facts["sender"], facts["run_id"]) == (flow.id, run.run_id)
    assert heard.named("run_started")[0]["input"] == {"n": 1}
    assert heard.named("step_retrying")[0]["error"]["message"] == "once"
    assert heard.named("step_done")[0]["attempt"] == 2
    assert heard.named("signal_received")[0] | {"name": "go", "payload": 5} == heard.named("signal_received")[0]
    assert heard.named("run_done")[0]["result"] == "done"


def test_w7_failing_cancelling_and_getting_stuck_are_told(make, heard):
    flow = make(lambda ctx, input: ctx.step("fails", lambda: 1 / 0), id="fails")
    with pytest.raises(WorkflowError):
        flow.run()
    assert heard.names == ["run_started", "step_failed", "run_failed"]
    assert heard.named("step_failed")[0]["error"]["type"] == "ZeroDivisionError"
    assert heard.named("run_failed")[0]["error"]["type"] == "ZeroDivisionError"
    waiting = make(lambda ctx, input: ctx.wait_for_signal("go"), id="waits")
    run_id, other = waiting.run().run_id, waiting.run().run_id
    heard.clear()
    cancel(run_id)
    cancel(run_id)
    make.redeploy(waiting, lambda ctx, input: None).resume(other)
    assert heard.names == ["run_cancelled", "run_stuck"]
    assert heard.named("run_stuck")[0]["reason"] == "replay-mismatch"


def test_w7_gates_and_deadlines_are_told(make, heard):
    flow = make(lambda ctx, input: ctx.wait_for_approval("pay", timeout=input), id="flow")
    with freeze_time(datetime(2030, 1, 1, tzinfo=UTC)) as clock:
        run_id = flow.run("1h").run_id
        clock.tick(3600)
        with pytest.raises(WorkflowError):
            flow.resume(run_id)
    assert heard.names == ["run_started", "gate_opened", "run_waiting", "signal_timed_out", "run_failed"]
    assert (
        heard.named("gate_opened")[0]["wait"]
        == heard.named("signal_timed_out")[0]["wait"]
        == row(run_id).waits.get().pk
    )


@pytest.mark.django_db(transaction=True)
def test_w7_a_decision_is_told(make, heard):
    boss = get_user_model().objects.create_superuser("boss")
    flow = make(lambda ctx, input: ctx.wait_for_approval("pay"), id="flow")
    run_id = flow.run().run_id
    heard.clear()
    decide(run_id, "pay", user=boss, approved=True)
    assert heard.names == ["signal_received", "gate_decided"]
    facts = heard.named("gate_decided")[0]
    assert (facts["name"], facts["approved"], facts["by"]) == ("pay", True, "boss")


def test_w7_nothing_is_told_before_the_commit_and_nothing_at_all_after_a_rollback(make, heard):
    flow = make(lambda ctx, input: ctx.wait_for_signal("go"), id="flow")
    with transaction.atomic():
        flow.start(run_id="r")
        assert heard == []
    assert heard.names == ["run_started"]
    flow.resume("r")
    heard.clear()
    for act in (lambda: flow.start(), lambda: signal("r", "go"), lambda: cancel("r")):
        with rolled_back():
            act()
    assert heard == []


def test_w7_what_is_refused_or_found_again_is_not_told(make, heard):
    flow = make(lambda ctx, input: ctx.wait_for_signal("go"), id="flow")
    run_id = flow.run(key="k").run_id
    heard.clear()
    flow.start(key="k")
    with pytest.raises(NotWaiting):
        signal(run_id, "other")
    assert heard == []


def test_w7_listeners_see_what_they_are_told_of(make):
    seen = []

    def look(run_id, **facts):
        run = get_run(run_id)
        seen.append((run.status, run.steps.count()))

    listened = [events.run_started, events.step_done, events.run_waiting]
    for event in listened:
        event.connect(look)
    try:

        @make
        def flow(ctx, input):
            ctx.step("one", lambda: None)
            ctx.wait_for_signal("go")

        flow.run()
    finally:
        for event in listened:
            event.disconnect(look)
    assert seen == [("running", 0), ("running", 1), ("waiting", 1)]


def test_w7_a_listener_that_raises_changes_nothing_and_stops_no_other(make, heard, caplog):
    def broken(**facts):
        raise RuntimeError("a broken listener")

    behind = []
    for name in NAMES:
        getattr(events, name).connect(broken, dispatch_uid="broken")
        getattr(events, name).connect(lambda **facts: behind.append(facts), weak=False, dispatch_uid="behind")
    try:

        @make
        def flow(ctx, input):
            ctx.step("one", lambda: Entry.objects.create(run_id="r", label="x").pk, atomic=True)
            ctx.wait_for_signal("go")
            return "done"

        run = flow.run()
        with transaction.atomic():
            signal(run.run_id, "go")
        assert flow.resume(run.run_id).result == "done"
    finally:
        for name in NAMES:
            getattr(events, name).disconnect(dispatch_uid="broken")
            getattr(events, name).disconnect(dispatch_uid="behind")
    assert heard.names == ["run_started", "step_done", "run_waiting", "signal_received", "run_done"]
    assert len(behind) == len(heard)
    assert Entry.objects.count() == 1
    assert "a broken listener" in caplog.text


def test_w7_nor_does_one_that_breaks_the_database(make, heard):
    """A statement that fails in a listener is its own trouble: it comes after the commit."""
    from django.db import connection

    def broken(**facts):
        with connection.cursor() as cursor:
            cursor.execute("SELECT nonsense FROM nowhere")

    events.step_done.connect(broken)
    events.run_started.connect(broken)
    try:
        flow = make(lambda ctx, input: [ctx.step("one", lambda: 1), ctx.step("two", lambda: 2, atomic=True)], id="flow")
        assert flow.run().result == [1, 2]
    finally:
        events.step_done.disconnect(broken)
        events.run_started.disconnect(broken)
    assert heard.names == ["run_started", "step_done", "step_done", "run_done"]


def test_w7_a_replay_tells_nothing_again(make, heard):
    @make
    def flow(ctx, input):
        ctx.step("one", lambda: None)
        ctx.wait_for_signal("go")
        ctx.wait_for_signal("then")

    run_id = flow.run().run_id
    signal(run_id, "go")
    heard.clear()
    flow.resume(run_id)
    flow.resume(run_id)
    assert heard.names == ["run_waiting", "run_waiting"]
