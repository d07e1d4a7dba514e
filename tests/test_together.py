"""Steps side by side: all settle, none sees another's changes, and each is recorded by itself whatever happens."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from django.db import IntegrityError, connection
from freezegun import freeze_time

from django_finoflow import (
    FinoflowError,
    NonRetryable,
    Retry,
    StepTimeout,
    Workflow,
    WorkflowError,
    cancel,
    current_step,
    registry,
    resume_compensation,
    retry_run,
)
from django_finoflow.attempt import Abort
from django_finoflow.claiming import Claimer
from django_finoflow.driver import drive
from django_finoflow.models import Execution, Step
from tests.killing import work
from tests.making import COMMITTED, Interruption, row
from tests.processes import Spawned, eventually
from tests.testapp.models import Entry, Slot

START = datetime(2030, 1, 1, tzinfo=UTC)
AT_ONCE = Retry(3, initial=0)
IN_TEST_CASE = pytest.mark.django_db


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
    """What was called; whatever is named in ``broken`` fails."""

    def __init__(self) -> None:
        self.broken: set[str] = set()

    def __call__(self, name: str) -> Callable[[Any], Any]:
        def called(ctx: Any) -> Any:
            self.append(name)
            if name in self.broken:
                raise ValueError(f"{name} is broken")
            return name

        return called


@pytest.fixture
def calls() -> Calls:
    return Calls()


def group(build: Any, *names: str, handler: Callable[[str], Any], **options: Any) -> Workflow:
    """Make a workflow that is one group of steps."""

    def steps(b: Any) -> None:
        for name in names:
            b.step(name, handler(name), **{"retry": 1, **options})

    return build().parallel(steps)


def failure(flow: Workflow, **options: Any) -> BaseException | None:
    """Run a workflow that fails, and return what failed it."""
    with pytest.raises(WorkflowError) as failed:
        flow.run(run_id="r", **options)
    return failed.value.__cause__


def statuses(run_id: str = "r") -> dict[str, str]:
    return dict(row(run_id).steps.order_by("index").values_list("step_id", "status"))


def leased(run_id: str) -> Execution:
    (run,) = Claimer("somebody", registry.known()).due()
    assert run.run_id == run_id
    return run


# -- what they see -----------------------------------------------------------------------------------------------------


@COMMITTED
def test_siblings_see_the_state_before_the_group_and_not_each_others_changes(build: Any) -> None:
    met = threading.Barrier(3, timeout=10)

    def handler(name: str) -> Any:
        def body(ctx: Any) -> Any:
            ctx.state.set("mine", name)
            ctx.state.set(name, 1)
            met.wait()  # now all have made their changes
            return [sorted(ctx.state.entries()), ctx.state.get("before"), dict(ctx.steps)]

        return body

    def first(ctx: Any) -> None:
        ctx.state.set("before", 7)

    flow = build().step("first", first)
    flow.parallel(lambda b: [b.step(name, handler(name)) for name in "xyz"])
    run = flow.step("last", lambda ctx: [dict(ctx.steps), ctx.state.entries()]).run()
    steps, state = run.result
    assert [steps[name] for name in "xyz"] == [[sorted(["before", "mine", name]), 7, {"first": None}] for name in "xyz"]
    assert state == {"before": 7, "mine": "z", "x": 1, "y": 1, "z": 1}


@COMMITTED
def test_d8_changes_are_made_in_order_of_position_whoever_ends_last(build: Any) -> None:
    def handler(name: str) -> Any:
        def body(ctx: Any) -> None:
            if name == "x":
                eventually(lambda: Step.objects.filter(step_id="z").exists())
            ctx.state.set("mine", name)

        return body

    run_id = group(build, *"xz", handler=handler).run().run_id
    assert row(run_id).state == {"mine": "z"}


@COMMITTED
def test_d4_those_that_finish_out_of_order_are_kept_in_their_places(build: Any) -> None:
    def handler(name: str) -> Any:
        def body(ctx: Any) -> Any:
            later = chr(ord(name) + 1)
            if name != "d":
                eventually(lambda: Step.objects.filter(step_id=later).exists())
            return name

        return body

    flow = group(build, *"abcd", handler=handler).step("last", lambda ctx: list(ctx.steps.values()))
    assert flow.run(run_id="r").result == [*"abcd"]
    assert list(row("r").steps.order_by("pk").values_list("step_id", flat=True)) == [*"dcba", "last"]
    assert [(s.index, s.id) for s in row("r").snapshot().steps][:4] == [(0, "a"), (1, "b"), (2, "c"), (3, "d")]


@COMMITTED
def test_each_has_its_own_current_step_and_key(build: Any) -> None:
    seen: list[Any] = []

    def handler(name: str) -> Any:
        return lambda ctx: seen.append((name, current_step().step_id, ctx.idempotency_key, threading.get_ident()))

    group(build, *"abc", handler=handler).run()
    assert sorted((one[0], one[1]) for one in seen) == [(name, name) for name in "abc"]
    assert len({one[2] for one in seen}) == 3
    assert threading.get_ident() not in {one[3] for one in seen}


# -- all settle --------------------------------------------------------------------------------------------------------


@COMMITTED
def test_all_settle_before_one_failure_fails_the_run_as_itself(build: Any, calls: Calls) -> None:
    calls.broken.add("a")

    def handler(name: str) -> Any:
        def slow(ctx: Any) -> Any:
            if name != "a":
                eventually(lambda: Step.objects.filter(step_id="a", status="failed").exists())
            return calls(name)(ctx)

        return slow

    error = failure(group(build, *"abc", handler=handler))
    assert (type(error), str(error)) == (ValueError, "a is broken")
    assert statuses() == {"a": "failed", "b": "done", "c": "done"}


@COMMITTED
def test_several_failures_are_named_all_in_order_of_position(build: Any, calls: Calls) -> None:
    calls.broken |= {"a", "c"}
    error = failure(group(build, *"abcd", handler=calls))
    assert (type(error), str(error)) == (FinoflowError, "2 failures: a is broken; c is broken")
    assert row("r").error["message"] == str(error)


@COMMITTED
def test_c1_finished_and_failed_siblings_are_undone_by_position_the_last_first(build: Any, calls: Calls) -> None:
    calls.broken |= {"b"}
    undone = []

    def steps(b: Any) -> None:
        for name in "abcd":
            b.step(name, calls(name), retry=1, compensate=lambda ctx, n=name: undone.append((n, ctx.result, ctx.steps)))

    failure(build().parallel(steps))
    done = {"a": "a", "c": "c", "d": "d"}
    assert undone == [("d", "d", done), ("c", "c", done), ("b", None, done), ("a", "a", done)]


@COMMITTED
def test_d16_a_failed_sibling_alone_is_tried_again(build: Any, calls: Calls) -> None:
    calls.broken |= {"a", "c"}
    failure(group(build, *"abcd", handler=calls).step("last", calls("last")))
    calls.clear()
    calls.broken.clear()
    retry_run("r")
    work()
    assert (row("r").status, sorted(calls[:2]), calls[2:]) == ("done", ["a", "c"], ["last"])


@COMMITTED
@pytest.mark.only_postgresql
def test_ten_steps_run_at_the_same_time(build: Any) -> None:
    together = threading.Barrier(10, timeout=20)  # none comes through before all have come
    group(build, *[f"s{n}" for n in range(10)], handler=lambda name: lambda ctx: together.wait()).run(run_id="r")
    assert len(statuses()) == 10


@COMMITTED
def test_more_siblings_than_run_at_once_are_all_done_and_no_connection_is_left(build: Any) -> None:
    running: list[int] = []
    most: list[int] = []
    lock = threading.Lock()

    def body(ctx: Any) -> None:
        with lock:
            running.append(1)
            most.append(len(running))
        Execution.objects.count()
        with lock:
            running.pop()

    names = [f"s{number}" for number in range(70)]
    assert group(build, *names, handler=lambda name: body).run(run_id="r").status == "done"
    assert list(statuses().values()) == ["done"] * 70
    assert max(most) <= 32
    if connection.vendor == "postgresql":
        eventually(lambda: backends() <= 2)


def backends() -> int:
    with connection.cursor() as cursor:
        cursor.execute("SELECT count(*) FROM pg_stat_activity WHERE datname = current_database()")
        return int(cursor.fetchone()[0])


# -- retries and timeouts ----------------------------------------------------------------------------------------------


@COMMITTED
def test_t3_a_short_pause_is_waited_out_and_holds_up_no_sibling(build: Any, calls: Calls) -> None:
    def shaky(ctx: Any) -> Any:
        calls.append("shaky")
        if calls.count("shaky") == 1:
            raise ValueError
        eventually(lambda: Step.objects.filter(step_id="calm", status="done").exists())

    flow = build().parallel(
        lambda b: b.step("shaky", shaky, retry=Retry(2, initial="200ms")).step("calm", calls("calm"))
    )
    assert flow.run(run_id="r").status == "done"
    assert calls == ["shaky", "calm", "shaky"] or calls == ["calm", "shaky", "shaky"]
    assert row("r").steps.get(step_id="shaky").attempts == 2


@IN_TEST_CASE
def test_t3_a_long_pause_parks_the_run_and_only_that_sibling_is_tried_again(build: Any, calls: Calls) -> None:
    calls.broken |= {"a", "b"}

    def steps(b: Any) -> None:
        b.step("a", calls("a"), retry=Retry(2, initial="10m", max_delay="1h", jitter=0))
        b.step("b", calls("b"), retry=Retry(2, initial="30m", max_delay="1h", jitter=0)).step("c", calls("c"))

    flow = build().parallel(steps)
    with freeze_time(START) as clock:
        run = flow.run(run_id="r")
        assert (run.status, run.waiting_on.kind, row("r").due_at) == ("waiting", "retry", START + timedelta(minutes=10))
        calls.broken.clear()
        flow.resume("r")  # whatever wakes the run does not hasten the attempt
        assert (calls, row("r").due_at) == ([*"abc"], START + timedelta(minutes=10))
        clock.tick(timedelta(minutes=10))
        work()
        assert (calls, row("r").due_at, row("r").status) == ([*"abca"], START + timedelta(minutes=30), "waiting")
        clock.tick(timedelta(minutes=20))
        work()
    assert (calls, row("r").status) == ([*"abcab"], "done")


@IN_TEST_CASE
def test_a_failure_waits_for_a_siblings_next_attempt(build: Any, calls: Calls) -> None:
    calls.broken |= {"a", "b"}

    def steps(b: Any) -> None:
        b.step("a", calls("a"), retry=1, compensate=calls("undo a"))
        b.step("b", calls("b"), retry=Retry(2, initial="10m", max_delay="1h"), compensate=calls("undo b"))

    flow = build().parallel(steps)
    with freeze_time(START) as clock:
        assert flow.run(run_id="r").status == "waiting"
        clock.tick(timedelta(minutes=20))
        work()
    assert (calls, row("r").status) == (["a", "b", "b", "undo b", "undo a"], "error")


@COMMITTED
def test_t2_attempts_are_counted_for_each_and_non_retryable_stops_at_once(build: Any, calls: Calls) -> None:
    def never(ctx: Any) -> None:
        calls.append("never")
        raise NonRetryable("no")

    calls.broken.add("a")
    flow = build().parallel(lambda b: b.step("a", calls("a"), retry=AT_ONCE).step("b", never, retry=AT_ONCE))
    assert str(failure(flow)) == "2 failures: a is broken; no"
    assert Counter(calls) == {"a": 3, "never": 1}


@COMMITTED
def test_t4_a_siblings_timeout_is_its_own(build: Any, calls: Calls) -> None:
    aborted = threading.Event()

    def slow(ctx: Any) -> None:
        if ctx.abort.wait(10):
            aborted.set()

    flow = build().parallel(lambda b: b.step("slow", slow, retry=1, timeout="100ms").step("calm", calls("calm")))
    assert isinstance(failure(flow), StepTimeout)
    assert statuses() == {"slow": "failed", "calm": "done"}
    assert aborted.wait(10)


# -- atomic siblings ---------------------------------------------------------------------------------------------------


@COMMITTED
def test_d6_atomic_siblings_commit_with_their_writes_or_not_at_all(build: Any) -> None:
    def handler(name: str) -> Any:
        def body(ctx: Any) -> Any:
            Entry.objects.create(run_id=ctx.run_id, label=name)
            if name == "c":
                raise ValueError("c is broken")
            return connection.in_atomic_block

        return body

    failure(group(build, *"abcd", handler=handler, atomic=True))
    assert sorted(Entry.objects.values_list("label", flat=True)) == [*"abd"]
    assert [step.result for step in row("r").steps.filter(status="done")] == [True] * 3


@COMMITTED
def test_d6_atomic_and_other_siblings_and_those_with_timeouts_may_be_mixed(build: Any, calls: Calls) -> None:
    def steps(b: Any) -> None:
        for number in range(4):
            b.step(f"{number}", calls(f"{number}"), atomic=number % 2 == 0, timeout="1m" if number < 2 else None)

    assert build().parallel(steps).run(run_id="r").status == "done"
    assert sorted(calls) == ["0", "1", "2", "3"]


@COMMITTED
def test_a_database_error_of_one_is_no_others(build: Any, calls: Calls) -> None:
    Slot.objects.create(label="taken")

    def handler(name: str) -> Any:
        return (lambda ctx: Slot.objects.create(label="taken").pk) if name == "b" else calls(name)

    assert isinstance(failure(group(build, *"abc", handler=handler)), IntegrityError)
    assert statuses() == {"a": "done", "b": "failed", "c": "done"}


# -- an end in the middle ----------------------------------------------------------------------------------------------


@IN_TEST_CASE
def test_t8_in_a_test_case_they_run_one_after_another_in_this_thread(build: Any) -> None:
    seen: list[Any] = []

    def handler(name: str) -> Any:
        return lambda ctx: seen.append((name, threading.get_ident(), Step.objects.count()))

    group(build, *"abc", handler=handler).run()
    assert [one[:2] for one in seen] == [(name, threading.get_ident()) for name in "abc"]


@IN_TEST_CASE
def test_t8_a_database_error_in_a_test_case_breaks_nothing(build: Any, calls: Calls) -> None:
    Slot.objects.create(label="taken")
    flow = build().parallel(
        lambda b: b.step("a", lambda ctx: Slot.objects.create(label="taken").pk, retry=1).step("b", calls("b"))
    )
    assert isinstance(failure(flow), IntegrityError)
    assert statuses() == {"a": "failed", "b": "done"}


@COMMITTED
def test_w4_a_stop_amidst_a_group_lets_those_that_run_finish_and_the_rest_go_on_elsewhere(
    build: Any, calls: Calls
) -> None:
    names = [f"s{number:02}" for number in range(60)]
    group(build, *names, handler=calls).step("last", calls("last")).start(run_id="r")
    drive(leased("r"), abort=Abort(), stopping=lambda: bool(calls))
    first = len(calls)
    assert 0 < first < 60
    assert (len(statuses()), row("r").status, row("r").lease_until) == (first, "running", None)
    work()
    assert (Counter(calls), row("r").status) == (Counter([*names, "last"]), "done")


@COMMITTED
def test_w4_a_stop_amidst_a_pause_begins_no_attempt(build: Any, calls: Calls) -> None:
    abort = Abort()
    calls.broken.add("a")

    def slow(ctx: Any) -> None:
        eventually(lambda: Step.objects.filter(step_id="a", status="retrying").exists())
        abort.set()

    flow = build().parallel(
        lambda b: b.step("a", calls("a"), retry=Retry(3, initial="900ms", jitter=0)).step("b", slow)
    )
    flow.start(run_id="r")
    drive(leased("r"), abort=abort)
    assert (calls, statuses()) == (["a"], {"a": "retrying", "b": "done"})
    calls.broken.clear()
    with freeze_time(datetime.now(UTC) + timedelta(seconds=5)):
        work()
    assert (calls, row("r").status, row("r").steps.get(step_id="a").attempts) == (["a", "a"], "done", 2)


@COMMITTED
@pytest.mark.parametrize("atomic", [False, True])
def test_d15_a_lease_lost_amidst_a_group_ends_the_drive_and_stores_nothing_more(
    build: Any, calls: Calls, atomic: bool
) -> None:
    abort = Abort()

    def thief(ctx: Any) -> None:
        Execution.objects.filter(run_id="r").update(lease_epoch=77)

    def late(ctx: Any) -> None:
        eventually(abort.is_set)
        Entry.objects.create(run_id="r", label="late")

    def steps(b: Any) -> None:
        b.step("thief", thief, retry=AT_ONCE, compensate=calls("undo"))
        b.step("late", late, retry=AT_ONCE, atomic=atomic, compensate=calls("undo"))

    if atomic and connection.vendor == "sqlite":  # there the atomic body holds the one lock, and is fenced before it
        steps = lambda b: b.step("thief", thief).step("late", lambda ctx: None, atomic=True)  # noqa: E731
    build().parallel(steps).start(run_id="r")
    drive(leased("r"), abort=abort)
    assert abort.is_set()
    eventually(lambda: not [t for t in threading.enumerate() if t.name == "finoflow-sibling"])
    assert (statuses().get("thief"), calls, row("r").lease_epoch) == (None, [], 77)
    assert Entry.objects.count() == (0 if atomic else 1)


@COMMITTED
def test_d14_a_run_that_is_cancelled_amidst_a_group_stays_so(build: Any, calls: Calls) -> None:
    build().parallel(
        lambda b: b.step("a", lambda ctx: cancel(ctx.run_id)).step("b", calls("b"), compensate=calls("undo"))
    ).start(run_id="r")
    drive(leased("r"), abort=Abort())
    assert (row("r").status, "undo" in calls) == ("cancelled", False)
    assert "a" not in statuses()


@IN_TEST_CASE
def test_d1_an_end_in_the_middle_of_a_group_calls_only_the_unfinished_again(build: Any, calls: Calls) -> None:
    die = Interruption()

    def handler(name: str) -> Any:
        def body(ctx: Any) -> None:
            calls.append(name)
            if name == "c":
                die()

        return body

    flow = group(build, *"abcd", handler=handler)
    with pytest.raises(KeyboardInterrupt):
        flow.run(run_id="r")
    recorded = statuses()
    calls.clear()
    die.armed = False
    assert flow.resume("r").status == "done"
    assert calls == [name for name in "abcd" if name not in recorded]
    assert {"c", "d"} <= set(calls)


GROUP = """
    import os, signal, threading, time
    from django.core.management import call_command
    from django_finoflow import Workflow
    from django_finoflow.models import Step
    from tests.testapp.models import Entry

    def handler(number):
        def body(ctx):
            Entry.objects.create(run_id=ctx.run_id, label=f"s{number}", amount=os.getpid())
            if number == 4 and os.environ.get("DIE"):
                while Step.objects.count() < 3:
                    time.sleep(0.01)
                os.kill(os.getpid(), signal.SIGKILL)
            return number
        return body

    def steps(b):
        for number in range(6):
            b.step(f"s{number}", handler(number), atomic=number % 2 == 1)

    Workflow("group-of-six").parallel(steps).step("last", lambda ctx: [ctx.steps[f"s{n}"] for n in range(6)])
    call_command("finoflow_worker", "--lease", "1", "--poll-interval", "0.05", "--max-runs", "1")
