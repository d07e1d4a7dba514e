"""Child runs: started once whatever crashes when, their end told to the parent, both undone or cancelled together."""

from __future__ import annotations

import json
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from django.contrib.auth import get_user_model
from django.db import connection
from freezegun import freeze_time

from django_finoflow import (
    RunLive,
    RunNotResumable,
    SignalTimeout,
    Workflow,
    WorkflowError,
    abandon_compensation,
    cancel,
    delete_run,
    registry,
    resume_compensation,
    retry_run,
    signal,
)
from django_finoflow.models import Execution, Signal, Step, Wait
from tests.killing import killed_everywhere, work
from tests.making import COMMITTED, elsewhere, outline, row
from tests.processes import Spawned
from tests.testapp.models import Entry

START = datetime(2030, 1, 1, tzinfo=UTC)

Build = Callable[..., Workflow]


@pytest.fixture
def build() -> Iterator[Build]:
    """Make builder workflows that are forgotten when the test ends; the second of one id is a redeployment."""
    made = set()

    def build(id: str = "parent", **options: Any) -> Workflow:
        registry.unregister(id)
        made.add(id)
        return Workflow(id, **options)

    yield build
    for id in made:
        registry.unregister(id)


class Ledger:
    """Steps and compensators that book what they do, as one transaction with their record if they are atomic."""

    def __init__(self) -> None:
        self.broken: set[str] = set()

    def book(self, label: str, amount: int = 1) -> Callable[[Any], Any]:
        def handler(ctx: Any) -> Any:
            Entry.objects.create(run_id=ctx.run_id, label=label, amount=amount)
            if label in self.broken:
                raise ValueError(f"{label} is broken")
            return label

        return handler

    def undo(self, label: str) -> Callable[[Any], Any]:
        return self.book(f"undo {label}", -1)

    def saga(self, flow: Workflow, *labels: str) -> Workflow:
        """Add atomic steps with compensators."""
        for label in labels:
            flow.step(label, self.book(label), retry=1, atomic=True, compensate=self.undo(label))
        return flow


@pytest.fixture
def ledger() -> Ledger:
    return Ledger()


def booked(*run_ids: str) -> list[str]:
    """Return what has been booked, for these runs or all."""
    entries = Entry.objects.filter(run_id__in=run_ids) if run_ids else Entry.objects.all()
    return list(entries.values_list("label", flat=True))


def child_of(run_id: str) -> Execution:
    return row(run_id).children.get()


def begun(flow: Workflow, input: Any = None, **options: Any) -> str:
    """Start a run, have workers do what is due, and return its id."""
    run_id = flow.start(input, **options).run_id
    work()
    return run_id


# -- started once, told once -------------------------------------------------------------------------------------------


@COMMITTED
def test_a_child_is_started_once_and_its_end_told_once_whatever_crashes_when(build: Build, ledger: Ledger) -> None:
    child = ledger.saga(build("child"), "inner")
    flow = ledger.saga(build(), "before").sub_workflow("sub", child, lambda ctx: ctx.steps["before"])
    ledger.saga(flow, "after").step("last", lambda ctx: [ctx.steps["sub"], ctx.steps["after"]])

    def settled(run_id: str) -> None:
        assert (row(run_id).status, row(run_id).result) == ("done", ["inner", "after"])
        assert (child_of(run_id).status, child_of(run_id).input) == ("done", "before")
        assert booked(run_id, child_of(run_id).run_id) == ["before", "inner", "after"]
        assert list(row(run_id).signals.values_list("name", flat=True)) == ["sub:sub"]

    deaths = killed_everywhere(lambda died: flow.start(run_id=f"run {died}").run_id, settled)
    assert deaths > 12


