"""From two small files to runs, keyed by the numbers in them, so that loading them again starts nothing."""

from __future__ import annotations

import csv
from decimal import Decimal
from pathlib import Path

from django.contrib.auth.models import User
from django.db import transaction

from .workflows import Order, Purchase, customer_order, purchase_approval


@transaction.atomic
def load_purchases(file: Path) -> int:
    """Start a run for each purchase that has none yet, on behalf of its employee; return how many are new."""
    return sum(
        purchase_approval.start(
            Purchase(**{**row, "eur": Decimal(row["eur"])}),
            key=row["number"],
            requester=User.objects.get(username=row["employee"]),
        ).created
        for row in _rows(file)
    )


@transaction.atomic
def load_orders(file: Path) -> int:
    """Start a run for each order that has none yet; return how many are new."""
    return sum(
        customer_order.start(
            Order(**{**row, "pieces": int(row["pieces"]), "eur": Decimal(row["eur"])}), key=row["number"]
        ).created
        for row in _rows(file)
    )


def _rows(file: Path) -> list[dict[str, str]]:
    with file.open(encoding="utf-8", newline="") as lines:
        return list(csv.DictReader(lines))
