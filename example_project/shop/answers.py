"""How the people of the demo answer for purchases: in place of clicks in the admin, calls of the same ``decide``."""

from __future__ import annotations

from collections.abc import Callable

from django.contrib.auth.models import User
from django.utils import timezone

from django_finoflow import DecisionRefused, decide
from django_finoflow.decisions import votes
from django_finoflow.models import Wait
from expenses.people import STAFF

from .forms import NUMBER
from .workflows import Purchase, purchase_approval

POLICY = """\
Purchases: managers reject massage chairs, leave courses to you, and book the rest on a cost centre; finance has an
espresso machine already, and leaves trade fairs to you. Up to EUR 1,000 finance is not asked.
Over EUR 10,000 two directors must approve; they reject yachts, and leave the second signature for a van to you.
"""

Verdict = tuple[bool, str]
Say = Callable[[str], None]


def manager_verdict(purchase: Purchase, gate: Wait) -> Verdict | None:
    """Return a manager's answer and its reason; None for no answer."""
    if "course" in purchase.item:
        return None
    return (False, "Chairs are for work.") if "massage" in purchase.item else (True, "")


def finance_verdict(purchase: Purchase, gate: Wait) -> Verdict | None:
    """Return the answer of finance and its reason; None for no answer."""
    if "trade fair" in purchase.item:
        return None
    return (False, "There is one on every floor.") if "espresso" in purchase.item else (True, "")


def directors_verdict(purchase: Purchase, gate: Wait) -> Verdict | None:
    """Return a director's answer and its reason; None for no answer."""
    given, _needed = votes(gate)
    if given and "van" in purchase.item:
        return None
    return (False, "We are far from the sea.") if "yacht" in purchase.item else (True, "")


WHO = {"manager": manager_verdict, "finance": finance_verdict, "directors": directors_verdict}


def answer_all(say: Say) -> int:
    """Answer whatever the policy has an answer for, but for visitors; return how many answers were given."""
    gates = Wait.objects.gates().open().filter(execution__workflow_id=purchase_approval.id)
    gates = gates.exclude(execution__key__regex=NUMBER)
    return sum(_answer(gate, say) for gate in gates.select_related("execution").order_by("pk"))


def _answer(gate: Wait, say: Say) -> int:
    """Let the people who are asked answer one after the other, until the gate is closed or nobody has an answer."""
    group, answered = "managers" if gate.name == "manager" else gate.name, 0
    for name in STAFF[group]:
        verdict = WHO[gate.name](Purchase(**gate.execution.input), gate)
        if verdict and gate.is_open and name not in gate.decisions.values_list("user_name", flat=True):
            answered += _decide(gate, name, verdict, say)
            gate.refresh_from_db()
    return answered


def _decide(gate: Wait, name: str, verdict: Verdict, say: Say) -> bool:
    approved, reason = verdict
    answer = {"user": User.objects.get(username=name), "approved": approved, "reason": reason}
    booking = {"cost_centre": "2000", "booked_on": timezone.localdate()} if gate.name == "manager" else None
    try:
        decide(gate.execution.run_id, gate.name, **answer, data=booking, wait=gate)
    except DecisionRefused as refusal:
        say(f'{name} tries to answer the gate "{gate.name}" of {gate.execution.key}: refused ({refusal.code})')
        return False
    return True
