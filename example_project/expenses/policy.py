"""The company's rules for expenses. Amounts are in EUR."""

from __future__ import annotations

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

TIME_TO_ANSWER = "14d"


def in_eur(amount: Decimal, currency: str) -> Decimal:
    """Return an amount in EUR, rounded to the cent."""
    return (amount * RATES[currency]).quantize(Decimal("0.01"), ROUND_HALF_UP)


def objection(category: str, eur: Decimal) -> str:
    """Return why a claim is not even put before a manager; an empty text if it is."""
    limit = LIMITS[category]
    return f"EUR {eur:,} is over the limit of EUR {limit:,} for {category}" if eur > limit else ""
