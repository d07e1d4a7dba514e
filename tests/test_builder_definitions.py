"""A builder workflow as a description: what each call adds, what it refuses, and that its first use seals it."""

from __future__ import annotations

import dataclasses
import os
import subprocess
import sys
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from django_finoflow import Approval, DefinitionError, DurationError, Retry, registry
from django_finoflow.builder import Workflow
from django_finoflow.exceptions import InvalidSignalName
from django_finoflow.nodes import (
    BranchNode,
    ForEachNode,
    LoopNode,
    ParallelNode,
    PivotNode,
    SleepNode,
    StepNode,
    SubWorkflowNode,
    WaitNode,
)
from tests.processes import ROOT

NO_NAMES = ["", "  ", "__x", "a\tb", "x" * 201, None, 7]
RESERVED = ["sub:x", "x:0", "x:12", "a:b:3"]
NO_DURATIONS = [True, float("nan"), float("inf"), -1, "1y", "", datetime(2030, 1, 1)]


def handler(ctx: Any) -> None:
    """Do nothing."""


async def later(ctx: Any) -> None:
    """Do nothing, some time."""


def bit_by_bit(ctx: Any) -> Iterator[None]:
    """Do nothing in pieces."""
    yield


NO_FUNCTIONS = [None, "handler", later, bit_by_bit]


def one(steps: Any) -> None:
    """Build one step."""
    steps.step("one", handler)


@pytest.fixture
def flow() -> Iterator[Workflow]:
    yield Workflow("flow")
    registry.unregister("flow")


def add_everything(flow: Any) -> Any:
    """Use every verb once."""
    return (
        flow.step("step", handler)
        .wait_for("gate", timeout="24h")
        .wait_for("hook", approval=None)
        .sleep("sleep", "1h")
        .map("map", handler)
        .pivot()
        .branch(handler)
        .path("left", lambda b: b.step("on-the-left", handler))
        .path("right", lambda b: None)
        .parallel(lambda b: b.step("p", handler).step("q", handler))
        .do_until(handler, lambda b: b.step("until", handler))
        .do_while(handler, lambda b: b.step("while", handler))
        .for_each("each", [1, 2], handler)
        .sub_workflow("child", "other", {"a": 1}, timeout="1d")
    )


# -- what the calls add ------------------------------------------------------------------------------------------------


def test_every_call_returns_the_workflow_and_adds_its_node_in_order(flow):
    assert add_everything(flow) is flow
    kinds = [type(node).__name__.removesuffix("Node") for node in flow.nodes]
    assert kinds == [
        *["Step", "Wait", "Wait", "Sleep", "Map", "Pivot", "Branch"],
        *["Parallel", "Loop", "Loop", "ForEach", "SubWorkflow"],
    ]


def test_nodes_are_frozen(flow):
    for node in add_everything(flow).nodes:
        name = next(iter(vars(node)), "anything")
        with pytest.raises(dataclasses.FrozenInstanceError):
            setattr(node, name, "changed")


def test_a_workflow_registers_itself_when_it_is_made(flow):
    assert registry.get("flow") is flow
    with pytest.raises(DefinitionError, match="defined twice"):
        Workflow("flow")


def test_t2_a_step_has_three_attempts_unless_it_says_otherwise(flow):
    policy = Retry(7, initial="1s")
    flow.step("a", handler).step("b", handler, retry=1).step("c", handler, retry=policy).step("d", handler, retry=None)
    flow.for_each("e", [], handler).parallel(lambda b: b.step("f", handler))
    a, b, c, d, e, f = flow.nodes
    attempts = [node.retry.max_attempts for node in (a, b, c, d, e.step, f.steps[0])]
    assert attempts == [3, 1, 7, 3, 3, 3]
    assert c.retry is policy


def test_a_steps_options_reach_its_node(flow):
    flow.step("a", handler, timeout="2m", atomic=True, compensate=print, output_schema=int)
    assert flow.nodes == (StepNode("a", handler, Retry(3), 120.0, True, print, int),)


@pytest.mark.parametrize("unbounded", [None, 0, "0s", timedelta(0)])
def test_t4_a_steps_timeout_of_none_or_0_is_unbounded(flow, unbounded):
    assert flow.step("a", handler, timeout=unbounded).nodes[0].timeout is None


