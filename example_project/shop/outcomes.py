"""What became of purchases and orders, and whether those that failed have left anything in the ledger."""

from __future__ import annotations

from collections import Counter, defaultdict
from decimal import Decimal

from django.db.models import QuerySet

from django_finoflow.models import Decision, Execution, Wait
from django_finoflow.statuses import Rollback, RunStatus

from .models import Account, Posting
from .workflows import DIRECTORS_ABOVE, FINANCE_ABOVE, customer_order, purchase_approval

NAMES = {
    purchase_approval.id: ("purchases", "bought", "rejected, undone"),
    customer_order.id: ("orders", "shipped", "not shipped, undone"),
}


def runs() -> QuerySet[Execution]:
    return Execution.objects.filter(workflow_id__in=NAMES).order_by("-workflow_id", "key")


def undone() -> QuerySet[Execution]:
    """Return the runs that failed and were rolled back."""
    return runs().filter(status=RunStatus.ERROR, rollback=Rollback.COMPLETED)


def table() -> str:
    """Return a line for each outcome: how many runs, and their sum in EUR."""
    waits_for = dict(Wait.objects.open().filter(execution__in=runs()).values_list("execution_id", "name"))
    count: Counter[str] = Counter()
    eur: dict[str, Decimal] = defaultdict(Decimal)
    for run in runs():
        name = outcome(run, waits_for.get(run.pk))
        count[name] += 1
        eur[name] += run.input["eur"]
    heading = f"{'outcome':<32}{'runs':>5}{'total in EUR':>15}"
    return "\n".join(
        [heading, "─" * len(heading), *(f"{name:<32}{count[name]:>5}{eur[name]:>15,.2f}" for name in count)]
    )


def outcome(run: Execution, waits_for: str | None) -> str:
    """Say in a few words what a run is about, and how it stands."""
    return f"{NAMES[run.workflow_id][0]} {standing(run, waits_for)}"


def standing(run: Execution, waits_for: str | None) -> str:
    """Say in a few words how a run stands."""
    _things, well, badly = NAMES[run.workflow_id]
    if run.status == RunStatus.DONE:
        return well
    if run.status == RunStatus.ERROR and run.rollback == Rollback.COMPLETED:
        return badly
    return f"waiting for {waits_for}" if waits_for else run.get_status_display()


def story(run: Execution) -> str:
    """Return the lines that a run has written, in order, and why it failed."""
    lines = ", ".join(str(line) for line in Posting.objects.filter(run_id=run.run_id))
    return f"{run.key}: {lines} ({run.error['message']})"


def bought() -> QuerySet[Execution]:
    return runs().filter(workflow_id=purchase_approval.id, status=RunStatus.DONE)


def signatures(run: Execution) -> list[str]:
    """Return the names of those who have approved a purchase, at whichever gate, in order."""
    made = Decision.objects.filter(wait__execution=run, approved=True).order_by("decided_at", "pk")
    return [decision.user_name for decision in made]


def properly_signed(run: Execution) -> bool:
    """Whether as many people have signed as a purchase of that size needs, each once, and not who asked for it.

    Or somebody has decided against the rules, and says so in the record.
    """
    if Decision.objects.filter(wait__execution=run, override=True).exists():
        return True
    eur, signed = run.input["eur"], signatures(run)
    needed = 4 if eur > DIRECTORS_ABOVE else 2 if eur > FINANCE_ABOVE else 1
    return len(signed) == len({*signed, run.requester_name}) - 1 == needed


def disagreements() -> list[str]:
    """Return what is wrong with the ledger, if anything: it must hold what was bought and sold, and no more."""
    sums: dict[tuple[str, str], Decimal] = defaultdict(Decimal)
    for line in Posting.objects.all():
        sums[line.run_id, line.account] += line.amount
    wrong = [
        f"{run.key}: {account} {sums[run.run_id, account]:+,}"
        for run in undone()
        for account in Account.values
        if sums[run.run_id, account]
    ]
    for run in undone():
        steps = run.steps.exclude(compensation="")
        if [*steps.order_by("compensated_at")] != [*steps.order_by("-index")]:
            wrong.append(f"{run.key}: not undone in reverse order")
    wrong += [f"{run.key}: bought by too few, or by one person twice" for run in bought() if not properly_signed(run)]
    sold = sum(run.input["eur"] for run in runs().filter(workflow_id=customer_order.id, status=RunStatus.DONE))
    cash = sum(amount for (_, account), amount in sums.items() if account == Account.CASH)
    return wrong if sold == cash else [*wrong, f"EUR {cash:,} in the till, but EUR {sold:,} was sold"]
