"""The filters of the list of gates."""

from __future__ import annotations

from typing import Any

from django.contrib import admin
from django.db.models import QuerySet
from django.http import HttpRequest
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy

from .. import clock
from ..statuses import Outcome
from .reader import Reader


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
        match self.value():
            case "open":
                return queryset.filter(outcome=Outcome.OPEN)
            case "overdue":
                return queryset.filter(outcome=Outcome.OPEN, due_at__lte=clock.now())
            case "decided":
                return queryset.filter(outcome=Outcome.SIGNALLED)
            case "ended":
                return queryset.exclude(outcome__in=[Outcome.OPEN, Outcome.SIGNALLED])
        return queryset


class MineFilter(admin.SimpleListFilter):
    """Those that wait for the very user who looks."""

    title = gettext_lazy("who is asked")
    parameter_name = "mine"

    def lookups(self, request: HttpRequest, model_admin: Any) -> list[tuple[str, str]]:
        return [("yes", _("waiting for me"))]

    def queryset(self, request: HttpRequest, queryset: QuerySet) -> QuerySet:
        if self.value() != "yes":
            return queryset
        mine = Reader.of(request).answerable.filter(outcome=Outcome.OPEN).exclude(decisions__user_id=request.user.pk)
        return queryset.filter(pk__in=mine.values("pk"))


class WorkflowFilter(admin.SimpleListFilter):
    """By workflow; those are named only of which the user may see a gate."""

    title = gettext_lazy("workflow")
    parameter_name = "workflow"

    def lookups(self, request: HttpRequest, model_admin: Any) -> list[tuple[str, str]]:
        seen = model_admin.get_queryset(request).order_by("execution__workflow_id")
        return [(name, name) for name in seen.values_list("execution__workflow_id", flat=True).distinct()]

    def queryset(self, request: HttpRequest, queryset: QuerySet) -> QuerySet:
        return queryset.filter(execution__workflow_id=self.value()) if self.value() else queryset
