"""A body and what it recorded, in one transaction: both commit, or neither does (rule D6).

The fence comes last where rows can be locked, so that no lock on the run is held while the body works; on SQLite it
comes first, and with it the one write lock, before the body has read anything.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

from django.db import connections, transaction

from . import conf, history, leases
from .attempt import Attempt
from .bodies import Outcome, Race
from .drive import Drive
from .leases import Lease
from .stops import LeaseLost, is_interrupt
from .trouble import is_conflict, is_lost

#: How often a body is run again because its transaction met another one, before that counts as a failed attempt.
RERUNS = 20


def run(
    drive: Drive,
    attempt: Attempt,
    race: Race,
    *,
    body: Callable[[], Outcome],
    record: Callable[[Outcome], Any],
    recall: Callable[[], Outcome | None],
) -> Outcome:
    """Run a body and record it, again if their transaction met another one, and return what came of it.

    Args:
        drive: the drive.
        attempt: what the body sees; what it changed in a try that is repeated is forgotten.
        race: the body's race with its deadline.
        body: calls user code.
        record: writes the record, and proves the lease with it.
        recall: returns what is recorded, once a COMMIT's answer is in doubt.
    """
    for tried in range(RERUNS + 1):
        recording = False
        try:
            with transaction.atomic(using=conf.database()):
                _fence_first(drive)
                outcome = body()
                race.claim()
                recording = True
                record(outcome)
                _renew_last(drive)
        except BaseException as error:
            if is_interrupt(error):
                raise
            again = _may_run_again(error, recording)  # asked before a look at the row mends the connection
            found = recall() if recording and not isinstance(error, LeaseLost) else None
            outcome = found or Outcome(error=error)
            again = again and tried < RERUNS and outcome.error is not None and race.reopen()
            if again and not drive.abort.wait(random.uniform(0, 0.1)):
                attempt.changes.clear()
                continue
        outcome.stored = outcome.error is None
        return race.finish(outcome)
    raise AssertionError("unreachable")


def _fence_first(drive: Drive) -> None:
    if not connections[conf.database()].features.has_select_for_update:
        with history.fenced(drive.run):
            pass


def _renew_last(drive: Drive) -> None:
    """Where the body held the one write lock (SQLite), no heartbeat got through: renew the lease with its commit."""
    if not connections[conf.database()].features.has_select_for_update:
        run = drive.run
        leases.renew([Lease(run.pk, run.lease_epoch)], run.lease_seconds or conf.get("LEASE"))


def _may_run_again(error: BaseException, recording: bool) -> bool:
    return is_conflict(error) or (recording and is_lost(error, conf.database()))
