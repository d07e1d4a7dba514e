"""The pages on which gates are answered: one gate with all that it shows, or several at once.

A GET shows; only a POST decides, and it is ``api.decide`` that does, with the gate and the token of its state as the
page showed them (rules A1, A4 and A5). What is refused is told, and nothing is written.
"""

from __future__ import annotations

from typing import Any

from django import forms
from django.contrib import messages
from django.contrib.admin.widgets import AdminTextareaWidget
from django.core.exceptions import PermissionDenied
from django.db import transaction
from django.db.models import QuerySet
from django.http import Http404, HttpRequest, HttpResponse, HttpResponseRedirect
from django.shortcuts import get_object_or_404
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy, ngettext

from .. import api, conf, decisions
from ..exceptions import DecisionRefused, FinoflowError, PayloadError, RunNotFound
from ..models import Decision, Wait
from .pages import chosen_keys, refused

CHANNEL = "admin"
NOT_YOURS = ("not-eligible", "excluded")


class AnswerForm(forms.Form):
    """Why somebody decides as they do."""

    reason = forms.CharField(
        label=gettext_lazy("Reason"),
        required=False,
        max_length=4000,
        widget=AdminTextareaWidget(attrs={"rows": 3, "autofocus": True}),
    )

    def __init__(self, data: Any = None, *, reason_needed: bool):
        super().__init__(data)
        self.fields["reason"].required = reason_needed


class Deciding:
    """The decision pages of ``GateAdmin``."""

    def decide_one(self: Any, request: HttpRequest, pk: int, approved: bool) -> HttpResponse:
        """Show the page of one gate, or take its POST."""
        gate = get_object_or_404(self.get_queryset(request), pk=pk)
        refusal = self.why_not(request, gate)
        if refusal is not None and refusal.code in NOT_YOURS:
            raise PermissionDenied(str(refusal))
        posted = request.POST if request.method == "POST" else None
        form = AnswerForm(posted, reason_needed=decisions.needs_reason(gate, approved))
        if posted is None or not form.is_valid():
            return self._show(request, gate, approved, form, refusal)
        return self._answer(request, gate, approved, form)

    def ask_many(self: Any, request: HttpRequest, queryset: QuerySet, approved: bool) -> HttpResponse:
        """Show the page of the chosen gates; of a single one its own page, which shows more."""
        gates = list(queryset)
        if len(gates) == 1:
            return HttpResponseRedirect(self.link(request, _name(approved), gates[0].pk))
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
        done, refusals = 0, []
        for gate in gates:
            try:
                self._decide(request, gate, approved, form.cleaned_data["reason"], seen[gate.pk])
                done += 1
            except FinoflowError as error:
                refusals.append(refused(gate, error))
        self.report(request, done, approved_many if approved else rejected_many, refusals)
        return self.back_to_list(request)

    def _form_for(self: Any, request: HttpRequest, gates: list[Wait], approved: bool, data: Any = None) -> AnswerForm:
        mine = [gate for gate in gates if self.why_not(request, gate) is None]
        return AnswerForm(data, reason_needed=any(decisions.needs_reason(gate, approved) for gate in mine))

    def _answer(self: Any, request: HttpRequest, gate: Wait, approved: bool, form: AnswerForm) -> HttpResponse:
        try:
            self._decide(request, gate, approved, form.cleaned_data["reason"], request.POST.get("seen", ""))
        except RunNotFound as error:
            raise Http404(str(error)) from error
        except PayloadError as error:
            form.add_error("reason", str(error))
            return self._show(request, gate, approved, form)
        except DecisionRefused as refusal:
            gate = get_object_or_404(self.get_queryset(request), pk=gate.pk)
            return self._refused(request, gate, approved, form, refusal)
        self.message_user(request, _sentence(approved) % {"gate": gate.title}, messages.SUCCESS)
        return self.back_to_list(request)

    def _decide(self: Any, request: HttpRequest, gate: Wait, approved: bool, reason: str, seen: str) -> None:
        with transaction.atomic(using=conf.database()):
            run_id, user = gate.execution.run_id, request.user
            made = api.decide(
                run_id, gate.name, user=user, approved=approved, reason=reason, channel=CHANNEL, wait=gate, seen=seen
            )
            self.log_change(request, gate, _log(made))

    def _refused(
        self: Any, request: HttpRequest, gate: Wait, approved: bool, form: AnswerForm, refusal: DecisionRefused
    ) -> HttpResponse:
        if refusal.code in NOT_YOURS:
            raise PermissionDenied(str(refusal))
        if refusal.code == "reason-required":
            form.add_error("reason", str(refusal))
            return self._show(request, gate, approved, form)
        if refusal.code == "changed":
            self.message_user(request, str(refusal), messages.WARNING)
            return self._show(request, gate, approved, form)
        if any(made.user_id == request.user.pk and made.approved == approved for made in gate.decisions.all()):
            self.message_user(request, _sentence(approved) % {"gate": gate.title}, messages.SUCCESS)  # a double click
        else:
            self.message_user(request, str(refusal), messages.WARNING)
        return self.back_to_list(request)

    def _show(
        self: Any,
        request: HttpRequest,
        gate: Wait,
        approved: bool,
        form: AnswerForm,
        refusal: DecisionRefused | None = None,
    ) -> HttpResponse:
        return self.page(
            request,
            "admin/finoflow/wait/decide.html",
            _("Approve?") if approved else _("Reject?"),
            subtitle=gate.title,
            original=gate.title,
            gate=gate,
            facts=[
                (_("Workflow"), self.workflow(gate)),
                (_("Asked by"), self.asked_by(gate)),
                (_("Opened"), self.opened(gate)),
                (_("Deadline"), self.deadline(gate)),
            ],
            what_is_shown=self.what_is_shown(gate),
            refusal=refusal,
            token=decisions.token(gate),
            form=form,
            errors=form.errors,
            approved=approved,
            other=self.link(request, _name(not approved), gate.pk),
            **self.details(request, gate),
        )

    def _show_many(
        self: Any, request: HttpRequest, gates: list[Wait], approved: bool, form: AnswerForm
    ) -> HttpResponse:
        asked = [(gate, self.what_is_shown(gate), self.deadline(gate), self.why_not(request, gate)) for gate in gates]
        return self.page(
            request,
            "admin/finoflow/wait/decide_many.html",
            _("Approve several gates?") if approved else _("Reject several gates?"),
            gates=asked,
            chosen=" ".join(f"{gate.pk}:{decisions.token(gate)}" for gate in gates),
            form=form,
            errors=form.errors,
            approved=approved,
            action=self.link(request, f"{_name(approved)}_many"),
        )


def _name(approved: bool) -> str:
    return "finoflow_approve" if approved else "finoflow_reject"


def _sentence(approved: bool) -> str:
    return _("You approved “%(gate)s”.") if approved else _("You rejected “%(gate)s”.")


def approved_many(count: int) -> str:
    return ngettext("%d gate was approved.", "%d gates were approved.", count) % count


def rejected_many(count: int) -> str:
    return ngettext("%d gate was rejected.", "%d gates were rejected.", count) % count


def _log(made: Decision) -> str:
    verdict = _("Approved.") if made.approved else _("Rejected.")
    return f"{verdict} {made.reason}".strip()
