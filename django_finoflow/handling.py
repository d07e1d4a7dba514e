"""Who works on a gate: claim it, release it, hand it on. Each is one transaction that locks the run first.

A claim tells others who is at it. It keeps nobody from deciding: no payment waits because whoever claimed it is away.
It changes the gate's token, so a page that was shown before it asks again.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from django.db import transaction
from django.utils.translation import gettext as _

from . import clock, conf, deliveries, events, payloads
from .audience import check_user
from .exceptions import DecisionRefused
from .models import GateEvent, Wait
from .refusals import check_asked, check_open, check_unanswered, locked_gate, may_override
from .statuses import GateEventKind
from .telling import moment, one_stop

NOBODY: tuple[Any, str] = (None, "")


def claim_gate(run_id: str, name: str, *, user: Any, wait: Wait | int | None = None) -> Wait:
    """Note that ``user`` works on a gate. Who holds it already changes nothing.

    Args:
        run_id: the run.
        name: the gate's name.
        user: who claims it; only those who may decide it may.
        wait: the very gate, or its primary key; needed when several of that name are open.

    Returns:
        The gate.

    Raises:
        RunNotFound: no run has that id.
        DecisionRefused: as for ``decide``; or somebody else holds it (``claimed``). Nothing was written.
        TypeError: ``user`` is no user.
    """
    check_user("claim_gate(user=...)", user)
    with _open_gate(run_id, name, wait) as gate:
        check_asked(gate, user)
        check_unanswered(gate, user)
        _check_free(gate, user)
        if gate.claimed_by_id != user.pk:
            _hand(gate, user)
            _note(gate, GateEventKind.CLAIMED, user)
        return gate


def release_gate(run_id: str, name: str, *, user: Any, wait: Wait | int | None = None) -> Wait:
    """End the claim of a gate. Its holder may, and holders of ``finoflow.override_gate``.

    Arguments and what is returned as for ``claim_gate``.

    Raises:
        RunNotFound: no run has that id.
        DecisionRefused: ``not-claimed``: nobody holds it, or somebody else than ``user``; or as for ``decide``.
    """
    check_user("release_gate(user=...)", user)
    with _open_gate(run_id, name, wait) as gate:
        if gate.claimed_by_id is None:
            raise DecisionRefused(_('Nobody has claimed "%(gate)s".') % {"gate": gate.title}, "not-claimed")
        if gate.claimed_by_id != user.pk and not may_override(user):
            raise DecisionRefused(_claimed(gate), "not-claimed")
        holder = (gate.claimed_by_id, gate.claimed_by_name) if gate.claimed_by_id != user.pk else NOBODY
        deliveries.unclaim(gate)
        _note(gate, GateEventKind.RELEASED, user, holder)
        return gate


def delegate_gate(
    run_id: str, name: str, *, user: Any, to: Any, wait: Wait | int | None = None, note: str = ""
) -> Wait:
    """Hand a gate on: from now on ``to`` holds it.

    Args:
        run_id: the run.
        name: the gate's name.
        user: who hands it on: its holder; or, while nobody holds it, anybody who may decide it.
        to: whom to; they must be among those who may decide it.
        wait: the very gate, or its primary key; needed when several of that name are open.
        note: what to tell them.

    Returns:
        The gate.

    Raises:
        RunNotFound: no run has that id.
        DecisionRefused: as for ``decide``, about ``user`` or ``to``; or somebody else holds it (``claimed``).
        PayloadError: the note cannot be stored.
        TypeError: ``user`` or ``to`` is no user.
    """
    check_user("delegate_gate(user=...)", user)
    check_user("delegate_gate(to=...)", to)
    note = (note or "").strip()
    payloads.dumps(note)
    with _open_gate(run_id, name, wait) as gate:
        check_asked(gate, user)
        check_unanswered(gate, user)
        _check_free(gate, user)
        _check_receiver(gate, to)
        if gate.claimed_by_id != to.pk:
            _hand(gate, to)
            _note(gate, GateEventKind.DELEGATED, user, (to.pk, str(to.get_username())), note)
            _tell_delegated(gate, user, to)
        return gate


@contextmanager
def _open_gate(run_id: str, name: str, wait: Wait | int | None) -> Iterator[Wait]:
    with transaction.atomic(using=conf.database()):
        gate = locked_gate(run_id, name, wait)
        check_open(gate)
        yield gate


def _check_free(gate: Wait, user: Any) -> None:
    if gate.claimed_by_id not in (None, user.pk):
        raise DecisionRefused(_claimed(gate), "claimed")


def _check_receiver(gate: Wait, to: Any) -> None:
    """Refuse somebody who may not decide, in words about them."""
    try:
        check_asked(gate, to)
        check_unanswered(gate, to)
    except DecisionRefused as refusal:
        words = {"who": str(to.get_username()), "gate": gate.title}
        said = {
            "not-eligible": _('%(who)s may not decide "%(gate)s".'),
            "excluded": _('%(who)s is excluded from deciding "%(gate)s".'),
            "already-answered": _('%(who)s has answered "%(gate)s" already.'),
        }
        raise DecisionRefused(said[refusal.code] % words, refusal.code) from None


def _claimed(gate: Wait) -> str:
    words = {"gate": gate.title, "who": gate.claimed_by_name, "when": moment(gate.claimed_at)}
    return one_stop(_('"%(gate)s" is claimed by %(who)s, since %(when)s.') % words)


def _hand(gate: Wait, user: Any) -> None:
    gate.claimed_by_id, gate.claimed_by_name, gate.claimed_at = user.pk, str(user.get_username()), clock.now()
    gate.save(update_fields=["claimed_by", "claimed_by_name", "claimed_at"])


def _note(gate: Wait, kind: GateEventKind, user: Any, to: tuple[Any, str] = NOBODY, note: str = "") -> None:
    GateEvent.objects.create(
        wait=gate,
        kind=kind,
        user_id=user.pk,
        user_name=str(user.get_username()),
        to_user_id=to[0],
        to_name=to[1],
        note=note,
        happened_at=clock.now(),
    )


def _tell_delegated(gate: Wait, user: Any, to: Any) -> None:
    run = gate.execution
    facts = {"name": gate.name, "wait": gate.pk, "by": str(user.get_username()), "to": str(to.get_username())}
    events.announce(events.gate_delegated, using=conf.database(), sender=run.workflow_id, run_id=run.run_id, **facts)
