"""The graph of a builder workflow, with how far one run has come in it.

The nodes come from the definition as this process knows it, the places from what the run has recorded under their
names: of a node that the run never had nothing is said to be done. A definition that this process does not know cannot
be drawn, and the page says so.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from django.utils.translation import gettext as _
from django.utils.translation import ngettext

from .. import registry
from ..builder import Workflow
from ..exceptions import UnknownWorkflow
from ..models import Decision, Execution
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
from ..statuses import Outcome, RunStatus, StepKind, StepStatus

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
    """One node.

    ``state`` is ``done``, ``here``, ``failed``, ``rejected``, ``mismatch`` (here the record and the graph part),
    ``skipped``, ``missed`` (it never ran), or empty for what is ahead. ``is_end``: where a run that is over ended.
    ``key``: the name of its checkpoint, where that is not the node's. ``is_quiet``: it may pass without a record.
    """

    kind: str
    name: str
    state: str
    note: str = ""
    lanes: tuple[tuple[str, tuple[Box, ...]], ...] = ()
    is_pivot: bool = False
    is_end: bool = False
    key: str = ""
    is_quiet: bool = False

    @property
    def words(self) -> str:
        """What the state is called."""
        words = {
            "done": _("done"),
            "here": _("the run is here"),
            "failed": _("failed"),
            "rejected": _("rejected"),
            "mismatch": _("here the run has recorded something else"),
            "skipped": _("not taken"),
            "missed": _("not run"),
        }
        told = words.get(self.state, _("ahead"))
        return _("%s: here the run ended") % told if self.is_end else told


def of(run: Execution) -> dict[str, Any]:
    """Return what the template draws: ``boxes``, or ``unknown``; nothing for a function workflow, it has no graph."""
    try:
        definition = registry.get(run.workflow_id, run.version)
    except UnknownWorkflow:
        return {"unknown": True}
    if not isinstance(definition, Workflow):
        return {}
    plan = Plan(run)
    boxes = plan.boxes(definition.nodes)
    if run.status == RunStatus.STUCK and (pair := (run.error or {}).get("mismatch")):
        return {"boxes": _parted(boxes, pair["asked"])}
    boxes, last = _passed(boxes, is_cut=plan.is_cut)
    return {"boxes": _ended(boxes, last, run) if run.is_over else _placed(boxes, last)}


class Plan:
    """What one run has recorded, looked up by the names of nodes."""

    def __init__(self, run: Execution):
        steps = run.steps.order_by("-index").values_list("step_id", "status", "kind")[:MOST]
        waits = run.waits.order_by("-index").values_list("pk", "name", "outcome")[:MOST]
        #: Whether more is recorded than was looked at.
        self.is_cut = len(steps) == MOST
        self._run = run
        rejected = set(Decision.objects.filter(wait__execution=run, approved=False).values_list("wait", flat=True))
        self._waits = {n: "rejected" if pk in rejected else STATES[outcome] for pk, n, outcome in reversed(waits)}
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
                return Box(_("pivot"), _("nothing is undone from here on"), "", is_pivot=True, is_quiet=True)
            case ForEachNode(step):
                return self._in_turns(_("for each"), [step])._replace(is_quiet=True)
            case LoopNode(steps=steps, until=until):
                kind = _("do until") if until else _("do while")
                return self._in_turns(kind, steps)._replace(is_quiet=not until)
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
        return box._replace(state=box.state or ("done" if chosen is not None else ""), key=node.id)

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


def _placed(boxes: list[Box], last: int) -> list[Box]:
    """Return the boxes of a run that is not over, with its place marked, if what is recorded does not say it.

    A run that does not wait is at the first node behind the ``last`` that it has reached.
    """
    # No run ever stays at a pivot.
    ahead = next((number for number, box in enumerate(boxes) if number > last and not box.is_pivot), None)
    if ahead is not None and not any(box.state == "here" for box in boxes):
        boxes[ahead] = boxes[ahead]._replace(state="here")
    return boxes


def _ended(boxes: list[Box], last: int, run: Execution) -> list[Box]:
    """Return the boxes of a run that is over: nothing is ahead of it, and where it broke off is marked."""
    boxes = [_missed(box) for box in boxes]
    if last >= 0 and run.status != RunStatus.DONE:
        boxes[last] = boxes[last]._replace(is_end=True)
    return boxes


def _parted(boxes: list[Box], asked: Sequence[str] | None) -> list[Box]:
    """Return the boxes of a run that is stuck, with the node marked that it was asked for and has not recorded there.

    Nothing is guessed about the others: the graph is not the one that the run has gone through.
    """
    if asked is None:
        return boxes
    name, colon, turn = asked[1].rpartition(":")
    names = {asked[1], name if colon and turn.isdigit() else asked[1]}

    def mark(box: Box) -> Box:
        lanes = tuple((lane, tuple(map(mark, some))) for lane, some in box.lanes)
        return box._replace(lanes=lanes, state="mismatch" if (box.key or box.name) in names else box.state)

    return list(map(mark, boxes))


def _passed(boxes: list[Box], *, is_cut: bool) -> tuple[list[Box], int]:
    """Return boxes and the number of the last that was reached (-1: none).

    What lies before it and may leave no record (a pivot, a loop without turns) is behind the run, too; all of it where
    the record ``is_cut``.
    """
    last = max((number for number, box in enumerate(boxes) if box.state), default=-1)

    def passed(number: int, box: Box) -> Box:
        if box.state or number > last:
            return box
        if is_cut:
            return box._replace(state="done")
        return box._replace(state="done", lanes=_missed(box).lanes) if box.is_quiet else _missed(box)

    return [passed(number, box) for number, box in enumerate(boxes)], last


def _missed(box: Box) -> Box:
    """Return a box of which, with those in it, nothing is ahead."""
    lanes = tuple((name, tuple(map(_missed, some))) for name, some in box.lanes)
    return box._replace(state=box.state or "missed", lanes=lanes)
