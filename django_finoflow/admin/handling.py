"""The pages on which a gate is claimed, released or handed over: each asks, and its POST does it by way of ``api``."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

from django.contrib import admin, messages
from django.core.exceptions import PermissionDenied
from django.db import transaction
from django.http import Http404, HttpRequest, HttpResponse, HttpResponseRedirect
from django.shortcuts import get_object_or_404
from django.utils.translation import gettext_lazy

from .. import api, conf, decisions
from ..exceptions import DecisionRefused, RunNotFound
from ..forms import NOT_YOURS, DelegateForm
from ..models import Wait


class Handle(NamedTuple):
    """One way to handle a gate; ``act`` returns the gate, or None if the form has errors."""

    act: Callable[[Wait, Any, DelegateForm], Wait | None]
    title: Any
    what_it_does: Any
    yes: Any
    log_entry: Any
    sentence: Any


def _claim(gate: Wait, user: Any, form: DelegateForm) -> Wait:
    return api.claim_gate(gate.execution.run_id, gate.name, user=user, wait=gate)


def _release(gate: Wait, user: Any, form: DelegateForm) -> Wait:
    return api.release_gate(gate.execution.run_id, gate.name, user=user, wait=gate)


HANDLES = {
    "finoflow_claim": Handle(
        _claim,
        gettext_lazy("Claim it?"),
        gettext_lazy("The others see that you work on it. It keeps nobody from deciding."),
        gettext_lazy("Yes, claim it"),
        gettext_lazy("Claimed."),
        gettext_lazy("You claimed “%(gate)s”."),
    ),
    "finoflow_release": Handle(
        _release,
        gettext_lazy("Release it?"),
        gettext_lazy("The others see that nobody works on it."),
        gettext_lazy("Yes, release it"),
        gettext_lazy("Released."),
        gettext_lazy("You released “%(gate)s”."),
    ),
    "finoflow_delegate": Handle(
        lambda gate, user, form: form.delegate(),
        gettext_lazy("Hand it over?"),
        gettext_lazy("Whom you name holds it from now on; they must be among those who may decide it."),
        gettext_lazy("Hand it over"),
        gettext_lazy("Handed over to %(to)s."),
        gettext_lazy("You handed “%(gate)s” over to %(to)s."),
    ),
}


class Handling:
    """Claim, release and hand over, as pages of ``GateAdmin``."""

    handles = tuple(HANDLES)

    @admin.display(description=gettext_lazy("Claim"))
    def finoflow_claim(self, request: HttpRequest, pk: int) -> HttpResponse:
        """The page that asks whether to claim one gate, and its POST."""
        return self._handle(request, pk, "finoflow_claim")

    @admin.display(description=gettext_lazy("Release"))
    def finoflow_release(self, request: HttpRequest, pk: int) -> HttpResponse:
        """The page that asks whether to release one gate, and its POST."""
        return self._handle(request, pk, "finoflow_release")

    @admin.display(description=gettext_lazy("Hand over"))
    def finoflow_delegate(self, request: HttpRequest, pk: int) -> HttpResponse:
        """The page that asks whom to hand one gate over to, and its POST."""
        return self._handle(request, pk, "finoflow_delegate")

    for _page, _path in ((finoflow_claim, "claim"), (finoflow_release, "release"), (finoflow_delegate, "delegate")):
        _page.url_path = _path  # type: ignore[attr-defined]

    def may_handle(self: Any, request: HttpRequest, name: str, gate: Wait) -> bool:
        """Whether the user may do with this gate what the button ``name`` leads to."""
        is_free, is_theirs = gate.claimed_by is None, gate.claimed_by == request.user
        refusal = self.why_not(request, gate)
        if name == "finoflow_release":
            is_open = refusal is None or refusal.code not in ("not-open", "expired")
            return is_open and (is_theirs or (not is_free and decisions.may_override(request.user)))
        return refusal is None and (is_free or (is_theirs and name == "finoflow_delegate"))

    def _handle(self: Any, request: HttpRequest, pk: int, name: str) -> HttpResponse:
        gate = get_object_or_404(self.get_queryset(request), pk=pk)
        refusal = self.why_not(request, gate)
        if refusal is not None and refusal.code in NOT_YOURS and not self.may_handle(request, name, gate):
            raise PermissionDenied(str(refusal))
        form = DelegateForm(gate, request.user, request.POST if request.method == "POST" else None)
        if request.method != "POST":
            return self._ask(request, gate, name, form)
        try:
            return self._done(request, gate, name, form)
        except RunNotFound as error:
            raise Http404(str(error)) from error
        except DecisionRefused as refused:
            if refused.code in NOT_YOURS:
                raise PermissionDenied(str(refused)) from refused
            self.message_user(request, str(refused), messages.WARNING)
            return HttpResponseRedirect(self.link(request, "finoflow_wait_change", gate.pk))

    def _done(self: Any, request: HttpRequest, gate: Wait, name: str, form: DelegateForm) -> HttpResponse:
        handle = HANDLES[name]
        with transaction.atomic(using=conf.database()):
            found = handle.act(gate, request.user, form)
            if found is None:
                return self._ask(request, gate, name, form)
            words = {"gate": gate.title, "to": found.claimed_by_name}
            note = form.cleaned_data["note"] if name == "finoflow_delegate" else ""
            self.log_change(request, gate, f"{handle.log_entry % words} {note}".strip())
        self.message_user(request, handle.sentence % words, messages.SUCCESS)
        return HttpResponseRedirect(self.link(request, "finoflow_wait_change", gate.pk))

    def _ask(self: Any, request: HttpRequest, gate: Wait, name: str, form: DelegateForm) -> HttpResponse:
        return self.page(
            request,
            "admin/finoflow/wait/handle.html",
            str(HANDLES[name].title),
            subtitle=gate.title,
            original=gate.title,
            facts=self.facts(gate),
            what_is_shown=self.what_is_shown(gate),
            may_act=self.may_handle(request, name, gate),
            refusal=self.why_not(request, gate),
            handle=HANDLES[name],
            form=form if name == "finoflow_delegate" else None,
        )
