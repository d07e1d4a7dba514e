"""One page that says what waits for whom since when, what is overdue, and what is stuck and why.

It shows what its reader may see and nothing more: of gates all or their own, of runs all or none. It takes the same few
queries however much there is.
"""

from __future__ import annotations

from collections.abc import Iterator
from datetime import timedelta
from typing import Any, NamedTuple
from urllib.parse import urlencode

from django.contrib import admin
from django.core.exceptions import PermissionDenied
from django.db.models import Count, Min, Prefetch, Q, QuerySet
from django.db.models.functions import Now
from django.http import HttpRequest, HttpResponse
from django.urls import reverse
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy, ngettext

from .. import clock, decisions, registry, values
from ..models import Execution, Step, Wait
from ..statuses import OPEN_TO_SIGNALS, RunStatus, Undo
from . import standstill
from .filters import due_and_not_taken
from .reader import Reader

VIEW_RUNS = "finoflow.view_execution"

#: Rows of each table: the page is for a look, the lists are for work.
MOST = 10
LONGEST = 1000  # what an address may hold of an audience
SOON = timedelta(days=2)


class Tile(NamedTuple):
    """A number at the top, and the list that it leads to."""

    label: str
    number: int
    url: str
    tone: str = ""


class Overview:
    """The overview, as a page of ``GateAdmin``."""

    @admin.display(description=gettext_lazy("Overview"))
    def finoflow_overview(self: Any, request: HttpRequest) -> HttpResponse:
        """Show the page to whoever may see gates or runs."""
        sees_gates, sees_runs = Reader.of(request).is_concerned, request.user.has_perm(VIEW_RUNS)
        if not sees_gates and not sees_runs:
            raise PermissionDenied
        shown: dict[str, Any] = {"sees_gates": sees_gates, "sees_runs": sees_runs, "tiles": []}
        for part in ([_gates] if sees_gates else []) + ([_runs] if sees_runs else []):
            found = part(self, request)
            shown["tiles"] += found.pop("tiles")
            shown |= found
        return self.page(request, "admin/finoflow/wait/overview.html", _("Overview"), **shown)

    finoflow_overview.url_path = "overview"  # type: ignore[attr-defined]


def _gates(page: Any, request: HttpRequest) -> dict[str, Any]:
    """Return what the page shows of gates."""
    now, listed = clock.now(), _list(page, "wait")
    waiting = page.get_queryset(request).filter(_is_asked())
    late = Q(due_at__lte=now)
    counts = waiting.order_by().aggregate(all=Count("pk"), late=Count("pk", filter=late))
    mine = Reader.of(request).mine
    own, count, overdue = mine.count(), counts["all"], counts["late"]
    return {
        "tiles": [
            Tile(ngettext("waits for you", "wait for you", own), own, f"{listed}?mine=yes", "busy"),
            Tile(ngettext("gate is open", "gates are open", count), count, f"{listed}?state=open"),
            Tile(ngettext("is overdue", "are overdue", overdue), overdue, f"{listed}?state=overdue", "bad"),
        ],
        "mine": [
            (gate, page.buttons(request, page.actions_row, gate), page.deadline(gate), _since(gate.opened_at))
            for gate in page.with_runs(request, mine)[:MOST]
        ],
        "whom": list(_whom(waiting, late, listed)),
        "deadlines": [
            (gate, page.deadline(gate), decisions.candidates_text(gate), _since(gate.opened_at))
            for gate in waiting.filter(due_at__lte=now + SOON).order_by("due_at", "pk")[:MOST]
        ],
    }


def _whom(waiting: QuerySet, late: Q, listed: str) -> Iterator[dict[str, Any]]:
    """Yield who is waited for with which gates, by how long the first of them has waited."""
    groups = waiting.order_by().values("audience", "name", "execution__workflow_id")
    for row in groups.annotate(count=Count("pk"), oldest=Min("opened_at"), late=Count("pk", filter=late)).order_by(
        "oldest", "audience", "name"
    )[:MOST]:
        workflow = row["execution__workflow_id"]
        query = {"state": "open", "workflow": workflow, "name": row["name"], "audience": row["audience"]}
        if len(row["audience"]) > LONGEST:
            del query["audience"]
        who, since = decisions.candidates_text(Wait(audience=row["audience"])), _since(row["oldest"])
        yield row | {"who": who, "workflow": workflow, "since": since, "url": f"{listed}?{urlencode(query)}"}


def _runs(page: Any, request: HttpRequest) -> dict[str, Any]:
    """Return what the page shows of runs."""
    listed = _list(page, "execution")
    stuck = Execution.objects.stuck().defer("input", "state", "result")
    due = Execution.objects.filter(due_and_not_taken())
    silent = Execution.objects.live().filter(lease_until__lt=Now())
    groups = due.values("workflow_id", "version", "queue").annotate(count=Count("pk"), oldest=Min("due_at"))
    failed = Step.objects.filter(compensation=Undo.FAILED).defer("result", "error", "state_patch")
    not_undone = Prefetch("steps", failed, to_attr="not_undone")
    count, at_stuck = stuck.count(), f"{listed}?status__exact={RunStatus.STUCK}"
    not_taken = list(groups.order_by("oldest", "workflow_id")[:MOST])
    return {
        "tiles": [
            Tile(ngettext("run is stuck", "runs are stuck", count), count, at_stuck, "bad"),
            Tile(_("due, but not taken by a worker"), due.count(), f"{listed}?overdue=due", "bad"),
            Tile(_("held by a worker that is silent"), silent.count(), f"{listed}?overdue=silent", "bad"),
        ],
        "stuck": [
            (run, _change(page, run), standstill.stuck(run), _message(run), _since(run.updated_at))
            for run in stuck.prefetch_related(not_undone).order_by("updated_at", "pk")[:MOST]
        ],
        "not_taken": [
            row | {"since": _since(row["oldest"]), "is_known": (row["workflow_id"], row["version"]) in registry.known()}
            for row in not_taken
        ],
    }


def _is_asked() -> Q:
    return Q(outcome="open", execution__status__in=OPEN_TO_SIGNALS)


def _message(run: Any) -> Any:
    """Return the error to mend: of the compensation that failed, or the run's own."""
    told = [f"{step.step_id}: {(step.compensation_error or {}).get('message', '')}" for step in run.not_undone]
    return values.shortened("; ".join(told) or str((run.error or {}).get("message", "")), "finoflow-error")


def _since(moment: Any) -> tuple[str, str]:
    """Return how long ago a moment was, and when."""
    return standstill.ago(moment), values.moment(moment)


def _list(page: Any, model: str) -> str:
    return reverse(f"admin:finoflow_{model}_changelist", current_app=page.admin_site.name)


def _change(page: Any, run: Execution) -> str:
    return reverse("admin:finoflow_execution_change", args=[run.pk], current_app=page.admin_site.name)