@COMMITTED
def test_a_finished_child_is_undone_once_whatever_crashes_when(build: Build, ledger: Ledger) -> None:
    child = ledger.saga(build("child"), "one", "two")
    flow = ledger.saga(build(), "before").sub_workflow("sub", child)
    ledger.saga(flow, "ship")
    ledger.broken.add("ship")

    def settled(run_id: str) -> None:
        ours = booked(run_id, child_of(run_id).run_id)
        assert ours == ["before", "one", "two", "undo ship", "undo two", "undo one", "undo before"]
        for run in (row(run_id), child_of(run_id)):
            assert (run.status, run.rollback, run.error["message"]) == ("error", "completed", "ship is broken")

    deaths = killed_everywhere(lambda died: flow.start(run_id=f"run {died}").run_id, settled)
    assert deaths > 30


@COMMITTED
@pytest.mark.parametrize("how", ["fails", "is late"])
def test_what_ends_a_child_badly_fails_its_parent_once_whatever_crashes_when(
    build: Build, ledger: Ledger, how: str
) -> None:
    child = ledger.saga(build("child"), "one")
    ledger.saga(child, "two") if how == "fails" else child.wait_for("never")
    ledger.broken.add("two")
    flow = ledger.saga(build(), "before").sub_workflow("sub", child, timeout="1h" if how == "fails" else 0)

    def settled(run_id: str) -> None:
        ours, inner = row(run_id), child_of(run_id)
        assert (ours.status, ours.rollback, booked(run_id)) == ("error", "completed", ["before", "undo before"])
        if how == "fails":
            assert (inner.status, booked(inner.run_id)) == ("error", ["one", "undo two", "undo one"])
            assert ours.error["message"] == "two is broken"
        else:
            assert (inner.status, ours.error["type"]) == ("cancelled", "django_finoflow.exceptions.SignalTimeout")

    assert killed_everywhere(lambda died: flow.start(run_id=f"run {died}").run_id, settled) > 10


@pytest.mark.django_db
@pytest.mark.parametrize("result", [None, 0, {"a": (1, 2)}])
def test_a_childs_result_is_under_its_nodes_name_whatever_it_is(build: Build, result: Any) -> None:
    child = build("child").step("x", lambda ctx: result)
    flow = build().sub_workflow("sub", child).step("look", lambda ctx: [ctx.steps["sub"], sorted(ctx.steps)])
    assert row(begun(flow)).result == [result, ["sub"]]


@pytest.mark.django_db
def test_a_runs_result_is_its_childs_if_that_is_its_last_node(build: Build) -> None:
    assert row(begun(build().sub_workflow("sub", build("child").step("x", lambda ctx: 7)))).result == 7


@pytest.mark.django_db
def test_the_requester_is_passed_on_to_children_and_theirs(build: Build) -> None:
    build("grandchild").step("x", lambda ctx: ctx.requester.get_username())
    build("child").sub_workflow("sub", "grandchild")
    ann = get_user_model().objects.create_user("ann")
    run_id = begun(build().sub_workflow("sub", "child"), requester=ann)
    assert row(run_id).result == "ann"
    assert list(Execution.objects.values_list("requester_name", flat=True)) == ["ann"] * 3


@pytest.mark.django_db
def test_an_unknown_child_workflow_fails_the_run_and_can_be_tried_again(build: Build) -> None:
    flow = build().sub_workflow("sub", "child")
    run_id = begun(flow)
    assert (row(run_id).status, "child" in row(run_id).error["message"]) == ("error", True)
    build("child").step("x", lambda ctx: 1)
    retry_run(run_id)
    work()
    assert row(run_id).result == 1


@pytest.mark.django_db
def test_a_function_workflow_may_start_children_and_catch_their_failure(make: Any, build: Build) -> None:
    build("child").step("x", lambda ctx: ctx.input / 0, retry=1)

    @make
    def parent(ctx: Any, input: Any) -> Any:
        try:
            ctx.sub_workflow("sub", "child", 1)
        except ZeroDivisionError as error:
            message = str(error)
            return ctx.step("after", lambda: message)

    run_id = parent.start().run_id
    work()
    assert (row(run_id).status, row(run_id).result) == ("done", "division by zero")


# -- failing, cancelling, being late -----------------------------------------------------------------------------------


