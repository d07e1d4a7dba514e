"""What the pages for people without admin tell of gates, and how each of their responses is sent.

``private`` wraps every view here: nothing of a page is kept in a cache, framed by another site, or told to another site
as where a visitor came from, and no POST passes without its CSRF token, whatever middleware the host has.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import Any, NamedTuple

from django.core.paginator import Page, Paginator
from django.db.models import QuerySet
from django.http import HttpRequest, HttpResponse
from django.utils.safestring import SafeString
from django.views.decorators.cache import never_cache
from django.views.decorators.clickjacking import xframe_options_deny
from django.views.decorators.csrf import csrf_protect

from . import clock, decisions, values
from .models import Decision, Wait
from .querysets import WaitQuerySet
from .statuses import OPEN_TO_SIGNALS

PER_PAGE = 25
PAYLOADS = [f"execution__{name}" for name in ("input", "state", "result", "error")]

View = Callable[..., HttpResponse]


def private(view: View) -> View:
    """Wrap a view as the module says."""

    @never_cache
    @xframe_options_deny
    @csrf_protect
    @wraps(view)
    def wrapped(request: HttpRequest, *args: Any, **kwargs: Any) -> HttpResponse:
        response = view(request, *args, **kwargs)
        # Not "no-referrer": with that a browser sends our own forms with "Origin: null", which Django refuses.
        response.headers.setdefault("Referrer-Policy", "same-origin")
        return response

    return wrapped


def with_runs(gates: WaitQuerySet) -> WaitQuerySet:
    """Return gates with what the pages tell of their runs and decisions, and without the runs' payloads."""
    return gates.select_related("execution", "signal").defer(*PAYLOADS).prefetch_related("decisions")


def paginated(request: HttpRequest, rows: QuerySet) -> Page:
    """Return the page of ``rows`` that the address asks for, or the nearest there is."""
    return Paginator(rows, PER_PAGE).get_page(request.GET.get("page"))


class Told(NamedTuple):
    """What a page tells of one gate."""

    gate: Wait
    is_open: bool
    overdue: bool
    given: int
    needed: int
    story: str

    @classmethod
    def of(cls, gate: Wait) -> Told:
        """Return what is told of ``gate``."""
        is_open = gate.is_open and gate.execution.status in OPEN_TO_SIGNALS
        overdue = is_open and gate.due_at is not None and gate.due_at <= clock.now()
        return cls(gate, is_open, overdue, *decisions.votes(gate), decisions.story(gate))

    @property
    def shows(self) -> SafeString:
        """What it shows to those who decide, as HTML."""
        return values.shown(self.gate.shown)

    @property
    def answers(self) -> list[tuple[str, SafeString]]:
        """What was filled in by those who have decided: their name, and the data as HTML."""
        made = sorted(self.gate.decisions.all(), key=lambda decision: (decision.decided_at, decision.pk))
        return [(one.user_name, self.filled(one)) for one in made if one.data is not None]

    def filled(self, made: Decision) -> SafeString:
        """Return what was filled in with one decision, as HTML."""
        return values.filled(made.data, decisions.form_for(self.gate))
