"""What people did at a gate, and what was done about it: its decisions and its events; and who may decide, to look up.

All append-only. The names of people stay when the users are deleted. Import the models from ``models``.
"""

from __future__ import annotations

from typing import Any

from django.conf import settings
from django.db import models
from django.utils.translation import gettext_lazy as _

from .audience import Audience
from .fields import PayloadField
from .querysets import OwnDatabase
from .statuses import GateEventKind

READ_ONLY = ("view",)


class CandidateManager(OwnDatabase):
    """Who may decide, by audience."""

    def index(self, audience: Audience) -> str:
        """Have rows for an audience, and return its digest, by which gates refer to them.

        Two that do so at once may both store them, which does no harm: nobody waits for the other.
        """
        digest = audience.digest
        if not self.filter(digest=digest).exists():
            names = [(one.needed_permission, *names) for one in audience.parts for names in one.names]
            rows: Any = [
                Candidate(digest=digest, permission=permission, group_name=group, user_name=user)
                for permission, group, user in names
            ]
            self.bulk_create(rows)
        return digest


class Candidate(models.Model):
    """One way to be in an audience: to be the user or in the group that it names, or anybody where it names nobody.

    And to hold the permission, if there is one. It is an index of ``Wait.audience``, shared by all gates that ask the
    same people: with it the database finds a person's gates, among however many (see ``answerable_by``).
    """

    digest = models.CharField(_("audience"), max_length=64)
    permission = models.CharField(_("permission"), max_length=255, blank=True)
    group_name = models.CharField(_("group's name"), max_length=255, blank=True)
    user_name = models.CharField(_("user's name"), max_length=255, blank=True)

    objects = CandidateManager()

    class Meta:
        verbose_name = _("candidate")
        verbose_name_plural = _("candidates")
        default_permissions = READ_ONLY
        indexes = [
            models.Index(fields=["user_name", "group_name"], name="finoflow_candidates"),
            models.Index(fields=["digest"], name="finoflow_audiences"),
        ]

    def __str__(self) -> str:
        return f"{self.group_name or self.user_name} {self.permission}".strip()


class Decision(models.Model):
    """A person's answer to a gate; or that of its deadline, which has no user and the channel ``timer``."""

    wait = models.ForeignKey("finoflow.Wait", models.CASCADE, related_name="decisions", verbose_name=_("gate"))
    user = models.ForeignKey(
        settings.AUTH_USER_MODEL,
        models.SET_NULL,
        null=True,
        blank=True,
        related_name="+",
        db_index=False,
        verbose_name=_("user"),
    )
    user_name = models.CharField(_("user's name"), max_length=255)
    approved = models.BooleanField(_("approved"))
    #: Whether it was made against the gate's rules, by somebody who may (``finoflow.override_gate``).
    override = models.BooleanField(_("override"), default=False, db_default=False)
    reason = models.TextField(_("reason"), blank=True)
    data = PayloadField(_("data"))
    channel = models.CharField(_("channel"), max_length=20)
    digest = models.CharField(_("digest of what was shown"), max_length=64)
    decided_at = models.DateTimeField(_("decided"))

    objects = OwnDatabase()

    class Meta:
        verbose_name = _("decision")
        verbose_name_plural = _("decisions")
        default_permissions = READ_ONLY
        constraints = [models.UniqueConstraint(fields=["wait", "user"], name="finoflow_one_answer_each")]
        # With the gate: on an index of the user alone a planner without statistics goes through all they ever decided.
        indexes = [models.Index(fields=["user", "wait"], name="finoflow_decided_by")]

    def __str__(self) -> str:
        return f"{self.user_name or _('deadline')}: {_('approved') if self.approved else _('rejected')}"

    @property
    def is_timers(self) -> bool:
        """Whether the deadline decided, and nobody."""
        return self.channel == TIMER


#: The channel of a decision that nobody made: the deadline did (rule A8).
TIMER = "timer"


class GateEvent(models.Model):
    """Something that happened at a gate beside its decisions: a claim, a reminder, an escalation …

    ``user`` did it (nobody: the worker); ``to_user`` is whom the gate was handed to.
    """

    wait = models.ForeignKey("finoflow.Wait", models.CASCADE, related_name="events", verbose_name=_("gate"))
    kind = models.CharField(_("kind"), max_length=20, choices=GateEventKind)
    user = models.ForeignKey(
        settings.AUTH_USER_MODEL, models.SET_NULL, null=True, blank=True, related_name="+", verbose_name=_("user")
    )
    user_name = models.CharField(_("user's name"), max_length=255, blank=True)
    to_user = models.ForeignKey(
        settings.AUTH_USER_MODEL, models.SET_NULL, null=True, blank=True, related_name="+", verbose_name=_("handed to")
    )
    to_name = models.CharField(_("handed to (name)"), max_length=255, blank=True)
    note = models.TextField(_("note"), blank=True)
    happened_at = models.DateTimeField(_("happened"))

    objects = OwnDatabase()

    class Meta:
        verbose_name = _("gate event")
        verbose_name_plural = _("gate events")
        default_permissions = READ_ONLY

    def __str__(self) -> str:
        return f"{self.user_name} {self.get_kind_display()}".strip()