@pytest.mark.django_db
def test_a_childs_failure_is_the_parents_error_of_the_same_class(build: Build, ledger: Ledger) -> None:
    ledger.broken.add("x")
    flow = ledger.saga(build(), "a").sub_workflow("sub", ledger.saga(build("child"), "w", "x"))
    run_id = begun(flow)
    assert (row(run_id).error["type"], row(run_id).error["message"]) == ("ValueError", "x is broken")
    assert booked() == ["a", "w", "undo x", "undo w", "undo a"]


@pytest.mark.django_db
def test_a_parent_with_nothing_of_its_own_to_undo_is_not_rolled_back_by_its_childs_failure(
    build: Build, ledger: Ledger
) -> None:
    ledger.broken.add("x")
    run_id = begun(build().step("a", lambda ctx: 1).sub_workflow("sub", ledger.saga(build("child"), "x")))
    assert (row(run_id).status, row(run_id).rollback) == ("error", "not-applicable")
    assert child_of(run_id).rollback == "completed"


@pytest.mark.django_db
def test_cancelling_a_child_fails_its_parent_which_is_unwound(build: Build, ledger: Ledger) -> None:
    flow = ledger.saga(build(), "a").sub_workflow("sub", ledger.saga(build("child"), "x").wait_for("ok"))
    run_id = begun(flow)
    child = child_of(run_id)
    assert cancel(child.run_id)
    work()
    assert row(run_id).error["message"] == f'Sub-workflow "sub", run {child.run_id}, was cancelled.'
    assert (row(run_id).status, child_of(run_id).status) == ("error", "cancelled")
    assert booked() == ["a", "x", "undo a"]


@pytest.mark.django_db
def test_t6_a_childs_time_counts_from_its_start_and_its_end_cancels_it_and_its_children(build: Build) -> None:
    build("grandchild").wait_for("never")
    build("child").sub_workflow("sub", "grandchild")
    flow = build().wait_for("go").sub_workflow("sub", "child", timeout="1h")
    with freeze_time(START) as clock:
        run_id = begun(flow)
        clock.tick(timedelta(days=1))
        signal(run_id, "go")
        work()
        clock.tick(timedelta(minutes=59))
        flow.resume(run_id)
        assert {run.status for run in Execution.objects.all()} == {"waiting"}
        clock.tick(timedelta(minutes=2))
        work()
    assert row(run_id).error["message"] == 'Sub-workflow "sub" timed out after 3600s'
    assert row(run_id).status == "error"
    assert [run.status for run in Execution.objects.exclude(run_id=run_id)] == ["cancelled"] * 2
    assert not Wait.objects.open().exists()


@pytest.mark.django_db
def test_a_childs_timeout_can_be_caught_by_a_function(make: Any, build: Build) -> None:
    build("child").wait_for("never")

    @make
    def parent(ctx: Any, input: Any) -> Any:
        try:
            return ctx.sub_workflow("sub", "child", None, timeout=0)
        except SignalTimeout:
            return "late"

    assert parent.run().result == "late"


@pytest.mark.django_db
def test_d14_a_child_that_is_unwinding_when_its_time_is_up_is_not_cancelled_and_the_parent_waits_for_it(
    build: Build, ledger: Ledger
) -> None:
    ledger.broken |= {"y", "undo x"}
    child = ledger.saga(build("child"), "x", "y")
    with freeze_time(START) as clock:
        run_id = begun(ledger.saga(build(), "a").sub_workflow("sub", child, timeout="1h"))
        assert (child_of(run_id).status, child_of(run_id).stuck_reason) == ("stuck", "compensation-failed")
        clock.tick(timedelta(hours=2))
        work()
        assert (row(run_id).status, child_of(run_id).status) == ("compensating", "stuck")
        ledger.broken.remove("undo x")
        resume_compensation(child_of(run_id).run_id)
        work()
    assert (row(run_id).status, child_of(run_id).status) == ("error", "error")
    assert "timed out" in row(run_id).error["message"]
    assert booked()[-2:] == ["undo x", "undo a"]


