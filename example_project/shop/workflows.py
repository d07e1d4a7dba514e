"""What the shop buys and what it sells: two workflows that are declared as chains of steps.

A purchase is signed off by a manager, by finance if it is large, and by two directors if it is huge. An order is
reserved, charged and shipped. When either fails, whatever it has done is undone, the last step first: each
``compensate`` writes the line that takes its step's line back.
"""

from __future__ import annotations

from dataclasses import dataclass
from decimal import Decimal
from typing import Any

from django_finoflow import Approval, NonRetryable, Workflow, signal
from expenses.forms import BookingForm

from .models import Account, Posting

FINANCE_ABOVE, DIRECTORS_ABOVE = Decimal(1000), Decimal(10_000)
SHIPS_TO = ("Austria", "France", "Germany")


def post(ctx, account: Account, amount: Decimal) -> None:
    """Write a line of the ledger, once for this step or this undoing of it, however often it is called."""
    line = {"run_id": ctx.run_id, "account": account, "amount": amount}
    Posting.objects.get_or_create(key=ctx.idempotency_key, defaults=line)


# ── buying ──


@dataclass(frozen=True)
class Purchase:
    """Something that an employee wants the company to buy."""

    number: str
    employee: str
    item: str
    eur: Decimal


def size(ctx) -> str:
    return "large" if ctx.input.eur > FINANCE_ABOVE else "small"


def waive_finance(ctx) -> None:
    """Open the gate of finance before it is reached: a small purchase passes it without stopping."""
    signal(ctx.run_id, "finance", {"approved": True, "by": "policy", "reason": f"up to EUR {FINANCE_ABOVE:,}"})


def weight(ctx) -> str:
    return "huge" if ctx.input.eur > DIRECTORS_ABOVE else "bearable"


def waive_directors(ctx) -> None:
    """Open the gate of the directors before it is reached."""
    signal(ctx.run_id, "directors", {"approved": True, "by": "policy", "reason": f"up to EUR {DIRECTORS_ABOVE:,}"})


def question(ctx) -> str:
    return f"Buy {ctx.input.item} for EUR {ctx.input.eur:,.2f}?"


def shown(ctx) -> dict[str, Any]:
    """Return what the people at the gates see of a purchase."""
    told = {"Purchase": ctx.input.number, "Item": ctx.input.item, "Price": f"EUR {ctx.input.eur:,.2f}"}
    return told | {f"Signed as {gate}": decision["by"] for gate, decision in ctx.signals.items()}


def buy(ctx) -> str:
    """Order it. A stand-in for a supplier, who is told what the manager has filled in, and who has signed."""
    cost_centre = ctx.signals["manager"]["data"]["cost_centre"]
    signed = ", ".join(decision["by"] for decision in ctx.signals.values())
    return f"{ctx.input.item}, for cost centre {cost_centre}, signed by {signed}"


asked = {"title": question, "show": shown, "exclude_requester": True, "on_reject": "fail", "remind": ["2d", "9d"]}

purchase_approval = (
    Workflow("purchase-approval", input_schema=Purchase)
    .step(
        "set aside",
        lambda ctx: post(ctx, Account.BUDGET, -ctx.input.eur),
        compensate=lambda ctx: post(ctx, Account.BUDGET, ctx.input.eur),
    )
    .wait_for("manager", timeout="14d", approval=Approval(groups=["managers"], form=BookingForm, **asked))
    .branch(size)
    .path("large", lambda path: None)
    # Atomic: the signal and the checkpoint are committed together, so it is sent once.
    .path("small", lambda path: path.step("waive finance", waive_finance, atomic=True))
    .wait_for("finance", timeout="14d", approval=Approval(groups=["finance"], exclude_deciders_of=["manager"], **asked))
    .branch(weight)
    .path("huge", lambda path: None)
    .path("bearable", lambda path: path.step("waive directors", waive_directors, atomic=True))
    # Two of them, and none who has signed before: sofia is a director and works in finance.
    .wait_for(
        "directors",
        timeout="14d",
        approval=Approval(groups=["directors"], quorum=2, exclude_deciders_of=["manager", "finance"], **asked),
    )
    .step("buy", buy)
)


# ── selling ──


@dataclass(frozen=True)
class Order:
    """What a customer wants."""

    number: str
    country: str
    pieces: int
    eur: Decimal


def ship(ctx) -> str:
    """Hand the parcel to a carrier. A stand-in for one that says no to some, at the first try and for good."""
    if ctx.input.country not in SHIPS_TO:
        raise NonRetryable(f"no carrier goes to {ctx.input.country}")
    return f"parcel {ctx.input.number}"


customer_order = (
    Workflow("customer-order", input_schema=Order)
    .step(
        "reserve",
        lambda ctx: post(ctx, Account.STOCK, -ctx.input.pieces),
        compensate=lambda ctx: post(ctx, Account.STOCK, ctx.input.pieces),
    )
    .step(
        "charge",
        lambda ctx: post(ctx, Account.CASH, ctx.input.eur),
        compensate=lambda ctx: post(ctx, Account.CASH, -ctx.input.eur),
    )
    .step("ship", ship)
)
