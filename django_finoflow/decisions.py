"""A person's answer to a gate: one transaction that checks everything and writes everything, or nothing (rule A1)."""

from __future__ import annotations

import hashlib
from collections.abc import Collection
from typing import Any

from django.db import transaction
from django.utils import formats, timezone
from django.utils.translation import gettext as _

from . import clock, conf, events, names, payloads, waits
from .approval import Audience
from .exceptions import DecisionRefused, RunNotFound
from .models import Decision, Execution, Wait
from .names import check_name
from .reading import check_run_id
from .statuses import OPEN_TO_SIGNALS, Outcome


def decide(
    run_id: str,
    name: str,
    *,
    user: Any,
    approved: bool,
    reason: str = "",
    data: Any = None,
    channel: str = "api",
    wait: Wait | int | None = None,
    seen: str | None = None,
) -> Decision:
    """Answer a gate in a person's name.

    Args:
        run_id: the run.
        name: the gate's name.
        user: who decides.
        approved: yes or no.
        reason: why; needed as the gate's ``require_reason`` says. Blanks are no reason.
        data: what else the answer carries.
        channel: where it came from, for the record: ``api``, ``admin``, …; 20 characters at most.
        wait: the very gate that was shown, or its primary key; needed when several of that name are open.
        seen: the ``token`` of the gate as it was shown; when it has changed since, nothing is decided.

    Returns:
        The decision, which has moved the run on.

    Raises:
        RunNotFound: no run has that id.
        DecisionRefused: ``code`` says why; nothing was written.
        PayloadError: the reason or the data cannot be stored.
        DefinitionError: the channel is no name.
        TypeError: ``approved`` is not a bool.
    """
    check_name(channel, "decide(channel=...)", longest=20)
    reason = (reason or "").strip()
    payloads.dumps([reason, data])
    if names.why_not(name):
        raise DecisionRefused(f"Run {run_id} has no gate {name!r}.", "not-a-gate")
    check_run_id(run_id)
    with transaction.atomic(using=conf.database()):
        run = Execution.objects.filter(run_id=run_id).locked()
        if run is None:
            raise RunNotFound(f"There is no run {run_id!r}.")
        gate = _gate(run, name, wait)
        _check_open(run, gate)
        _check_asked(run, gate, user)
        _check_unanswered(gate, user)
        if seen is not None and seen != token(gate):
            raise DecisionRefused(_("The gate has changed since it was shown. Look again and decide."), "changed")
        _check_answer(gate, approved, reason)
        return _record(run, gate, user, approved, reason, data, channel)


def token(gate: Wait) -> str:
    """Return a digest of a gate's state: what is shown, who may decide, who has. A page carries it (rule A4)."""
    return _digest(gate.pk, gate.outcome, gate.audience, gate.approval, gate.decisions.count())


def digest(gate: Wait) -> str:
    """Return a digest of what a gate shows; a decision keeps it."""
    return _digest(gate.name, gate.approval)


def why_not(gate: Wait, user: Any, membership: Collection[str] | None = None) -> DecisionRefused | None:
    """Return the refusal that an answer of ``user`` to this gate would meet now, as far as that can be said beforehand.

    Args:
        gate: the gate.
        user: a Django user.
        membership: the names of the user's groups, if they are known already; a page of gates asks for them once.
    """
    try:
        _check_open(gate.execution, gate)
        _check_asked(gate.execution, gate, user, membership)
        _check_unanswered(gate, user)
    except DecisionRefused as refusal:
        return refusal
    return None


def is_asked(gate: Wait, user: Any, membership: Collection[str] | None = None) -> bool:
    """Whether this gate, open or not, is a question for ``user``. Arguments as for ``why_not``."""
    try:
        _check_asked(gate.execution, gate, user, membership)
    except DecisionRefused:
        return False
    return True


def needs_reason(gate: Wait, approved: bool) -> bool:
    """Whether that answer to this gate must give a reason."""
    rule = (gate.approval or {}).get("require_reason")
    return rule == "always" or (rule == "reject" and not approved)


def story(gate: Wait) -> str:
    """Return what became of a gate, by whom and when (rule A3); an open one is open."""
    return _stopped(_story(gate))


