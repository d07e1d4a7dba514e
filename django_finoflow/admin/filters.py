"""The filters of the lists: mine, overdue, by workflow."""

from __future__ import annotations

from typing import Any

from django.contrib import admin
from django.db.models import Q, QuerySet
from django.db.models.functions import Now
from django.http import HttpRequest
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy

from .. import clock
from ..models import Wait
from ..statuses import TERMINAL, Outcome
from .reader import Reader
from .standstill import PATIENCE


class StateFilter(admin.SimpleListFilter):
    """Open, overdue, decided, or ended otherwise."""

    title = gettext_lazy("state")
    parameter_name = "state"

    def lookups(self, request: HttpRequest, model_admin: Any) -> list[tuple[str, str]]:
        return [
            ("open", _("open")),
            ("overdue", _("overdue")),
            ("decided", _("decided")),
            ("ended", _("ended without a decision")),
        ]

    def queryset(self, request: HttpRequest, queryset: QuerySet) -> QuerySet:
        # Of open ones only, the order of "open first" is this one, which an index has.
        longest = queryset.filter(outcome=Outcome.OPEN).order_by("opened_at", "id")
        match self.value():
            case "open":
                return longest
            case "overdue":
                return longest.filter(due_at__lte=clock.now())
            case "decided":
                return queryset.filter(outcome=Outcome.SIGNALLED)
            case "ended":
                return queryset.exclude(outcome__in=[Outcome.OPEN, Outcome.SIGNALLED])
        return queryset


class MineFilter(admin.SimpleListFilter):
    """Those that wait for the very user who looks. It comes first, since it takes the place of what may be seen."""

    title = gettext_lazy("who is asked")
    parameter_name = "mine"

    def lookups(self, request: HttpRequest, model_admin: Any) -> list[tuple[str, str]]:
        self._admin = model_admin
        return [("yes", _("waiting for me"))]

    def queryset(self, request: HttpRequest, queryset: QuerySet) -> QuerySet:
        if self.value() != "yes":
            return queryset
        # What waits for somebody they may see: asked for both at once, a planner loses its way.
        return self._admin.with_runs(request, Reader.of(request).mine)


class WorkflowFilter(admin.SimpleListFilter):
    """By workflow; those are named only of which the user may see a gate."""

    title = gettext_lazy("workflow")
    parameter_name = "workflow"

    def lookups(self, request: HttpRequest, model_admin: Any) -> list[tuple[str, str]]:
        seen = model_admin.get_queryset(request).order_by("execution__workflow_id")
        return [(name, name) for name in seen.values_list("execution__workflow_id", flat=True).distinct()]

    def queryset(self, request: HttpRequest, queryset: QuerySet) -> QuerySet:
        return queryset.filter(execution__workflow_id=self.value()) if self.value() else queryset


class RunMineFilter(admin.SimpleListFilter):
    """Runs that the user who looks has asked for, or must answer."""

    title = gettext_lazy("mine")
    parameter_name = "mine"

    def lookups(self, request: HttpRequest, model_admin: Any) -> list[tuple[str, str]]:
        return [("asked", _("I asked for it")), ("answer", _("it waits for my answer"))]

    def queryset(self, request: HttpRequest, queryset: QuerySet) -> QuerySet:
        match self.value():
            case "asked":
                return queryset.filter(requester_id=request.user.pk)
            case "answer":
                return queryset.filter(pk__in=Reader.of(request).mine.values("execution_id"))
        return queryset


class OverdueFilter(admin.SimpleListFilter):
    """Runs that should have moved: a deadline has passed, no worker takes them, or theirs is silent."""

    title = gettext_lazy("overdue")
    parameter_name = "overdue"

    def lookups(self, request: HttpRequest, model_admin: Any) -> list[tuple[str, str]]:
        return [
            ("deadline", _("a deadline has passed")),
            ("due", _("due and not taken")),
            ("silent", _("its worker is silent")),
        ]

    def queryset(self, request: HttpRequest, queryset: QuerySet) -> QuerySet:
        match self.value():
            case "deadline":
                late = Wait.objects.open().filter(due_at__lte=clock.now())
                return queryset.filter(pk__in=late.values("execution_id")).exclude(status__in=TERMINAL)
            case "due":
                return queryset.filter(due_and_not_taken())
            case "silent":
                return queryset.filter(lease_until__lt=Now()).exclude(status__in=TERMINAL)
        return queryset


def due_and_not_taken() -> Q:
    """Return the condition of runs that have been due for longer than a worker should need to take them."""
    return Q(due_at__lt=clock.now() - PATIENCE, lease_until__isnull=True)
