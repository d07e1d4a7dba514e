"""The pages for people without admin: what waits for me, what I decided, one gate, and a link's page.

They show and pass on; ``api`` decides. A gate that is not for the user does not exist for them (404); what they see but
may not answer is refused (403). GET never decides. A late click is told calmly who decided and when (rules A3 and A4).
"""

from __future__ import annotations

from typing import Any

from django.contrib.auth.decorators import login_required
from django.contrib.auth.views import redirect_to_login
from django.core.exceptions import PermissionDenied
from django.http import Http404, HttpRequest, HttpResponse, HttpResponseBadRequest, HttpResponseRedirect
from django.shortcuts import redirect, render
from django.urls import reverse
from django.utils.translation import gettext_lazy
from django.views.decorators.http import require_http_methods, require_safe

from . import api, decisions
from .audience import holds
from .exceptions import DecisionRefused, RunNotFound
from .forms import NOT_YOURS, DecisionForm, DelegateForm, repeats
from .links import LinkRefused, Ticket
from .models import Decision, Wait
from .pages import PAYLOADS, Told, listed, paginated, private, with_runs
from .querysets import MOST_LISTED

ANSWERS = {"approve": True, "reject": False}
SESSION_KEY = "finoflow_links"
SAID = "finoflow_said"
HANDLED = {
    "claim": gettext_lazy("You have claimed it."),
    "release": gettext_lazy("You have released it."),
    "delegate": gettext_lazy("You have handed it over to %(to)s."),
}
MOST_LINKS = 10  # kept in one session: more would not fit into a signed cookie


@private
@login_required
@require_safe
def inbox(request: HttpRequest) -> HttpResponse:
    """Show the open gates that wait for the user, the most urgent first."""
    keys = Wait.objects.inbox(request.user).top()
    page = paginated(request, keys)
    context = {"here": "inbox", "page": page, "gates": listed(list(page)), "is_cut": len(keys) == MOST_LISTED}
    return render(request, "finoflow/inbox.html", context)


@private
@login_required
@require_safe
def decided(request: HttpRequest) -> HttpResponse:
    """Show what the user decided, the last first, and what became of it."""
    user: Any = request.user
    mine = Decision.objects.filter(user=user).order_by("-decided_at", "-pk")
    mine = mine.select_related("wait__execution", "wait__signal").defer(*(f"wait__{name}" for name in PAYLOADS))
    page = paginated(request, mine.prefetch_related("wait__decisions"))
    rows = [(made, told, told.filled(made)) for made in page if (told := Told.of(made.wait))]
    return render(request, "finoflow/decided.html", {"here": "decided", "page": page, "rows": rows})


@private
@login_required
@require_http_methods(["GET", "HEAD", "POST"])
def gate(request: HttpRequest, pk: int) -> HttpResponse:
    """Show one gate; by POST decide, claim, release or hand it over, as the pressed button says."""
    found = _visible(request.user, pk)
    if request.method != "POST":
        return _show(request, found)
    pressed = request.POST.get("do", "")
    try:
        if pressed in ANSWERS:
            return _decide(request, found, ANSWERS[pressed])
        if pressed in ("claim", "release", "delegate"):
            return _handle(request, found, pressed)
    except RunNotFound as error:
        raise Http404(str(error)) from error
    return HttpResponseBadRequest()


def _visible(user: Any, pk: int) -> Wait:
    found = with_runs(Wait.objects.gates()).filter(pk=pk).first()
    if found is None or not _may_see(user, found):
        raise Http404
    return found


def _may_see(user: Any, gate: Wait) -> bool:
    return (
        holds(user, "finoflow.view_wait")
        or decisions.may_override(user)
        or any(made.user_id == user.pk for made in gate.decisions.all())
        or decisions.is_asked(gate, user)
    )


def _decide(request: HttpRequest, gate: Wait, approved: bool) -> HttpResponse:
    form = DecisionForm(gate, request.user, request.POST, approved=approved)
    if form.decide() is not None:
        return redirect("finoflow:gate", pk=gate.pk)
    if form.refusal is None:
        return _show(request, gate, form=form)
    return _refused(request, gate.pk, form.refusal, approved)


def _refused(request: HttpRequest, pk: int, refusal: DecisionRefused, approved: bool | None = None) -> HttpResponse:
    """Show the gate as it is by now, with why nothing was done; what was filled in stays."""
    if refusal.code in NOT_YOURS:
        raise PermissionDenied(str(refusal))
    gate = _visible(request.user, pk)
    if approved is not None and repeats(gate, request.user, approved):
        return redirect("finoflow:gate", pk=pk)
    sent = None if approved is None else request.POST
    return _show(request, gate, notice=str(refusal), form=DecisionForm(gate, request.user, sent))


def _handle(request: HttpRequest, gate: Wait, verb: str) -> HttpResponse:
    which: dict[str, Any] = {"user": request.user, "wait": gate}
    try:
        if verb == "claim":
            api.claim_gate(gate.execution.run_id, gate.name, **which)
        elif verb == "release":
            api.release_gate(gate.execution.run_id, gate.name, **which)
        else:
            form = DelegateForm(gate, request.user, request.POST)
            if not form.delegate():
                return _show(request, gate, delegating=form)
            which["to"] = form.cleaned_data["to"]
    except DecisionRefused as refusal:
        return _refused(request, gate.pk, refusal)
    request.session[SAID] = [gate.pk, str(HANDLED[verb] % {"to": which.get("to", "")})]
    return redirect("finoflow:gate", pk=gate.pk)


