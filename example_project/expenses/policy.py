"""The company's rules for expenses. Amounts are in EUR."""

from __future__ import annotations

from datetime import timedelta
from decimal import ROUND_HALF_UP, Decimal

#: EUR for one unit of each currency in which claims are accepted.
RATES = {"EUR": Decimal(1), "USD": Decimal("0.92"), "GBP": Decimal("1.17"), "CHF": Decimal("1.05")}

#: The most that one claim may be for.
LIMITS = {
    "meals": Decimal(150),
    "entertainment": Decimal(400),
    "taxi": Decimal(80),
    "travel": Decimal(2000),
    "hotel": Decimal(1200),
    "equipment": Decimal(2500),
    "training": Decimal(2000),
}

RECEIPT_ABOVE = Decimal(25)
FINANCE_ABOVE = Decimal(500)

COST_CENTRES = {"1000": "Administration", "2000": "Sales", "3000": "Development"}

TIME_TO_ANSWER = "14d"
UNITS = {"s": "seconds", "m": "minutes", "h": "hours", "d": "days"}


def time_to_answer(within: str) -> timedelta:
    """Return how long people have to answer a claim that wants it ``within`` such a time, or says nothing of it."""
    within = within or TIME_TO_ANSWER
    return timedelta(**{UNITS[within[-1]]: int(within[:-1])})


def remind_after(within: str) -> timedelta:
    """Return when they are reminded: a tenth of the time is over by then."""
    return time_to_answer(within) / 10


def escalate_after(within: str) -> timedelta:
    """Return when the directors may answer, too: a fifth of the time is over by then."""
    return time_to_answer(within) / 5


def in_eur(amount: Decimal, currency: str) -> Decimal:
    """Return an amount in EUR, rounded to the cent."""
    return (amount * RATES[currency]).quantize(Decimal("0.01"), ROUND_HALF_UP)


def objection(category: str, eur: Decimal) -> str:
    """Return why a claim is not even put before a manager; an empty text if it is."""
    limit = LIMITS[category]
    return f"EUR {eur:,} is over the limit of EUR {limit:,} for {category}" if eur > limit else ""
