"""Retry and cancel: a page asks, and its POST does it to each of the runs by itself."""

from __future__ import annotations

from typing import Any

from django.core.exceptions import PermissionDenied
from django.db import transaction
from django.db.models import QuerySet
from django.http import HttpRequest, HttpResponse
from django.shortcuts import get_object_or_404
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy, ngettext

from .. import api, conf
from ..exceptions import FinoflowError, RunNotResumable
from ..models import Execution
from ..statuses import Rollback, RunStatus, StuckReason
from .pages import chosen_keys, refused


class Acting:
    """The pages of ``RunAdmin`` that ask, and what they lead to. ``verb`` is ``retry`` or ``cancel``."""

    def ask_one(self: Any, request: HttpRequest, pk: int, verb: str) -> HttpResponse:
        """Show the page that asks about one run."""
        self._check_may(request, verb)
        return self.ask_many(request, [get_object_or_404(self.get_queryset(request), pk=pk)], verb)

    def ask_many(self: Any, request: HttpRequest, runs: QuerySet | list[Execution], verb: str) -> HttpResponse:
        """Show the page that asks about the chosen runs."""
        runs = list(runs)
        title, button, what_it_does = QUESTIONS[verb]
        return self.page(
            request,
            "admin/finoflow/execution/ask.html",
            str(title),
            runs=[(run, self.address_of(run), self.coloured_status(run)) for run in runs],
            chosen=" ".join(str(run.pk) for run in runs),
            button=button,
            what_it_does=what_it_does,
            action=self.link(request, f"finoflow_{verb}_many"),
        )

    def act(self: Any, request: HttpRequest, verb: str) -> HttpResponse:
        """Take the POST of that page, and report what was refused."""
        self._check_may(request, verb)
        if request.method != "POST":
            return self.back_to_list(request)
        done, refusals = 0, []
        for run in self.get_queryset(request).filter(pk__in=chosen_keys(request)):
            try:
                with transaction.atomic(using=conf.database()):
                    ACTS[verb](run)
                    self.log_change(request, run, str(LOGGED[verb]))
                done += 1
            except FinoflowError as error:
                refusals.append(refused(run, error))
        self.report(request, done, SENTENCES[verb], refusals)
        return self.back_to_list(request)

    def _check_may(self: Any, request: HttpRequest, verb: str) -> None:
        allowed = self.has_retry_permission(request) if verb == "retry" else self.has_cancel_permission(request)
        if not allowed or not self.has_view_permission(request):
            raise PermissionDenied


def can_retry(run: Execution) -> bool:
    """Whether a retry of this run would be accepted, as it stands."""
    unwound = (
        run.rollback in (Rollback.COMPLETED, Rollback.STUCK) or run.stuck_reason == StuckReason.COMPENSATION_FAILED
    )
    return run.status in (RunStatus.ERROR, RunStatus.STUCK) and not unwound


def can_cancel(run: Execution) -> bool:
    """Whether cancelling this run would change anything, as it stands."""
    unwinding = run.status == RunStatus.COMPENSATING or run.stuck_reason == StuckReason.COMPENSATION_FAILED
    return not run.is_over and not unwinding


def _cancel(run: Execution) -> None:
    if not api.cancel(run.run_id):
        raise RunNotResumable(_("it has ended, or is unwinding"))


LOGGED = {"retry": gettext_lazy("Tried again."), "cancel": gettext_lazy("Cancelled.")}

ACTS = {"retry": lambda run: api.retry_run(run.run_id), "cancel": _cancel}

SENTENCES = {
    "retry": lambda count: ngettext("%d run will be tried again.", "%d runs will be tried again.", count) % count,
    "cancel": lambda count: ngettext("%d run was cancelled.", "%d runs were cancelled.", count) % count,
}

QUESTIONS = {
    "retry": (
        gettext_lazy("Try again?"),
        gettext_lazy("Yes, try again"),
        gettext_lazy("The failed steps are tried afresh; what is done stays done. A worker drives the run on."),
    ),
    "cancel": (
        gettext_lazy("Cancel?"),
        gettext_lazy("Yes, cancel"),
        gettext_lazy("The run ends now, and nobody can answer its gates any more. Steps that are done stay done."),
    ),
}
