"""Unwinding, killed between any two compensators; and what signals and edits do to runs that other processes drive."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from django.db.models import Sum

from django_finoflow import Workflow, abandon_compensation, registry, resume_compensation, signal, start
from django_finoflow.models import Execution, Signal
from tests.killing import killed_everywhere, work
from tests.making import COMMITTED, outline, row
from tests.processes import ROOT, Spawned, eventually
from tests.testapp.models import Entry

Spawn = Callable[..., Spawned]

STEPS = ("reserve", "charge", "pack", "label", "ship")

#: A worker with the workflows of these tests. ``KILL`` is the compensator that it dies in, or right after; ``BREAK``
#: are those that fail.
WORKER = """
    import os, signal, sys, time
    from django.core.management import call_command
    from django_finoflow import Workflow, workflow
    from tests.testapp.models import Entry

    def die(when):
        if os.environ.get("KILL") == when:
            os.kill(os.getpid(), signal.SIGKILL)

    def book(label, amount):
        def handler(ctx):
            die(f"before {label}")
            Entry.objects.create(run_id=ctx.run_id, label=label, amount=amount)
            die(f"in {label}")
            if label in os.environ.get("BREAK", "").split(","):
                raise ValueError(f"{label} is broken")
        return handler

    NAMES = ("reserve", "charge", "pack", "label", "ship")

    def fails(ctx):
        raise RuntimeError("lost at sea")

    saga = Workflow("saga")
    for name in NAMES:
        saga.step(name, book(name, 1), retry=1, atomic=True, compensate=book(f"undo {name}", -1))
    saga.step("arrive", fails, retry=1)

    @workflow(id="saga-function")
    def saga_function(ctx, input):
        for name in NAMES:
            undo = book(f"undo {name}", -1)
            ctx.step(name, lambda: book(name, 1)(ctx), atomic=True, compensate=undo)
        ctx.step("arrive", lambda: fails(ctx))

    def slow(ctx):
        Entry.objects.create(run_id=ctx.run_id, label="slow")
        while not Entry.objects.filter(label="go on").exists():
            time.sleep(0.02)

    gated = Workflow("gated").step(os.environ.get("FIRST", "first"), slow)
    gated.wait_for("ok").step("after", lambda ctx: Entry.objects.create(run_id=ctx.run_id, label="after").pk)
    if os.environ.get("MORE"):
        gated.step("more", lambda ctx: "more")
    call_command("finoflow_worker", "--lease", "0.7", "--poll-interval", "0.05", *sys.argv[1:])
"""


@pytest.fixture
def build() -> Iterator[Callable[..., Workflow]]:
    """Make builder workflows that are forgotten when the test ends; the second of one id is a redeployment."""
    made = set()

    def build(id: str, **options: Any) -> Workflow:
        registry.unregister(id)
        made.add(id)
        return Workflow(id, **options)

    yield build
    for id in made:
        registry.unregister(id)


@pytest.fixture
def begin(build: Callable[..., Workflow]) -> Callable[[str, str], Execution]:
    """Start a run of one of the worker's workflows, which this process only needs to know by name."""

    def begin(workflow: str, run_id: str) -> Execution:
        if (workflow, 1) not in registry.known():
            build(workflow).step("x", lambda ctx: None).wait_for("ok")
        return start(workflow, run_id=run_id)

    return begin


def booked(run_id: str = "r") -> list[str]:
    return list(Entry.objects.filter(run_id=run_id).values_list("label", flat=True))


def net(run_id: str = "r") -> int:
    return int(Entry.objects.filter(run_id=run_id).aggregate(net=Sum("amount"))["net"] or 0)


def undone(run_id: str = "r") -> dict[str, str]:
    return dict(row(run_id).steps.exclude(compensation="").values_list("step_id", "compensation"))


BACK = [f"undo {name}" for name in reversed(STEPS)]


# -- kill -9 -----------------------------------------------------------------------------------------------------------


@pytest.mark.django_db(transaction=True)
@pytest.mark.parametrize("kind", ["saga", "saga-function"])
def test_c2_killed_before_each_compensator_in_turn_each_is_undone_once_and_in_order(
    begin: Any, spawn_code: Spawn, kind: str, tmp_path: Path
) -> None:
    """Five deaths in one unwinding, where three without progress would be too many."""
    begin(kind, "r")
    settings = limited(tmp_path, MAX_RECOVERIES=2)
    before: dict[str, str] = {}
    for number, label in enumerate(BACK):
        when = f"{'before' if number % 2 else 'in'} {label}"
        killed = spawn_code(WORKER, "--max-runs=1", KILL=when, **settings)
        eventually(lambda: killed.poll() is not None)  # noqa: B023
        assert killed.poll() == -9, killed.output
        assert booked() == [*STEPS, *BACK[:number]]
        assert len(undone()) == number
        assert before.items() <= undone().items()
        before = undone()
    last = spawn_code(WORKER, **settings)
    eventually(lambda: row("r").status == "error")
    last.terminate()
    last.finish()
    assert (booked(), net()) == ([*STEPS, *BACK], 0)
    assert (row("r").rollback, row("r").error["message"]) == ("completed", "lost at sea")
    assert set(undone().values()) == {"compensated"}