@pytest.mark.django_db
def test_d14_cancelling_a_parent_cancels_its_live_children_and_theirs_and_undoes_nothing(
    build: Build, ledger: Ledger
) -> None:
    ledger.saga(build("grandchild"), "z").wait_for("never")
    ledger.saga(build("child"), "y").sub_workflow("sub", "grandchild")
    run_id = begun(ledger.saga(build(), "x").sub_workflow("sub", "child"))
    assert cancel(run_id)
    work()
    assert {run.status for run in Execution.objects.all()} == {"cancelled"}
    assert (booked(), Execution.objects.count()) == (["x", "y", "z"], 3)
    assert not Wait.objects.open().exists()


@pytest.mark.django_db
def test_d14_cancelling_a_parent_leaves_a_child_that_is_unwinding_to_its_end(build: Build, ledger: Ledger) -> None:
    ledger.broken |= {"y", "undo x"}
    run_id = begun(build().sub_workflow("sub", ledger.saga(build("child"), "x", "y")))
    assert cancel(run_id)
    assert child_of(run_id).status == "stuck"
    ledger.broken.remove("undo x")
    resume_compensation(child_of(run_id).run_id)
    work()
    assert (row(run_id).status, child_of(run_id).status, child_of(run_id).rollback) == (
        "cancelled",
        "error",
        "completed",
    )


# -- a parent that is stuck --------------------------------------------------------------------------------------------


@pytest.mark.django_db
def test_a_childs_end_does_not_wake_a_stuck_parent_which_has_it_when_it_goes_on(build: Build) -> None:
    build("child").wait_for("ok").step("x", lambda ctx: "of the child")
    run_id = begun(build().step("a", lambda ctx: 1).sub_workflow("sub", "child"))
    changed = build().step("b", lambda ctx: 1).sub_workflow("sub", "child")
    assert changed.resume(run_id).status == "stuck"
    epoch = row(run_id).lease_epoch
    signal(child_of(run_id).run_id, "ok")
    work()
    assert (child_of(run_id).status, row(run_id).status, row(run_id).due_at) == ("done", "stuck", None)
    assert row(run_id).lease_epoch == epoch  # nobody has driven it
    build().step("a", lambda ctx: 1).sub_workflow("sub", "child")
    retry_run(run_id)
    work()
    assert (row(run_id).status, row(run_id).result) == ("done", "of the child")


# -- unwinding ---------------------------------------------------------------------------------------------------------


@pytest.mark.django_db
def test_an_unwinding_parent_waits_for_its_finished_child_to_be_undone(build: Build, ledger: Ledger) -> None:
    child = ledger.saga(build("child"), "x", "y")
    flow = ledger.saga(ledger.saga(build(), "a").sub_workflow("sub", child), "b", "c")
    ledger.broken.add("c")
    run_id = flow.start().run_id
    flow.resume(run_id)
    child.resume(child_of(run_id).run_id)
    assert flow.resume(run_id).status == "compensating"
    parked = row(run_id)
    assert (parked.due_at, parked.lease_until, child_of(run_id).status) == (None, None, "compensating")
    assert booked() == ["a", "x", "y", "b", "undo c", "undo b"]
    assert flow.resume(run_id).status == "compensating"  # too early: it parks again
    work()
    assert booked()[-3:] == ["undo y", "undo x", "undo a"]
    assert {(run.status, run.rollback) for run in Execution.objects.all()} == {("error", "completed")}


@pytest.mark.django_db
def test_a_child_that_is_stuck_in_its_unwinding_holds_its_parent_until_it_is_resumed(
    build: Build, ledger: Ledger
) -> None:
    child = ledger.saga(build("child"), "x", "y")
    flow = ledger.saga(ledger.saga(build(), "a").sub_workflow("sub", child), "b")
    ledger.broken |= {"b", "undo x"}
    run_id = begun(flow)
    assert (row(run_id).status, child_of(run_id).status) == ("compensating", "stuck")
    assert not cancel(run_id)
    assert not cancel(child_of(run_id).run_id)
    with pytest.raises(RunNotResumable):
        resume_compensation(run_id)
    ledger.broken.remove("undo x")
    resume_compensation(child_of(run_id).run_id)
    work()
    assert booked() == ["a", "x", "y", "undo b", "undo y", "undo x", "undo a"]
    assert (row(run_id).status, child_of(run_id).status) == ("error", "error")


