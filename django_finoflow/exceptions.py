"""Every error a user of django_finoflow can meet. All derive from ``FinoflowError``.

What the engine raises to stop a drive is not here: it is no error and nobody should catch it (see ``stops``).
"""

from __future__ import annotations

from typing import Any


class FinoflowError(Exception):
    """Base of all errors of this app."""


class DefinitionError(FinoflowError, ValueError):
    """A workflow, activity or gate is declared in a way that cannot work."""


class DurationError(FinoflowError, ValueError):
    """What was given is no duration (rule T1)."""


class PayloadError(FinoflowError, ValueError):
    """A value cannot be stored as JSON and read back the same (rules P1 and P3)."""


class ValidationFailed(FinoflowError):
    """An input or output does not satisfy its schema.

    ``errors`` holds what the schema reported, if it said more than text.
    """

    def __init__(self, message: str, errors: Any = None):
        super().__init__(message, errors)
        self.errors = errors

    def __str__(self) -> str:
        return str(self.args[0])


class UnknownWorkflow(FinoflowError):
    """No workflow of that id (and version) is registered in this process."""


class RunNotFound(FinoflowError):
    """No run has that id."""


class RunExists(FinoflowError):
    """``start(run_id=...)`` was given an id that is in use."""


class KeyConflict(FinoflowError):
    """``start(key=...)`` was given a key that is in use for another input."""


class RunLive(FinoflowError):
    """The run has not ended, so it cannot be deleted without ``force=True``."""


class RunLeased(FinoflowError):
    """A worker holds the run at this moment."""


class RunNotResumable(FinoflowError):
    """The run is in no state that could be driven or tried again."""


class DriveRefused(FinoflowError):
    """A run cannot be driven inside an open transaction: its checkpoints would not be durable."""


class CheckpointRefused(FinoflowError):
    """A checkpoint was asked for inside a step or a transaction, or in a thread that does not drive the run."""


class SignalRefused(FinoflowError):
    """Base of the reasons why a signal was not accepted. Nothing was written."""


class RunNotLive(SignalRefused):
    """The run is neither running nor waiting, so it cannot receive a signal."""


class NotWaiting(SignalRefused):
    """The run does not wait for a signal of that name."""


class AlreadySignalled(SignalRefused):
    """A signal of that name was accepted before; the first one stands."""


class UnknownSignal(SignalRefused):
    """The workflow declares no gate of that name."""


class InvalidSignalName(SignalRefused, DefinitionError):
    """The name cannot be a signal's (rule S6)."""


class DecisionRefused(FinoflowError):
    """A decision, claim or delegation was not accepted, and nothing was written.

    ``code`` is one of ``not-a-gate``, ``not-open``, ``expired``, ``not-eligible``, ``excluded``, ``reason-required``,
    ``invalid``, ``changed``, ``already-answered``, ``ambiguous``, ``claimed`` and ``not-claimed``. With ``invalid``,
    ``errors`` holds what the gate's form found wrong: a list of texts for each field, under ``""`` what is wrong as a
    whole.
    """

    def __init__(self, message: str, code: str, errors: dict[str, list[str]] | None = None):
        super().__init__(message, code, errors)
        self.code = code
        self.errors = errors or {}

    def __str__(self) -> str:
        return str(self.args[0])


class StepFailed(FinoflowError):
    """A recorded failure whose own class cannot be rebuilt. ``type`` is its dotted name, ``message`` its text."""

    def __init__(self, type: str, message: str):
        super().__init__(type, message)
        self.type = type
        self.message = message

    def __str__(self) -> str:
        return f"{self.type}: {self.message}"


class StepTimeout(FinoflowError):
    """An attempt of a step took longer than its ``timeout``."""


class SignalTimeout(FinoflowError):
    """A wait's deadline passed before its signal came."""


class GateRejected(FinoflowError):
    """A gate with ``on_reject="fail"`` was rejected. ``decision`` is the payload that said so."""

    def __init__(self, message: str, decision: Any = None):
        super().__init__(message, decision)
        self.decision = decision

    def __str__(self) -> str:
        return str(self.args[0])


class NonRetryable(FinoflowError):
    """Raise it in a step to fail at once, whatever attempts are left."""


class WorkflowError(FinoflowError):
    """A run ended otherwise than done. ``state`` is its ``RunState``; the cause is the original error."""

    def __init__(self, message: str, state: Any = None):
        super().__init__(message)
        self.state = state