def test_a_wait_is_a_gate_unless_its_approval_is_none(flow):
    mine = Approval(permission="expenses.approve")
    flow.wait_for("anybody").wait_for("mine", timeout="24h", approval=mine).wait_for("machine", approval=None)
    assert flow.gates == {"anybody": Approval(), "mine": mine}
    assert flow.nodes[1:] == (WaitNode("mine", "24h", mine), WaitNode("machine", None, None))


def test_the_names_of_all_waits_are_declared(flow):
    assert flow.wait_for("a").step("b", handler).wait_for("c", approval=None).declared_signals == ("a", "c")


def test_the_other_nodes_hold_what_they_were_given(flow):
    moment = datetime(2030, 1, 1, tzinfo=UTC)
    flow.step("first", handler).sleep("s", moment).pivot()
    flow.do_until(handler, one, max_iterations=3).do_while(handler, lambda b: b.step("two", handler))
    flow.for_each("each", [1, 2], handler, max_iterations=2, compensate=print).for_each("all", handler, handler)
    _first, sleep, pivot, until, loop, each, every = flow.nodes
    assert (sleep, pivot) == (SleepNode("s", moment), PivotNode())
    assert isinstance(until, LoopNode)
    assert (until.until, until.max_iterations, [s.name for s in until.steps]) == (True, 3, ["one"])
    assert (loop.until, loop.max_iterations) == (False, 100)
    assert isinstance(each, ForEachNode)
    assert (each.items, each.max_iterations, each.step.compensate) == ((1, 2), 2, print)
    assert (every.items, every.max_iterations) == (handler, 1000)


def test_a_branch_has_its_paths_and_an_id_that_no_step_can_have(flow):
    flow.branch(handler).path("a", one).path("b", lambda b: None).branch(handler).path("a", lambda b: None)
    first, second = flow.nodes
    assert isinstance(first, BranchNode)
    assert [(name, [s.name for s in steps]) for name, steps in first.paths] == [("a", ["one"]), ("b", [])]
    assert (first.id, second.id) == ("__branch:0", "__branch:1")
    for taken in (first.id, second.id):
        with pytest.raises(DefinitionError):
            flow.step(taken, handler)


def test_a_parallel_group_has_its_steps_in_order(flow):
    flow.parallel(lambda b: b.step("a", handler).step("b", handler))
    group = flow.nodes[0]
    assert isinstance(group, ParallelNode)
    assert [step.name for step in group.steps] == ["a", "b"]


def test_a_sub_workflow_is_named_by_its_definition_or_its_id(flow):
    flow.sub_workflow("by-id", "other").sub_workflow("by-definition", flow, {"x": 1}, timeout="1h")
    assert flow.nodes == (
        SubWorkflowNode("by-id", "other", None, None),
        SubWorkflowNode("by-definition", "flow", {"x": 1}, "1h"),
    )


# -- B1: what is refused -----------------------------------------------------------------------------------------------

NAMED = {
    "step": lambda flow, name: flow.step(name, handler),
    "map": lambda flow, name: flow.map(name, handler),
    "sleep": lambda flow, name: flow.sleep(name, 1),
    "for_each": lambda flow, name: flow.for_each(name, [], handler),
    "sub_workflow": lambda flow, name: flow.sub_workflow(name, "other"),
    "step in a path": lambda flow, name: flow.path("p", lambda b: b.step(name, handler)),
    "step in a group": lambda flow, name: flow.parallel(lambda b: b.step(name, handler)),
    "step in a loop": lambda flow, name: flow.do_until(handler, lambda b: b.step(name, handler)),
}


@pytest.mark.parametrize("name", NO_NAMES + RESERVED, ids=lambda name: repr(name)[:12])
@pytest.mark.parametrize("add", NAMED.values(), ids=NAMED)
def test_b1_a_name_that_cannot_be_is_refused_and_adds_nothing(flow, add, name):
    flow.branch(handler)
    before = flow.nodes
    with pytest.raises(DefinitionError, match='workflow "flow"'):
        add(flow, name)
    assert flow.nodes == before


@pytest.mark.parametrize("name", ["sub", "subject: x", "a:b", "1:2x", "x" * 190, "käse ≠ wurst"])
def test_b1_other_names_are_not(flow, name):
    flow.step(name, handler)
    assert flow.nodes[0].name == name


