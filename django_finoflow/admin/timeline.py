"""The story of one run: its steps and waits by position in one table, then its signals and its decisions."""

from __future__ import annotations

from datetime import datetime
from typing import Any, NamedTuple

from django.urls import reverse
from django.utils.html import format_html
from django.utils.safestring import SafeString
from django.utils.translation import gettext as _

from ..models import Decision, Execution, Step, Wait
from ..statuses import Outcome, StepStatus
from . import values

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


class Row(NamedTuple):
    """One checkpoint of the table. ``link`` leads to a gate's own page."""

    position: int
    branch: str
    kind: str
    name: str
    status: SafeString
    attempts: int | None
    content: SafeString
    began: datetime | None
    ended: datetime | None
    link: str = ""


def of(run: Execution, site: str, *, gates: bool) -> dict[str, Any]:
    """Return what the page of a run shows beside its fields.

    Args:
        run: the run.
        site: the name of the admin site, for links.
        gates: whether whoever looks may see gates' own pages.
    """
    steps = [_step(step) for step in run.steps.order_by("-index", "-branch")[:MOST]]
    waits = run.waits.select_related("signal").order_by("-index", "-branch")[:MOST]
    rows = sorted(steps + [_wait(wait, site, gates) for wait in waits], key=lambda row: (row.position, row.branch))
    signals = run.signals.order_by("received_at", "pk")[:MOST]
    decisions = Decision.objects.filter(wait__execution=run).select_related("wait").order_by("decided_at", "pk")[:MOST]
    rows = rows[-MOST:]
    return {
        "rows": rows,
        "earlier": rows[0].position if len(rows) == MOST else 0,
        "signals": [(signal, values.payload(signal.payload)) for signal in signals],
        "decisions": [(decision, verdict(decision), values.shown(decision.data)) for decision in decisions],
    }


def verdict(decision: Decision) -> SafeString:
    """Return a decision's yes or no as HTML."""
    return values.badge(_("approved"), "good") if decision.approved else values.badge(_("rejected"), "bad")


def _step(step: Step) -> Row:
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
    )


def _wait(wait: Wait, site: str, gates: bool) -> Row:
    signal = getattr(wait, "signal", None)
    link = reverse("admin:finoflow_wait_change", args=[wait.pk], current_app=site) if gates and wait.is_gate else ""
    return Row(
        wait.index,
        wait.branch,
        _("gate") if wait.is_gate else wait.get_kind_display(),
        wait.name,
        values.badge(wait.get_outcome_display(), TONES.get(Outcome(wait.outcome), "")),
        None,
        values.payload(signal.payload) if signal else _deadline(wait),
        wait.opened_at,
        wait.closed_at,
        link,
    )


def _deadline(wait: Wait) -> SafeString:
    if wait.due_at is None:
        return format_html("{}", values.NOTHING)
    return format_html("{} {}", _("due"), values.shown(wait.due_at))
