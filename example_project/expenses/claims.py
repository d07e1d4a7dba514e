"""Expense claims as the finance team exports them: reading one row of the file.

People type dates and amounts as they are used to, so ``2026-09-14`` and ``14.09.2026`` are accepted, and so are
``1234.5``, ``1,234.50``, ``1.234,50`` and ``1'234.50``. Anything else is refused with its reason.
"""

from __future__ import annotations

import csv
import re
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from datetime import date, datetime
from decimal import Decimal
from pathlib import Path

from .policy import LIMITS, RATES

COLUMNS = ["Claim", "Date", "Employee", "Amount", "Currency", "Category", "Receipt", "Description", "Answer within"]

DATES = ("%Y-%m-%d", "%d.%m.%Y")
# Digits, in groups of three or not, and up to two decimals after a mark that does not also part the groups.
AMOUNT = re.compile(
    r"(?P<whole>[0-9]{1,3}(?P<sep>[.,' ])[0-9]{3}(?:(?P=sep)[0-9]{3})*|[0-9]+)"
    r"(?:(?!(?P=sep))[.,](?P<cents>[0-9]{1,2}))?"
)

DURATION = re.compile(r"([0-9]{1,3}[smhd])?")


class BadRow(ValueError):
    """A row of the file is no claim; the text says why."""


@dataclass(frozen=True)
class Claim:
    """An employee wants back what they have spent. ``answer_within`` shortens the time that people have to answer."""

    number: str
    spent_on: date
    employee: str
    amount: Decimal
    currency: str
    category: str
    has_receipt: bool
    description: str
    answer_within: str = ""

    @property
    def money(self) -> str:
        return f"{self.currency} {self.amount:,.2f}"


def rows(file: Path) -> Iterator[tuple[int, list[str]]]:
    """Yield the line number and the cells of each row after the heading.

    Raises:
        ValueError: the heading is another one, so this is another kind of file.
    """
    with file.open(encoding="utf-8-sig", newline="") as lines:
        reader = csv.reader(lines)
        if next(reader, None) != COLUMNS:
            raise ValueError(f"{file} does not begin with the line {','.join(COLUMNS)}")
        for cells in reader:
            yield reader.line_num, cells


def parse(cells: list[str]) -> Claim:
    """Return the claim that a row states.

    Raises:
        BadRow: it states none.
    """
    if len(cells) != len(COLUMNS):
        raise BadRow(f"it has {len(cells)} cells instead of {len(COLUMNS)}")
    number, spent_on, employee, amount, currency, category, receipt, description, within = (c.strip() for c in cells)
    if not number:
        raise BadRow("it has no claim number")
    if not DURATION.fullmatch(within):
        raise BadRow(f'the time to answer "{within}" cannot be read')
    return Claim(
        number=number,
        spent_on=_date(spent_on),
        employee=employee.lower(),
        amount=_amount(amount),
        currency=_known(currency.upper(), RATES, "currency"),
        category=_known(category.lower(), LIMITS, "category"),
        has_receipt=_known(receipt.lower(), ("yes", "no"), "receipt") == "yes",
        description=description,
        answer_within=within,
    )


def _date(text: str) -> date:
    for pattern in DATES:
        try:
            return datetime.strptime(text, pattern).date()
        except ValueError:
            continue
    raise BadRow(f'the date "{text}" cannot be read')


def _amount(text: str) -> Decimal:
    found = AMOUNT.fullmatch(text.removeprefix("-"))
    if not found:
        raise BadRow(f'the amount "{text}" cannot be read')
    whole, cents = re.sub(r"\D", "", found["whole"]), found["cents"] or ""
    amount = Decimal(f"{whole}.{cents:0<2}")  # always in cents, so that one amount is one value however it was typed
    if text.startswith("-") or not amount:
        raise BadRow(f'the amount "{text}" is not more than nothing')
    return amount


def _known(text: str, names: Collection[str], what: str) -> str:
    if text not in names:
        raise BadRow(f'the {what} "{text}" is none of {", ".join(names)}')
    return text