@pytest.mark.parametrize("second", NAMED.values(), ids=NAMED)
@pytest.mark.parametrize("first", NAMED.values(), ids=NAMED)
def test_b1_a_name_is_taken_once_in_the_whole_graph(flow, first, second):
    flow.branch(handler)
    first(flow, "twice")
    flow.branch(handler)
    before = flow.nodes
    with pytest.raises(DefinitionError, match='two steps are named "twice"'):
        second(flow, "twice")
    assert flow.nodes == before


@pytest.mark.parametrize("verb", ["parallel", "do_until", "do_while", "path"])
def test_b1_also_within_one_group(flow, verb):
    def build(steps):
        steps.step("twice", handler).step("twice", handler)

    given = {"parallel": (build,), "path": ("p", build)}.get(verb, (handler, build))
    flow.branch(handler)
    with pytest.raises(DefinitionError, match='"twice"'):
        getattr(flow, verb)(*given)


def test_b1_a_refused_group_takes_no_names(flow):
    with pytest.raises(DefinitionError):
        flow.parallel(lambda b: b.step("a", handler).step("b:0", handler))
    flow.step("a", handler)


@pytest.mark.parametrize("approval", [None, Approval()], ids=["signal", "gate"])
def test_b1_two_gates_on_one_event_are_refused(flow, approval):
    flow.wait_for("ok", approval=approval)
    with pytest.raises(DefinitionError, match="open both"):
        flow.wait_for("ok")
    assert flow.declared_signals == ("ok",)


@pytest.mark.parametrize("name", NO_NAMES, ids=lambda name: repr(name)[:12])
def test_b1_s6_a_gate_without_a_name_or_with_one_that_cannot_be_is_refused(flow, name):
    with pytest.raises(InvalidSignalName, match='workflow "flow"'):
        flow.wait_for(name)
    assert (flow.nodes, flow.gates) == ((), {})


def test_a_step_may_be_called_as_a_gate_is(flow):
    flow.step("approval", handler).wait_for("approval")
    assert len(flow.nodes) == 2


def test_b1_a_workflow_without_steps_is_refused_at_its_first_use(flow):
    for use in (flow.seal, flow.start, flow.run, lambda: flow.resume("r")):
        with pytest.raises(DefinitionError, match="has no steps"):
            use()
    flow.step("a", handler).seal()


def test_a_branch_without_paths_is_refused_at_first_use(flow):
    flow.branch(handler).step("a", handler)
    with pytest.raises(DefinitionError, match="has no paths"):
        flow.seal()


def test_a_path_follows_its_branch(flow):
    with pytest.raises(DefinitionError, match="follows"):
        flow.path("a", one)
    flow.branch(handler).path("a", one).step("b", handler)
    with pytest.raises(DefinitionError, match="follows"):
        flow.path("c", lambda b: None)


def test_two_paths_of_one_name_are_refused(flow):
    flow.branch(handler).path("a", one)
    with pytest.raises(DefinitionError, match="a path of that name"):
        flow.path("a", lambda b: b.step("two", handler))


@pytest.mark.parametrize("name", NO_NAMES, ids=lambda name: repr(name)[:12])
def test_a_path_has_a_name(flow, name):
    with pytest.raises(DefinitionError, match="path"):
        flow.branch(handler).path(name, one)


VERBS = [
    *["wait_for", "sleep", "map", "pivot", "branch", "path", "parallel", "do_until", "do_while", "for_each"],
    *["sub_workflow", "start"],
]


@pytest.mark.parametrize("verb", VERBS)
@pytest.mark.parametrize("outer", ["path", "parallel", "do_until", "do_while"])
def test_only_steps_can_be_nested_and_the_rest_is_refused_not_dropped(flow, outer, verb):
    def build(steps):
        steps.step("one", handler)
        getattr(steps, verb)("x")

    given = {"parallel": (build,), "path": ("p", build)}.get(outer, (handler, build))
    flow.branch(handler)
    with pytest.raises(DefinitionError, match=f"only steps can be in it, so .{verb} cannot"):
        getattr(flow, outer)(*given)
    assert flow.nodes == (BranchNode("__branch:0", handler),)


def test_what_no_builder_has_is_an_attribute_error(flow):
    with pytest.raises(AttributeError, match="setp"):
        flow.parallel(lambda b: b.setp("one", handler))


