"""Builder workflows at work: each kind of node, signals, edits while a run is parked, and what a failed run undoes."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from django.contrib.auth import get_user_model
from django.db import connection
from django.test.utils import CaptureQueriesContext
from freezegun import freeze_time

from django_finoflow import (
    AlreadySignalled,
    Approval,
    DefinitionError,
    FinoflowError,
    GateRejected,
    NonRetryable,
    Retry,
    RunNotLive,
    SignalTimeout,
    UnknownSignal,
    Workflow,
    WorkflowError,
    cancel,
    decide,
    registry,
    retry_run,
    signal,
)
from tests.making import Interruption, row

pytestmark = pytest.mark.django_db

START = datetime(2030, 1, 1, tzinfo=UTC)
AT_ONCE = Retry(3, initial=0)


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
    """Handlers and compensators that note when they are called."""

    def step(self, name: str, result: Any = None) -> Callable[[Any], Any]:
        def handler(ctx: Any) -> Any:
            self.append(name)
            return name if result is None else result

        return handler

    def fails(self, name: str, error: type[Exception] = ValueError) -> Callable[[Any], Any]:
        def handler(ctx: Any) -> Any:
            self.append(name)
            raise error(f"{name} is broken")

        return handler

    def undo(self, name: str) -> Callable[[Any], Any]:
        return self.step(f"undo {name}")


@pytest.fixture
def calls() -> Calls:
    return Calls()


def ids(run_id: str) -> list[str]:
    return [step.id for step in row(run_id).snapshot().steps]


def failure(flow: Workflow, input: Any = None, **options: Any) -> WorkflowError:
    """Run a workflow that fails, and return its error."""
    with pytest.raises(WorkflowError) as failed:
        flow.run(input, **options)
    return failed.value


# -- steps -------------------------------------------------------------------------------------------------------------


def test_steps_are_done_in_order_and_the_last_ones_result_is_the_runs(build, calls):
    run = build().step("a", calls.step("a")).step("b", calls.step("b", {"x": (1, 2)})).run()
    assert (calls, run.status, run.result) == (["a", "b"], "done", {"x": (1, 2)})
    assert [(s.index, s.id, s.kind, s.status) for s in run.state.steps] == [
        (0, "a", "step", "done"),
        (1, "b", "step", "done"),
    ]


def test_handlers_are_shown_the_run(build):
    seen = {}

    def look(ctx):
        seen.update(input=ctx.input, steps=dict(ctx.steps), signals=dict(ctx.signals), run_id=ctx.run_id)
        seen.update(requester=ctx.requester, abort=ctx.abort.is_set(), key=ctx.idempotency_key)
        ctx.state.set("seen", True)

    user = get_user_model().objects.create_user("ann")
    run = build().step("a", lambda ctx: 1).step("look", look).run({"x": 1}, run_id="r", requester=user)
    assert seen.pop("key").startswith("r:")
    expected = {"input": {"x": 1}, "steps": {"a": 1}, "signals": {}, "run_id": "r", "requester": user, "abort": False}
    assert seen == expected
    assert run.state.state == {"seen": True}


def test_an_idempotency_key_is_the_same_over_attempts_and_no_other_steps(build):
    keys = []

    def shaky(ctx):
        keys.append(ctx.idempotency_key)
        if len(keys) < 3:
            raise ValueError

    build().step("a", shaky, retry=AT_ONCE).step("b", shaky).run()
    assert (len(keys), len(set(keys[:3])), len(set(keys))) == (4, 1, 2)


def test_what_a_handler_does_to_what_it_is_shown_changes_nothing_for_others(build):
    def vandal(ctx):
        ctx.input["x"] = ctx.steps["a"]["x"] = "spoilt"
        assert ctx.input["x"] == ctx.steps["a"]["x"] == "spoilt"
        with pytest.raises(TypeError):
            ctx.steps["b"] = 1

    flow = build().step("a", lambda ctx: {"x": 1}).step("vandal", vandal)
    flow.step("last", lambda ctx: [ctx.input, ctx.steps["a"], sorted(ctx.steps)])
    assert flow.run({"x": 1}).result == [{"x": 1}, {"x": 1}, ["a", "vandal"]]


def test_nor_does_one_attempt_for_the_next(build):
    seen = []

    def shaky(ctx):
        seen.append(dict(ctx.input))
        ctx.input["x"] = "spoilt"
        if len(seen) == 1:
            raise ValueError

    build().step("a", shaky, retry=AT_ONCE).run({"x": 1})
    assert seen == [{"x": 1}, {"x": 1}]


def test_d1_a_step_that_is_done_is_not_called_again_and_later_ones_see_its_result(build, calls):
    die = Interruption()

    def last(ctx):
        die()
        return ctx.steps["a"]

    flow = build().step("a", calls.step("a", {"once"})).step("last", last)
    with pytest.raises(KeyboardInterrupt):
        flow.run(run_id="r")
    die.armed = False
    assert flow.resume("r").result == {"once"}
    assert calls == ["a"]


def test_t2_a_step_fails_when_its_attempts_are_spent(build, calls):
    failed = failure(build().step("a", calls.fails("a"), retry=AT_ONCE))
    assert calls == ["a"] * 3
    assert isinstance(failed.__cause__, ValueError)
    assert failed.state.steps[0].attempts == 3


def test_t2_retry_1_believes_a_throw_the_first_time_and_so_does_non_retryable(build, calls):
    failure(build("one").step("a", calls.fails("a"), retry=1))
    failure(build("two").step("b", calls.fails("b", NonRetryable)))
    assert calls == ["a", "b"]


def test_a_failed_run_can_be_tried_again_from_its_failed_step(build, calls):
    broken = [True]

    def mended(ctx):
        if broken:
            raise ValueError

    flow = build().step("a", calls.step("a")).step("b", mended, retry=1)
    run_id = failure(flow).state.run_id
    broken.clear()
    retry_run(run_id)
    assert flow.resume(run_id).status == "done"
    assert calls == ["a"]


def test_the_builder_adds_no_query_to_a_step(build, make):
    def queries(flow):
        with CaptureQueriesContext(connection) as seen:
            flow.run({"x": 1})
        return len(seen)

    @make
    def function(ctx, input):
        for number in range(5):
            ctx.step(f"s{number}", lambda: input["x"])

    flow = build()
    for number in range(5):
        flow.step(f"s{number}", lambda ctx: [ctx.input["x"], list(ctx.steps.values()), ctx.idempotency_key][0])
    queries(function)
    assert queries(flow) == queries(function)


# -- gates and signals -------------------------------------------------------------------------------------------------


def gated(flow: Workflow, calls: Calls, **options: Any) -> Workflow:
    return flow.step("a", calls.step("a")).wait_for("ok", **options).step("b", lambda ctx: ctx.signals["ok"])


@pytest.mark.parametrize("payload", [None, False, 0, "", {"approved": True}], ids=repr)
def test_s1_a_gate_opens_on_the_signal_having_arrived_whatever_it_carries(build, calls, payload):
    flow = gated(build(), calls)
    run = flow.run()
    assert (run.status, run.waiting_on.name) == ("waiting", "ok")
    signal(run.run_id, "ok", payload)
    assert flow.resume(run.run_id).result == payload
    assert calls == ["a"]


def test_s4_the_first_writer_wins_and_a_second_is_refused(build, calls):
    flow = gated(build(), calls)
    run_id = flow.run().run_id
    flow.signal(run_id, "ok", 1)
    with pytest.raises(AlreadySignalled, match="ok"):
        flow.signal(run_id, "ok", 2)
    assert flow.resume(run_id).result == 1


def test_s4_a_signal_may_come_before_its_gate_which_then_does_not_park(build, calls):
    flow = gated(build(), calls)
    run_id = flow.start().run_id
    signal(run_id, "ok", "early")
    with pytest.raises(AlreadySignalled):
        signal(run_id, "ok", "again")
    run = flow.resume(run_id)
    assert (run.status, run.result) == ("done", "early")


def test_s4_a_signal_sent_while_an_earlier_step_runs_opens_the_gate_later_without_a_park(build):
    flow = build().step("a", lambda ctx: signal(ctx.run_id, "ok", "early") and None).wait_for("ok")
    assert flow.step("b", lambda ctx: ctx.signals["ok"]).run().result == "early"


def test_s4_a_name_that_no_gate_declares_is_refused(build, calls):
    run_id = gated(build(), calls).run().run_id
    with pytest.raises(UnknownSignal, match="other"):
        signal(run_id, "other")
    assert row(run_id).signals.count() == 0


def test_s4_a_signal_is_never_consumed(build):
    flow = build().wait_for("one").step("a", lambda ctx: None).wait_for("two")
    flow.step("b", lambda ctx: dict(ctx.signals))
    run_id = flow.run().run_id
    signal(run_id, "one", 1)
    flow.resume(run_id)
    signal(run_id, "two", 2)
    run = flow.resume(run_id)
    assert run.result == {"one": 1, "two": 2}
    assert [(s.name, s.payload) for s in run.state.signals] == [("one", 1), ("two", 2)]


def test_s3_a_run_that_has_ended_refuses_a_signal_whatever_its_name(build, calls):
    run_id = gated(build(), calls).run().run_id
    cancel(run_id)
    for name in ("ok", "other"):
        with pytest.raises(RunNotLive, match="cannot receive the signal"):
            signal(run_id, name)


def test_b2_the_opening_of_a_wait_can_be_read_timed_or_not(build, calls):
    with freeze_time(START):
        timed = gated(build("timed"), calls, timeout="24h").run()
        open_end = gated(build("open-end"), calls).run()
    assert [(w.name, w.opened_at, w.due_at) for w in row(timed.run_id).waits.all()] == [
        ("ok", START, START + timedelta(days=1))
    ]
    assert (open_end.waiting_on.opened_at, open_end.waiting_on.due_at) == (START, None)


def test_t6_the_time_counts_from_when_the_wait_opened_across_restarts(build, calls):
    with freeze_time(START) as now:
        flow = gated(build(), calls, timeout="24h")
        run_id = flow.run().run_id
        now.tick(timedelta(hours=23))
        flow = gated(build(), calls, timeout="24h")  # a process that has just begun
        assert flow.resume(run_id).waiting_on.due_at == START + timedelta(hours=24)
        now.tick(timedelta(hours=1))
        with pytest.raises(WorkflowError, match="timed out after 86400s"):
            flow.resume(run_id)


def test_t7_a_timeout_fails_the_run_and_unwinds(build, calls):
    flow = build().step("a", calls.step("a"), compensate=calls.undo("a")).wait_for("ok", timeout=0)
    failed = failure(flow.step("b", calls.step("b")))
    assert str(failed.__cause__) == 'Signal "ok" timed out after 0s'
    assert isinstance(failed.__cause__, SignalTimeout)
    assert calls == ["a", "undo a"]


def test_a_gate_is_decided_by_a_person(build, calls):
    flow = gated(build(), calls)
    run_id = flow.run().run_id
    boss = get_user_model().objects.create_superuser("boss")
    decide(run_id, "ok", user=boss, approved=True, reason="fine")
    answer = flow.resume(run_id).result
    assert (answer["approved"], answer["by"], answer["reason"]) == (True, "boss", "fine")


def test_what_a_gate_asks_may_depend_on_the_results_so_far(build):
    approval = Approval(
        title=lambda ctx: f"Pay {ctx.steps['quote']}?",
        show=lambda ctx: {"for": ctx.input["what"], "price": ctx.steps["quote"]},
        users=lambda ctx: [ctx.input["boss"]],
    )
    run = build().step("quote", lambda ctx: 12).wait_for("ok", approval=approval).run({"what": "tea", "boss": "ann"})
    [wait] = row(run.run_id).waits.all()
    assert (wait.approval["title"], wait.approval["show"]) == ("Pay 12?", {"for": "tea", "price": 12})
    with pytest.raises(FinoflowError):
        decide(run.run_id, "ok", user=get_user_model().objects.create_user("bob"), approved=True)
    decide(run.run_id, "ok", user=get_user_model().objects.create_user("ann"), approved=True)


def test_on_reject_fail_fails_the_run_and_unwinds(build, calls):
    flow = build().step("a", calls.step("a"), compensate=calls.undo("a"))
    flow.wait_for("ok", approval=Approval(on_reject="fail")).step("b", calls.step("b"))
    run_id = flow.run().run_id
    decide(run_id, "ok", user=get_user_model().objects.create_superuser("boss"), approved=False, reason="no")
    with pytest.raises(WorkflowError) as failed:
        flow.resume(run_id)
    assert isinstance(failed.value.__cause__, GateRejected)
    assert calls == ["a", "undo a"]


def test_a_wait_without_an_approval_is_no_gate(build):
    run = build().wait_for("hook", approval=None).run()
    boss = get_user_model().objects.create_superuser("boss")
    with pytest.raises(FinoflowError):
        decide(run.run_id, "hook", user=boss, approved=True)


def test_t5_a_sleep_parks_the_run_until_it_is_over(build, calls):
    with freeze_time(START) as now:
        flow = build().step("a", calls.step("a")).sleep("nap", "1h").step("b", calls.step("b"))
        run = flow.run()
        assert (run.status, run.waiting_on.kind, run.waiting_on.id) == ("waiting", "timer", "nap")
        now.tick(timedelta(hours=1))
        assert flow.resume(run.run_id).result == "b"
    assert calls == ["a", "b"]


# -- B3: editing the graph ---------------------------------------------------------------------------------------------


def test_b3_a_step_added_after_a_parked_gate_runs(build, calls):
    run_id = gated(build(), calls).run().run_id
    signal(run_id, "ok", 1)
    flow = gated(build(), calls).step("new", calls.step("new"))
    assert flow.resume(run_id).result == "new"
    assert ids(run_id) == ["a", "ok", "b", "new"]


def test_b3_a_step_renamed_before_it_parks_the_run_as_stuck_and_renaming_it_back_lets_it_go_on(build, calls):
    run_id = gated(build(), calls).run().run_id
    signal(run_id, "ok", 1)
    renamed = build().step("renamed", calls.step("renamed")).wait_for("ok").step("b", calls.step("b"))
    run = renamed.resume(run_id)
    assert (run.status, row(run_id).stuck_reason) == ("stuck", "replay-mismatch")
    assert '"a"' in run.state.error["message"]
    assert '"renamed"' in run.state.error["message"]
    assert calls == ["a"]
    assert gated(build(), calls).resume(run_id).result == 1


def test_b3_a_signal_to_a_gate_that_an_edit_added_is_accepted(build, calls):
    run_id = gated(build(), calls).run().run_id
    flow = gated(build(), calls).wait_for("new")
    signal(run_id, "new", 2)
    signal(run_id, "ok", 1)
    assert flow.resume(run_id).status == "done"


# -- branch ------------------------------------------------------------------------------------------------------------


def by_size(flow: Workflow, calls: Calls, condition: Any = lambda ctx: ctx.input) -> Workflow:
    flow.step("first", calls.step("first")).branch(condition)
    flow.path("small", lambda b: b.step("wave", calls.step("wave")))
    return flow.path("large", lambda b: b.step("look", calls.step("look")).step("sign", calls.step("sign")))


def test_a_branch_takes_the_path_that_its_condition_names(build, calls):
    flow = by_size(build(), calls).step("last", lambda ctx: sorted(ctx.steps))
    assert flow.run("large").result == ["first", "look", "sign"]
    assert flow.run("small").result == ["first", "wave"]
    assert calls == ["first", "look", "sign", "first", "wave"]


@pytest.mark.parametrize("wrong", ["huge", None, True, ["small"], 1], ids=repr)
def test_what_is_no_path_fails_the_run_naming_it(build, calls, wrong):
    failed = failure(by_size(build(), calls), wrong)
    assert isinstance(failed.__cause__, DefinitionError)
    assert repr(wrong) in str(failed.__cause__)
    assert '"small", "large"' in str(failed.__cause__)
    assert calls == ["first"]


def test_the_choice_is_recorded_before_its_effects_and_never_asked_again(build, calls):
    die, asked = Interruption(), []

    def condition(ctx):
        asked.append(ctx.steps["first"])
        return "small" if len(asked) == 1 else "large"

    def dies(ctx):
        die()
        return "done"

    flow = build().step("first", calls.step("first")).branch(condition)
    flow.path("small", lambda b: b.step("dies", dies)).path("large", lambda b: b.step("look", calls.step("look")))
    with pytest.raises(KeyboardInterrupt):
        flow.run(run_id="r")
    assert [(s.kind, s.result) for s in row("r").snapshot().steps][-1] == ("branch", "small")
    die.armed = False
    assert flow.resume("r").result == "done"
    assert asked == ["first"]


def test_a_path_may_have_no_steps(build, calls):
    flow = build().step("a", calls.step("a")).branch(lambda ctx: "none").path("none", lambda b: None)
    assert flow.run().result == "a"


def test_b3_a_path_that_was_taken_and_is_gone_parks_the_run_as_stuck(build, calls):
    run_id = by_size(build(), calls).wait_for("ok").run("small").run_id
    signal(run_id, "ok")
    flow = build().step("first", calls.step("first")).branch(lambda ctx: ctx.input)
    run = flow.path("large", lambda b: b.step("look", calls.step("look"))).wait_for("ok").resume(run_id)
    assert (run.status, row(run_id).stuck_reason) == ("stuck", "replay-mismatch")
    assert '"small"' in run.state.error["message"]
    assert by_size(build(), calls).wait_for("ok").resume(run_id).status == "done"
    assert calls == ["first", "wave"]


# -- parallel ----------------------------------------------------------------------------------------------------------


def test_siblings_see_what_was_before_the_group_and_not_each_other(build):
    flow = build().step("before", lambda ctx: 0)
    flow.parallel(lambda b: b.step("p", lambda ctx: sorted(ctx.steps)).step("q", lambda ctx: sorted(ctx.steps)))
    run = flow.step("after", lambda ctx: [ctx.steps["p"], ctx.steps["q"]]).run()
    assert run.result == [["before"], ["before"]]


def test_a_groups_result_is_its_last_steps_and_its_checkpoints_are_in_order(build, calls):
    run = build().parallel(lambda b: b.step("p", calls.step("p")).step("q", calls.step("q"))).run()
    assert (run.result, ids(run.run_id), sorted(calls)) == ("q", ["p", "q"], ["p", "q"])


def test_all_siblings_settle_before_the_run_fails_and_the_finished_are_compensated(build, calls):
    def group(b):
        b.step("p", calls.fails("p"), retry=1).step("q", calls.step("q"), compensate=calls.undo("q"))

    failed = failure(build().parallel(group).step("after", calls.step("after")))
    assert (sorted(calls[:2]), calls[2:]) == (["p", "q"], ["undo q"])
    assert isinstance(failed.__cause__, ValueError)
    assert str(failed.__cause__) == "p is broken"


def test_several_failures_read_as_one(build, calls):
    failed = failure(
        build().parallel(lambda b: b.step("p", calls.fails("p"), retry=1).step("q", calls.fails("q"), retry=1))
    )
    assert str(failed.__cause__) == "2 failures: p is broken; q is broken"


# -- loops -------------------------------------------------------------------------------------------------------------


def test_do_until_does_first_and_asks_then_counting_from_1(build):
    asked = []

    def condition(ctx, turns):
        asked.append((turns, ctx.steps["n"], sorted(ctx.steps)))
        return turns == 2

    run = build().do_until(condition, lambda b: b.step("n", lambda ctx: ctx.steps.get("n", 0) + 10)).run()
    assert asked == [(1, 10, ["n", "n:0"]), (2, 20, ["n", "n:0", "n:1"])]
    assert (run.result, ids(run.run_id)) == (20, ["n:0", "n:1"])


def test_do_while_asks_first_counting_from_0(build, calls):
    asked = []

    def condition(ctx, turns):
        asked.append(turns)
        return turns < 2

    flow = build().do_while(condition, lambda b: b.step("x", calls.step("x")).step("y", calls.step("y")))
    assert ids(flow.run().run_id) == ["x:0", "y:0", "x:1", "y:1"]
    assert (asked, calls) == ([0, 1, 2], ["x", "y"] * 2)


def test_do_while_may_do_nothing(build, calls):
    run = (
        build().step("a", calls.step("a")).do_while(lambda ctx, n: False, lambda b: b.step("x", calls.step("x"))).run()
    )
    assert (run.result, calls) == ("a", ["a"])


@pytest.mark.parametrize(("verb", "never", "asked_of"), [("do_until", False, [1, 2]), ("do_while", True, [0, 1, 2])])
def test_at_the_bound_the_condition_is_asked_once_more_and_then_the_run_fails(build, calls, verb, never, asked_of):
    asked = []

    def condition(ctx, turns):
        asked.append(turns)
        return never

    flow = getattr(build(), verb)(condition, lambda b: b.step("x", calls.step("x")), max_iterations=2)
    failed = failure(flow)
    assert (asked, calls) == (asked_of, ["x", "x"])
    assert '"x" did not end within max_iterations=2' in str(failed.__cause__)


@pytest.mark.parametrize(("verb", "ends"), [("do_until", lambda ctx, n: n == 2), ("do_while", lambda ctx, n: n < 2)])
def test_a_loop_that_ends_just_at_the_bound_does_not_fail(build, calls, verb, ends):
    flow = getattr(build(), verb)(ends, lambda b: b.step("x", calls.step("x")), max_iterations=2)
    assert (flow.run().status, calls) == ("done", ["x", "x"])


def test_a_loop_goes_on_where_it_was_after_a_crash(build, calls):
    die = Interruption()

    def turn(ctx):
        if calls == ["x", "x"]:
            die()
        calls.append("x")
        return len(calls)

    flow = build().do_until(lambda ctx, turns: ctx.steps["x"] == 3, lambda b: b.step("x", turn))
    with pytest.raises(KeyboardInterrupt):
        flow.run(run_id="r")
    die.armed = False
    assert flow.resume("r").result == 3
    assert calls == ["x"] * 3


def test_a_signal_that_comes_meanwhile_changes_no_answer_that_a_condition_has_given(build, calls):
    asked, die = [], Interruption()

    def condition(ctx, turns):
        asked.append((turns, dict(ctx.signals)))
        return "stop" in ctx.signals or turns == 3

    def turn(ctx):
        if len(calls) == 2:
            if die.armed:
                signal(ctx.run_id, "stop", 1)
            die()
        calls.append("x")

    flow = build().wait_for("go").do_until(condition, lambda b: b.step("x", turn)).wait_for("stop")
    run_id = flow.run().run_id
    signal(run_id, "go", 0)
    with pytest.raises(KeyboardInterrupt):
        flow.resume(run_id)
    die.armed = False
    assert flow.resume(run_id).status == "done"
    assert asked == [(1, {"go": 0}), (2, {"go": 0}), (1, {"go": 0}), (2, {"go": 0}), (3, {"go": 0})]


def test_for_each_gives_the_handler_each_item_with_its_index(build):
    seen = []

    def handler(ctx):
        seen.append((ctx.index, ctx.item, ctx.steps.get("each")))
        return ctx.item * 2

    run = build().step("list", lambda ctx: [1, 2, 3]).for_each("each", lambda ctx: ctx.steps["list"], handler).run()
    assert seen == [(0, 1, None), (1, 2, 2), (2, 3, 4)]
    assert (run.result, ids(run.run_id)) == (6, ["list", "each:0", "each:1", "each:2"])


def test_for_each_of_a_tuple_known_beforehand_gives_each_run_its_own_items(build):
    def handler(ctx):
        ctx.item.append("spoilt")
        return ctx.item

    flow = build().for_each("each", ([1],), handler)
    assert [flow.run().result, flow.run().result] == [[1, "spoilt"]] * 2


def test_for_each_of_nothing_does_nothing(build, calls):
    run = build().step("a", calls.step("a")).for_each("each", [], calls.step("each")).run()
    assert (run.result, calls) == ("a", ["a"])


@pytest.mark.parametrize("items", [None, "abc", {"a": 1}, range(2), 7], ids=repr)
def test_for_each_takes_a_list_or_tuple_only(build, calls, items):
    failed = failure(build().for_each("each", lambda ctx: items, calls.step("each")))
    assert 'for_each "each": items must be a list or tuple' in str(failed.__cause__)
    assert calls == []


def test_a_list_that_is_too_long_fails_before_the_first_turn(build, calls):
    flow = build().for_each("each", lambda ctx: ctx.input, calls.step("each"), max_iterations=2)
    assert flow.run([1, 2]).status == "done"
    calls.clear()
    assert "3 items are more than max_iterations=2" in str(failure(flow, [1, 2, 3]).__cause__)
    assert calls == []


# -- map and sub_workflow ----------------------------------------------------------------------------------------------


def test_a_map_is_recorded_like_a_step(build, calls):
    flow = build().step("a", lambda ctx: 2).map("double", lambda ctx: calls.append("map") or ctx.steps["a"] * 2)
    flow.wait_for("ok").step("b", lambda ctx: ctx.steps["double"])
    run = flow.run()
    assert [(s.id, s.kind, s.result) for s in run.state.steps] == [("a", "step", 2), ("double", "map", 4)]
    signal(run.run_id, "ok")
    assert (flow.resume(run.run_id).result, calls) == (4, ["map"])


def test_a_map_is_tried_once(build, calls):
    failure(build().map("m", calls.fails("m")))
    assert calls == ["m"]


def drive_child(run_id: str) -> None:
    """Do what a worker does with the only child of a run."""
    child = row(run_id).children.get()
    registry.get(child.workflow_id).resume(child.run_id)


def test_a_sub_workflows_result_is_under_its_nodes_name(build):
    child = build("child").step("x", lambda ctx: ctx.input["n"] + 1)
    flow = build().step("a", lambda ctx: 1).sub_workflow("inner", child, lambda ctx: {"n": ctx.steps["a"]})
    run = flow.step("b", lambda ctx: ctx.steps["inner"] * 10).run()
    assert run.status == "waiting"
    drive_child(run.run_id)
    assert flow.resume(run.run_id).result == 20


def test_a_sub_workflow_is_a_run_of_its_own_started_once(build):
    build("child").wait_for("ok").step("x", lambda ctx: "of the child")
    flow = build().sub_workflow("inner", "child", {"n": 1})
    run_id = flow.run().run_id
    drive_child(run_id)
    assert flow.resume(run_id).status == "waiting"
    child = row(run_id).children.get()
    assert (child.workflow_id, child.input, child.status) == ("child", {"n": 1}, "waiting")
    signal(child.run_id, "ok")
    drive_child(run_id)
    assert flow.resume(run_id).result == "of the child"
    assert row(run_id).children.count() == 1


def test_a_sub_workflows_failure_fails_the_parent_which_is_unwound(build, calls):
    build("child").step("x", calls.fails("x"), retry=1)
    flow = build().step("a", calls.step("a"), compensate=calls.undo("a")).sub_workflow("inner", "child")
    run_id = flow.run().run_id
    with pytest.raises(WorkflowError):
        drive_child(run_id)
    with pytest.raises(WorkflowError, match="x is broken"):
        flow.resume(run_id)
    assert calls == ["a", "x", "undo a"]


# -- what a failed run undoes ------------------------------------------------------------------------------------------


def test_c1_steps_are_undone_in_reverse_order_the_failed_one_too(build, calls):
    flow = build().step("a", calls.step("a"), compensate=calls.undo("a")).step("b", calls.step("b"))
    flow.step("c", calls.fails("c"), retry=1, compensate=calls.undo("c"))
    run_id = failure(flow.step("d", calls.step("d"), compensate=calls.undo("d"))).state.run_id
    assert calls == ["a", "b", "c", "undo c", "undo a"]
    assert row(run_id).rollback == "completed"
    assert [s.compensation for s in row(run_id).steps.order_by("index")] == ["compensated", "", "compensated"]


def test_c1_a_compensator_is_shown_what_it_undoes(build):
    seen = []

    def undo(ctx):
        seen.append((ctx.result, ctx.error and str(ctx.error), str(ctx.run_error), ctx.input, ctx.run_id))
        seen.append((dict(ctx.steps), dict(ctx.signals), ctx.idempotency_key != ctx.forward_idempotency_key))

    def broken(ctx):
        raise ValueError("broken")

    flow = build().wait_for("ok").step("a", lambda ctx: 1, compensate=undo).step("b", broken, retry=1, compensate=undo)
    run_id = flow.run({"x": 1}).run_id
    signal(run_id, "ok", "yes")
    with pytest.raises(WorkflowError):
        flow.resume(run_id)
    around = ({"a": 1}, {"ok": "yes"}, True)
    assert seen == [
        (None, "broken", "broken", {"x": 1}, run_id),
        around,
        (1, None, "broken", {"x": 1}, run_id),
        around,
    ]


def test_c1_each_turn_of_a_loop_is_undone_by_itself_with_its_own_result(build):
    undone = []
    flow = build().do_until(
        lambda ctx, turns: turns == 3,
        lambda b: b.step("x", lambda ctx: ctx.steps.get("x", 0) + 1, compensate=lambda ctx: undone.append(ctx.result)),
    )
    failure(flow.step("last", Calls().fails("last"), retry=1))
    assert undone == [3, 2, 1]


def test_c1_each_turn_of_a_for_each_is_undone_with_its_own_item(build, calls):
    undone = []

    def handler(ctx):
        if ctx.item == "c":
            raise ValueError
        return ctx.item.upper()

    def undo(ctx):
        undone.append((ctx.index, ctx.item, ctx.result))

    failure(build().for_each("each", list("abcd"), handler, retry=1, compensate=undo))
    assert undone == [(2, "c", None), (1, "b", "B"), (0, "a", "A")]


def test_c1_steps_of_the_path_that_was_taken_are_undone(build, calls):
    flow = build().branch(lambda ctx: "a")
    for name in ("a", "b"):
        flow.path(name, lambda b, name=name: b.step(name, calls.step(name), compensate=calls.undo(name)))
    failure(flow.step("last", calls.fails("last"), retry=1))
    assert calls == ["a", "last", "undo a"]


def test_c4_after_a_pivot_nothing_is_undone(build, calls):
    flow = build().step("a", calls.step("a"), compensate=calls.undo("a")).pivot()
    flow.step("b", calls.step("b"), compensate=calls.undo("b"))
    run_id = failure(flow.step("c", calls.fails("c"), retry=1, compensate=calls.undo("c"))).state.run_id
    assert calls == ["a", "b", "c"]
    assert row(run_id).rollback == "not-applicable"


def test_c5_cancelling_undoes_nothing(build, calls):
    run_id = build().step("a", calls.step("a"), compensate=calls.undo("a")).wait_for("ok").run().run_id
    assert cancel(run_id)
    assert calls == ["a"]


def test_c5_a_replay_mismatch_undoes_nothing(build, calls):
    run_id = build().step("a", calls.step("a"), compensate=calls.undo("a")).wait_for("ok").run().run_id
    flow = build().step("b", calls.step("b"), compensate=calls.undo("b")).wait_for("ok")
    assert flow.resume(run_id).status == "stuck"
    assert calls == ["a"]
