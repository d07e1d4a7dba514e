"""Several gates answered at once, each by its own rules, with a report of each refusal (rule A5).

A gate whose form has a field that must be filled in is decided on its own page only.
"""

from __future__ import annotations

from typing import Any

from django import forms
from django.contrib.admin.widgets import AdminTextareaWidget
from django.core.exceptions import PermissionDenied
from django.db import transaction
from django.db.models import QuerySet
from django.http import HttpRequest, HttpResponse, HttpResponseRedirect
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy, ngettext

from .. import api, conf, decisions
from ..exceptions import DecisionRefused, FinoflowError
from ..forms import LONGEST_REASON
from ..models import Decision, Wait
from .deciding import CHANNEL, log_of, name_of
from .pages import chosen_keys, refused


class ReasonForm(forms.Form):
    """Why somebody decides several gates as they do."""

    reason = forms.CharField(
        label=gettext_lazy("Reason"),
        required=False,
        max_length=LONGEST_REASON,
        widget=AdminTextareaWidget(attrs={"rows": 3, "autofocus": True}),
    )

    def __init__(self, data: Any = None, *, reason_needed: bool):
        super().__init__(data)
        self.fields["reason"].required = reason_needed


class Bulk:
    """The pages of ``GateAdmin`` for several gates."""

    def ask_many(self: Any, request: HttpRequest, queryset: QuerySet, approved: bool) -> HttpResponse:
        """Show the page of the chosen gates; of a single one its own page, which shows more."""
        gates = list(queryset)
        if len(gates) == 1:
            return HttpResponseRedirect(self.link(request, name_of(approved), gates[0].pk))
        return self._show_many(request, gates, approved, self._form_for(request, gates, approved))

    def decide_many(self: Any, request: HttpRequest, approved: bool) -> HttpResponse:
        """Take the POST of that page: decide each gate by itself, and report each refusal."""
        if not self.has_decide_permission(request):
            raise PermissionDenied
        if request.method != "POST":
            return self.back_to_list(request)
        seen = chosen_keys(request)
        gates = list(self.get_queryset(request).filter(pk__in=seen))
        form = self._form_for(request, gates, approved, request.POST)
        if not form.is_valid():
            return self._show_many(request, gates, approved, form)
        done, votes, refusals = 0, 0, []
        for gate in gates:
            try:
                made = self._decide(request, gate, approved, form.cleaned_data["reason"], seen[gate.pk])
                done, votes = done + (not made.wait.is_open), votes + made.wait.is_open
            except FinoflowError as error:
                refusals.append(refused(gate, error))
        self.report(request, votes, _voted_many, ())
        self.report(request, done, _approved_many if approved else _rejected_many, refusals)
        return self.back_to_list(request)

    def why_not_in_bulk(self: Any, request: HttpRequest, gate: Wait) -> DecisionRefused | None:
        """Return the refusal that an answer to this gate would meet now among several."""
        return self.why_not(request, gate) or _asks_for_more(gate)

    def _form_for(self: Any, request: HttpRequest, gates: list[Wait], approved: bool, data: Any = None) -> ReasonForm:
        mine = [gate for gate in gates if self.why_not_in_bulk(request, gate) is None]
        return ReasonForm(data, reason_needed=any(decisions.needs_reason(gate, approved) for gate in mine))

    def _decide(self: Any, request: HttpRequest, gate: Wait, approved: bool, reason: str, seen: str) -> Decision:
        if (more := _asks_for_more(gate)) is not None and gate.is_open:
            raise more
        with transaction.atomic(using=conf.database()):
            run_id, user = gate.execution.run_id, request.user
            made = api.decide(
                run_id, gate.name, user=user, approved=approved, reason=reason, channel=CHANNEL, wait=gate, seen=seen
            )
            self.log_change(request, gate, log_of(made))
            return made

    def _show_many(
        self: Any, request: HttpRequest, gates: list[Wait], approved: bool, form: ReasonForm
    ) -> HttpResponse:
        asked = [
            (gate, self.what_is_shown(gate), self.deadline(gate), self.why_not_in_bulk(request, gate)) for gate in gates
        ]
        count = sum(refusal is None for *_told, refusal in asked)
        return self.page(
            request,
            "admin/finoflow/wait/decide_many.html",
            _("Approve several gates?") if approved else _("Reject several gates?"),
            gates=asked,
            chosen=" ".join(f"{gate.pk}:{decisions.token(gate)}" for gate in gates),
            form=form,
            errors=form.errors,
            submit=(_("Approve %(count)d of %(all)d") if approved else _("Reject %(count)d of %(all)d"))
            % {"count": count, "all": len(gates)},
            action=self.link(request, f"{name_of(approved)}_many"),
        )


def _asks_for_more(gate: Wait) -> DecisionRefused | None:
    """Return the refusal of a gate whose form has a field that must be filled in."""
    kind = decisions.form_for(gate)
    if kind is None or not any(field.required for field in kind().fields.values()):
        return None
    return DecisionRefused(_("It has a form to fill in: decide it on its own page."), "invalid")


def _approved_many(count: int) -> str:
    return ngettext("%d gate was approved.", "%d gates were approved.", count) % count


def _voted_many(count: int) -> str:
    text = ngettext(
        "Your approval of %d gate was recorded; more must approve it.",
        "Your approvals of %d gates were recorded; more must approve them.",
        count,
    )
    return text % count


def _rejected_many(count: int) -> str:
    return ngettext("%d gate was rejected.", "%d gates were rejected.", count) % count