"""


@pytest.mark.django_db(transaction=True)
def test_w2_a_worker_killed_amidst_a_group_leaves_only_the_unfinished_to_the_next(
    build: Any, spawn_code: Callable[..., Spawned]
) -> None:
    build("group-of-six").step("x", lambda ctx: None).start(run_id="r")
    killed = spawn_code(GROUP, DIE="yes")
    eventually(lambda: killed.poll() is not None)
    assert killed.poll() == -9, killed.output
    finished = set(statuses())
    assert len(finished) >= 3
    spawn_code(GROUP).finish()
    assert (row("r").status, row("r").result) == ("done", [*range(6)])
    times = Counter(Entry.objects.values_list("label", flat=True))
    assert all(times[name] == 1 for name in finished)
    assert all(times[name] == 1 for name in ("s1", "s3", "s5"))  # atomic
    assert set(times) == {f"s{number}" for number in range(6)}


@IN_TEST_CASE
def test_c6_an_unwinding_that_goes_on_elsewhere_finds_the_group_settled(build: Any, calls: Calls) -> None:
    calls.broken |= {"b", "undo a"}

    def steps(b: Any) -> None:
        for name in "abc":
            b.step(name, calls(name), retry=1, compensate=calls(f"undo {name}"))

    assert build().parallel(steps).run(run_id="r").status == "stuck"
    calls.broken.clear()
    resume_compensation("r")
    work()
    assert calls == [*"abc", "undo c", "undo b", "undo a", "undo a"]
    assert (row("r").status, row("r").error["message"]) == ("error", "b is broken")