@pytest.mark.django_db
def test_and_so_it_does_until_it_is_abandoned(build: Build, ledger: Ledger) -> None:
    child = ledger.saga(build("child"), "w", "x", "y")
    flow = ledger.saga(ledger.saga(build(), "a").sub_workflow("sub", child), "b")
    ledger.broken |= {"b", "undo x"}
    run_id = begun(flow)
    abandon_compensation(child_of(run_id).run_id)
    work()
    assert booked() == ["a", "w", "x", "y", "undo b", "undo y", "undo a"]
    assert (child_of(run_id).status, child_of(run_id).rollback) == ("error", "stuck")
    assert row(run_id).status == "error"


@pytest.mark.django_db
def test_grandchildren_are_undone_before_what_came_before_them(build: Build, ledger: Ledger) -> None:
    ledger.saga(build("grandchild"), "g1", "g2")
    ledger.saga(ledger.saga(build("child"), "c1").sub_workflow("sub", "grandchild"), "c2")
    ledger.saga(ledger.saga(build(), "p1").sub_workflow("sub", "child"), "p2")
    ledger.broken.add("p2")
    begun(registry.get("parent"))
    forth = ["p1", "c1", "g1", "g2", "c2"]
    assert booked() == [*forth, *[f"undo {label}" for label in ["p2", *reversed(forth)]]]
    assert {(run.status, run.rollback) for run in Execution.objects.all()} == {("error", "completed")}


@pytest.mark.django_db
def test_two_children_are_undone_the_last_first_each_to_its_end(build: Build, ledger: Ledger) -> None:
    ledger.saga(build("one"), "1a", "1b")
    ledger.saga(build("two"), "2a", "2b")
    flow = build().sub_workflow("first", "one").sub_workflow("second", "two")
    ledger.broken.add("last")
    begun(ledger.saga(flow, "last"))
    assert booked()[4:] == ["undo last", "undo 2b", "undo 2a", "undo 1b", "undo 1a"]


@pytest.mark.django_db
def test_c4_after_a_pivot_a_finished_child_is_not_undone(build: Build, ledger: Ledger) -> None:
    flow = build().sub_workflow("sub", ledger.saga(build("child"), "x")).pivot()
    ledger.broken.add("last")
    run_id = begun(ledger.saga(flow, "last"))
    assert (child_of(run_id).status, row(run_id).rollback, booked()) == ("done", "not-applicable", ["x"])


@pytest.mark.django_db
def test_compensators_see_their_childs_result_and_what_failed_the_run(build: Build) -> None:
    seen = []
    child = build("child").step("x", lambda ctx: 7, compensate=lambda ctx: seen.append(str(ctx.run_error)))
    flow = build().sub_workflow("sub", child)
    flow.step("bad", lambda ctx: 1 / 0, retry=1, compensate=lambda ctx: seen.append(ctx.steps))
    begun(flow)
    assert seen == [{"sub": 7}, "division by zero"]


# -- deleting ----------------------------------------------------------------------------------------------------------


@pytest.mark.django_db
def test_deleting_a_parent_strands_no_child(build: Build, ledger: Ledger) -> None:
    build("grandchild").wait_for("never")
    ledger.saga(build("child"), "x").sub_workflow("sub", "grandchild")
    run_id = begun(build().sub_workflow("sub", "child"))
    with pytest.raises(RunLive):
        delete_run(run_id)
    assert delete_run(run_id, force=True)
    assert [model.objects.count() for model in (Execution, Step, Wait, Signal)] == [0, 0, 0, 0]


@pytest.mark.django_db
def test_a_parent_that_has_ended_is_not_deleted_while_a_child_of_it_lives(build: Build, ledger: Ledger) -> None:
    ledger.broken |= {"y", "undo x"}
    run_id = begun(build().sub_workflow("sub", ledger.saga(build("child"), "x", "y")))
    cancel(run_id)
    child = child_of(run_id).run_id
    with pytest.raises(RunLive, match=child):
        delete_run(run_id)
    abandon_compensation(child)
    assert delete_run(run_id)
    assert not Execution.objects.exists()


