"""The few words a row's state is told in. Each is stored as written here and shown with its label.

They are plain ``TextChoices``, so that admin filters and templates can use them, and importing them needs no app
registry.
"""

from django.db.models import TextChoices
from django.utils.translation import gettext_lazy as _


class RunStatus(TextChoices):
    """Where a run is. ``stuck`` is not an end: it waits for an operator or a deployment."""

    RUNNING = "running", _("running")
    WAITING = "waiting", _("waiting")
    COMPENSATING = "compensating", _("compensating")
    DONE = "done", _("done")
    ERROR = "error", _("error")
    CANCELLED = "cancelled", _("cancelled")
    STUCK = "stuck", _("stuck")


#: A run that has one of these is over; nothing but a retry, ``.resume()`` or ``delete_run`` changes it.
TERMINAL = frozenset({RunStatus.DONE, RunStatus.ERROR, RunStatus.CANCELLED})

#: A run that has one of these takes signals and decisions.
OPEN_TO_SIGNALS = frozenset({RunStatus.RUNNING, RunStatus.WAITING})


class StuckReason(TextChoices):
    """Why a stuck run is stuck."""

    REPLAY_MISMATCH = "replay-mismatch", _("replay mismatch")
    COMPENSATION_FAILED = "compensation-failed", _("compensation failed")
    TOO_MANY_CRASHES = "too-many-crashes", _("too many crashes")


class Rollback(TextChoices):
    """What became of a failed run's compensations."""

    COMPLETED = "completed", _("completed")
    NOT_APPLICABLE = "not-applicable", _("not applicable")
    STUCK = "stuck", _("stuck")


class StepKind(TextChoices):
    """What made a step's checkpoint; ``map`` and ``branch`` are a builder workflow's."""

    STEP = "step", _("step")
    ACTIVITY = "activity", _("activity")
    MAP = "map", _("map")
    BRANCH = "branch", _("branch")


class StepStatus(TextChoices):
    """How a step stands. ``retrying``: an attempt failed and another is due."""

    DONE = "done", _("done")
    FAILED = "failed", _("failed")
    RETRYING = "retrying", _("retrying")


class Undo(TextChoices):
    """The outcome of one step's compensation."""

    COMPENSATED = "compensated", _("compensated")
    FAILED = "failed", _("failed")
    SKIPPED = "skipped", _("skipped")


class WaitKind(TextChoices):
    """What a run is parked on."""

    TIMER = "timer", _("timer")
    SIGNAL = "signal", _("signal")
    CHILD = "child", _("child run")


class Outcome(TextChoices):
    """How a wait stands or ended."""

    OPEN = "open", _("open")
    SIGNALLED = "signalled", _("signalled")
    FIRED = "fired", _("fired")
    TIMED_OUT = "timed-out", _("timed out")
    CANCELLED = "cancelled", _("cancelled")


class GateEventKind(TextChoices):
    """What else happened at a gate, beside its decisions."""

    CLAIMED = "claimed", _("claimed")
    RELEASED = "released", _("released")
    DELEGATED = "delegated", _("handed on")
    REMINDED = "reminded", _("reminded")
    ESCALATED = "escalated", _("escalated")
