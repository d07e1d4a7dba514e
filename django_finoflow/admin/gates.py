"""The pages of gates: open ones first, and the buttons to answer them.

A gate is seen by holders of ``finoflow.view_wait`` and by whoever may decide it. The latter see what it shows and
nothing more: neither its run nor gates that are not theirs.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from django.contrib import admin
from django.db.models import QuerySet
from django.http import HttpRequest, HttpResponse
from django.urls import reverse
from django.utils.html import format_html
from django.utils.safestring import SafeString
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy

from .. import clock, decisions, values
from ..exceptions import DecisionRefused
from ..forms import NOT_YOURS
from ..models import Wait
from ..querysets import WaitQuerySet
from ..statuses import OPEN_TO_SIGNALS
from . import bulk, deciding, handling, overview, runs, timeline
from .filters import MineFilter, StateFilter, WorkflowFilter
from .pages import Button, RecordAdmin, on_change_form_too
from .reader import Reader


class GateAdmin(overview.Overview, deciding.Deciding, bulk.Bulk, handling.Handling, RecordAdmin):
    """Gates, open first."""

    list_display = ("shown_title", "workflow", "asked_by", "opened", "deadline", "outcome_told")
    list_filter = (MineFilter, StateFilter, WorkflowFilter)
    search_fields = ("name", "approval__title", "execution__workflow_id", "execution__requester_name")
    search_help_text = gettext_lazy("Gate, workflow or who asked")
    actions = ("finoflow_approve_selected", "finoflow_reject_selected")
    actions_row = ("finoflow_approve", "finoflow_reject")
    actions_detail = (*actions_row, *handling.Handling.handles)
    bulk = ("finoflow_approve_many", "finoflow_reject_many", "finoflow_overview")

    # ── who may ──

    def has_view_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        reader = Reader.of(request)
        if obj is not None:
            return reader.may_see(obj)
        return reader.is_concerned or (request.user.is_staff and reader.decides)

    def has_module_permission(self, request: HttpRequest) -> bool:
        return Reader.of(request).is_concerned

    def has_decide_permission(self, request: HttpRequest) -> bool:
        """Whether the user may decide any gate at all; ``decide()`` asks about each."""
        return Reader.of(request).decides

    def may_press(self, request: HttpRequest, name: str, obj: Wait) -> bool:
        return self.may_handle(request, name, obj) if name in self.handles else self.why_not(request, obj) is None

    def why_not(self, request: HttpRequest, gate: Wait) -> DecisionRefused | None:
        """Return the refusal that an answer of the user to this gate would meet now."""
        return Reader.of(request).why_not(gate)

    def get_queryset(self, request: HttpRequest) -> QuerySet:
        reader = Reader.of(request)
        gates = Wait.objects.gates() if reader.sees_all else reader.answerable
        return self.with_runs(request, gates).open_first()

    def with_runs(self, request: HttpRequest, gates: WaitQuerySet) -> WaitQuerySet:
        """Return gates with what the pages tell of each, and without the payloads of their runs."""
        payloads = [f"execution__{name}" for name in ("input", "state", "result", "error")]
        gates = gates.select_related("execution", "signal").defer(*payloads).prefetch_related("decisions")
        return gates.marked_for(request.user)

    # ── the list ──

    def get_list_display(self, request: HttpRequest) -> Sequence[Any]:
        run = ("run",) if request.user.has_perm(runs.VIEW) else ()
        return (*super().get_list_display(request), *run)

    def get_search_fields(self, request: HttpRequest) -> Sequence[str]:
        of_runs = ("execution__run_id", "execution__key") if request.user.has_perm(runs.VIEW) else ()
        return (*super().get_search_fields(request), *of_runs)

    @admin.display(description=gettext_lazy("question"), ordering="approval__title")
    def shown_title(self, gate: Wait) -> str:
        return gate.title

    @admin.display(description=gettext_lazy("workflow"), ordering="execution__workflow_id")
    def workflow(self, gate: Wait) -> str:
        return gate.execution.workflow_id

    @admin.display(description=gettext_lazy("run"))
    def run(self, gate: Wait) -> SafeString:
        url = reverse("admin:finoflow_execution_change", args=[gate.execution_id], current_app=self.admin_site.name)
        return format_html('<a href="{}">{}</a>', url, gate.execution.key or gate.execution.run_id)

    @admin.display(description=gettext_lazy("asked by"), ordering="execution__requester_name")
    def asked_by(self, gate: Wait) -> str:
        return gate.execution.requester_name or values.NOTHING

    @admin.display(description=gettext_lazy("opened"), ordering="opened_at")
    def opened(self, gate: Wait) -> str:
        return values.moment(gate.opened_at)

    @admin.display(description=gettext_lazy("deadline"), ordering="due_at")
    def deadline(self, gate: Wait) -> SafeString:
        overdue = gate.is_open and gate.due_at is not None and gate.due_at <= clock.now()
        return format_html("{} {}", values.moment(gate.due_at), values.badge(_("overdue"), "bad") if overdue else "")

    @admin.display(description=gettext_lazy("outcome"), ordering="outcome")
    def outcome_told(self, gate: Wait) -> SafeString:
        is_open = gate.is_open and gate.execution.status in OPEN_TO_SIGNALS
        if not is_open:
            return format_html("{}", decisions.story(gate))
        claimed = _("claimed by %s") % gate.claimed_by_name if gate.claimed_by_name else ""
        beside = [text for text in (self.votes_told(gate), claimed) if text]
        return format_html("{} {}", values.badge(_("open"), "busy"), " · ".join(beside))

    # ── one gate ──

    def get_fieldsets(self, request: HttpRequest, obj: Any = None) -> Any:
        run = ["run"] if request.user.has_perm(runs.VIEW) else []
        facts = ["outcome_told", "workflow", *run, "asked_by", "opened", "deadline", "votes_told", "claimed"]
        facts = [name for name in facts if obj is None or getattr(self, name)(obj)] + ["audience_told"]
        return [(_("What is asked"), {"fields": ["what_is_shown"]}), (_("About it"), {"fields": facts})]

    def get_readonly_fields(self, request: HttpRequest, obj: Any = None) -> Sequence[str]:
        return [name for _title, options in self.get_fieldsets(request, obj) for name in options["fields"]]

    def details(self, request: HttpRequest, obj: Wait) -> dict[str, Any]:
        made = sorted(obj.decisions.all(), key=lambda decision: (decision.decided_at, decision.pk))
        form = decisions.form_for(obj)
        return {
            "decisions": [(one, timeline.verdict(one), values.filled(one.data, form)) for one in made],
            "history": decisions.history_of(obj),
        }

    def buttons(self, request: HttpRequest, names: Iterable[str], obj: Wait) -> list[Button]:
        """Return those that the user may press; on a gate's own page also the way to override its rules."""
        found, names = super().buttons(request, names, obj), tuple(names)
        refusal = self.why_not(request, obj)
        is_not_theirs = refusal is not None and refusal.code in NOT_YOURS
        if names == self.actions_detail and is_not_theirs and decisions.may_override(request.user):
            found.insert(0, Button("finoflow_override", _("Override"), self.link(request, "finoflow_approve", obj.pk)))
        return found

    @admin.display(description=gettext_lazy("shows"))
    def what_is_shown(self, gate: Wait) -> SafeString:
        return values.shown(gate.shown)

    @admin.display(description=gettext_lazy("who may decide"))
    def audience_told(self, gate: Wait) -> str:
        return decisions.candidates_text(gate)

    @admin.display(description=gettext_lazy("votes"))
    def votes_told(self, gate: Wait) -> str:
        """How many have approved, where one alone is not enough."""
        given, needed = decisions.votes(gate)
        if needed == 1:
            return ""
        return _("%(given)d of %(needed)d approvals") % {"given": given, "needed": needed}

    @admin.display(description=gettext_lazy("claimed by"))
    def claimed(self, gate: Wait) -> str:
        """Who works on it."""
        if not gate.claimed_by_name:
            return ""
        return _("%(who)s, since %(when)s") % {"who": gate.claimed_by_name, "when": values.moment(gate.claimed_at)}

    # ── approve and reject: the page that decides is in ``deciding`` ──

    @admin.display(description=gettext_lazy("Approve"))
    def finoflow_approve(self, request: HttpRequest, pk: int) -> HttpResponse:
        """The page that asks whether to approve one gate, and its POST."""
        return self.decide_one(request, pk, True)

    @admin.display(description=gettext_lazy("Reject"))
    def finoflow_reject(self, request: HttpRequest, pk: int) -> HttpResponse:
        """The page that asks whether to reject one gate, and its POST."""
        return self.decide_one(request, pk, False)

    @on_change_form_too(permissions=["decide"], description=gettext_lazy("Approve selected %(verbose_name_plural)s"))
    def finoflow_approve_selected(self, request: HttpRequest, queryset: QuerySet) -> HttpResponse:
        """Lead to the page that asks whether to approve the chosen gates."""
        return self.ask_many(request, queryset, True)

    @on_change_form_too(permissions=["decide"], description=gettext_lazy("Reject selected %(verbose_name_plural)s"))
    def finoflow_reject_selected(self, request: HttpRequest, queryset: QuerySet) -> HttpResponse:
        """Lead to the page that asks whether to reject the chosen gates."""
        return self.ask_many(request, queryset, False)

    def finoflow_approve_many(self, request: HttpRequest) -> HttpResponse:
        """The POST of the page that asked whether to approve several gates."""
        return self.decide_many(request, True)

    def finoflow_reject_many(self, request: HttpRequest) -> HttpResponse:
        """The POST of the page that asked whether to reject several gates."""
        return self.decide_many(request, False)

    finoflow_approve.url_path = "approve"  # type: ignore[attr-defined]
    finoflow_reject.url_path = "reject"  # type: ignore[attr-defined]
    finoflow_approve_many.url_path = "approve"  # type: ignore[attr-defined]
    finoflow_reject_many.url_path = "reject"  # type: ignore[attr-defined]