def limited(folder: Path, **values: Any) -> dict[str, str]:
    """The environment of a process whose settings have these values in ``FINOFLOW``."""
    base = os.environ.get("DJANGO_SETTINGS_MODULE", "tests.settings")
    (folder / "limited_settings.py").write_text(f"from {base} import *\nFINOFLOW = {values!r}\n")
    path = os.pathsep.join([str(folder), str(ROOT), os.environ.get("PYTHONPATH", "")])
    return {"DJANGO_SETTINGS_MODULE": "limited_settings", "PYTHONPATH": path}


@pytest.mark.django_db(transaction=True)
@pytest.mark.parametrize("way_out", ["a fix", "an abandon"])
def test_c3_killed_around_a_compensator_that_fails_and_then_resumed_or_abandoned(
    begin: Any, spawn_code: Spawn, way_out: str
) -> None:
    begin("saga", "r")
    for when in ("before undo label", "in undo pack"):
        killed = spawn_code(WORKER, "--max-runs=1", KILL=when, BREAK="undo pack")
        eventually(lambda: killed.poll() is not None)  # noqa: B023
        assert killed.poll() == -9, killed.output
    worker = spawn_code(WORKER, BREAK="undo pack")
    eventually(lambda: row("r").status == "stuck")
    worker.terminate()
    worker.finish()
    assert (booked(), row("r").error["message"]) == ([*STEPS, *BACK[:2]], "lost at sea")
    assert undone() == {"ship": "compensated", "label": "compensated", "pack": "failed"}
    if way_out == "an abandon":
        abandon_compensation("r")
        assert (row("r").status, row("r").rollback, net()) == ("error", "stuck", 3)
        assert undone() | {"ship": "", "label": ""} == {
            **{"ship": "", "label": "", "pack": "failed"},
            **{"charge": "skipped", "reserve": "skipped"},
        }
        return
    resume_compensation("r")
    killed = spawn_code(WORKER, "--max-runs=1", KILL="in undo charge")
    eventually(lambda: killed.poll() is not None)
    last = spawn_code(WORKER)
    eventually(lambda: row("r").status == "error")
    last.terminate()
    last.finish()
    assert (booked(), net(), row("r").rollback) == ([*STEPS, *BACK], 0, "completed")


@COMMITTED
@pytest.mark.parametrize(("atomic", "broken"), [(True, "undo b"), (False, "")])
def test_c2_killed_before_any_write_each_recorded_outcome_stays_and_none_is_sought_twice(
    build: Any, atomic: bool, broken: str
) -> None:
    recorded: list[tuple[str, str]] = []
    mended: list[bool] = []

    def book(label: str) -> Callable[[Any], None]:
        def handler(ctx: Any) -> None:
            if label.startswith("undo"):
                step = label.removeprefix("undo ")
                assert undone(ctx.run_id).get(step, "failed") == "failed"  # else its outcome was recorded before
                recorded.append((ctx.run_id, label))
            Entry.objects.create(run_id=ctx.run_id, label=label)
            if (label == broken and not mended) or label == "c":
                raise ValueError(f"{label} is broken")

        return handler

    flow = build("small")
    for name in "abc":
        flow.step(name, book(name), retry=1, atomic=atomic, compensate=book(f"undo {name}"))

    def fresh(died: int) -> str:
        mended.clear()
        return flow.start(run_id=f"run {died}").run_id

    def settled(run_id: str) -> None:
        if broken:
            assert (row(run_id).status, undone(run_id)) == ("stuck", {"c": "compensated", "b": "failed"})
            mended.append(True)
            resume_compensation(run_id)
            work()
        assert (row(run_id).status, row(run_id).rollback) == ("error", "completed")
        assert row(run_id).error["message"] == "c is broken"
        assert undone(run_id) == dict.fromkeys("abc", "compensated")
        back = [label for run, label in recorded if run == run_id]
        assert list(dict.fromkeys(back)) == ["undo c", "undo b", "undo a"]
        if atomic:
            assert booked(run_id) == ["a", "b", "undo c", "undo b", "undo a"]

    assert killed_everywhere(fresh, settled) > 10


