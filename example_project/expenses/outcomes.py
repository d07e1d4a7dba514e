"""What became of the claims: a table of all runs, and whether the ledger agrees with it."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, field
from decimal import Decimal

from django.db.models import Count

from django_finoflow.decisions import history_of
from django_finoflow.models import Execution, Step, Wait
from django_finoflow.statuses import GateEventKind, RunStatus

from .models import Notice, Payment
from .policy import RATES
from .workflows import expense_approval

ORDER = (
    "paid",
    "rejected by policy",
    "rejected by manager",
    "rejected by finance",
    "rejected by deadline",
    "expired",
    "waiting for receipt",
    "waiting for manager",
    "waiting for finance",
)


@dataclass
class Line:
    """The claims of one outcome: how many, their sum in each currency, and in EUR."""

    claims: int = 0
    sums: dict[str, Decimal] = field(default_factory=lambda: dict.fromkeys(RATES, Decimal(0)))
    eur: Decimal = Decimal(0)

    def add(self, currency: str, amount: Decimal, eur: Decimal) -> None:
        self.claims += 1
        self.sums[currency] += amount
        self.eur += eur

    def __str__(self) -> str:
        sums = "".join(f"{amount:>11,.2f}" for amount in self.sums.values())
        return f"{self.claims:>7}{sums}{self.eur:>14,.2f}"


def tally() -> dict[str, Line]:
    """Return a line for each outcome, and one called ``all`` with everything."""
    runs = Execution.objects.filter(workflow_id=expense_approval.id)
    waits_for = dict(Wait.objects.open().filter(execution__in=runs).values_list("execution_id", "name"))
    in_eur = dict(Step.objects.filter(execution__in=runs, step_id="convert").values_list("execution_id", "result"))
    lines: dict[str, Line] = defaultdict(Line)
    for run in runs:
        for name in (outcome(run, waits_for.get(run.pk)), "all"):
            lines[name].add(run.input["currency"], run.input["amount"], in_eur.get(run.pk, Decimal(0)))
    return lines


def outcome(run: Execution, waits_for: str | None) -> str:
    """Say in a few words how a run stands."""
    if run.status == RunStatus.DONE:
        by = run.result.get("by")
        return f"rejected by {by}" if by else run.result["outcome"]
    return f"waiting for {waits_for}" if waits_for else run.status


def table(lines: dict[str, Line]) -> str:
    """Return the lines as text. Amounts are in each currency; the last column is all of them in EUR."""
    names = [*(name for name in ORDER if name in lines), *sorted(lines.keys() - {*ORDER, "all"})]
    heading = f"{'outcome':<20}{'claims':>7}" + "".join(f"{currency:>11}" for currency in RATES) + "  total in EUR"
    rule = "─" * len(heading)
    body = [f"{name:<20}{lines[name]}" for name in names]
    return "\n".join([heading, rule, *body, rule, f"{'all':<20}{lines['all']}"])


def ledger() -> tuple[int, Decimal]:
    """Return how many payments there are, and their sum in EUR."""
    amounts = Payment.objects.values_list("amount_eur", flat=True)  # added up here: SQLite would add floats
    return len(amounts), sum(amounts, Decimal(0))


def notices() -> tuple[int, int]:
    """Return how many notices were sent, and how many of them not at the first attempt."""
    return Notice.objects.count(), Step.objects.filter(step_id="notify", attempts__gt=1).count()


def told(number: str, name: str) -> list[str]:
    """Return the story of a gate in sentences, such as its page shows: that of a run's key, and the gate's name."""
    gate = Wait.objects.get(execution__key=number, name=name)
    return [f"{entry.text} {entry.note}".strip() for entry in history_of(gate)]


def notified_wrongly() -> list[str]:
    """Return the numbers of the urgent claims of which the managers were not reminded once, or not escalated once."""
    once = [GateEventKind.ESCALATED, GateEventKind.REMINDED]
    gates = Wait.objects.gates().filter(execution__workflow_id=expense_approval.id, name="manager")
    urgent = [gate for gate in gates.select_related("execution") if gate.execution.input["answer_within"]]
    return [gate.execution.key for gate in urgent if sorted(event.kind for event in gate.events.all()) != once]


def paid_twice() -> list[str]:
    """Return the numbers of claims that the ledger has more than once."""
    counted = Payment.objects.order_by().values_list("claim").annotate(lines=Count("pk"))
    return [claim for claim, lines in counted if lines > 1]
