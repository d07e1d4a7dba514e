"""From the file to runs: one for each good row, keyed by its claim number, so that no claim is started twice."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

from django.contrib.auth.models import User
from django.db import transaction

from django_finoflow import KeyConflict

from .claims import BadRow, parse, rows
from .models import RefusedRow
from .workflows import expense_approval


@dataclass
class Loaded:
    """What became of a file's rows."""

    started: int = 0
    known: int = 0
    refused: list[RefusedRow] = field(default_factory=list)

    @property
    def rows(self) -> int:
        return self.started + self.known + len(self.refused)


@transaction.atomic
def load(file: Path) -> Loaded:
    """Start a run for each claim in ``file`` that has none yet, and keep the rows that are no claims as ``RefusedRow``.

    All of it is one transaction, the runs included: either the file is loaded or nothing has happened.
    """
    employees = {user.get_username(): user for user in User.objects.all()}
    loaded = Loaded()
    for line, cells in rows(file):
        try:
            created = _start(cells, employees)
        except BadRow as error:
            loaded.refused.append(RefusedRow(file=file.name, line=line, reason=str(error), cells=cells))
        else:
            loaded.started += created
            loaded.known += not created
    RefusedRow.objects.filter(file=file.name).delete()
    RefusedRow.objects.bulk_create(loaded.refused)
    return loaded


def _start(cells: list[str], employees: dict) -> bool:
    """Start the run of one row; return whether it is new."""
    claim = parse(cells)
    if claim.employee not in employees:
        raise BadRow(f'the employee "{claim.employee}" is unknown')
    try:
        return expense_approval.start(claim, key=claim.number, requester=employees[claim.employee]).created
    except KeyConflict:
        raise BadRow(f"claim {claim.number} was filed before with other contents") from None