@COMMITTED
def test_c3_a_failed_outcome_and_the_stuck_run_are_recorded_as_one(build: Any) -> None:
    """Else a death between the two would have the next worker try it again, which only an operator may ask for."""
    found: list[str] = []

    def undo(ctx: Any) -> None:
        found.append(row(ctx.run_id).steps.get().compensation)
        raise ValueError

    flow = build("small").step("a", lambda ctx: 1 / 0, retry=1, compensate=undo)

    def settled(run_id: str) -> None:
        steps = row(run_id).steps.get()
        assert (row(run_id).status, steps.compensation) == ("stuck", "failed")

    killed_everywhere(lambda died: flow.start(run_id=f"run {died}").run_id, settled)
    assert set(found) == {""}


# -- signals and edits, with workers in other processes ----------------------------------------------------------------

SIGNALLER = """
    import os, sys, time
    from django_finoflow import AlreadySignalled, RunNotLive, Workflow, signal
    Workflow("gated").step("first", lambda ctx: None).wait_for("ok").step("after", lambda ctx: None)
    flag, place, run_ids = sys.argv[1], int(sys.argv[2]), sys.argv[3].split(",")
    for run_id in run_ids:
        open(f"{flag}-{run_id}-{place}", "w").close()
        while not os.path.exists(f"{flag}-{run_id}-{1 - place}"):
            time.sleep(0)
        try:
            signal(run_id, "ok", {"from": place})
            print("accepted", run_id)
        except (AlreadySignalled, RunNotLive):  # the latter once the step after the gate has run, too
            print("refused", run_id)
    print("all done")
"""


@pytest.mark.django_db(transaction=True)
def test_s4_of_two_identical_signals_one_wins_and_the_step_after_the_gate_runs_once(
    begin: Any, spawn_code: Spawn, tmp_path: Path
) -> None:
    Entry.objects.create(run_id="", label="go on")
    run_ids = [f"{number:02}" for number in range(12)]
    for run_id in run_ids:
        begin("gated", run_id)
    worker = spawn_code(WORKER)
    eventually(lambda: Execution.objects.filter(status="waiting").count() == len(run_ids))
    signallers = [spawn_code(SIGNALLER, str(tmp_path / "met"), str(n), ",".join(run_ids)) for n in range(2)]
    said = [set(process.finish().splitlines()) - {"all done"} for process in signallers]
    for run_id in run_ids:
        assert sum(f"accepted {run_id}" in one for one in said) == 1
        assert sum(f"refused {run_id}" in one for one in said) == 1
    eventually(lambda: Execution.objects.filter(status="done").count() == len(run_ids))
    worker.terminate()
    worker.finish()
    for run_id in run_ids:
        assert booked(run_id) == ["slow", "after"]
        winner = next(place for place, one in enumerate(said) if f"accepted {run_id}" in one)
        assert Signal.objects.get(execution__run_id=run_id).payload == {"from": winner}


@pytest.mark.django_db(transaction=True)
def test_s4_a_signal_sent_while_an_earlier_step_runs_opens_the_gate_later_without_a_park(
    begin: Any, spawn_code: Spawn
) -> None:
    begin("gated", "r")
    worker = spawn_code(WORKER, "--verbosity", "3")
    eventually(lambda: booked() == ["slow"])
    signal("r", "ok", 1)
    Entry.objects.create(run_id="", label="go on")
    eventually(lambda: row("r").status == "done")
    worker.terminate()
    assert "run-waiting" not in worker.finish()
    assert (booked(), row("r").lease_epoch) == (["slow", "after"], 2)  # one claim, one end
    wait = row("r").waits.get()
    assert (wait.outcome, wait.name) == ("signalled", "ok")


@pytest.mark.django_db(transaction=True)
def test_b3_a_step_added_after_a_parked_gate_runs_and_one_renamed_before_it_is_a_mismatch_until_renamed_back(
    begin: Any, spawn_code: Spawn
) -> None:
    Entry.objects.create(run_id="", label="go on")
    for run_id in ("added", "renamed"):
        begin("gated", run_id)
    spawn_code(WORKER, "--drain").finish()
    assert {run.status for run in Execution.objects.all()} == {"waiting"}
    for run_id in ("added", "renamed"):
        signal(run_id, "ok")
    Execution.objects.filter(run_id="renamed").update(queue="later")
    spawn_code(WORKER, "--drain", "--queue", "default", MORE="yes").finish()
    assert outline("added") == [(0, "first", "done"), (1, "ok", "done"), (2, "after", "done"), (3, "more", "done")]
    assert (row("added").status, row("added").result) == ("done", "more")
    spawn_code(WORKER, "--drain", FIRST="premier").finish()
    stuck = row("renamed")
    assert (stuck.status, stuck.stuck_reason) == ("stuck", "replay-mismatch")
    assert [name in stuck.error["message"] for name in ('"first"', '"premier"')] == [True, True]
    assert booked("renamed") == ["slow"]
    spawn_code(WORKER, "--drain").finish()
    assert (row("renamed").status, booked("renamed")) == ("done", ["slow", "after"])
