"""Durable workflows for Django that wait for people.

    from django_finoflow import workflow

    @workflow(id="expense")
    def expense(ctx, claim):
        decision = ctx.wait_for_approval("manager", timeout="7d", title="Pay this claim?")
        if decision["approved"]:
            ctx.step("pay", lambda: pay(claim), atomic=True)

Importing this package needs no loaded Django; the functions that touch rows are fetched when they are first used.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from .approval import Approval
from .audience import Candidates
from .builder import Workflow
from .exceptions import (
    AlreadySignalled,
    CheckpointRefused,
    DecisionRefused,
    DefinitionError,
    DriveRefused,
    DurationError,
    FinoflowError,
    GateRejected,
    InvalidSignalName,
    KeyConflict,
    NonRetryable,
    NotWaiting,
    PayloadError,
    RunExists,
    RunLeased,
    RunLive,
    RunNotFound,
    RunNotLive,
    RunNotResumable,
    SignalRefused,
    SignalTimeout,
    StepFailed,
    StepTimeout,
    UnknownSignal,
    UnknownWorkflow,
    ValidationFailed,
    WorkflowError,
)
from .retry import Retry
from .workflow import activity, workflow

if TYPE_CHECKING:
    from .api import (
        abandon_compensation,
        cancel,
        claim_gate,
        decide,
        delegate_gate,
        delete_run,
        get_run,
        list_runs,
        release_gate,
        resume_compensation,
        retry_run,
        signal,
        start,
        wait_for_end,
        watch_run,
    )
    from .asynchronous import (
        aabandon_compensation,
        acancel,
        aclaim_gate,
        adecide,
        adelegate_gate,
        adelete_run,
        aget_run,
        alist_runs,
        arelease_gate,
        aresume_compensation,
        aretry_run,
        asignal,
        astart,
        await_for_end,
        awatch_run,
    )
    from .attempt import current_step
    from .links import approval_link
    from .snapshots import RunResult, RunState

__version__ = "0.1.0"

_HOMES = {
    "api": (
        "abandon_compensation",
        "cancel",
        "claim_gate",
        "decide",
        "delegate_gate",
        "delete_run",
        "get_run",
        "list_runs",
        "release_gate",
        "resume_compensation",
        "retry_run",
        "signal",
        "start",
        "wait_for_end",
        "watch_run",
    ),
    "asynchronous": (
        "aabandon_compensation",
        "acancel",
        "aclaim_gate",
        "adecide",
        "adelegate_gate",
        "adelete_run",
        "aget_run",
        "alist_runs",
        "arelease_gate",
        "aresume_compensation",
        "aretry_run",
        "asignal",
        "astart",
        "await_for_end",
        "awatch_run",
    ),
    "attempt": ("current_step",),
    "links": ("approval_link",),
    "snapshots": ("RunResult", "RunState"),
}
_HOME = {name: module for module, names in _HOMES.items() for name in names}

__all__ = [
    "AlreadySignalled",
    "Approval",
    "Candidates",
    "CheckpointRefused",
    "DecisionRefused",
    "DefinitionError",
    "DriveRefused",
    "DurationError",
    "FinoflowError",
    "GateRejected",
    "InvalidSignalName",
    "KeyConflict",
    "NonRetryable",
    "NotWaiting",
    "PayloadError",
    "Retry",
    "RunExists",
    "RunLeased",
    "RunLive",
    "RunNotFound",
    "RunNotLive",
    "RunNotResumable",
    "RunResult",
    "RunState",
    "SignalRefused",
    "SignalTimeout",
    "StepFailed",
    "StepTimeout",
    "UnknownSignal",
    "UnknownWorkflow",
    "ValidationFailed",
    "Workflow",
    "WorkflowError",
    "aabandon_compensation",
    "abandon_compensation",
    "acancel",
    "aclaim_gate",
    "activity",
    "adecide",
    "adelegate_gate",
    "adelete_run",
    "aget_run",
    "alist_runs",
    "approval_link",
    "arelease_gate",
    "aresume_compensation",
    "aretry_run",
    "asignal",
    "astart",
    "await_for_end",
    "awatch_run",
    "cancel",
    "claim_gate",
    "current_step",
    "decide",
    "delegate_gate",
    "delete_run",
    "get_run",
    "list_runs",
    "release_gate",
    "resume_compensation",
    "retry_run",
    "signal",
    "start",
    "wait_for_end",
    "watch_run",
    "workflow",
]


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f".{_HOME[name]}", __name__), name)
