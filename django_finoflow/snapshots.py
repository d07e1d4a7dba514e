"""What a caller is shown of a run: detached, frozen copies. Changing one changes nothing stored."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, NamedTuple


class StepState(NamedTuple):
    """One checkpoint: a step, a call, or a wait that is over."""

    index: int  # type: ignore[assignment]
    id: str
    kind: str
    status: str
    result: Any
    error: Mapping[str, Any] | None
    attempts: int
    started_at: datetime | None
    finished_at: datetime | None


class SignalState(NamedTuple):
    """One signal that was delivered."""

    name: str
    payload: Any
    received_at: datetime


class WaitState(NamedTuple):
    """One open wait. ``kind`` is ``timer``, ``signal`` or ``retry``; ``name`` is a signal's."""

    kind: str
    id: str
    name: str
    index: int  # type: ignore[assignment]
    opened_at: datetime | None
    due_at: datetime | None


@dataclass(frozen=True)
class RunState:
    """A run as it stood at one moment.

    ``cursor`` is the first position not yet done. ``steps`` are in order of position; ``signals`` of a function
    workflow are those not yet consumed. ``waiting_on`` is the first open wait, ``waits`` all of them. ``error`` is None
    or has ``type``, ``message`` and ``traceback``.
    """

    run_id: str
    workflow_id: str
    status: str
    cursor: int
    input: Any
    steps: tuple[StepState, ...]
    state: dict[str, Any]
    signals: tuple[SignalState, ...]
    created_at: datetime
    updated_at: datetime
    key: str | None = None
    waiting_on: WaitState | None = None
    waits: tuple[WaitState, ...] = ()
    result: Any = None
    error: dict[str, Any] | None = None


@dataclass(frozen=True)
class RunResult:
    """What ``.run()`` and ``.resume()`` return: how the run stands after the drive."""

    run_id: str
    status: str
    state: RunState = field(repr=False)
    waiting_on: WaitState | None = None
    result: Any = None