def test_a_nested_builder_that_was_kept_takes_no_more_steps(flow):
    kept = []
    flow.parallel(lambda b: kept.append(b.step("one", handler)))
    with pytest.raises(DefinitionError, match="too late"):
        kept[0].step("two", handler)


@pytest.mark.parametrize("verb", ["parallel", "do_until", "do_while"])
def test_a_group_or_loop_without_steps_is_refused(flow, verb):
    given = (lambda b: None,) if verb == "parallel" else (handler, lambda b: None)
    with pytest.raises(DefinitionError, match="it has no steps"):
        getattr(flow, verb)(*given)


FUNCTIONS = {
    "handler": lambda flow, fn: flow.step("a", fn),
    "map": lambda flow, fn: flow.map("a", fn),
    "condition of a branch": lambda flow, fn: flow.branch(fn),
    "condition of do_until": lambda flow, fn: flow.do_until(fn, one),
    "condition of do_while": lambda flow, fn: flow.do_while(fn, one),
    "build": lambda flow, fn: flow.parallel(fn),
    "handler of for_each": lambda flow, fn: flow.for_each("a", [], fn),
    "handler in a group": lambda flow, fn: flow.parallel(lambda b: b.step("a", fn)),
}


@pytest.mark.parametrize("fn", NO_FUNCTIONS, ids=["None", "text", "async", "generator"])
@pytest.mark.parametrize("add", FUNCTIONS.values(), ids=FUNCTIONS)
def test_what_cannot_be_called_at_once_is_refused(flow, add, fn):
    with pytest.raises(DefinitionError, match="function"):
        add(flow, fn)
    assert flow.nodes == ()


@pytest.mark.parametrize("fn", NO_FUNCTIONS[1:], ids=["text", "async", "generator"])
def test_so_is_such_a_compensator(flow, fn):
    with pytest.raises(DefinitionError, match='step "a": compensate'):
        flow.step("a", handler, compensate=fn)


@pytest.mark.parametrize("wrong", NO_DURATIONS, ids=repr)
def test_t1_what_is_no_duration_is_refused_naming_the_place(flow, wrong):
    for add, place in (
        (lambda: flow.step("a", handler, timeout=wrong), 'step "a"'),
        (lambda: flow.for_each("a", [], handler, timeout=wrong), 'step "a"'),
        (lambda: flow.wait_for("a", timeout=wrong), 'wait for "a"'),
        (lambda: flow.sleep("a", wrong), 'sleep "a"'),
        (lambda: flow.sub_workflow("a", "other", timeout=wrong), 'sub_workflow "a"'),
    ):
        with pytest.raises(DurationError, match=f'workflow "flow", {place}'):
            add()
    assert flow.nodes == ()


def test_a_sleep_of_none_is_refused(flow):
    with pytest.raises(DurationError, match='sleep "a"'):
        flow.sleep("a", None)


def test_a_steps_timeout_is_no_moment(flow):
    with pytest.raises(DurationError, match='step "a"'):
        flow.step("a", handler, timeout=datetime(2030, 1, 1, tzinfo=UTC))


def test_a_deadline_may_be_a_moment_or_far_away(flow):
    flow.wait_for("a", timeout=datetime(2030, 1, 1, tzinfo=UTC)).wait_for("b", timeout="90d").wait_for("c", timeout=0)
    assert len(flow.nodes) == 3


@pytest.mark.parametrize("wrong", [True, 1.5, "3"], ids=repr)
def test_t2_what_is_no_retry_is_refused_naming_the_step(flow, wrong):
    with pytest.raises(DefinitionError, match='workflow "flow", step "a": retry'):
        flow.step("a", handler, retry=wrong)


@pytest.mark.parametrize("wrong", [0, -1, True, 1.0, "5", None], ids=repr)
def test_a_bound_is_a_whole_number_from_one(flow, wrong):
    for add in (
        lambda: flow.do_until(handler, one, max_iterations=wrong),
        lambda: flow.do_while(handler, one, max_iterations=wrong),
        lambda: flow.for_each("a", [], handler, max_iterations=wrong),
    ):
        with pytest.raises(DefinitionError, match="max_iterations"):
            add()


def test_a_name_leaves_room_for_the_number_of_its_turn(flow):
    flow.do_until(handler, lambda b: b.step("x" * 198, handler), max_iterations=10)
    with pytest.raises(DefinitionError, match="longer than 197"):
        flow.do_until(handler, lambda b: b.step("y" * 198, handler), max_iterations=11)
    with pytest.raises(DefinitionError, match="longer than 196"):
        flow.for_each("z" * 197, [], handler)


