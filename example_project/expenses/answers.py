"""How the people of the demo answer: in place of clicks in the admin, calls of the same ``decide`` and ``signal``."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from datetime import datetime
from typing import Any

from django.contrib.auth.models import User
from django.utils import timezone

from django_finoflow import DecisionRefused, claim_gate, decide, delegate_gate, signal
from django_finoflow.models import Wait

from .claims import Claim
from .people import STAFF
from .policy import escalate_after, in_eur
from .workflows import expense_approval

POLICY = """\
Employees hand in missing receipts, but those for taxis are lost.
Managers reject alcohol, leave training to you, and approve the rest.
Finance rejects business class, leaves what is over EUR 1,500 to you, and books and approves the rest.
Nobody answers a claim that wants its answer within seconds. The managers are reminded, and then the directors are
asked, too; they approve what is in EUR.
"""

Verdict = tuple[bool, str]
Say = Callable[[str], None]


def manager_verdict(claim: Claim) -> Verdict | None:
    """Return a manager's answer and its reason; None for no answer."""
    if claim.category == "training":
        return None
    if any(word in claim.description.lower() for word in ("beer", "champagne", "whisky", "wine")):
        return False, "We do not pay for alcohol."
    return True, ""


def finance_verdict(claim: Claim) -> Verdict | None:
    """Return the answer of finance and its reason; None for no answer."""
    if "business class" in claim.description.lower():
        return False, "Economy class, please."
    return None if in_eur(claim.amount, claim.currency) > 1500 else (True, "")


def answer_all(say: Say) -> int:
    """Answer whatever the policy has an answer for, tell ``say`` of each refusal, and return how many were answered."""
    return (
        hand_in_receipts()
        + decide_gates("manager", STAFF["managers"], manager_verdict, say)
        + decide_gates("finance", STAFF["finance"], finance_verdict, say)
        + answer_as_director()
    )


def hand_in_receipts() -> int:
    """Send the signal that claims without a receipt wait for; return how many were sent."""
    sent = 0
    for wait, claim in _open_waits("receipt"):
        if claim.category != "taxi":
            signal(wait.execution.run_id, "receipt", {"file": f"{claim.number}.pdf"}, sender=claim.employee)
            sent += 1
    return sent


def decide_gates(gate: str, usernames: list[str], verdict: Callable[[Claim], Verdict | None], say: Say) -> int:
    """Decide the open gates of one name, each by the first of these people who may; return how many were decided."""
    people = [User.objects.get(username=username) for username in usernames]
    decided = 0
    for wait, claim in _open_waits(gate):
        if answer := verdict(claim):
            decided += any(_decide(wait, claim, user, answer, say) for user in people)
    return decided


def escalations() -> list[datetime]:
    """Return when the directors are asked, too, about the claims that are urgent and wait for a manager."""
    return [wait.opened_at + escalate_after(claim.answer_within) for wait, claim in _open_waits("manager", urgent=True)]


def answer_as_director() -> int:
    """Approve what a director finds in her inbox of the managers' claims, if it is in EUR; return how many it was."""
    helena = User.objects.get(username="helena")
    found = Wait.objects.inbox(helena).filter(execution__workflow_id=expense_approval.id, name="manager")
    gates = [gate for gate in found.select_related("execution") if gate.execution.input["currency"] == "EUR"]
    for gate in gates:
        decide(gate.execution.run_id, gate.name, user=helena, approved=True, wait=gate)
    return len(gates)


def hand_over(number: str, giver: str, taker: str, note: str, say: Say) -> None:
    """Let one of finance claim an open claim and hand it to another, unless that was done before."""
    gate = Wait.objects.gates().open().filter(execution__key=number, name="finance", claimed_by=None).first()
    if gate is None:
        return
    which: dict[str, Any] = {"user": User.objects.get(username=giver), "wait": gate}
    claim_gate(gate.execution.run_id, gate.name, **which)
    delegate_gate(gate.execution.run_id, gate.name, **which, to=User.objects.get(username=taker), note=note)
    say(f'{giver} claims {number} and hands it to {taker}: "{note}"')


def _decide(wait: Wait, claim: Claim, user: User, answer: Verdict, say: Say) -> bool:
    approved, reason = answer
    booking = {"cost_centre": "3000", "booked_on": timezone.localdate()} if wait.name == "finance" else None
    which: dict[str, Any] = {"user": user, "wait": wait}
    try:
        decide(wait.execution.run_id, wait.name, **which, approved=approved, reason=reason, data=booking)
    except DecisionRefused as refusal:
        say(f"{user} tries to approve {claim.number} of {claim.employee}: refused ({refusal.code})")
        return False
    return True


def _open_waits(name: str, urgent: bool = False) -> Iterator[tuple[Wait, Claim]]:
    waits = Wait.objects.open().filter(execution__workflow_id=expense_approval.id, name=name)
    for wait in waits.select_related("execution").order_by("pk"):
        claim = Claim(**wait.execution.input)
        if bool(claim.answer_within) == urgent:
            yield wait, claim
