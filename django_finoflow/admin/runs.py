"""The pages of runs: a list to find one, and a read-only page with its whole story. ``acting`` has the buttons."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from django.contrib import admin
from django.contrib.admin.views.main import ChangeList
from django.db.models import Prefetch, QuerySet
from django.http import HttpRequest
from django.urls import reverse
from django.utils.html import format_html, format_html_join
from django.utils.safestring import SafeString
from django.utils.timesince import timesince
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy, ngettext

from .. import values
from ..models import Execution, Step, Wait
from ..statuses import RunStatus, StepStatus
from . import acting, timeline
from .filters import OverdueFilter, RunMineFilter
from .pages import RecordAdmin

VIEW = "finoflow.view_execution"

#: How the list colours a status.
TONES = {
    RunStatus.DONE: "good",
    RunStatus.ERROR: "bad",
    RunStatus.STUCK: "bad",
    RunStatus.RUNNING: "busy",
    RunStatus.WAITING: "busy",
    RunStatus.COMPENSATING: "busy",
}


class RunList(ChangeList):
    """The list: without the payloads, and with what each run waits for, in three queries however many there are."""

    def get_queryset(self, *args: Any, **kwargs: Any) -> QuerySet:
        waits = Prefetch("waits", Wait.objects.open().defer("approval").order_by("index"), to_attr="open_waits")
        retries = (
            Step.objects.filter(status=StepStatus.RETRYING).defer("result", "error", "state_patch").order_by("index")
        )
        runs = super().get_queryset(*args, **kwargs).defer("input", "state", "result", "error")
        return runs.prefetch_related(waits, Prefetch("steps", retries, to_attr="open_retries"))


class RunAdmin(acting.Acting, RecordAdmin):
    """Runs, newest first, for holders of ``finoflow.view_execution``."""

    list_display = ("run_id", "key", "workflow_id", "coloured_status", "waits_for", "age", "requester_name")
    list_filter = ("status", OverdueFilter, RunMineFilter, "workflow_id", "queue")
    search_fields = ("run_id", "key", "requester_name")
    search_help_text = gettext_lazy("Run, key or requester")
    ordering = ("-created_at", "-id")
    actions = tuple(f"finoflow_{verb}_selected" for verb in acting.VERBS)
    actions_row = tuple(f"finoflow_{verb}" for verb in acting.VERBS)
    actions_detail = actions_row
    bulk = tuple(f"finoflow_{verb}_many" for verb in acting.VERBS)

    # ── who may ──

    def has_view_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        return request.user.has_perm(VIEW)

    def may_press(self, request: HttpRequest, name: str, obj: Execution) -> bool:
        verb = name.removeprefix("finoflow_")
        return self.may(request, verb) and acting.VERBS[verb].accepts(obj)

    # ── the list ──

    def get_changelist(self, request: HttpRequest, **kwargs: Any) -> type[ChangeList]:
        return RunList

    @admin.display(description=gettext_lazy("status"), ordering="status")
    def coloured_status(self, run: Execution) -> SafeString:
        reason = f" · {run.get_stuck_reason_display()}" if run.stuck_reason else ""
        return values.badge(f"{run.get_status_display()}{reason}", TONES.get(RunStatus(run.status), ""))

    @admin.display(description=gettext_lazy("waits for"))
    def waits_for(self, run: Execution) -> SafeString:
        return format_html_join("", "<div>{}</div>", ((line,) for line in _waits(run)))

    @admin.display(description=gettext_lazy("age"), ordering="created_at")
    def age(self, run: Execution) -> SafeString:
        return format_html(
            '<span title="{}">{}</span>', values.moment(run.created_at), timesince(run.created_at, depth=1)
        )

    # ── one run ──

    def get_fieldsets(self, request: HttpRequest, obj: Any = None) -> Any:
        facts = (
            "workflow",
            "coloured_status",
            "key",
            "requester_name",
            "placed",
            "times",
            "driven",
            "recovered",
            "rolled_back",
            "parent_run",
            "child_runs",
        )
        telling = [name for name in facts if obj is None or _said(getattr(self, name, None), obj, name)]
        payloads = [
            name for name in ("input", "state", "result", "error") if obj is None or getattr(obj, name) is not None
        ]
        shown = [f"shown_{name}" for name in payloads]
        return [(None, {"fields": telling}), *([(_("Data"), {"fields": shown})] if shown else [])]

    def get_readonly_fields(self, request: HttpRequest, obj: Any = None) -> Sequence[str]:
        return [name for _title, options in self.get_fieldsets(request, obj) for name in options["fields"]]

    def details(self, request: HttpRequest, obj: Execution) -> dict[str, Any]:
        return timeline.of(obj, self.admin_site.name, gates=request.user.has_perm("finoflow.view_wait"))

    @admin.display(description=gettext_lazy("workflow"))
    def workflow(self, run: Execution) -> str:
        return _("%(workflow)s, version %(version)s") % {"workflow": run.workflow_id, "version": run.version}

    @admin.display(description=gettext_lazy("queue"))
    def placed(self, run: Execution) -> str:
        return _("%(queue)s, priority %(priority)s") % {"queue": run.queue, "priority": run.priority}

    @admin.display(description=gettext_lazy("times"))
    def times(self, run: Execution) -> SafeString:
        moments = [(_("created"), run.created_at), (_("started"), run.started_at), (_("due"), run.due_at)]
        moments += [(_("ended"), run.finished_at)]
        told = ((label, values.moment(moment)) for label, moment in moments if moment)
        return format_html(
            '<dl class="finoflow-pairs">{}</dl>', format_html_join("", "<div><dt>{}</dt><dd>{}</dd></div>", told)
        )

    @admin.display(description=gettext_lazy("driven by"))
    def driven(self, run: Execution) -> str:
        if run.lease_until is None:
            return ""
        return _("%(owner)s, leased until %(until)s") % {
            "owner": run.lease_owner,
            "until": values.moment(run.lease_until),
        }

    @admin.display(description=gettext_lazy("trouble"))
    def recovered(self, run: Execution) -> str:
        return ngettext("%d recovery", "%d recoveries", run.recoveries) % run.recoveries if run.recoveries else ""

    @admin.display(description=gettext_lazy("rollback"))
    def rolled_back(self, run: Execution) -> str:
        return run.get_rollback_display()

    @admin.display(description=gettext_lazy("parent run"))
    def parent_run(self, run: Execution) -> SafeString:
        return self._linked([run.parent] if run.parent else [])

    @admin.display(description=gettext_lazy("child runs"))
    def child_runs(self, run: Execution) -> SafeString:
        return self._linked(run.children.defer("input", "state", "result", "error").order_by("pk")[: timeline.MOST])

    def _linked(self, runs: Iterable[Execution]) -> SafeString:
        lines = ((self.address_of(run), run, self.coloured_status(run)) for run in runs)
        return format_html_join("", '<div><a href="{}">{}</a> {}</div>', lines)

    @admin.display(description=gettext_lazy("input"))
    def shown_input(self, run: Execution) -> SafeString:
        return values.payload(run.input)

    @admin.display(description=gettext_lazy("state"))
    def shown_state(self, run: Execution) -> SafeString:
        return values.payload(run.state)

    @admin.display(description=gettext_lazy("result"))
    def shown_result(self, run: Execution) -> SafeString:
        return values.payload(run.result)

    @admin.display(description=gettext_lazy("error"))
    def shown_error(self, run: Execution) -> SafeString:
        return values.error(run.error)

    def address_of(self, run: Execution) -> str:
        """Return the address of the page of a run."""
        return reverse("admin:finoflow_execution_change", args=[run.pk], current_app=self.admin_site.name)


def _said(method: Any, run: Execution, name: str) -> bool:
    return bool(method(run) if callable(method) else getattr(run, name))


def _waits(run: Execution) -> list[str]:
    """Return what a live run waits for, a line each."""
    if run.is_over:
        return []
    waits = getattr(run, "open_waits", None)  # as the list has fetched them for all its runs
    retries = getattr(run, "open_retries", None)
    waits = run.waits.open().order_by("index") if waits is None else waits
    retries = run.steps.filter(status=StepStatus.RETRYING).order_by("index") if retries is None else retries
    lines = [(_("gate") if wait.audience else wait.get_kind_display(), wait.name, wait.due_at) for wait in waits]
    lines += [(_("retry"), step.step_id, step.due_at) for step in retries]
    return [
        f"{kind} {name}" + (_(" until %s") % values.moment(due_at) if due_at else "") for kind, name, due_at in lines
    ]
