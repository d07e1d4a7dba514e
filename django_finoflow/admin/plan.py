"""The graph of a builder workflow, with how far one run has come in it.

The nodes come from the definition as this process knows it, the places from what the run has recorded. A definition
that this process does not know cannot be drawn, and the page says so.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from django.utils.translation import gettext as _
from django.utils.translation import ngettext

from .. import registry
from ..builder import Workflow
from ..exceptions import UnknownWorkflow
from ..models import Execution
from ..nodes import (
    BranchNode,
    ForEachNode,
    LoopNode,
    MapNode,
    Node,
    ParallelNode,
    PivotNode,
    SleepNode,
    StepNode,
    SubWorkflowNode,
    WaitNode,
)
from ..statuses import Outcome, StepKind, StepStatus

#: Checkpoints looked at, the last ones.
MOST = 5000

STATES: dict[Any, str] = {
    StepStatus.DONE: "done",
    StepStatus.FAILED: "failed",
    StepStatus.RETRYING: "here",
    Outcome.OPEN: "here",
    Outcome.SIGNALLED: "done",
    Outcome.FIRED: "done",
    Outcome.TIMED_OUT: "failed",
    Outcome.CANCELLED: "failed",
}


class Box(NamedTuple):
    """One node: ``state`` is ``done``, ``here``, ``failed``, ``skipped``, or empty for what is ahead."""

    kind: str
    name: str
    state: str
    note: str = ""
    lanes: tuple[tuple[str, tuple[Box, ...]], ...] = ()
    is_pivot: bool = False

    @property
    def words(self) -> str:
        """What the state is called."""
        words = {"done": _("done"), "here": _("the run is here"), "failed": _("failed"), "skipped": _("not taken")}
        return words.get(self.state, _("ahead"))


def of(run: Execution) -> dict[str, Any]:
    """Return what the template draws: ``boxes``, or ``unknown``; nothing for a function workflow, it has no graph."""
    try:
        definition = registry.get(run.workflow_id, run.version)
    except UnknownWorkflow:
        return {"unknown": True}
    if not isinstance(definition, Workflow):
        return {}
    boxes = Plan(run).boxes(definition.nodes)
    return {"boxes": _marked(boxes, is_over=run.is_over)}


class Plan:
    """What one run has recorded, looked up by the names of nodes."""

    def __init__(self, run: Execution):
        steps = run.steps.order_by("-index").values_list("step_id", "status", "kind")[:MOST]
        waits = run.waits.order_by("-index").values_list("name", "outcome")[:MOST]
        self._run = run
        self._waits = {name: STATES[outcome] for name, outcome in reversed(waits)}
        self._steps: dict[str, str] = {}
        self._turns: dict[str, int] = {}
        for step_id, status, kind in reversed(steps):
            name, colon, turn = step_id.rpartition(":")
            is_turn = colon and turn.isdigit() and kind != StepKind.BRANCH
            self._steps[name if is_turn else step_id] = STATES[status]
            if is_turn:
                self._turns[name] = int(turn) + 1
        self._has_branch = any(kind == StepKind.BRANCH for _id, _status, kind in steps)

    def boxes(self, nodes: Sequence[Node]) -> list[Box]:
        """Return the boxes of ``nodes``."""
        return [self._box(node) for node in nodes]

    def _box(self, node: Node) -> Box:
        match node:
            case StepNode():
                return self._step(node)
            case MapNode(name):
                return Box(_("map"), name, self._steps.get(name, ""))
            case SleepNode(name):
                return Box(_("sleep"), name, self._waits.get(name, ""))
            case WaitNode():
                return Box(_("gate") if node.approval else _("signal"), node.event, self._waits.get(node.event, ""))
            case SubWorkflowNode(name, workflow_id):
                return Box(_("child run"), name, self._waits.get(name, ""), workflow_id)
            case PivotNode():
                return Box(_("pivot"), _("nothing is undone from here on"), "", is_pivot=True)
            case ForEachNode(step):
                return self._in_turns(_("for each"), [step])
            case LoopNode(steps=steps, until=until):
                return self._in_turns(_("do until") if until else _("do while"), steps)
            case ParallelNode(steps):
                return self._group(_("parallel"), "", [("", self._several([step])) for step in steps])
            case BranchNode():
                return self._branch(node)
        return Box(type(node).__name__, "", "")

    def _step(self, step: StepNode) -> Box:
        return Box(_("step"), step.name, self._steps.get(step.name, ""))

    def _several(self, steps: Sequence[StepNode]) -> tuple[Box, ...]:
        return tuple(self._step(step) for step in steps)

    def _in_turns(self, kind: str, steps: Sequence[StepNode]) -> Box:
        turns = max((self._turns.get(step.name, 0) for step in steps), default=0)
        note = ngettext("%d turn", "%d turns", turns) % turns if turns else ""
        return self._group(kind, note, [("", self._several(steps))])

    def _branch(self, node: BranchNode) -> Box:
        chosen = self._chosen.get(node.id) if self._has_branch else None
        lanes = [(name, self._several(steps)) for name, steps in node.paths]
        if chosen is not None:
            lanes = [
                (name, boxes if name == chosen else tuple(box._replace(state="skipped") for box in boxes))
                for name, boxes in lanes
            ]
        box = self._group(_("branch"), _("took “%s”") % chosen if chosen else "", lanes)
        return box._replace(state=box.state or ("done" if chosen is not None else ""))

    @property
    def _chosen(self) -> dict[str, Any]:
        return dict(self._run.steps.filter(kind=StepKind.BRANCH).values_list("step_id", "result"))

    def _group(self, kind: str, note: str, lanes: list[tuple[str, tuple[Box, ...]]]) -> Box:
        states = {box.state for _name, boxes in lanes for box in boxes} - {"skipped"}
        if "failed" in states:
            state = "failed"
        elif "here" in states or states == {"done", ""}:
            state = "here"
        else:
            state = "done" if "done" in states else ""
        return Box(kind, "", state, note, tuple(lanes))


def _marked(boxes: list[Box], *, is_over: bool) -> list[Box]:
    """Return boxes with the current place marked: what lies before something recorded is behind the run.

    A run that neither waits nor has ended is at the first node that nothing is recorded of.
    """
    reached = [number for number, box in enumerate(boxes) if box.state]
    last = reached[-1] if reached else -1
    boxes = [box if box.state or number > last else box._replace(state="done") for number, box in enumerate(boxes)]
    is_somewhere = is_over or any(box.state == "here" for box in boxes)
    # No run ever stays at a pivot.
    ahead = next((number for number, box in enumerate(boxes) if number > last and not box.is_pivot), None)
    if ahead is not None and not is_somewhere:
        boxes[ahead] = boxes[ahead]._replace(state="here")
    return boxes
