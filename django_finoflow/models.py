"""The rows of a run. They are ordinary models: filter them, join them, show them, permission them.

Only the engine writes them (``history`` a run's status and its checkpoints, ``leases`` its lease, ``waits`` its waits
and signals, ``verdicts`` its decisions, ``handling`` and ``maintenance`` what else happens at a gate), always by
conditional updates or with the run locked. Read as you like; to change a run, call the API.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from asgiref.sync import sync_to_async
from django.conf import settings
from django.db import models
from django.db.models import Q
from django.utils.translation import gettext_lazy as _

from .bridge import engine
from .fields import PayloadField
from .querysets import ExecutionQuerySet, OwnDatabase, WaitQuerySet
from .records import READ_ONLY, Candidate, Decision, GateEvent
from .statuses import TERMINAL, Outcome, Rollback, RunStatus, StepKind, StepStatus, StuckReason, Undo, WaitKind

if TYPE_CHECKING:
    from .snapshots import RunState

__all__ = ["Candidate", "Decision", "Execution", "GateEvent", "Signal", "Step", "Wait"]


class Execution(models.Model):
    """One run of a workflow.

    ``due_at`` is when it should next be driven; ``lease_until`` is apart from it, so that a signal which comes while
    the run is driven neither ends the lease nor is lost. ``lease_epoch`` counts claims: a driver whose epoch is gone
    writes nothing.
    """

    run_id = models.CharField(_("run"), max_length=128, unique=True)
    workflow_id = models.CharField(_("workflow"), max_length=200)
    version = models.PositiveIntegerField(_("version"), default=1)
    key = models.CharField(_("key"), max_length=255, null=True, blank=True)
    status = models.CharField(_("status"), max_length=20, choices=RunStatus, default=RunStatus.RUNNING)
    stuck_reason = models.CharField(_("stuck because of"), max_length=30, choices=StuckReason, blank=True)
    queue = models.CharField(_("queue"), max_length=100, default="default")
    priority = models.IntegerField(_("priority"), default=0)
    due_at = models.DateTimeField(_("due"), null=True, blank=True)
    lease_owner = models.CharField(_("driven by"), max_length=100, blank=True)
    lease_until = models.DateTimeField(_("leased until"), null=True, blank=True)
    lease_epoch = models.PositiveBigIntegerField(_("lease epoch"), default=0)
    recoveries = models.PositiveIntegerField(_("recoveries"), default=0)
    checkpoints = models.PositiveIntegerField(_("checkpoints at the last recovery"), default=0)
    cursor = models.PositiveIntegerField(_("cursor"), default=0)
    current_step = models.CharField(_("current step"), max_length=200, blank=True)
    input = PayloadField(_("input"))
    state = PayloadField(_("state"))
    result = PayloadField(_("result"))
    error = PayloadField(_("error"))
    rollback = models.CharField(_("rollback"), max_length=20, choices=Rollback, blank=True)
    requester = models.ForeignKey(
        settings.AUTH_USER_MODEL, models.SET_NULL, null=True, blank=True, related_name="+", verbose_name=_("requester")
    )
    requester_name = models.CharField(_("requester's name"), max_length=255, blank=True)
    parent = models.ForeignKey(
        "self", models.CASCADE, null=True, blank=True, related_name="children", verbose_name=_("parent run")
    )
    created_at = models.DateTimeField(_("created"))
    updated_at = models.DateTimeField(_("updated"))
    started_at = models.DateTimeField(_("started"), null=True, blank=True)
    finished_at = models.DateTimeField(_("finished"), null=True, blank=True)

    #: The input as JSON text, of a run that was claimed: a row that cannot be decoded must not stop the claim of
    #: others.
    stored_input: str | None
    #: For how many seconds the claim that read this row leased it; None: as long as the setting says.
    lease_seconds: float | None = None
    #: Whether ``start()`` made this row, or found it by its key.
    created: bool = True

    objects = OwnDatabase.from_queryset(ExecutionQuerySet)()

    class Meta:
        verbose_name = _("run")
        verbose_name_plural = _("runs")
        default_permissions = READ_ONLY
        permissions = [
            ("signal_execution", _("Can send signals to runs")),
            ("cancel_execution", _("Can cancel runs")),
            ("retry_execution", _("Can retry runs")),
        ]
        constraints = [models.UniqueConstraint(fields=["workflow_id", "key"], name="finoflow_run_key")]
        indexes = [
            # A claim walks from lane to lane (workflow, version, queue, priority) and reads only the due head of each,
            # so that neither what is parked nor what others know costs it anything. See ``claiming`` and the test
            # of its plans.
            models.Index(
                fields=["workflow_id", "version", "queue", "priority", "due_at", "id"],
                condition=Q(due_at__isnull=False, lease_until__isnull=True),
                name="finoflow_claim",
            ),
            models.Index(fields=["lease_until"], condition=Q(lease_until__isnull=False), name="finoflow_lease"),
            models.Index(fields=["created_at", "id"], name="finoflow_newest"),
            models.Index(fields=["status", "created_at", "id"], name="finoflow_status"),
        ]

    def __str__(self) -> str:
        return f"{self.workflow_id} {self.run_id}"

    @property
    def is_over(self) -> bool:
        """Whether the run has ended. A stuck run has not."""
        return self.status in TERMINAL

    def signal(self, name: str, payload: Any = None, *, sender: str | None = None) -> Signal:
        """Deliver a signal to this run; see ``django_finoflow.signal``."""
        return engine().signal(self.run_id, name, payload, sender=sender)

    async def asignal(self, name: str, payload: Any = None, *, sender: str | None = None) -> Signal:
        """Do in async code what ``signal`` does."""
        return await sync_to_async(self.signal)(name, payload, sender=sender)

    def cancel(self) -> bool:
        """Cancel this run; see ``django_finoflow.cancel``."""
        return engine().cancel(self.run_id)

    async def acancel(self) -> bool:
        """Do in async code what ``cancel`` does."""
        return await sync_to_async(self.cancel)()

    def retry(self) -> Execution:
        """Make this failed or stuck run due again; see ``django_finoflow.retry_run``."""
        return engine().retry_run(self.run_id)

    async def aretry(self) -> Execution:
        """Do in async code what ``retry`` does."""
        return await sync_to_async(self.retry)()

    def snapshot(self) -> RunState:
        """Return a detached copy of the run as its rows stand now."""
        return engine().snapshot(self.run_id)

    async def asnapshot(self) -> RunState:
        """Do in async code what ``snapshot`` does."""
        return await sync_to_async(self.snapshot)()

    def wait_for_end(self, timeout: Any = None) -> Any:
        """Block until the run ends and return its result; see ``django_finoflow.wait_for_end``."""
        return engine().wait_for_end(self.run_id, timeout=timeout)

    async def await_for_end(self, timeout: Any = None) -> Any:
        """Wait, without blocking the event loop, until the run ends; see ``django_finoflow.await_for_end``."""
        return await engine().await_for_end(self.run_id, timeout=timeout)


class Checkpoint(models.Model):
    """What steps and waits share: a place in a run. ``branch`` is empty but for parallel work."""

    execution = models.ForeignKey(
        Execution, models.CASCADE, related_name="%(class)ss", db_index=False, verbose_name=_("run")
    )
    branch = models.CharField(_("branch"), max_length=255, blank=True)
    index = models.PositiveIntegerField(_("position"))

    class Meta:
        abstract = True


class Step(Checkpoint):
    """A recorded step or activity. Its row is its checkpoint: what is done is never called again."""

    step_id = models.CharField(_("step"), max_length=200)
    kind = models.CharField(_("kind"), max_length=20, choices=StepKind, default=StepKind.STEP)
    status = models.CharField(_("status"), max_length=20, choices=StepStatus)
    result = PayloadField(_("result"))
    error = PayloadField(_("error"))
    attempts = models.PositiveIntegerField(_("attempts"), default=1)
    due_at = models.DateTimeField(_("next attempt"), null=True, blank=True)
    state_patch = PayloadField(_("changes to the state"))
    started_at = models.DateTimeField(_("started"), null=True)
    finished_at = models.DateTimeField(_("finished"), null=True)
    compensable = models.BooleanField(_("can be undone"), default=False)
    compensation = models.CharField(_("compensation"), max_length=20, choices=Undo, blank=True)
    compensation_error = PayloadField(_("compensation's error"))
    compensated_at = models.DateTimeField(_("compensated"), null=True, blank=True)

    objects = OwnDatabase()

    class Meta:
        verbose_name = _("step")
        verbose_name_plural = _("steps")
        default_permissions = READ_ONLY
        constraints = [models.UniqueConstraint(fields=["execution", "branch", "index"], name="finoflow_step_place")]

    def __str__(self) -> str:
        return f"{self.index} {self.step_id}"

    @property
    def is_settled(self) -> bool:
        """Whether no attempt follows: the step is done, or has failed for good."""
        return self.status in (StepStatus.DONE, StepStatus.FAILED)


class Wait(Checkpoint):
    """A place where a run is parked, and its own checkpoint. With an ``approval`` it is a gate: a person answers it."""

    kind = models.CharField(_("kind"), max_length=20, choices=WaitKind)
    name = models.CharField(_("name"), max_length=200)
    opened_at = models.DateTimeField(_("opened"))
    due_at = models.DateTimeField(_("due"), null=True, blank=True)
    closed_at = models.DateTimeField(_("closed"), null=True, blank=True)
    outcome = models.CharField(_("outcome"), max_length=20, choices=Outcome, default=Outcome.OPEN)
    approval = PayloadField(_("approval"))
    #: Who may decide, as canonical JSON (see ``audience.Audience``); and its digest, by which ``Candidate`` has it.
    audience = models.TextField(_("audience"), blank=True)
    audience_digest = models.CharField(_("audience's digest"), max_length=64, blank=True, default="", db_default="")
    #: The names of gates whose deciders may not decide this one, each between two line ends.
    excludes = models.TextField(_("excludes the deciders of"), blank=True, default="", db_default="")
    claimed_by = models.ForeignKey(
        settings.AUTH_USER_MODEL, models.SET_NULL, null=True, blank=True, related_name="+", verbose_name=_("claimed by")
    )
    claimed_by_name = models.CharField(_("claimed by (name)"), max_length=255, blank=True, default="", db_default="")
    claimed_at = models.DateTimeField(_("claimed"), null=True, blank=True)
    #: When the next reminder or escalation is due, and how many have been given. The schedule is in ``approval``.
    notice_due_at = models.DateTimeField(_("next notice"), null=True, blank=True)
    notices = models.PositiveIntegerField(_("notices given"), default=0, db_default=0)

    objects = OwnDatabase.from_queryset(WaitQuerySet)()

    class Meta:
        # What people call it: only gates have pages, and only they need to see them.
        verbose_name = _("gate")
        verbose_name_plural = _("gates")
        default_permissions = READ_ONLY
        permissions = [
            ("decide_wait", _("Can decide gates that name nobody else")),
            ("override_gate", _("Can decide any gate against its rules")),
        ]
        constraints = [models.UniqueConstraint(fields=["execution", "branch", "index"], name="finoflow_wait_place")]
        indexes = [
            models.Index(fields=["outcome", "opened_at", "id"], name="finoflow_open_waits"),
            models.Index(
                fields=["due_at", "opened_at", "id"],
                condition=Q(outcome=Outcome.OPEN, approval__isnull=False),
                name="finoflow_open_gates",
            ),
            # The same gates and all gates, of one audience each: what a person finds in the inbox, and in the admin.
            models.Index(
                fields=["audience_digest", "due_at", "opened_at", "id"],
                condition=Q(outcome=Outcome.OPEN, approval__isnull=False),
                name="finoflow_asked",
            ),
            models.Index(
                fields=["audience_digest", "-closed_at", "opened_at", "id"],
                condition=Q(approval__isnull=False),
                name="finoflow_concerned",
            ),
            models.Index(
                fields=["-closed_at", "opened_at", "id"],
                condition=Q(approval__isnull=False),
                name="finoflow_open_first",
            ),
            models.Index(
                fields=["notice_due_at"],
                condition=Q(outcome=Outcome.OPEN, notice_due_at__isnull=False),
                name="finoflow_notices",
            ),
        ]

    def __str__(self) -> str:
        return self.title

    @property
    def is_gate(self) -> bool:
        """Whether a person answers this wait."""
        return self.approval is not None

    @property
    def is_open(self) -> bool:
        """Whether nothing has ended this wait yet."""
        return self.outcome == Outcome.OPEN

    @property
    def shown(self) -> dict[str, Any]:
        """What a person is shown, in the order in which the approval names it (a stored mapping has none)."""
        asked = self.approval or {}
        values = asked.get("show") or {}
        return {label: values[label] for label in [*asked.get("labels", ()), *values] if label in values}

    @property
    def title(self) -> str:
        """What a person is asked, or the wait's name."""
        return (self.approval or {}).get("title") or self.name


class Signal(models.Model):
    """A named message to one run, as it was accepted."""

    execution = models.ForeignKey(
        Execution, models.CASCADE, related_name="signals", db_index=False, verbose_name=_("run")
    )
    name = models.CharField(_("name"), max_length=200)
    sequence = models.PositiveIntegerField(_("sequence"), default=0)
    payload = PayloadField(_("payload"))
    received_at = models.DateTimeField(_("received"))
    sender = models.CharField(_("sender"), max_length=255, blank=True)
    consumed_by = models.OneToOneField(
        Wait, models.SET_NULL, null=True, blank=True, related_name="signal", verbose_name=_("consumed by")
    )

    objects = OwnDatabase()

    class Meta:
        verbose_name = _("signal")
        verbose_name_plural = _("signals")
        default_permissions = READ_ONLY
        constraints = [
            models.UniqueConstraint(fields=["execution", "name", "sequence"], name="finoflow_signal_sequence")
        ]

    def __str__(self) -> str:
        return self.name
