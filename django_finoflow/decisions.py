"""A person's answer to a gate: one transaction that checks everything and writes everything, or nothing (rule A1).

What pages ask about a gate beforehand and afterwards is offered here, too, whichever module answers it.
"""

from __future__ import annotations

from typing import Any

from django.db import transaction
from django.utils.translation import gettext as _

from . import conf, deliveries, payloads, verdicts
from .answers import cleaned, form_for
from .audience import check_user
from .exceptions import DecisionRefused, DefinitionError
from .models import Decision, Wait
from .names import check_name
from .records import TIMER
from .refusals import (
    OVERRIDE,
    check_asked,
    check_open,
    check_unanswered,
    is_asked,
    locked_gate,
    may_override,
    needs_reason,
    token,
    why_not,
)
from .telling import Entry, candidates_text, history_of, own_answer, own_vote, quorum, resolves, story, votes
from .verdicts import digest

__all__ = [
    "OVERRIDE",
    "Entry",
    "candidates_text",
    "decide",
    "digest",
    "form_for",
    "history_of",
    "is_asked",
    "may_override",
    "needs_reason",
    "own_answer",
    "own_vote",
    "quorum",
    "story",
    "token",
    "votes",
    "why_not",
]


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
    override: bool = False,
) -> Decision:
    """Answer a gate in a person's name.

    Args:
        run_id: the run.
        name: the gate's name.
        user: who decides.
        approved: yes or no.
        reason: why; needed as the gate's ``require_reason`` says, and always to override. Blanks are no reason.
        data: what else the answer carries. If the gate has a form, a mapping of what it asks for: the form's cleaned
            data is stored in its place.
        channel: where it came from, for the record: ``api``, ``admin``, …; 20 characters at most.
        wait: the very gate that was shown, or its primary key; needed when several of that name are open.
        seen: the ``token`` of the gate as it was shown; when it has changed since, nothing is decided.
        override: decide at once, whoever is asked, excluded or still needed. Only for holders of
            ``finoflow.override_gate``; the decision is marked.

    Returns:
        The decision, which has moved the run on; unless more must approve (``quorum``), and this is one vote.

    Raises:
        RunNotFound: no run has that id.
        DecisionRefused: ``code`` says why; nothing was written.
        PayloadError: the reason or the data cannot be stored.
        DefinitionError: the channel is no name, or that of deadlines (``timer``).
        TypeError: ``approved`` or ``override`` is not a bool, or ``user`` no user.
    """
    check_user("decide(user=...)", user)
    _check_channel(channel)
    _check_bool("approved", approved)
    _check_bool("override", override)
    reason = (reason or "").strip()
    payloads.dumps(reason)
    with transaction.atomic(using=conf.database()):
        gate = locked_gate(run_id, name, wait)
        check_open(gate)
        _check_may(gate, user, override)
        check_unanswered(gate, user)
        _check_seen(gate, seen)
        if not reason and needs_reason(gate, approved, override=override):
            raise DecisionRefused(_("Give a reason."), "reason-required")
        kept = cleaned(gate, data)
        made = verdicts.record(
            gate, user, approved=approved, reason=reason, data=kept, channel=channel, override=override
        )
        _count(gate, made)
        return made


def _count(gate: Wait, made: Decision) -> None:
    """Answer the gate, if this was the last decision that was needed."""
    if resolves(gate, made):
        deliveries.accept(gate.execution, gate, gate.name, verdicts.payload(made), sender=made.user_name)
        verdicts.announce(gate.execution, gate, made)
    elif gate.claimed_by_id == made.user_id:
        deliveries.unclaim(gate)  # whoever has voted has no more to do here


def _check_seen(gate: Wait, seen: str | None) -> None:
    if seen is not None and seen != token(gate):
        raise DecisionRefused(_("The gate has changed since it was shown. Look again and decide."), "changed")


def _check_may(gate: Wait, user: Any, override: bool) -> None:
    if not override:
        check_asked(gate, user)
    elif not may_override(user):
        text = _('You may not decide "%(gate)s" against its rules.')
        raise DecisionRefused(text % {"gate": gate.title}, "not-eligible")


def _check_channel(channel: Any) -> None:
    if check_name(channel, "decide(channel=...)", longest=20) == TIMER:
        raise DefinitionError(f'decide(channel="{TIMER}"): that is what a deadline decides by, and no person.')


def _check_bool(name: str, value: Any) -> None:
    if not isinstance(value, bool):
        raise TypeError(f"decide({name}=...) is True or False, not {value!r}.")
