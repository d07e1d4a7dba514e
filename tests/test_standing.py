"""What can be done with a run as it stands: one answer, which the verbs obey and the admin's buttons show."""

from __future__ import annotations

import pytest

from django_finoflow import standing
from django_finoflow.models import Execution
from django_finoflow.statuses import RunStatus

VERBS = {
    "retry": standing.can_retry,
    "cancel": standing.can_cancel,
    "resume": standing.is_stuck_unwinding,
}

#: status, rollback, why it is stuck, and what can be done then.
CASES = [
    ("running", "", "", {"cancel"}),
    ("waiting", "", "", {"cancel"}),
    ("compensating", "", "", set()),
    ("done", "", "", set()),
    ("cancelled", "", "", set()),
    ("error", "", "", {"retry"}),
    ("error", "not-applicable", "", {"retry"}),
    ("error", "completed", "", set()),
    ("error", "stuck", "", set()),
    ("stuck", "", "replay-mismatch", {"retry", "cancel"}),
    ("stuck", "", "too-many-crashes", {"retry", "cancel"}),
    ("stuck", "", "compensation-failed", {"resume"}),
]


@pytest.mark.only_sqlite(reason="needs no database")
@pytest.mark.parametrize(("status", "rollback", "reason", "possible"), CASES)
def test_c3_d14_d16_what_can_be_done_with_a_run_follows_from_its_row(
    status: str, rollback: str, reason: str, possible: set[str]
) -> None:
    run = Execution(status=status, rollback=rollback, stuck_reason=reason)
    assert {verb for verb, can in VERBS.items() if can(run)} == possible


@pytest.mark.only_sqlite(reason="needs no database")
def test_every_status_has_its_case() -> None:
    assert {status for status, *_ in CASES} == set(RunStatus.values)
