"""The page on which one gate is answered, with the form that the pages for people without admin use, too.

A GET shows; only a POST decides, and it is ``api.decide`` that does, with the gate and the token of its state as the
page showed them (rules A1 and A4). What is refused is told, and nothing is written. ``bulk`` answers several gates.
"""

from __future__ import annotations

from typing import Any

from django.contrib import messages
from django.core.exceptions import PermissionDenied
from django.db import transaction
from django.http import Http404, HttpRequest, HttpResponse
from django.shortcuts import get_object_or_404
from django.utils.translation import gettext as _

from .. import conf, decisions
from ..exceptions import DecisionRefused, RunNotFound
from ..forms import NOT_YOURS, DecisionForm, repeats
from ..models import Decision, Wait

CHANNEL = "admin"


class Deciding:
    """The decision page of ``GateAdmin``."""

    def decide_one(self: Any, request: HttpRequest, pk: int, approved: bool) -> HttpResponse:
        """Show the page of one gate, or take its POST."""
        gate = get_object_or_404(self.get_queryset(request), pk=pk)
        refusal = self.why_not(request, gate)
        if refusal is not None and refusal.code in NOT_YOURS and not decisions.may_override(request.user):
            raise PermissionDenied(str(refusal))
        posted = request.POST if request.method == "POST" else None
        form = DecisionForm(gate, request.user, posted, approved=approved, channel=CHANNEL, one_button=True)
        if posted is None:
            return self._show(request, gate, form, refusal)
        return self._answer(request, gate, form)

    def _answer(self: Any, request: HttpRequest, gate: Wait, form: DecisionForm) -> HttpResponse:
        try:
            with transaction.atomic(using=conf.database()):
                made = form.decide()
                if made is not None:
                    self.log_change(request, gate, log_of(made))
        except RunNotFound as error:
            raise Http404(str(error)) from error
        if made is not None:
            told = _sentence(bool(form.approved)) % {"gate": gate.title}
            vote = decisions.own_vote(made.wait, request.user)
            self.message_user(request, f"{told} {vote}".strip(), messages.SUCCESS)
            return self.back_to_list(request)
        if form.refusal is None:
            return self._show(request, gate, form)
        return self._refused(request, get_object_or_404(self.get_queryset(request), pk=gate.pk), form, form.refusal)

    def _refused(
        self: Any, request: HttpRequest, gate: Wait, form: DecisionForm, refusal: DecisionRefused
    ) -> HttpResponse:
        if refusal.code in NOT_YOURS:
            raise PermissionDenied(str(refusal))
        if refusal.code == "changed":
            self.message_user(request, str(refusal), messages.WARNING)
            again = DecisionForm(
                gate, request.user, request.POST, approved=form.approved, channel=CHANNEL, one_button=True
            )
            return self._show(request, gate, again, self.why_not(request, gate))
        if repeats(gate, request.user, bool(form.approved)):  # a double click
            self.message_user(request, _sentence(bool(form.approved)) % {"gate": gate.title}, messages.SUCCESS)
        else:
            self.message_user(request, str(refusal), messages.WARNING)
        return self.back_to_list(request)

    def _show(
        self: Any, request: HttpRequest, gate: Wait, form: DecisionForm, refusal: DecisionRefused | None = None
    ) -> HttpResponse:
        """Show the page; with a refusal that no override helps against, without its form."""
        approved = bool(form.approved)
        form.fields["reason"].widget.attrs["class"] = "vLargeTextField"
        return self.page(
            request,
            "admin/finoflow/wait/decide.html",
            _("Approve?") if approved else _("Reject?"),
            subtitle=gate.title,
            original=gate.title,
            gate=gate,
            media=self.media + form.media,
            facts=self.facts(gate),
            what_is_shown=self.what_is_shown(gate),
            refusal=refusal,
            may_decide=refusal is None or refusal.code in NOT_YOURS,
            token=decisions.token(gate),
            form=form,
            approved=approved,
            other=self.link(request, name_of(not approved), gate.pk),
            handles=self.buttons(request, self.handles, gate),
            **self.details(request, gate),
        )

    def facts(self: Any, gate: Wait) -> list[tuple[str, Any]]:
        """Return what every page on which a gate is handled tells of it."""
        told = [
            (_("Workflow"), self.workflow(gate)),
            (_("Asked by"), self.asked_by(gate)),
            (_("Opened"), self.opened(gate)),
            (_("Deadline"), self.deadline(gate)),
            (_("Votes"), self.votes_told(gate)),
            (_("Claimed by"), self.claimed(gate)),
            (_("Who may decide"), self.audience_told(gate)),
        ]
        return [(label, text) for label, text in told if text]


def name_of(approved: bool) -> str:
    """Return the name of the page that approves or rejects one gate."""
    return "finoflow_approve" if approved else "finoflow_reject"


def log_of(made: Decision) -> str:
    """Return what the admin's log says of a decision."""
    verdict = _("Approved.") if made.approved else _("Rejected.")
    if made.override:
        verdict = _("Approved against its rules.") if made.approved else _("Rejected against its rules.")
    return f"{verdict} {made.reason}".strip()


def _sentence(approved: bool) -> str:
    return _("You approved “%(gate)s”.") if approved else _("You rejected “%(gate)s”.")
