"""A gate in words, for people: what became of it, who may decide it, how many have, and all that happened, in order."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import Any, NamedTuple

from django.utils import formats, timezone
from django.utils.text import Truncator
from django.utils.translation import gettext as _
from django.utils.translation import ngettext

from .audience import Audience
from .models import Decision, GateEvent, Wait
from .standing import can_cancel
from .statuses import OPEN_TO_SIGNALS, GateEventKind, Outcome

LONGEST_REASON = 300  # characters told of what a signal from code gives as its reason


class Entry(NamedTuple):
    """Something that happened at a gate.

    ``kind`` is ``opened``, ``closed``, ``approved``, ``rejected`` or a ``GateEventKind``; ``who`` did it (a username,
    empty for nobody); ``text`` tells it in a sentence, ``note`` is the reason or note that was given with it.
    """

    at: datetime
    kind: str
    text: str
    who: str = ""
    note: str = ""


def story(gate: Wait) -> str:
    """Return what became of a gate, by whom and when (rule A3); an open one is open."""
    return one_stop(_story(gate))


def votes(gate: Wait) -> tuple[int, int]:
    """Return how many have approved a gate, and how many must."""
    return sum(decision.approved for decision in gate.decisions.all()), quorum(gate)


def quorum(gate: Wait) -> int:
    """Return how many must approve a gate."""
    return (gate.approval or {}).get("quorum") or 1


def resolving(gate: Wait) -> Decision | None:
    """Return the decision that answered a gate, if one did: code may have signalled it, with or without votes."""
    if gate.outcome != Outcome.SIGNALLED:
        return None
    last = max(gate.decisions.all(), key=lambda decision: (decision.decided_at, decision.pk), default=None)
    return last if last is not None and resolves(gate, last) else None


def resolves(gate: Wait, decision: Decision) -> bool:
    """Whether a decision that is stored answers its gate, or is one vote of more that are needed."""
    if decision.override or decision.is_timers or not decision.approved:
        return True
    given, needed = votes(gate)
    return given >= needed


def own_answer(gate: Wait, user: Any) -> str:
    """Return what to tell ``user`` who has answered a gate: that it counts, and what came of it. Others: nothing."""
    made = _made_by(user, gate)
    if made is None:
        return ""
    if vote := own_vote(gate, user):
        return vote
    if made.override:
        said = _("You approved it against its rules.") if made.approved else _("You rejected it against its rules.")
    else:
        said = _("You approved it.") if made.approved else _("You rejected it.")
    if resolving(gate) == made:
        return f"{said} {one_stop(_('It was recorded on %s.') % moment(made.decided_at))}"
    return f"{said} {story(gate)}"


def own_vote(gate: Wait, user: Any) -> str:
    """Return what to tell ``user`` who has approved an open gate that more must approve; otherwise nothing."""
    given, needed = votes(gate)
    is_open = gate.is_open and gate.execution.status in OPEN_TO_SIGNALS
    if not is_open or given >= needed or _made_by(user, gate) is None:
        return ""
    text = ngettext(
        "Your approval is recorded: %(given)d of %(needed)d; one more is needed.",
        "Your approval is recorded: %(given)d of %(needed)d; %(more)d more are needed.",
        needed - given,
    )
    return text % {"given": given, "needed": needed, "more": needed - given}


def _made_by(user: Any, gate: Wait) -> Decision | None:
    return next((one for one in gate.decisions.all() if one.user_id is not None and one.user_id == user.pk), None)


def candidates_text(gate: Wait) -> str:
    """Return who may decide a gate, in words, exclusions included."""
    first, *others = (_people(one) for one in Audience.loads(gate.audience).parts)
    return "; ".join([first, *(_("or %s") % other for other in others), *_exceptions(gate)])


def history_of(gate: Wait) -> list[Entry]:
    """Return all that happened at a gate, in order of time: its opening, events, decisions and end."""
    entries = [Entry(gate.opened_at, "opened", _("The gate was opened."))]
    entries += [_vote(gate, decision) for decision in gate.decisions.all()]
    entries += _events(gate)
    if not gate.is_open and resolving(gate) is None and gate.closed_at is not None:
        entries.append(Entry(gate.closed_at, "closed", story(gate)))
    return sorted(entries, key=lambda entry: entry.at)


def moment(at: datetime | None) -> str:
    """Return a moment as people here write it."""
    return formats.date_format(timezone.localtime(at), "DATETIME_FORMAT") if at else "?"


def one_stop(sentence: str) -> str:
    """Return a sentence with one full stop: a moment that ends it may bring its own ("5 p.m.")."""
    return sentence[:-1] if sentence.endswith("..") else sentence


def _story(gate: Wait) -> str:
    if (decision := resolving(gate)) is not None:
        return _decided(decision) % {"who": decision.user_name, "when": moment(decision.decided_at)}
    if gate.outcome == Outcome.SIGNALLED:
        return _waived(gate)
    if gate.outcome == Outcome.TIMED_OUT:
        return _("Its deadline passed on %(when)s.") % {"when": moment(gate.due_at)}
    if gate.outcome == Outcome.CANCELLED:
        return _withdrawn(gate, gate.execution)
    if gate.execution.status not in OPEN_TO_SIGNALS:
        return _("Its run is %(status)s and takes no decision.") % {"status": gate.execution.get_status_display()}
    given, needed = votes(gate)
    if needed > 1:
        return _("It is open: %(given)d of %(needed)d approvals.") % {"given": given, "needed": needed}
    return _("It is open.")


def _waived(gate: Wait) -> str:
    """Return that code has answered it, and why, where its payload says so."""
    payload = getattr(getattr(gate, "signal", None), "payload", None)
    reason = payload.get("reason") if isinstance(payload, Mapping) else None
    told = Truncator(reason.strip()).chars(LONGEST_REASON) if isinstance(reason, str) else ""
    words = {"when": moment(gate.closed_at), "reason": told}
    if not told:
        return _("A signal from code answered it on %(when)s.") % words
    return _("A signal from code answered it: %(reason)s (%(when)s)") % words


def _withdrawn(gate: Wait, run: Any) -> str:
    if can_cancel(run):  # it goes on: a branch has given the gate up
        return _("It was given up on %(when)s: its run goes on without it.") % {"when": moment(gate.closed_at)}
    words = {"when": moment(run.finished_at or gate.closed_at), "status": run.get_status_display()}
    return _("Its run ended on %(when)s: %(status)s.") % words


def _decided(decision: Decision) -> str:
    if decision.is_timers:
        approved, rejected = (
            _("Its deadline passed, which approved it on %(when)s."),
            _("Its deadline passed, which rejected it on %(when)s."),
        )
    elif decision.override:
        approved, rejected = (
            _("%(who)s approved it against its rules on %(when)s."),
            _("%(who)s rejected it against its rules on %(when)s."),
        )
    else:
        approved, rejected = _("%(who)s approved it on %(when)s."), _("%(who)s rejected it on %(when)s.")
    return approved if decision.approved else rejected


def _vote(gate: Wait, decision: Decision) -> Entry:
    if decision.is_timers:
        text = (
            _("The deadline passed, which approved it.")
            if decision.approved
            else _("The deadline passed, which rejected it.")
        )
    elif decision.override:
        text = (
            _("%(who)s approved it against its rules.")
            if decision.approved
            else _("%(who)s rejected it against its rules.")
        )
    else:
        text = _("%(who)s approved it.") if decision.approved else _("%(who)s rejected it.")
    kind = "approved" if decision.approved else "rejected"
    who = decision.user_name
    return Entry(decision.decided_at, kind, text % {"who": who}, who, decision.reason)


def _events(gate: Wait) -> list[Entry]:
    happened = sorted(gate.events.all(), key=lambda event: (event.happened_at, event.pk))
    added = (n["audience"] for n in (gate.approval or {}).get("notices", ()) if n["kind"] == "escalate")
    return [_event(event, added) for event in happened]


def _event(event: GateEvent, added: Any) -> Entry:
    words = {"who": event.user_name, "to": event.to_name}
    match event.kind:
        case GateEventKind.CLAIMED:
            text = _("%(who)s claimed it.")
        case GateEventKind.RELEASED:
            text = _("%(who)s released it.")
            if event.to_name:
                text = _("%(who)s released it from %(to)s.")
        case GateEventKind.DELEGATED:
            text = _("%(who)s handed it to %(to)s.")
        case GateEventKind.REMINDED:
            text = _("Those who may decide were reminded.")
        case _:
            plain = next(added, None)
            words["added"] = _people(Audience.of(plain)) if plain else "?"
            text = _("It was escalated: now it may be decided by %(added)s, too.")
    return Entry(event.happened_at, event.kind, text % words, event.user_name, event.note)


def _people(audience: Audience) -> str:
    """Return whom an audience itself names, alternatives aside."""
    named = [*(_("members of %s") % group for group in audience.groups), *audience.users]
    people = _(" or ").join(named)
    if not audience.needed_permission:
        return people
    words = {"people": people, "permission": audience.needed_permission}
    if not named:
        return _("holders of the permission %(permission)s") % words
    return _("%(people)s, with the permission %(permission)s") % words


def _exceptions(gate: Wait) -> list[str]:
    approval, said = gate.approval or {}, []
    if approval.get("exclude_requester") and gate.execution.requester_name:
        said.append(_("but not %s, who asked for it") % gate.execution.requester_name)
    if others := approval.get("exclude_deciders_of"):
        names = ", ".join(f"“{name}”" for name in others)
        first = _("nor whoever decided %s") if said else _("but not whoever decided %s")
        several = _("nor whoever decided one of %s") if said else _("but not whoever decided one of %s")
        said.append((first if len(others) == 1 else several) % names)
    return said
