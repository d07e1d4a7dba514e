"""What becomes of an expense claim: checked, approved by people, paid, and the employee told.

A worker drives it (``manage.py finoflow_worker``). While it waits for a person it is a few rows in the database, for
fourteen days if need be, through every restart and deployment.
"""

from __future__ import annotations

from decimal import Decimal
from typing import Any

from django_finoflow import Approval, Candidates, Retry, SignalTimeout, current_step, workflow

from . import policy
from .claims import Claim
from .forms import BookingForm
from .models import Notice, Payment

GATES = {
    "manager": Approval(permission="expenses.approve_claim", exclude_requester=True, on_timeout="reject"),
    # Four eyes: whoever has approved a claim as its manager does not do so again. The form says where it is booked.
    "finance": Approval(
        groups=["finance"],
        exclude_requester=True,
        exclude_deciders_of=["manager"],
        form=BookingForm,
        on_timeout="reject",
    ),
}


@workflow(id="expense-approval", input_schema=Claim, gates=GATES)
def expense_approval(ctx, claim: Claim) -> dict[str, Any]:
    """Take a claim from the file to the ledger, or say why not."""
    # Recorded, so that another rate or limit tomorrow changes nothing for a claim that is under way.
    eur = ctx.step("convert", lambda: policy.in_eur(claim.amount, claim.currency))
    check = ctx.step("check", lambda: check_claim(claim, eur))

    result = {"eur": eur, **settle(ctx, claim, eur, check)}
    ctx.step("notify", lambda: notify(claim, result), retry=Retry(3, initial="100ms"))
    return result


def settle(ctx, claim: Claim, eur: Decimal, check: dict[str, Any]) -> dict[str, Any]:
    """Get the answers that a claim needs, and pay it if all of them are yes."""
    if check["objection"]:
        return {"outcome": "rejected", "by": "policy", "reason": check["objection"]}

    question = asked(claim, eur)
    if check["needs_receipt"]:
        try:
            receipt = ctx.wait_for_signal("receipt", timeout=question["timeout"])
        except SignalTimeout as error:
            return {"outcome": "expired", "reason": str(error)}
        question["show"]["Receipt"] = f"handed in later: {receipt['file']}"

    gate, decision = "manager", ctx.wait_for_approval("manager", **question)
    if decision["approved"] and check["needs_finance"]:
        gate, decision = "finance", ctx.wait_for_approval("finance", **question)
    if decision["by"] is None:
        return {"outcome": "rejected", "by": "deadline", "reason": "nobody has answered in time"}
    if not decision["approved"]:
        return {"outcome": "rejected", "by": gate, "reason": f"{decision['by']}: {decision['reason']}"}

    # Atomic: the ledger's row and the checkpoint are committed together, so whatever crashes, a claim is paid once.
    payment = ctx.step("pay", lambda: pay(claim, eur, decision["data"]), atomic=True)
    return {"outcome": "paid", "payment": payment}


def check_claim(claim: Claim, eur: Decimal) -> dict[str, Any]:
    """Say what stands against a claim, and whose answers it needs."""
    return {
        "objection": policy.objection(claim.category, eur),
        "needs_receipt": eur > policy.RECEIPT_ABOVE and not claim.has_receipt,
        "needs_finance": eur > policy.FINANCE_ABOVE,
    }


def asked(claim: Claim, eur: Decimal) -> dict[str, Any]:
    """Return what is asked about a claim, how long people have, and what happens while they do not answer."""
    return {
        "title": f"Pay {claim.money} to {claim.employee} for {claim.category}?",
        "show": shown(claim, eur),
        "timeout": policy.time_to_answer(claim.answer_within),
        "remind": [policy.remind_after(claim.answer_within)],
        "escalate": (policy.escalate_after(claim.answer_within), Candidates(groups=["directors"])),
    }


def shown(claim: Claim, eur: Decimal) -> dict[str, Any]:
    """Return what the people at the gates see of a claim."""
    return {
        "Claim": claim.number,
        "Employee": claim.employee,
        "Spent on": claim.spent_on,
        "Amount": claim.money if claim.currency == "EUR" else f"{claim.money} (EUR {eur:,})",
        "Category": claim.category,
        "Description": claim.description,
        "Receipt": "yes" if claim.has_receipt else f"not needed up to EUR {policy.RECEIPT_ABOVE}",
    }


def pay(claim: Claim, eur: Decimal, booking: dict[str, Any] | None) -> int:
    """Write the claim into the ledger and return the line's number. A stand-in for a bank transfer.

    ``booking`` is what finance has filled in, if they were asked: the cleaned data of their form.
    """
    return Payment.objects.create(
        claim=claim.number,
        employee=claim.employee,
        amount=claim.amount,
        currency=claim.currency,
        amount_eur=eur,
        **(booking or {}),
        run_id=current_step().run_id,
    ).pk


def notify(claim: Claim, result: dict[str, Any]) -> None:
    """Tell the employee. A stand-in for a mail service that is busy at times, and sends only once for each key."""
    step = current_step()
    if step.attempt == 1 and claim.number.endswith("7"):
        raise ConnectionError("451 busy, try again later")
    why = f" ({result['reason']})" if "reason" in result else ""
    text = f"Your claim {claim.number} for {claim.money} is {result['outcome']}{why}."
    Notice.objects.get_or_create(key=step.idempotency_key, defaults={"employee": claim.employee, "text": text})