@pytest.mark.parametrize("items", [range(3), "abc", {1: 2}, None, {1}, iter([1])], ids=repr)
def test_items_are_a_list_or_tuple_only(flow, items):
    with pytest.raises(DefinitionError, match="a list or tuple"):
        flow.for_each("a", items, handler)


def test_too_many_items_that_are_known_when_it_is_built_are_refused_then(flow):
    with pytest.raises(DefinitionError, match="max_iterations=2"):
        flow.for_each("a", [1, 2, 3], handler, max_iterations=2)


@pytest.mark.parametrize("wrong", ["expenses.approve", {}, Approval], ids=repr)
def test_an_approval_is_an_approval(flow, wrong):
    with pytest.raises(DefinitionError, match='wait for "a": approval'):
        flow.wait_for("a", approval=wrong)


def test_a_schema_that_cannot_be_is_refused_naming_the_step(flow):
    with pytest.raises(DefinitionError, match='step "a": output_schema'):
        flow.step("a", handler, output_schema="a string")


@pytest.mark.parametrize("wrong", [None, 7, "", "__x"], ids=repr)
def test_the_workflow_of_a_sub_workflow_is_a_definition_or_an_id(flow, wrong):
    with pytest.raises(DefinitionError, match='sub_workflow "a": workflow'):
        flow.sub_workflow("a", wrong)


# -- sealing -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("verb", ["step", *VERBS[:-1]])
def test_b1_a_workflow_in_use_is_not_changed_any_more(flow, verb):
    def more(steps):
        steps.step("more", handler)

    flow.branch(handler).path("p", one).seal()
    before = flow.nodes
    given = {
        "step": ("more", handler),
        "wait_for": ("more",),
        "sleep": ("more", 1),
        "map": ("more", handler),
        "pivot": (),
        "branch": (handler,),
        "path": ("more", lambda b: None),
        "parallel": (more,),
        "do_until": (handler, more),
        "do_while": (handler, more),
        "for_each": ("more", [], handler),
        "sub_workflow": ("more", "other"),
    }[verb]
    with pytest.raises(DefinitionError, match="cannot change any more"):
        getattr(flow, verb)(*given)
    assert (flow.nodes, flow.gates) == (before, {})


def test_sealing_it_again_is_nothing(flow):
    flow.step("a", handler).seal()
    flow.seal()


@pytest.mark.django_db
def test_its_first_start_seals_it(flow):
    flow.step("a", handler).start()
    with pytest.raises(DefinitionError, match="cannot change any more"):
        flow.step("b", handler)


def test_a2_a_start_without_the_requester_that_a_gate_excludes_is_refused(flow):
    flow.wait_for("ok", approval=Approval(exclude_requester=True))
    flow.check_start(has_requester=True)
    with pytest.raises(DefinitionError, match='gate "ok" excludes the requester'):
        flow.check_start(has_requester=False)


def test_t6_a_deadline_that_has_passed_at_once_is_warned_of(flow):
    flow.wait_for("a", timeout=0).wait_for("b", timeout="0s").wait_for("c").wait_for("d", timeout="1ms")
    flow.wait_for("e", timeout=datetime(2020, 1, 1, tzinfo=UTC)).sub_workflow("f", "other", timeout=timedelta(0))
    flow.step("g", handler, timeout=0).sleep("h", 0)
    assert [text.partition(":")[0].removeprefix('workflow "flow", ') for text in flow.warnings()] == [
        'wait for "a"',
        'wait for "b"',
        'sub_workflow "f"',
    ]


# -- importability -----------------------------------------------------------------------------------------------------


def test_a_builder_workflow_needs_no_loaded_django():
    source = """
from django_finoflow.builder import Workflow
from django.apps import apps
from django.conf import settings
flow = Workflow("w").step("a", print).wait_for("ok", timeout="24h").do_until(print, lambda b: b.step("b", print))
flow.seal()
print(len(flow.nodes), apps.ready, settings.configured)
"""
    clean = {name: value for name, value in os.environ.items() if not name.startswith(("DJANGO_", "FINOFLOW_"))}
    command = [sys.executable, "-W", "error", "-c", source]
    done = subprocess.run(command, cwd=ROOT, env=clean, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() == "3 False False"
