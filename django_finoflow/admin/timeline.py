"""The story of one run: why it stands still, the picture, and its steps, waits, signals and decisions in tables."""

from __future__ import annotations

from datetime import datetime
from functools import cached_property
from typing import Any, NamedTuple

from django.urls import reverse
from django.utils.html import format_html
from django.utils.safestring import SafeString
from django.utils.translation import gettext as _

from .. import clock, values
from ..decisions import form_for
from ..history import child_run_id
from ..models import Decision, Execution, Step, Wait
from ..statuses import Outcome, RunStatus, StepStatus, Undo, WaitKind
from . import bars, picture, plan, standstill

#: Rows shown of each table, the last ones: a page of more takes a browser's breath away.
MOST = 1000

TONES = {
    StepStatus.DONE: "good",
    StepStatus.FAILED: "bad",
    StepStatus.RETRYING: "busy",
    Outcome.OPEN: "busy",
    Outcome.SIGNALLED: "good",
    Outcome.FIRED: "good",
    Outcome.TIMED_OUT: "bad",
}
UNDO_TONES = {Undo.COMPENSATED: "good", Undo.FAILED: "bad"}


class Row(NamedTuple):
    """One checkpoint of the table. ``undo`` is about its compensation; ``link`` leads to a gate's or child's page."""

    position: int
    branch: str
    kind: str
    name: str
    status: SafeString
    attempts: int | None
    content: SafeString
    began: datetime | None
    ended: datetime | None
    undo: SafeString | str = ""
    undone: datetime | None = None
    link: str = ""


def of(run: Execution, site: str, *, gates: bool) -> dict[str, Any]:
    """Return what the page of a run shows beside its fields.

    Args:
        run: the run.
        site: the name of the admin site, for links.
        gates: whether whoever looks may see gates' own pages.
    """
    links, now = Links(run, site, gates), clock.now()
    steps = list(run.steps.order_by("-index", "-branch")[:MOST])
    waits = list(
        run.waits.select_related("signal").prefetch_related("decisions", "events").order_by("-index", "-branch")[:MOST]
    )
    rows = [*(_step(step, run) for step in steps), *(_wait(wait, links) for wait in waits)]
    rows = sorted(rows, key=lambda row: (row.position, row.branch))[-MOST:]
    signals = run.signals.order_by("received_at", "pk")[:MOST]
    decisions = Decision.objects.filter(wait__execution=run).select_related("wait").order_by("decided_at", "pk")[:MOST]
    for decision in decisions:
        decision.wait.execution = run  # its form is the workflow's
    shown = bars.of(steps, waits, now, links.of)
    begin = shown[0].begin if shown and len(rows) == MOST else run.created_at
    return {
        "standstill": standstill.of(run, waits, steps, links.of),
        "picture": picture.of(shown, begin, run.finished_at, now),
        "plan": plan.of(run),
        "rows": rows,
        "with_undo": any(row.undo for row in rows),
        "earlier": rows[0].position if len(rows) == MOST else 0,
        "signals": [(signal, values.payload(signal.payload)) for signal in signals],
        "decisions": [(made, verdict(made), values.filled(made.data, form_for(made.wait))) for made in decisions],
    }


def verdict(decision: Decision) -> SafeString:
    """Return a decision's yes or no as HTML."""
    return values.badge(_("approved"), "good") if decision.approved else values.badge(_("rejected"), "bad")


class Links:
    """The addresses of the pages that the rows of one run lead to: of gates, for those who may see them; of children.

    A child may be gone: its row is the run's own, but nobody is kept from deleting it.
    """

    def __init__(self, run: Execution, site: str, gates: bool):
        self._run, self._site, self._gates = run, site, gates

    @cached_property
    def _children(self) -> dict[str, int]:
        return dict(self._run.children.values_list("run_id", "pk"))

    def of(self, wait: Wait) -> str:
        """Return the address for a wait, or nothing."""
        if wait.kind == WaitKind.CHILD:
            pk = self._children.get(child_run_id(self._run, wait.branch, wait.index))
            return self._address("execution", pk) if pk else ""
        return self._address("wait", wait.pk) if self._gates and wait.is_gate else ""

    def _address(self, model: str, pk: int) -> str:
        return reverse(f"admin:finoflow_{model}_change", args=[pk], current_app=self._site)


def _step(step: Step, run: Execution) -> Row:
    content = values.payload(step.result) if step.error is None else values.error(step.error)
    if step.status == StepStatus.RETRYING:
        content = format_html("{} {} {}", content, _("Next attempt:"), values.shown(step.due_at))
    status = values.badge(step.get_status_display(), TONES.get(StepStatus(step.status), ""))
    return Row(
        step.index,
        step.branch,
        step.get_kind_display(),
        step.step_id,
        status,
        step.attempts,
        content,
        step.started_at,
        step.finished_at,
        _undo(step, run),
        step.compensated_at,
    )


def _undo(step: Step, run: Execution) -> SafeString | str:
    """Return what became of a step's compensation, or may become of it."""
    if step.compensation:
        outcome = values.badge(step.get_compensation_display(), UNDO_TONES.get(Undo(step.compensation), ""))
        wrong = "" if step.compensation_error is None else values.error(step.compensation_error)
        return format_html("{} {}", outcome, wrong)
    if not step.compensable:
        return ""
    return _("not undone") if run.status in (RunStatus.ERROR, RunStatus.CANCELLED) else _("can be undone")


def _wait(wait: Wait, links: Links) -> Row:
    signal = getattr(wait, "signal", None)
    return Row(
        wait.index,
        wait.branch,
        _("gate") if wait.is_gate else wait.get_kind_display(),
        wait.name,
        _outcome(wait),
        None,
        values.payload(signal.payload) if signal else _deadline(wait),
        wait.opened_at,
        wait.closed_at,
        link=links.of(wait),
    )


def _outcome(wait: Wait) -> SafeString:
    if any(not decision.approved for decision in wait.decisions.all()):  # one rejection rejects
        return values.badge(_("rejected"), "bad")
    return values.badge(wait.get_outcome_display(), TONES.get(Outcome(wait.outcome), ""))


def _deadline(wait: Wait) -> SafeString:
    if wait.due_at is None:
        return format_html("{}", values.NOTHING)
    return format_html("{} {}", _("due"), values.shown(wait.due_at))
