"""What can be done with runs: a page asks, and its POST does it to each of the runs by itself.

``VERBS`` says of each thing all there is to say; the views are the same for all of them.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

from django.contrib import admin
from django.core.exceptions import PermissionDenied
from django.db import transaction
from django.db.models import QuerySet
from django.http import HttpRequest, HttpResponse
from django.shortcuts import get_object_or_404
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy, ngettext

from .. import api, conf, standing
from ..exceptions import FinoflowError, RunNotResumable
from ..models import Execution
from .pages import chosen_keys, on_change_form_too, refused


def _cancel(run: Execution) -> None:
    if not api.cancel(run.run_id):
        raise RunNotResumable(_("it has ended, or is unwinding"))


class Verb(NamedTuple):
    """One thing that can be done with runs."""

    permission: str  # of ours, without its ``_execution``
    accepts: Callable[[Execution], bool]
    act: Callable[[Execution], Any]
    button: Any
    action: Any
    title: Any
    what_it_does: Any
    yes: Any
    log_entry: Any
    sentence: Callable[[int], str]


VERBS = {
    "retry": Verb(
        permission="retry",
        accepts=standing.can_retry,
        act=lambda run: api.retry_run(run.run_id),
        button=gettext_lazy("Retry"),
        action=gettext_lazy("Retry selected %(verbose_name_plural)s"),
        title=gettext_lazy("Try again?"),
        what_it_does=gettext_lazy(
            "The failed steps are tried afresh; what is done stays done. A worker drives the run on."
        ),
        yes=gettext_lazy("Yes, try again"),
        log_entry=gettext_lazy("Tried again."),
        sentence=lambda n: ngettext("%d run will be tried again.", "%d runs will be tried again.", n) % n,
    ),
    "cancel": Verb(
        permission="cancel",
        accepts=standing.can_cancel,
        act=_cancel,
        button=gettext_lazy("Cancel"),
        action=gettext_lazy("Cancel selected %(verbose_name_plural)s"),
        title=gettext_lazy("Cancel?"),
        what_it_does=gettext_lazy(
            "The run ends now, and nobody can answer its gates any more. Steps that are done stay done."
        ),
        yes=gettext_lazy("Yes, cancel"),
        log_entry=gettext_lazy("Cancelled."),
        sentence=lambda n: ngettext("%d run was cancelled.", "%d runs were cancelled.", n) % n,
    ),
    "resume": Verb(
        permission="retry",
        accepts=standing.is_stuck_unwinding,
        act=lambda run: api.resume_compensation(run.run_id),
        button=gettext_lazy("Resume"),
        action=gettext_lazy("Resume the unwinding of selected %(verbose_name_plural)s"),
        title=gettext_lazy("Resume the unwinding?"),
        what_it_does=gettext_lazy(
            "The compensation that failed is tried again, and the unwinding goes on behind it. A worker does it."
        ),
        yes=gettext_lazy("Yes, resume"),
        log_entry=gettext_lazy("Unwinding resumed."),
        sentence=lambda n: ngettext("%d unwinding will go on.", "%d unwindings will go on.", n) % n,
    ),
    "abandon": Verb(
        permission="retry",
        accepts=standing.is_stuck_unwinding,
        act=lambda run: api.abandon_compensation(run.run_id),
        button=gettext_lazy("Abandon"),
        action=gettext_lazy("Abandon the unwinding of selected %(verbose_name_plural)s"),
        title=gettext_lazy("Abandon the unwinding?"),
        what_it_does=gettext_lazy(
            "What has not been undone yet never will be: undo it by hand. The run ends as failed, for good."
        ),
        yes=gettext_lazy("Yes, abandon"),
        log_entry=gettext_lazy("Unwinding abandoned."),
        sentence=lambda n: ngettext("%d unwinding was abandoned.", "%d unwindings were abandoned.", n) % n,
    ),
}


def views(name: str) -> tuple[Any, Any, Any]:
    """Return the views of one verb, as methods of ``RunAdmin``: its button's, its bulk action, and what takes the POST
    of the page that both show.
    """
    verb = VERBS[name]

    @admin.display(description=verb.button)
    def ask_one(self: Any, request: HttpRequest, pk: int) -> HttpResponse:
        return self.ask_one(request, pk, name)

    @on_change_form_too(permissions=[verb.permission], description=verb.action)
    def ask_many(self: Any, request: HttpRequest, queryset: QuerySet) -> HttpResponse:
        return self.ask_many(request, queryset, name)

    def act(self: Any, request: HttpRequest) -> HttpResponse:
        return self.act(request, name)

    ask_one.url_path = act.url_path = name  # type: ignore[attr-defined]
    return ask_one, ask_many, act


class Acting:
    """The pages of ``RunAdmin`` that ask, and what they lead to. ``name`` is one of ``VERBS``."""

    finoflow_retry, finoflow_retry_selected, finoflow_retry_many = views("retry")
    finoflow_cancel, finoflow_cancel_selected, finoflow_cancel_many = views("cancel")
    finoflow_resume, finoflow_resume_selected, finoflow_resume_many = views("resume")
    finoflow_abandon, finoflow_abandon_selected, finoflow_abandon_many = views("abandon")

    def has_retry_permission(self, request: HttpRequest) -> bool:
        """Whether the user may retry runs, and resume or abandon their unwinding."""
        return request.user.has_perm("finoflow.retry_execution")

    def has_cancel_permission(self, request: HttpRequest) -> bool:
        """Whether the user may cancel runs."""
        return request.user.has_perm("finoflow.cancel_execution")

    def may(self, request: HttpRequest, name: str) -> bool:
        """Whether the user may do this with runs that accept it."""
        return getattr(self, f"has_{VERBS[name].permission}_permission")(request)

    def ask_one(self: Any, request: HttpRequest, pk: int, name: str) -> HttpResponse:
        """Show the page that asks about one run."""
        self._check_may(request, name)
        return self.ask_many(request, [get_object_or_404(self.get_queryset(request), pk=pk)], name)

    def ask_many(self: Any, request: HttpRequest, runs: QuerySet | list[Execution], name: str) -> HttpResponse:
        """Show the page that asks about the chosen runs."""
        runs, verb = list(runs), VERBS[name]
        return self.page(
            request,
            "admin/finoflow/execution/ask.html",
            str(verb.title),
            runs=[(run, self.address_of(run), self.coloured_status(run)) for run in runs],
            chosen=" ".join(str(run.pk) for run in runs),
            button=verb.yes,
            what_it_does=verb.what_it_does,
            action=self.link(request, f"finoflow_{name}_many"),
        )

    def act(self: Any, request: HttpRequest, name: str) -> HttpResponse:
        """Take the POST of that page, and report what was refused."""
        self._check_may(request, name)
        if request.method != "POST":
            return self.back_to_list(request)
        verb, done, refusals = VERBS[name], 0, []
        for run in self.get_queryset(request).filter(pk__in=chosen_keys(request)):
            try:
                with transaction.atomic(using=conf.database()):
                    verb.act(run)
                    self.log_change(request, run, str(verb.log_entry))
                done += 1
            except FinoflowError as error:
                refusals.append(refused(run, error))
        self.report(request, done, verb.sentence, refusals)
        return self.back_to_list(request)

    def _check_may(self: Any, request: HttpRequest, name: str) -> None:
        if not self.may(request, name) or not self.has_view_permission(request):
            raise PermissionDenied
