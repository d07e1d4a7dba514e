"""What can be done with a run as it stands: read from its row alone, by the verbs themselves and by who offers them."""

from __future__ import annotations

from .models import Execution
from .statuses import Rollback, RunStatus, StuckReason


def can_retry(run: Execution) -> bool:
    """Whether ``retry_run`` would accept this run (rule D16)."""
    return run.status in (RunStatus.ERROR, RunStatus.STUCK) and not was_unwound(run)


def can_cancel(run: Execution) -> bool:
    """Whether ``cancel`` would change anything about this run (rule D14)."""
    unwinding = run.status == RunStatus.COMPENSATING or run.stuck_reason == StuckReason.COMPENSATION_FAILED
    return not run.is_over and not unwinding


def is_stuck_unwinding(run: Execution) -> bool:
    """Whether ``resume_compensation`` and ``abandon_compensation`` would accept this run (rule C3)."""
    return run.status == RunStatus.STUCK and run.stuck_reason == StuckReason.COMPENSATION_FAILED


def was_unwound(run: Execution) -> bool:
    """Whether this run has been undone, in whole or in part: it is never tried again from its failed step."""
    return run.rollback in (Rollback.COMPLETED, Rollback.STUCK) or run.stuck_reason == StuckReason.COMPENSATION_FAILED