def _said(request: HttpRequest, gate: Wait) -> str:
    """Return the confirmation that is to be shown with a gate, once. No project needs Django's messages for it."""
    pk, text = request.session.get(SAID) or (None, "")
    if pk != gate.pk or request.method == "POST":
        return ""
    del request.session[SAID]
    return str(text)


def _show(
    request: HttpRequest,
    gate: Wait,
    *,
    notice: str = "",
    form: DecisionForm | None = None,
    delegating: DelegateForm | None = None,
) -> HttpResponse:
    user = request.user
    refusal = decisions.why_not(gate, user)
    told = Told.of(gate)
    overrides = told.is_open and decisions.may_override(user)
    mine = gate.claimed_by_id is not None and gate.claimed_by_id == user.pk
    free = gate.claimed_by_id is None
    context = {
        "told": told,
        "notice": notice,
        "said": _said(request, gate),
        "answered": decisions.own_answer(gate, user),
        "refusal": "" if refusal is None or str(refusal) == notice else str(refusal),
        "form": form or DecisionForm(gate, user),
        "may_decide": refusal is None or (refusal.code in NOT_YOURS and overrides),
        "may_claim": refusal is None and free,
        "may_release": told.is_open and not free and (mine or overrides),
        "may_delegate": refusal is None and (free or mine),
        "delegating": delegating or DelegateForm(gate, user),
        "who": decisions.candidates_text(gate),
        "history": decisions.history_of(gate),
        "mine": mine,
    }
    return render(request, "finoflow/gate.html", context)


# ── by a link ──


@private
@require_safe
def link(request: HttpRequest, token: str) -> HttpResponse:
    """Take a link's token out of the address: keep it in the session, and go on to the link's page."""
    try:
        ticket = Ticket.read(token)
    except LinkRefused as refused:
        response = _no_way(request, "expired" if refused.expired else "invalid")
    else:
        kept = dict(list(request.session.get(SESSION_KEY, {}).items())[1 - MOST_LINKS :])
        request.session[SESSION_KEY] = {**kept, str(ticket.gate_id): token}
        response = redirect("finoflow:linked", pk=ticket.gate_id)
    response.headers["Referrer-Policy"] = "no-referrer"
    return response


@private
@require_http_methods(["GET", "HEAD", "POST"])
def linked(request: HttpRequest, pk: int) -> HttpResponse:
    """Show the gate of a link that was opened in this session; by POST decide it, as the person it was made for."""
    try:
        ticket = Ticket.read(request.session.get(SESSION_KEY, {}).get(str(pk), ""))
    except LinkRefused as refused:
        return _no_way(request, "expired" if refused.expired else "invalid")
    gate = with_runs(Wait.objects.gates()).filter(pk=ticket.gate_id).first()
    if gate is None:
        return _no_way(request, "gone")
    user = request.user if request.user.is_authenticated else None
    if user is None and not (gate.approval or {}).get("anonymous_links"):
        return redirect_to_login(request.get_full_path())
    user = user or ticket.holder()
    if user is None or not ticket.is_for(user):
        return _no_way(request, "not-yours")
    return _by_link(request, gate, ticket, user)


def _by_link(request: HttpRequest, gate: Wait, ticket: Ticket, user: Any) -> HttpResponse:
    refusal = decisions.why_not(gate, user)
    if refusal is not None and refusal.code in NOT_YOURS:
        return _no_way(request, "not-yours")
    if refusal is not None:
        over = decisions.own_answer(gate, user) or str(refusal)
        return render(request, "finoflow/link_over.html", {"told": Told.of(gate), "over": over})
    if decisions.token(gate) != ticket.seen:
        return _no_way(request, "changed", gate=gate)
    approved = ANSWERS.get(request.POST.get("do", "")) if request.method == "POST" else None
    if approved is None:
        return _show_link(request, DecisionForm(gate, user, overriding=False))
    form = DecisionForm(gate, user, request.POST, approved=approved, channel="link", overriding=False)
    if form.decide() is None and form.refusal is None:
        return _show_link(request, form)
    # Decided, or somebody was quicker: its page tells which.
    return HttpResponseRedirect(reverse("finoflow:linked", args=[gate.pk]))


def _show_link(request: HttpRequest, form: DecisionForm) -> HttpResponse:
    context = {"told": Told.of(form.gate), "form": form, "person": form.user}
    return render(request, "finoflow/link.html", context)


def _no_way(request: HttpRequest, why: str, gate: Wait | None = None) -> HttpResponse:
    """Refuse a link, calmly. ``why``: invalid, expired, gone, not-yours or changed."""
    status = 403 if why in ("invalid", "not-yours") else 410
    return render(request, "finoflow/link_refused.html", {"why": why, "gate": gate}, status=status)
