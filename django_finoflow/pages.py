"""What the pages for people without admin tell of gates, and how each of their responses is sent.

``private`` wraps every view here: nothing of a page is kept in a cache, framed by another site, or told to another site
as where a visitor came from, and no POST passes without its CSRF token, whatever middleware the host has.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import wraps
from typing import Any, NamedTuple

from django.core.paginator import Page, Paginator
from django.db.models import QuerySet, prefetch_related_objects
from django.http import HttpRequest, HttpResponse
from django.utils.safestring import SafeString
from django.views.decorators.cache import never_cache
from django.views.decorators.clickjacking import xframe_options_deny
from django.views.decorators.csrf import csrf_protect

from . import clock, decisions, values
from .models import Decision, Wait
from .querysets import WaitQuerySet
from .statuses import OPEN_TO_SIGNALS

PER_PAGE = 15
PAYLOADS = [f"execution__{name}" for name in ("input", "state", "result", "error")]
#: What is read of a gate for a list: what ``inbox.html`` and ``facts.html`` tell.
LISTED = [
    *("name", "outcome", "approval", "opened_at", "due_at", "claimed_by_name", "claimed_at"),
    *(f"execution__{name}" for name in ("status", "workflow_id", "requester_name")),
]

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


def paginated(request: HttpRequest, rows: QuerySet | list[int]) -> Page:
    """Return the page of ``rows`` that the address asks for, or the nearest there is."""
    return Paginator(rows, PER_PAGE).get_page(request.GET.get("page"))


def listed(keys: Sequence[int]) -> list[Told]:
    """Return what a list tells of the gates with these keys, in their order."""
    rows = Wait.objects.select_related("execution").only(*LISTED).in_bulk(keys)
    gates = [rows[key] for key in keys if key in rows]
    prefetch_related_objects([gate for gate in gates if decisions.quorum(gate) > 1], "decisions")
    return [Told.of(gate) for gate in gates]


class Told(NamedTuple):
    """What a page tells of one gate."""

    gate: Wait
    is_open: bool
    overdue: bool

    @classmethod
    def of(cls, gate: Wait) -> Told:
        """Return what is told of ``gate``."""
        is_open = gate.is_open and gate.execution.status in OPEN_TO_SIGNALS
        overdue = is_open and gate.due_at is not None and gate.due_at <= clock.now()
        return cls(gate, is_open, overdue)

    @property
    def needed(self) -> int:
        """How many must approve it."""
        return decisions.quorum(self.gate)

    @property
    def given(self) -> int:
        """How many have approved it."""
        return decisions.votes(self.gate)[0]

    @property
    def story(self) -> str:
        """What became of it."""
        return decisions.story(self.gate)

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
