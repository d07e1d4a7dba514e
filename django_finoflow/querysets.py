"""The questions that pages, checks and the engine ask of the rows."""

from __future__ import annotations

from typing import Any

from django.db import connections, models
from django.db.models import Case, F, IntegerField, Value, When

from . import conf
from .approval import Audience
from .statuses import TERMINAL, Outcome, RunStatus


class OwnDatabase(models.Manager):
    """Looks where the runs are: in the database that ``FINOFLOW["DATABASE"]`` names."""

    def get_queryset(self) -> models.QuerySet:
        return super().get_queryset().using(self._db or conf.database())


class ExecutionQuerySet(models.QuerySet):
    """Runs."""

    def locked(self) -> Any:
        """Lock one run's row until the transaction ends and return it as it is then; None if there is none.

        Where rows cannot be locked (SQLite) the first statement is a write, which takes the database's one write lock.
        A transaction that reads first and writes later would be refused as soon as another had written in between.
        """
        # Without its payloads, which are read when asked for: a row that cannot be decoded must be able to end.
        rows = self.defer("input", "state", "result", "error")
        if connections[self.db].features.has_select_for_update:
            return rows.select_for_update().first()
        self.update(lease_epoch=F("lease_epoch"))
        return rows.first()

    def live(self) -> ExecutionQuerySet:
        """Runs that have not ended (a stuck one has not)."""
        return self.exclude(status__in=TERMINAL)

    def stuck(self) -> ExecutionQuerySet:
        """Runs that need an operator or a deployment."""
        return self.filter(status=RunStatus.STUCK)

    def newest_first(self) -> ExecutionQuerySet:
        """In the order of ``list_runs``: newest first, then highest id."""
        return self.order_by("-created_at", "-id")


class WaitQuerySet(models.QuerySet):
    """Waits, and among them gates."""

    def gates(self) -> WaitQuerySet:
        """Waits that a person answers."""
        return self.filter(approval__isnull=False)

    def open(self) -> WaitQuerySet:
        """Waits that nothing has ended yet."""
        return self.filter(outcome=Outcome.OPEN)

    def open_first(self) -> WaitQuerySet:
        """Open ones first, those that wait longest at the top; then the others, newest first."""
        is_open = Case(When(outcome=Outcome.OPEN, then=Value(0)), default=Value(1), output_field=IntegerField())
        return self.order_by(is_open, F("closed_at").desc(nulls_first=True), "opened_at", "id")

    def answerable_by(self, user: Any) -> WaitQuerySet:
        """Gates, open or not, whose question is one for ``user``: in its audience and not excluded from it.

        Args:
            user: a Django user.
        """
        gates = self.gates()
        everyone = gates.order_by().values_list("audience", flat=True).distinct()
        membership = Audience.membership(user)
        mine = [text for text in everyone if Audience.loads(text).admits(user, membership)]
        excluded = models.Q(approval__exclude_requester=True, execution__requester_id=user.pk)
        return gates.filter(audience__in=mine).exclude(excluded)