@pytest.mark.django_db
def test_a_parent_whose_live_child_is_deleted_does_not_wait_for_ever(build: Build, ledger: Ledger) -> None:
    flow = ledger.saga(build(), "a").sub_workflow("sub", build("child").wait_for("never"))
    run_id = begun(flow)
    assert delete_run(child_of(run_id).run_id, force=True)
    work()
    assert (row(run_id).status, "was cancelled" in row(run_id).error["message"]) == ("error", True)
    assert booked() == ["a", "undo a"]


@pytest.mark.django_db
def test_nor_does_one_that_waits_for_its_unwinding(build: Build, ledger: Ledger) -> None:
    flow = ledger.saga(build(), "a").sub_workflow("sub", ledger.saga(build("child"), "x"))
    ledger.broken |= {"b", "undo x"}
    run_id = begun(ledger.saga(flow, "b"))
    assert row(run_id).status == "compensating"
    assert delete_run(child_of(run_id).run_id, force=True)
    work()
    assert (row(run_id).status, booked()[-1]) == ("error", "undo a")


@COMMITTED
@pytest.mark.only_postgresql
def test_w8_deleting_a_parent_waits_for_whoever_holds_its_child_before_it_touches_the_childs_rows(
    build: Build,
) -> None:
    """Else the one would hold the child's rows and wait for the child, the other the other way round."""
    build("child").step("x", lambda ctx: 1).wait_for("never")
    run_id = begun(build().sub_workflow("sub", "child"))
    child = child_of(run_id)
    held, done = threading.Event(), threading.Event()

    def hold() -> None:
        from django.db import transaction

        with transaction.atomic():
            Execution.objects.filter(pk=child.pk).locked()
            held.set()
            done.wait(0.3)
            Step.objects.filter(execution=child).update(attempts=2)
        connection.close()

    holder = threading.Thread(target=hold)
    holder.start()
    held.wait()
    elsewhere(lambda: delete_run(run_id, force=True))
    holder.join()
    assert not Execution.objects.exists()


# -- two processes at one moment ---------------------------------------------------------------------------------------

#: What a racer does with each of many parents, at the moment when both racers have come to it.
RACER = """
    import json, os, random, sys, time
    from django_finoflow import FinoflowError, Workflow, cancel, registry

    flag, verb, place, run_ids = sys.argv[1], sys.argv[2], int(sys.argv[3]), json.loads(sys.argv[4])
    {definitions}

    acts = {{
        "end the child": lambda run_id: registry.get("child").resume(run_id + ".1"),
        "drive the parent": lambda run_id: registry.get("parent").resume(run_id),
        "cancel the parent": cancel,
    }}
    for run_id in run_ids:
        open(f"{{flag}}-{{run_id}}-{{place}}", "w").close()
        while not os.path.exists(f"{{flag}}-{{run_id}}-{{1 - place}}"):
            time.sleep(0)
        time.sleep(random.uniform(0, 0.03 if verb == "cancel the parent" else 0.003))
        try:
            acts[verb](run_id)
        except FinoflowError:  # that it failed, or was cancelled before
            pass
    print("all done")
"""

DEFINITIONS = """
def undo(ctx): pass
Workflow("child").wait_for("ok").step("x", lambda ctx: "x", compensate=undo)
Workflow("parent").step("a", lambda ctx: 1, compensate=undo).sub_workflow("sub", "child", timeout="1h")
"""


@pytest.fixture
def race(spawn_code: Callable[..., Spawned], tmp_path: Path) -> Callable[..., None]:
    def race(run_ids: list[str], *verbs: str) -> None:
        source = RACER.format(definitions=DEFINITIONS.strip().replace("\n", "\n    "))
        racers = [
            spawn_code(source, str(tmp_path / "met"), verb, str(place), json.dumps(run_ids))
            for place, verb in enumerate(verbs)
        ]
        before = deadlocks()
        for racer in racers:
            assert "all done" in racer.finish(60)
        assert deadlocks() == before

    return race


