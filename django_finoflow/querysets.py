"""The questions that pages, checks and the engine ask of the rows."""

from __future__ import annotations

from typing import Any

from django.apps import apps
from django.db import connections, models
from django.db.models import Case, Exists, F, OuterRef, Q, Subquery, TextField, Value, When
from django.db.models.functions import Concat, StrIndex

from . import clock, conf
from .audience import Audience, holds
from .statuses import OPEN_TO_SIGNALS, TERMINAL, Outcome, RunStatus

#: As many gates are listed and counted of all that wait for somebody: further down nobody looks.
MOST_LISTED = 250
#: So many audiences of one person are given to the database as values.
FEW = 200


class OwnDatabase(models.Manager):
    """Looks where the runs are: in the database that ``FINOFLOW["DATABASE"]`` names."""

    def get_queryset(self) -> models.QuerySet:
        return super().get_queryset().using(self._db or conf.database())


class ExecutionQuerySet(models.QuerySet):
    """Runs."""

    def locked(self, *, wait: bool = True) -> Any:
        """Lock one run's row until the transaction ends and return it as it is then; None if there is none.

        With ``wait=False`` also if somebody else has locked it, where the database can tell.

        Where rows cannot be locked (SQLite) the first statement is a write, which takes the database's one write lock.
        A transaction that reads first and writes later would be refused as soon as another had written in between.
        """
        # Without its payloads, which are read when asked for: a row that cannot be decoded must be able to end.
        rows = self.defer("input", "state", "result", "error")
        if connections[self.db].features.has_select_for_update:
            return rows.select_for_update(skip_locked=not wait).first()
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
        return self.order_by(F("closed_at").desc(nulls_first=True), "opened_at", "id")

    def overdue(self) -> WaitQuerySet:
        """Open gates whose deadline has passed: nobody can answer them, and no worker has noticed yet."""
        return self.gates().open().filter(due_at__lte=clock.now())

    def answerable_by(self, user: Any) -> WaitQuerySet:
        """Gates, open or not, whose question is one for ``user``: in its audience and not excluded from it.

        Args:
            user: a Django user.
        """
        gates = self.gates()
        if user.pk is None or not user.is_active:
            return gates.none()
        if not getattr(user, "is_superuser", False):  # whom every audience admits
            gates = gates.filter(audience_digest__in=audiences_of(user))
        asked = Q(approval__exclude_requester=True, execution__requester_id=user.pk)
        return gates.exclude(asked).exclude(~Q(excludes="") & Q(decided_before(user)))

    def inbox(self, user: Any) -> WaitQuerySet:
        """Open gates that ``user`` can answer now and has not yet, the earliest deadline first.

        Args:
            user: a Django user.
        """
        mine = self.open().answerable_by(user).filter(execution__status__in=OPEN_TO_SIGNALS)
        in_time = Q(due_at=None) | Q(due_at__gt=clock.now())
        # As a Case: a planner takes "IS NULL" to be true of hardly any row, and would sort them all.
        is_answered = Case(When(own_answer=None, then=Value(False)), default=Value(True))
        answered = mine.filter(in_time).alias(own_answer=answer_of(user)).alias(is_answered=is_answered)
        return answered.filter(is_answered=False).order_by(F("due_at").asc(nulls_last=True), "opened_at", "id")

    def top(self) -> list[int]:
        """Return the primary keys of the first of them, in order: ``MOST_LISTED`` at most."""
        return list(self.values_list("pk", flat=True)[:MOST_LISTED])

    def marked_for(self, user: Any) -> WaitQuerySet:
        """The same gates, each knowing whether ``user`` is excluded for having decided another gate of its run.

        So that a page of many gates asks for that once (see ``decisions.why_not``).

        Args:
            user: a Django user.
        """
        marked = Case(When(excludes="", then=Value(False)), default=decided_before(user))
        return self.annotate(is_excluded=marked, marked_for=Value(str(user.pk)))


def audiences_of(user: Any) -> Any:
    """The digests of the audiences that admit ``user``, as ``Audience.admits`` does for one.

    As values where they are few: of a subquery no planner knows how many gates it will find. Thousands of values would
    take longer to send than to look up.
    """
    named = Q(user_name=user.get_username(), group_name="")
    grouped = Q(user_name="", group_name__in=[*Audience.membership(user), ""])  # a blank one is anybody
    candidates = apps.get_model("finoflow", "Candidate").objects.filter(named | grouped)
    found = list(candidates.values_list("permission", "digest").distinct())
    held = {asked for asked in {asked for asked, _digest in found} if not asked or holds(user, asked)}
    digests = {digest for asked, digest in found if asked in held}
    return sorted(digests) if len(digests) <= FEW else candidates.filter(permission__in=held).values("digest")


def decided_before(user: Any) -> Exists:
    """Whether ``user`` has decided, in a gate's run, another gate whose deciders it excludes."""
    # The line ends around the names are put there again: a fixture in XML comes back without the outer ones.
    names = Concat(Value("\n"), OuterRef("excludes"), Value("\n"), output_field=TextField())
    named = StrIndex(names, Concat(Value("\n"), F("name"), Value("\n")))
    others = apps.get_model("finoflow", "Wait").objects.filter(execution=OuterRef("execution"))
    others = others.exclude(pk=OuterRef("pk")).alias(place=named, own_answer=answer_of(user))
    return Exists(others.filter(place__gt=0, own_answer__isnull=False))


def answer_of(user: Any) -> Subquery:
    """The decision of ``user`` about a gate.

    A scalar: no planner can turn it round and look, for each gate, through all that the user has ever decided.
    """
    made = apps.get_model("finoflow", "Decision").objects.filter(user_id=user.pk, wait=OuterRef("pk"))
    return Subquery(made.values("pk")[:1])
