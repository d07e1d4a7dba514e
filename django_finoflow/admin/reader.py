"""What one user may see of gates, and answer (rules A2 and A6)."""

from __future__ import annotations

from collections.abc import Collection
from functools import cached_property
from typing import Any

from django.http import HttpRequest

from .. import decisions
from ..approval import DEFAULT_PERMISSION, Audience
from ..exceptions import DecisionRefused
from ..models import Decision, Wait
from ..querysets import WaitQuerySet

VIEW = "finoflow.view_wait"


class Reader:
    """What one user may see and answer, found out once for each request."""

    def __init__(self, user: Any):
        self.user = user

    @classmethod
    def of(cls, request: HttpRequest) -> Reader:
        """Return the reader who sent the request."""
        reader = getattr(request, "_finoflow_reader", None)
        if reader is None or reader.user is not request.user:
            reader = request._finoflow_reader = cls(request.user)  # type: ignore[attr-defined]
        return reader

    @cached_property
    def sees_all(self) -> bool:
        """Whether they may see every gate; those may who could decide any against its rules."""
        return self.user.has_perm(VIEW) or decisions.may_override(self.user)

    @cached_property
    def membership(self) -> Collection[str]:
        """The names of their groups."""
        return Audience.membership(self.user)

    @cached_property
    def answerable(self) -> WaitQuerySet:
        """The gates, open or not, that are theirs to decide."""
        return Wait.objects.answerable_by(self.user)

    @property
    def mine(self) -> WaitQuerySet:
        """The gates that wait for an answer of theirs, the most urgent first."""
        return Wait.objects.inbox(self.user)

    @cached_property
    def decides(self) -> bool:
        """Whether there is any gate, open or not, that is theirs to decide."""
        return self.user.is_active and self.answerable.exists()

    @cached_property
    def is_concerned(self) -> bool:
        """Whether gates belong in their menu. Asked on every page of the admin, so it looks at open gates only."""
        if not self.user.is_active or not self.user.is_staff:
            return False
        if self.sees_all or self.user.has_perm(DEFAULT_PERMISSION) or Decision.objects.filter(user=self.user).exists():
            return True
        return Wait.objects.open().answerable_by(self.user).exists()

    def may_see(self, gate: Wait) -> bool:
        """Whether they may see this gate."""
        return self.sees_all or decisions.is_asked(gate, self.user, self.membership)

    def why_not(self, gate: Wait) -> DecisionRefused | None:
        """Return the refusal that an answer of theirs to this gate would meet now; asked once for each row read."""
        known = vars(gate).setdefault("_finoflow_refusals", {})
        if self not in known:
            known[self] = decisions.why_not(gate, self.user, self.membership)
        return known[self]