def deadlocks() -> int:
    """Return how many the server has seen in this database; the engine tries again and would hide them."""
    if connection.vendor != "postgresql":
        return 0
    with connection.cursor() as cursor:
        cursor.execute("SELECT deadlocks FROM pg_stat_database WHERE datname = current_database()")
        return int(cursor.fetchone()[0])


@pytest.fixture
def families(build: Build) -> list[str]:
    """Parents that wait for their children, whose last gate has just been opened."""
    build("child"), build("parent")  # forgets them in the end
    registry.unregister("child"), registry.unregister("parent")
    exec(DEFINITIONS, {"Workflow": Workflow})
    run_ids = [f"{number:03}" for number in range(50 if connection.vendor == "postgresql" else 15)]
    for run_id in run_ids:
        registry.get("parent").start(run_id=run_id)
    work(limit=1000)
    for run_id in run_ids:
        signal(f"{run_id}.1", "ok")
    return run_ids


@COMMITTED
def test_a_childs_end_at_the_moment_of_its_parents_timeout_has_one_outcome_and_no_deadlock(
    families: list[str], race: Callable[..., None]
) -> None:
    Wait.objects.filter(kind="child").update(due_at=START - timedelta(days=3000))
    race(families, "end the child", "drive the parent")
    work(limit=1000)
    outcomes: Counter[str] = Counter()
    for run_id in families:
        parent, child = row(run_id), row(f"{run_id}.1")
        wait = parent.waits.get()
        told = Signal.objects.filter(execution=parent).count()
        assert (wait.outcome, told, parent.status, child.status) in [
            ("signalled", 1, "done", "done"),
            ("timed-out", 0, "error", "cancelled"),
        ]
        outcomes[wait.outcome] += 1
    print(outcomes)
    assert sum(outcomes.values()) == len(families)
    if connection.vendor == "postgresql":
        assert min(outcomes["signalled"], outcomes["timed-out"]) > 0


@COMMITTED
def test_a_childs_end_at_the_moment_of_its_parents_cancel_has_one_outcome_and_no_deadlock(
    families: list[str], race: Callable[..., None]
) -> None:
    race(families, "end the child", "cancel the parent")
    work(limit=1000)
    outcomes: Counter[str] = Counter()
    for run_id in families:
        parent, child = row(run_id), row(f"{run_id}.1")
        wait = parent.waits.get()
        assert (wait.outcome, parent.status, child.status) in [
            ("signalled", "cancelled", "done"),
            ("cancelled", "cancelled", "cancelled"),
        ]
        outcomes[wait.outcome] += 1
    print(outcomes)
    if connection.vendor == "postgresql":
        assert min(outcomes["signalled"], outcomes["cancelled"]) > 0


@pytest.mark.django_db
def test_d12_a_run_that_is_cancelled_just_as_it_is_resumed_is_not_driven(build: Build, ledger: Ledger) -> None:
    flow = ledger.saga(build().wait_for("ok"), "after")
    run_id = begun(flow)
    signal(run_id, "ok")
    cancelled = []

    def cancel_after_the_first_look(execute: Any, sql: str, params: Any, many: bool, context: Any) -> Any:
        result = execute(sql, params, many, context)
        if not cancelled:
            cancelled.append(True)
            cancel(run_id)
        return result

    with connection.execute_wrapper(cancel_after_the_first_look), pytest.raises(RunNotResumable, match="cancelled"):
        flow.resume(run_id)
    assert (row(run_id).status, booked()) == ("cancelled", [])


@pytest.mark.django_db
def test_a_failed_childs_parent_raises_its_error_to_whoever_resumes_it(build: Build) -> None:
    flow = build().sub_workflow("sub", build("child").step("x", lambda ctx: 1 / 0, retry=1))
    run_id = flow.start().run_id
    flow.resume(run_id)
    with pytest.raises(WorkflowError):
        registry.get("child").resume(child_of(run_id).run_id)
    with pytest.raises(WorkflowError) as failed:
        flow.resume(run_id)
    assert isinstance(failed.value.__cause__, ZeroDivisionError)
    assert outline(run_id) == [(0, "sub", "done")]
