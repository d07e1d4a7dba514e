"""``ctx``: what a workflow's body works with.

Each checkpoint takes the next position when it is called, and is known by it (rule D4). Everything else is in ``steps``
and ``waits``; here are only the names that users see.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import fields, replace
from typing import Any

from . import clock, durations, payloads, schemas, steps, waits
from .approval import Approval
from .attempt import Abort
from .drive import Drive
from .exceptions import DefinitionError, GateRejected, SignalTimeout
from .history import Place
from .models import Execution, Wait
from .names import check_name, check_signal_name
from .retry import Retry
from .state import StateBag
from .statuses import Outcome, StepKind
from .workflow import Activity, Definition

ONCE = Retry(1)


class Context:
    """The handle of one run, for its body.

    Attributes:
        run_id: the run's id.
        workflow_id: the workflow's id.
        input: what the run was started with, as its ``input_schema`` gives it.
        state: the run's durable bag: ``get``, ``set``, ``clear``, ``entries``.
        abort: like a ``threading.Event``, set on cancel, lost lease and shutdown.
    """

    def __init__(self, drive: Drive, definition: Definition, input: Any):
        self.input = input
        self._drive = drive
        self._definition = definition
        self._count = 0

    @property
    def run_id(self) -> str:
        return self._drive.run.run_id

    @property
    def workflow_id(self) -> str:
        return self._drive.run.workflow_id

    @property
    def requester(self) -> Any:
        """The user who started the run; None if nobody is on record, or the user was deleted."""
        return self._drive.run.requester

    @property
    def has_requester(self) -> bool:
        """Whether somebody is on record as requester, deleted since or not."""
        return bool(self._drive.run.requester_name)

    @property
    def stored_input(self) -> Any:
        """The run's input as its row holds it, whatever the body has done to ``input``."""
        return Execution.objects.values_list("input", flat=True).get(pk=self._drive.run.pk)

    @property
    def state(self) -> StateBag:
        return self._drive.bag

    @property
    def abort(self) -> Abort:
        return self._drive.abort

    def step(
        self,
        id: str,
        fn: Callable[[], Any],
        *,
        retry: Retry | int | None = None,
        timeout: Any = None,
        atomic: bool = False,
    ) -> Any:
        """Call ``fn`` as a named checkpoint; once it is done it is never called again.

        Args:
            id: the step's id. It may repeat at other positions (in a loop).
            fn: called without arguments; what it returns is stored.
            retry: attempts in all, or a ``Retry``; default: one.
            timeout: how long an attempt may take, a duration; None or 0: as long as it likes.
            atomic: whether the body's writes to the runs' database and the checkpoint commit together.

        Returns:
            What ``fn`` returned, as it was stored.

        Raises:
            Exception: what ``fn`` raised last, when its attempts are spent.
            CheckpointRefused: called inside a step, or in a thread that does not drive the run.
            DefinitionError: ``fn`` is async or no function, or an argument is not of its kind.
        """
        check_name(id, "step")
        return self._take(id, StepKind.STEP, fn, fn, retry, ONCE, timeout, atomic)

    def call(
        self,
        activity: Activity,
        input: Any = None,
        *,
        retry: Retry | int | None = None,
        timeout: Any = None,
        atomic: bool = False,
    ) -> Any:
        """Call an activity as a checkpoint; as ``step``, with the activity's own id, retry policy and schemas.

        Raises:
            ValidationFailed: the input does not satisfy the activity's ``input_schema``; it is the step's failure.
        """
        if not isinstance(activity, Activity):
            raise DefinitionError(
                f"ctx.call takes what @activity made, not {activity!r}. For a plain function use ctx.step."
            )

        def body() -> Any:
            given = input
            if activity.input_schema is not None:
                stored = schemas.clean(activity.input_schema, input, f'The input of activity "{activity.id}"')
                given = schemas.rebuild(activity.input_schema, payloads.roundtrip(stored))
            return activity.fn(given, self)

        default = activity.retry or ONCE
        schema = activity.output_schema
        return self._take(activity.id, StepKind.ACTIVITY, activity.fn, body, retry, default, timeout, atomic, schema)

    def sleep(self, id: str, duration: Any) -> None:
        """Park the run until ``duration`` has passed; a moment that is past does not park.

        Args:
            id: the sleep's id.
            duration: a duration, or an aware ``datetime``. Counted from when it was first reached.

        Raises:
            DurationError: it is none.
        """
        check_name(id, "sleep")
        durations.due(duration, clock.now())  # a refusal takes no position
        waits.sleep(self._drive, self._next(), id, duration)

    def wait_for_signal(self, name: str, *, timeout: Any = None) -> Any:
        """Park the run until a signal of that name comes, and return its payload.

        It is meant for machines: webhooks, callbacks.

        Args:
            name: the signal's name.
            timeout: a duration from now, or an aware ``datetime``; None: for ever; 0 has already passed.

        Raises:
            SignalTimeout: nothing came in time.
            InvalidSignalName: the name cannot be a signal's.
        """
        check_signal_name(name)
        durations.check(timeout)
        return self._arrived(
            *waits.for_signal(self._drive, self._next(), name, timeout, early=self._definition.early_signals)
        )

    def wait_for_approval(self, name: str, *, timeout: Any = None, **approval: Any) -> Any:
        """Park the run at a gate until a person answers, and return the decision's payload.

        Args:
            name: the gate's name; also that of the signal that answers it.
            timeout: as for ``wait_for_signal``.
            approval: arguments of ``Approval``; what is not said is taken from the workflow's ``gates``.

        Returns:
            A mapping of ``approved``, ``by`` (a username), ``by_id``, ``reason``, ``data`` and ``at``.

        Raises:
            SignalTimeout: nobody answered in time.
            GateRejected: the answer was no, and the approval says ``on_reject="fail"``.
            DefinitionError: an argument is not one of ``Approval``'s.
        """
        check_signal_name(name)
        declared = self._definition.gates.get(name, Approval())
        unknown = approval.keys() - {field.name for field in fields(Approval)}
        if unknown:
            raise DefinitionError(f'Gate "{name}": Approval has no argument {", ".join(sorted(unknown))}.')
        gate = replace(declared, **approval)
        durations.check(timeout)
        early = self._definition.early_signals
        answer = waits.for_signal(
            self._drive, self._next(), name, timeout, early=early, ask=lambda: gate.ask(name, self)
        )
        return self._decided(*answer)

    def _take(
        self,
        id: str,
        kind: StepKind,
        fn: Any,
        body: Callable[[], Any],
        retry: Any,
        default: Retry,
        timeout: Any,
        atomic: bool,
        output_schema: Any = None,
    ) -> Any:
        where = f'{kind} "{id}"'
        if not callable(fn):
            raise DefinitionError(f"{where}: give it a function to call, not {fn!r}.")
        if inspect.iscoroutinefunction(fn):
            raise DefinitionError(f"{where}: its function must be an ordinary def, not async.")
        seconds = (durations.seconds(timeout) or None) if timeout is not None else None
        durations.check(seconds)
        call = steps.Call(id, kind, body, Retry.of(retry, default), seconds, bool(atomic), output_schema)
        return steps.take(self._drive, self._next(), call)

    def _next(self) -> Place:
        self._drive.enter()
        place = ("", self._count)
        self._count += 1
        return place

    def _arrived(self, wait: Wait, payload: Any) -> Any:
        if wait.outcome == Outcome.TIMED_OUT:
            raise SignalTimeout(f'Signal "{wait.name}" timed out after {waits.length(wait)}')
        return payload

    def _decided(self, wait: Wait, payload: Any) -> Any:
        self._arrived(wait, payload)
        rejected = isinstance(payload, dict) and payload.get("approved") is False
        if rejected and (wait.approval or {}).get("on_reject") == "fail":
            by = f" by {payload['by']}" if payload.get("by") else ""
            why = f": {payload['reason']}" if payload.get("reason") else ""
            raise GateRejected(f'Gate "{wait.name}" was rejected{by}{why}', payload)
        return payload

    def leftover(self) -> Any:
        """Return a checkpoint that the run has recorded and the body did not come to, if there is one."""
        return self._drive.recorded.after("", self._count)
