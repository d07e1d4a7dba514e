"""Why an answer to a gate would be refused: the one place that decides about it, for decisions, claims and pages.

Within a transaction that has locked the gate's run the answers are final; elsewhere they hold for the moment.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

from django.utils.translation import gettext as _

from . import answers, clock
from .audience import Audience, holds
from .exceptions import DecisionRefused, RunNotFound
from .models import Decision, Execution, Wait
from .names import why_not as why_no_name
from .reading import check_run_id
from .statuses import OPEN_TO_SIGNALS
from .telling import moment, one_stop, story
from .verdicts import digest_of

OVERRIDE = "finoflow.override_gate"


def locked_gate(run_id: str, name: str, wait: Wait | int | None) -> Wait:
    """Lock a run, within a transaction, and return its gate of that name, with the run as its ``execution``.

    Raises:
        RunNotFound: no run has that id.
        DecisionRefused: it has no such gate (``not-a-gate``), or several open ones (``ambiguous``).
    """
    if why_no_name(name):
        raise DecisionRefused(f"Run {run_id} has no gate {name!r}.", "not-a-gate")
    check_run_id(run_id)
    run = Execution.objects.filter(run_id=run_id).locked()
    if run is None:
        raise RunNotFound(f"There is no run {run_id!r}.")
    named = Wait.objects.filter(execution=run, name=name)
    if wait is not None:
        found = list(named.filter(pk=wait.pk if isinstance(wait, Wait) else wait)) or _of_another(run, name, wait)
    else:
        found = list(named.gates().open()) or list(named.gates().order_by("-index")[:1])
    if not found or not found[0].is_gate:
        raise DecisionRefused(f'Run {run.run_id} has no gate "{name}".', "not-a-gate")
    if len(found) > 1:
        raise DecisionRefused(f'Run {run.run_id} has several open gates "{name}": say which by wait=.', "ambiguous")
    found[0].execution = run
    return found[0]


def _of_another(run: Execution, name: str, wait: Wait | int) -> list[Wait]:
    """Refuse a wait that exists, but is not one of this run's gates of that name."""
    other = Wait.objects.filter(pk=wait.pk if isinstance(wait, Wait) else wait).select_related("execution").first()
    if other is not None:
        theirs = f'"{other.name}" of run {other.execution.run_id}'
        text = f'wait={other.pk} is that of another gate, {theirs}, and not of "{name}" of run {run.run_id}.'
        raise DecisionRefused(text, "not-a-gate")
    return []


def token(gate: Wait) -> str:
    """Return a digest of a gate's state: what is shown, who may decide, who has, who claims it. A page carries it.

    See rule A4.
    """
    claim = [gate.claimed_by_name, gate.claimed_at]
    return digest_of(
        gate.pk, gate.outcome, gate.audience, gate.approval, gate.decisions.count(), claim, answers.shape(gate)
    )


def why_not(gate: Wait, user: Any, membership: Collection[str] | None = None) -> DecisionRefused | None:
    """Return the refusal that an answer of ``user`` to this gate would meet now, as far as that can be said beforehand.

    Args:
        gate: the gate.
        user: a Django user.
        membership: the names of the user's groups, if they are known already; a page of gates asks for them once.
    """
    try:
        check_open(gate)
        check_asked(gate, user, membership)
        check_unanswered(gate, user)
        answers.check_known(gate)
    except DecisionRefused as refusal:
        return refusal
    return None


def is_asked(gate: Wait, user: Any, membership: Collection[str] | None = None) -> bool:
    """Whether this gate, open or not, is a question for ``user``. Arguments as for ``why_not``."""
    try:
        check_asked(gate, user, membership)
    except DecisionRefused:
        return False
    return True


def may_override(user: Any) -> bool:
    """Whether ``user`` may decide gates against their rules."""
    return bool(user.is_active and user.pk is not None and holds(user, OVERRIDE))


def needs_reason(gate: Wait, approved: bool, *, override: bool = False) -> bool:
    """Whether that answer to this gate must give a reason."""
    rule = (gate.approval or {}).get("require_reason")
    return override or rule == "always" or (rule == "reject" and not approved)


def check_open(gate: Wait) -> None:
    """Refuse what comes too late (rule A3)."""
    if not gate.is_open or gate.execution.status not in OPEN_TO_SIGNALS:
        raise DecisionRefused(
            _('"%(gate)s" takes no answer any more. ') % {"gate": gate.title} + story(gate), "not-open"
        )
    if gate.due_at is not None and gate.due_at <= clock.now():
        when = {"gate": gate.title, "when": moment(gate.due_at)}
        text = _('"%(gate)s" takes no answer any more: its deadline passed on %(when)s.') % when
        raise DecisionRefused(one_stop(text), "expired")


def check_asked(gate: Wait, user: Any, membership: Collection[str] | None = None) -> None:
    """Refuse whom the gate does not ask, or excludes, superusers included (rule A2)."""
    if not Audience.loads(gate.audience).admits(user, membership):
        raise DecisionRefused(_('You may not decide "%(gate)s".') % {"gate": gate.title}, "not-eligible")
    approval, run = gate.approval or {}, gate.execution
    if approval.get("exclude_requester") and run.requester_id is not None and run.requester_id == user.pk:
        raise DecisionRefused(
            _("You asked for this, so somebody else must decide."),
            "excluded",
        )
    if approval.get("exclude_deciders_of") and (other := _decided_before(gate, user, approval["exclude_deciders_of"])):
        text = _('"%(gate)s" must be decided by somebody else than "%(other)s", which you have decided.')
        raise DecisionRefused(text % {"gate": gate.title, "other": other}, "excluded")


def check_unanswered(gate: Wait, user: Any) -> None:
    """Refuse a second answer of one person."""
    if any(decision.user_id == user.pk for decision in gate.decisions.all()):
        raise DecisionRefused(_('You have answered "%(gate)s" already.') % {"gate": gate.title}, "already-answered")


def _decided_before(gate: Wait, user: Any, names: Collection[str]) -> str:
    """Return which of those gates of the same run ``user`` has decided; none: the empty text.

    Gates that come from ``WaitQuerySet.marked_for`` know that already, for their user.
    """
    marked = vars(gate).get("marked_for")
    if marked is not None and marked == str(user.pk):
        return ", ".join(names) if vars(gate)["is_excluded"] else ""
    made = Decision.objects.filter(user_id=user.pk, wait__execution=gate.execution_id, wait__name__in=names)
    return made.exclude(wait=gate.pk).values_list("wait__name", flat=True).first() or ""
