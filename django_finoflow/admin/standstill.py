"""Why a run does not move, in plain words: what it waits for, since when, and what somebody can do about it.

It is read from the run's rows and from what this process knows. A web process does not know which workers run, so what
it cannot know it asks.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from datetime import datetime, timedelta
from typing import Any, NamedTuple

from django.db.models.functions import Now
from django.utils.timesince import timesince
from django.utils.translation import gettext as _

from .. import clock, decisions, registry, standing, values
from ..models import Execution, Step, Wait
from ..statuses import Rollback, RunStatus, StepStatus, StuckReason, WaitKind

#: How long a run may be due before somebody should wonder.
PATIENCE = timedelta(minutes=1)


#: What a gate's ``on_reject="fail"`` is recorded as.
REJECTED = "django_finoflow.exceptions.GateRejected"


class Reason(NamedTuple):
    """One thing that keeps a run, and what to do about it, if anything is."""

    sentence: str
    advice: str = ""
    link: str = ""
    is_trouble: bool = False

    @property
    def text(self) -> str:
        """The sentence, with one full stop: a moment that ends it may bring its own ("5 p.m.")."""
        return re.sub(r"(?<!\.)\.\.(?= |$)", ".", self.sentence)


def of(run: Execution, waits: Iterable[Wait], steps: Iterable[Step], link: Callable[[Wait], str]) -> dict[str, Any]:
    """Return what the page of a run says about it, or an empty mapping if it is over and well.

    Args:
        run: the run.
        waits: its open waits.
        steps: its steps whose next attempt is due, or will be.
        link: gives the address of a wait's page, or nothing.
    """
    retrying = [step for step in steps if step.status == StepStatus.RETRYING]
    reasons = _reasons(run, [wait for wait in waits if wait.is_open], retrying, link)
    return (
        {
            "title": _title(run, reasons),
            "reasons": reasons,
            "pair": (run.error or {}).get("mismatch") if run.status == RunStatus.STUCK else None,
            "is_trouble": any(reason.is_trouble for reason in reasons),
        }
        if reasons
        else {}
    )


def _title(run: Execution, reasons: list[Reason]) -> str:
    if any(reason.is_trouble for reason in reasons):
        return _("Why it does not move")
    return _("How it ended") if run.is_over else _("What it is doing")


def _reasons(run: Execution, waits: list[Wait], steps: list[Step], link: Callable[[Wait], str]) -> list[Reason]:
    if run.status in (RunStatus.DONE, RunStatus.CANCELLED):
        return []
    if run.status == RunStatus.ERROR:
        return [_failed(run)]
    if run.status == RunStatus.STUCK:
        return [stuck(run), *_unknown(run)]
    if run.lease_until is not None:
        return [_driven(run)]
    if run.due_at is not None and run.due_at <= clock.now():
        return [_due(run), *_unknown(run), *_overdue(waits, link)]
    opened = [_waits_for(wait, link) for wait in waits] + [_retries(step) for step in steps]
    return [*(opened or [_else(run)]), *_unknown(run)]


def stuck(run: Execution) -> Reason:
    """Return why a stuck run is stuck, and what to do."""
    match run.stuck_reason:
        case StuckReason.REPLAY_MISMATCH:
            text = _("It is stuck: the code asks for other checkpoints than the run has recorded.")
            advice = _(
                "Bring the old order back, or keep the old code as its version, and start a worker: each tries such "
                "runs once when it starts. Or press Retry when the code is right."
            )
        case StuckReason.COMPENSATION_FAILED:
            text = _("It is stuck: a compensation has failed, or the run that is being undone cannot be replayed.")
            advice = _("Mend it, then press Resume. Or undo the rest by hand and press Abandon.")
        case StuckReason.TOO_MANY_CRASHES:
            text = _("It is stuck: too many workers died while they drove it, each in the same place.")
            advice = _("Mend the cause (memory? a library that crashes?), then press Retry.")
        case _:
            text, advice = _("It is stuck."), ""
    since = _(" It has been so for %s.") % ago(run.updated_at)
    return Reason(text + since, advice, is_trouble=True)


def _failed(run: Execution) -> Reason:
    error = run.error or {}
    if error.get("type") == REJECTED:
        undone = _("What it had done was undone.") if run.rollback == Rollback.COMPLETED else ""
        return Reason(_("It has ended with a rejection: %s.") % error.get("message", ""), undone)
    text = _("It has failed, and goes on by itself no more.")
    if standing.can_retry(run):
        return Reason(text, _("Retry tries the failed steps afresh; what is done stays done."), is_trouble=True)
    return Reason(text, _("What it had done was undone, so it cannot be tried again: start another."), is_trouble=True)


def _driven(run: Execution) -> Reason:
    until = {"worker": run.lease_owner, "until": values.moment(run.lease_until)}
    if Execution.objects.filter(pk=run.pk, lease_until__gt=Now()).exists():
        text = _("A worker (%(worker)s) is driving it. Its lease, which it renews, lasts until %(until)s.")
        return Reason(text % until)
    text = _("The worker that drove it (%(worker)s) has been silent, and its lease ran out at %(until)s.") % until
    return Reason(text, _("The next worker that knows it takes it over. Is one running?"), is_trouble=True)


def _due(run: Execution) -> Reason:
    queue = {"queue": run.queue, "ago": ago(run.due_at)}
    if run.due_at is not None and run.due_at > clock.now() - PATIENCE:
        return Reason(_("It is due: the next free worker of queue “%(queue)s” takes it.") % queue)
    text = _("It has been due for %(ago)s, but no worker has taken it.") % queue
    if _unknown(run):
        return Reason(text, is_trouble=True)
    busy = Execution.objects.filter(queue=run.queue, lease_until__gt=Now()).exists()
    advice = _("Is a worker running (manage.py finoflow_worker), and does it take queue “%(queue)s”?")
    if busy:
        advice = _("Workers are busy with other runs of queue “%(queue)s”. Are there enough, and do they know this?")
    return Reason(text, advice % queue, is_trouble=True)


def _unknown(run: Execution) -> list[Reason]:
    if (run.workflow_id, run.version) in registry.known():
        return []
    text = _("This process does not know workflow “%(workflow)s”, version %(version)s.")
    place = {"workflow": run.workflow_id, "version": run.version}
    advice = _("If the workers do not either, nobody can drive it: deploy its code, in a workflows.py of an app.")
    return [Reason(text % place, advice, is_trouble=True)]


def _overdue(waits: list[Wait], link: Callable[[Wait], str]) -> list[Reason]:
    late = [wait for wait in waits if wait.due_at is not None and wait.due_at <= clock.now()]
    text = _("The deadline of “%(wait)s” passed at %(when)s; whoever drives the run next closes it.")
    return [Reason(text % {"wait": w.title, "when": values.moment(w.due_at)}, link=link(w)) for w in late]


def _waits_for(wait: Wait, link: Callable[[Wait], str]) -> Reason:
    said = {"name": wait.title, "ago": ago(wait.opened_at), "until": values.moment(wait.due_at)}
    if wait.is_gate:
        said["who"] = decisions.candidates_text(wait)
        text = _("It has waited for %(ago)s for an answer to “%(name)s”. Who may give it: %(who)s.")
    elif wait.kind == WaitKind.TIMER:
        return Reason(_("It sleeps (“%(name)s”) until %(until)s.") % said)
    elif wait.kind == WaitKind.CHILD:
        text = _("It has waited for %(ago)s for its child run “%(name)s” to end.")
    else:
        text = _("It has waited for %(ago)s for the signal “%(name)s”, which comes from code.")
    return Reason(text % said + (_(" Its deadline is %(until)s.") % said if wait.due_at else ""), link=link(wait))


def _retries(step: Step) -> Reason:
    text = _("Attempt %(number)s at “%(step)s” failed; the next is due at %(when)s.")
    return Reason(text % {"number": step.attempts, "step": step.step_id, "when": values.moment(step.due_at)})


def _else(run: Execution) -> Reason:
    """Return what is left to say of a run that is neither due nor driven, and has nothing open."""
    if run.due_at is not None:
        return Reason(_("It begins, or goes on, at %s.") % values.moment(run.due_at))
    if run.status == RunStatus.COMPENSATING:
        return Reason(_("It is being undone, and waits for the undoing of a child run."))
    return Reason(_("Nothing that it waits for is recorded, and it is not due."), is_trouble=True)


def ago(moment: datetime | None) -> str:
    """Return how long ago a moment was."""
    if moment is None or clock.now() - moment < timedelta(minutes=1):
        return _("a moment")
    return timesince(moment, clock.now())