def _story(gate: Wait) -> str:
    last = max(gate.decisions.all(), key=lambda decision: (decision.decided_at, decision.pk), default=None)
    if last is not None and gate.outcome == Outcome.SIGNALLED:
        who = {"who": last.user_name, "when": _when(last.decided_at)}
        return (_("%(who)s approved it on %(when)s.") if last.approved else _("%(who)s rejected it on %(when)s.")) % who
    if gate.outcome == Outcome.SIGNALLED:
        return _("A signal from code answered it on %(when)s.") % {"when": _when(gate.closed_at)}
    if gate.outcome == Outcome.TIMED_OUT:
        return _("Its deadline passed on %(when)s.") % {"when": _when(gate.due_at)}
    if gate.outcome == Outcome.CANCELLED:
        return _("Its run ended on %(when)s: %(status)s.") % {
            "when": _when(gate.closed_at),
            "status": gate.execution.get_status_display(),
        }
    if gate.execution.status not in OPEN_TO_SIGNALS:
        return _("Its run is %(status)s and takes no decision.") % {"status": gate.execution.get_status_display()}
    return _("It is open.")


def _gate(run: Execution, name: str, wait: Wait | int | None) -> Wait:
    named = Wait.objects.filter(execution=run, name=name)
    if wait is not None:
        found = list(named.filter(pk=wait.pk if isinstance(wait, Wait) else wait))
    else:
        found = list(named.gates().open()) or list(named.gates().order_by("-index")[:1])
    if not found or not found[0].is_gate:
        raise DecisionRefused(f'Run {run.run_id} has no gate "{name}".', "not-a-gate")
    if len(found) > 1:
        raise DecisionRefused(f'Run {run.run_id} has several open gates "{name}": say which by wait=.', "ambiguous")
    found[0].execution = run
    return found[0]


def _check_open(run: Execution, gate: Wait) -> None:
    if not gate.is_open or run.status not in OPEN_TO_SIGNALS:
        raise DecisionRefused(
            _('"%(gate)s" takes no answer any more. ') % {"gate": gate.title} + story(gate), "not-open"
        )
    if gate.due_at is not None and gate.due_at <= clock.now():
        when = {"gate": gate.title, "when": _when(gate.due_at)}
        text = _('"%(gate)s" takes no answer any more: its deadline passed on %(when)s.') % when
        raise DecisionRefused(_stopped(text), "expired")


def _check_asked(run: Execution, gate: Wait, user: Any, membership: Collection[str] | None = None) -> None:
    if not Audience.loads(gate.audience).admits(user, membership):
        raise DecisionRefused(_('You may not decide "%(gate)s".') % {"gate": gate.title}, "not-eligible")
    if (gate.approval or {}).get("exclude_requester") and run.requester_id is not None and run.requester_id == user.pk:
        raise DecisionRefused(
            _('"%(gate)s" must be decided by somebody else than the one who asked for it.') % {"gate": gate.title},
            "excluded",
        )


def _check_unanswered(gate: Wait, user: Any) -> None:
    if any(decision.user_id == user.pk for decision in gate.decisions.all()):
        raise DecisionRefused(_('You have answered "%(gate)s" already.') % {"gate": gate.title}, "already-answered")


def _check_answer(gate: Wait, approved: Any, reason: str) -> None:
    if not isinstance(approved, bool):
        raise TypeError(f"decide(approved=...) is True or False, not {approved!r}.")
    if not reason and needs_reason(gate, approved):
        raise DecisionRefused(_("Give a reason."), "reason-required")


def _record(run: Execution, gate: Wait, user: Any, approved: bool, reason: str, data: Any, channel: str) -> Decision:
    now = clock.now()
    decision = Decision.objects.create(
        wait=gate,
        user_id=user.pk,
        user_name=str(user.get_username()),
        approved=approved,
        reason=reason,
        data=data,
        channel=channel,
        digest=digest(gate),
        decided_at=now,
    )
    answer = {
        "approved": approved,
        "by": str(user.get_username()),
        "by_id": user.pk,
        "reason": reason,
        "data": data,
        "at": now,
    }
    waits.accept(run, gate, gate.name, answer, sender=str(user.get_username()))
    events.announce(
        events.gate_decided,
        using=conf.database(),
        sender=run.workflow_id,
        run_id=run.run_id,
        name=gate.name,
        approved=approved,
        by=str(user.get_username()),
    )
    return decision


def _digest(*parts: Any) -> str:
    return hashlib.sha256(payloads.to_json(payloads.encode(list(parts))).encode()).hexdigest()


def _stopped(sentence: str) -> str:
    """Return a sentence with one full stop: a moment that ends it may bring its own ("5 p.m.")."""
    return sentence[:-1] if sentence.endswith("..") else sentence


def _when(moment: Any) -> str:
    return formats.date_format(timezone.localtime(moment), "DATETIME_FORMAT") if moment else "?"
