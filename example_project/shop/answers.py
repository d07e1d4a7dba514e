"""How the people of the demo answer for purchases: in place of clicks in the admin, calls of the same ``decide``."""

from __future__ import annotations

from django.contrib.auth.models import User

from django_finoflow import decide
from django_finoflow.models import Wait

from .workflows import Purchase, purchase_approval

POLICY = """\
Purchases: managers reject massage chairs and leave courses to you; finance has an espresso machine already, and leaves
what is over EUR 10,000 to you. Up to EUR 1,000 finance is not asked.
"""

Verdict = tuple[bool, str]


def manager_verdict(purchase: Purchase) -> Verdict | None:
    """Return a manager's answer and its reason; None for no answer."""
    if "course" in purchase.item:
        return None
    return (False, "Chairs are for work.") if "massage" in purchase.item else (True, "")


def finance_verdict(purchase: Purchase) -> Verdict | None:
    """Return the answer of finance and its reason; None for no answer."""
    if purchase.eur > 10_000:
        return None
    return (False, "There is one on every floor.") if "espresso" in purchase.item else (True, "")


WHO = {"manager": ("managers", manager_verdict), "finance": ("finance", finance_verdict)}


def answer_all() -> int:
    """Answer whatever the policy has an answer for; return how many gates were answered."""
    answered = 0
    gates = Wait.objects.gates().open().filter(execution__workflow_id=purchase_approval.id)
    for gate in gates.select_related("execution").order_by("pk"):
        group, verdict = WHO[gate.name]
        if answer := verdict(Purchase(**gate.execution.input)):
            approved, reason = answer
            user = User.objects.filter(groups__name=group).exclude(pk=gate.execution.requester_id).earliest("pk")
            decide(gate.execution.run_id, gate.name, user=user, approved=approved, reason=reason, wait=gate)
            answered += 1
    return answered
