"""``ctx``: what a workflow's body works with.

Each checkpoint takes the next position when it is called, and is known by it (rule D4). Everything else is in ``steps``
and ``waits``; here are only the names that users see.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping, Sequence
from dataclasses import fields, replace
from functools import partial
from typing import Any

from . import clock, durations, failures, history, payloads, schemas, steps, together, waits
from .approval import Approval
from .attempt import Abort
from .branches import Branch
from .drive import Drive
from .exceptions import DefinitionError, GateRejected, SignalTimeout, WorkflowError
from .history import Place
from .models import Execution, Step, Wait
from .names import check_name, check_signal_name
from .retry import Retry
from .starting import begin
from .state import StateBag
from .statuses import Outcome, RunStatus, StepKind, StepStatus, WaitKind
from .steps import Call
from .waits import Asked
from .workflow import Activity, Definition, is_async


class Context:
    """The handle of one run, for its body.

    Attributes:
        run_id: the run's id.
        workflow_id: the workflow's id.
        input: what the run was started with, as its ``input_schema`` gives it.
        state: the run's durable bag: ``get``, ``set``, ``clear``, ``entries``.
        abort: like a ``threading.Event``, set on cancel, lost lease and shutdown.
    """

    #: Whether what an async function returns is awaited.
    _awaits = False

    def __init__(self, drive: Drive, definition: Definition, input: Any):
        self.input = input
        self._drive = drive
        self._definition = definition

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
        return self._branch.bag

    @property
    def _branch(self) -> Branch:
        """The branch that this code belongs to; a sync body has only the root."""
        return self._drive.root

    @property
    def abort(self) -> Abort:
        return self._drive.abort

    def signals(self) -> dict[str, Any]:
        """Return the payloads of the signals that have come, by name; of several of one name the first."""
        if self._drive.signals is None:
            self._drive.signals = history.signals(self._drive.run)
        return self._drive.signals

    def results(self) -> dict[str, Any]:
        """Return the results of the steps and child runs that are done, by name; of several of one name the last.

        A turn of a loop, ``name:0``, is also there under its bare name.
        """
        recorded, found = self._drive.recorded, dict[str, Any]()
        for checkpoint in recorded.in_order():
            if isinstance(checkpoint, Wait) and checkpoint.kind == WaitKind.CHILD:
                end = recorded.delivered.get(checkpoint.pk)
                if end is not None and end.payload["status"] == RunStatus.DONE:
                    found[checkpoint.name] = end.payload["result"]
            elif isinstance(checkpoint, Step) and _has_result(checkpoint):
                bare, colon, turn = checkpoint.step_id.rpartition(":")
                found |= dict.fromkeys(
                    [checkpoint.step_id, *([bare] if colon and turn.isdecimal() else [])], checkpoint.result
                )
        return found

    def step(
        self,
        id: str,
        fn: Callable[[], Any],
        *,
        retry: Retry | int | None = None,
        timeout: Any = None,
        atomic: bool = False,
        compensate: Callable[[Any], Any] | None = None,
    ) -> Any:
        """Call ``fn`` as a named checkpoint; once it is done it is never called again.

        Args:
            id: the step's id. It may repeat at other positions (in a loop).
            fn: called without arguments; what it returns is stored.
            retry: attempts in all, or a ``Retry``; default: one.
            timeout: how long an attempt may take, a duration; None or 0: as long as it likes.
            atomic: whether the body's writes to the runs' database and the checkpoint commit together.
            compensate: undoes the step should the run fail; called with one ``ctx`` (``compensation.UndoContext``).

        Returns:
            What ``fn`` returned, as it was stored.

        Raises:
            Exception: what ``fn`` raised last, when its attempts are spent.
            CheckpointRefused: called inside a step, or in a thread that does not drive the run.
            DefinitionError: ``fn`` is async or no function, or an argument is not of its kind.
        """
        return self._take(self._step(id, fn, retry=retry, timeout=timeout, atomic=atomic, compensate=compensate))

    def call(
        self,
        activity: Activity,
        input: Any = None,
        *,
        retry: Retry | int | None = None,
        timeout: Any = None,
        atomic: bool = False,
        compensate: Callable[[Any], Any] | None = None,
    ) -> Any:
        """Call an activity as a checkpoint; as ``step``, with the activity's own id, retry, schemas and compensator.

        Raises:
            ValidationFailed: the input does not satisfy the activity's ``input_schema``; it is the step's failure.
        """
        if not isinstance(activity, Activity):
            raise DefinitionError(
                f"ctx.call takes what @activity made, not {activity!r}. For a plain function use ctx.step."
            )

        def validated() -> Any:
            stored = schemas.clean(activity.input_schema, input, f'The input of activity "{activity.id}"')
            return activity.fn(schemas.rebuild(activity.input_schema, payloads.roundtrip(stored)), self)

        self._check_async(activity.fn, f'activity "{activity.id}"', atomic)
        undo = compensate or activity.compensate
        return self.perform(
            activity.id,
            validated if activity.input_schema is not None else partial(activity.fn, input, self),
            kind=StepKind.ACTIVITY,
            retry=Retry.of(retry, activity.retry or steps.ONCE),
            timeout=timeout,
            atomic=atomic,
            compensate=undo,
            output_schema=activity.output_schema,
            # As it is now: a replay does not call what may change it.
            step_input=copy.deepcopy(input) if undo else None,
        )

    def pivot(self) -> Any:
        """Pass the point of no return: a run that fails after it undoes nothing."""
        self._drive.enter()
        self._drive.pivoted = True
        self._drive.undoables.clear()

    def sleep(self, id: str, duration: Any) -> Any:
        """Park the run until ``duration`` has passed; a moment that is past does not park.

        Args:
            id: the sleep's id.
            duration: a duration, or an aware ``datetime``. Counted from when it was first reached.

        Raises:
            DurationError: it is none.
        """
        check_name(id, "sleep")
        durations.due(duration, clock.now())  # a refusal takes no position
        return self._wait(Asked("sleep", id, duration), lambda wait, payload: None)

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
        return self._wait(Asked("signal", name, timeout, early=self._definition.early_signals), _arrived)

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
            DefinitionError: an argument is not one of ``Approval``'s, or is its ``form``, which is only declared.
        """
        check_signal_name(name)
        declared = self._definition.gates.get(name, Approval())
        unknown = approval.keys() - {field.name for field in fields(Approval)}
        if unknown:
            raise DefinitionError(f'Gate "{name}": Approval has no argument {", ".join(sorted(unknown))}.')
        if "form" in approval:
            raise DefinitionError(
                f'Gate "{name}": declare its form in the gates= of the workflow, where those who show it find it.'
            )
        gate = replace(declared, **approval)
        durations.check(timeout)
        early = self._definition.early_signals
        return self._wait(Asked("approval", name, timeout, early, ask=lambda: gate.ask(name, self)), _decided)

    def parallel(self, steps: Mapping[str, Callable[[], Any]], **options: Any) -> Any:
        """Call several functions side by side, each as a checkpoint of its own; all settle before the body goes on.

        Args:
            steps: the functions by the ids of their steps.
            options: as of ``step``, for each of them: ``retry``, ``timeout``, ``atomic``, ``compensate``.

        Returns:
            What they returned, by id.

        Raises:
            Exception: what one of them raised; if several did, a ``FinoflowError`` that names them all.
            DefinitionError: ``steps`` is no mapping, or an argument is not of its kind.
        """
        if not isinstance(steps, Mapping):
            raise DefinitionError(f"ctx.parallel takes functions by the ids of their steps, not {steps!r}.")
        calls = [self._step(id, fn, **options) for id, fn in steps.items()]
        return self._take_together(calls, lambda results: dict(zip(steps, results, strict=True)))

    def perform(self, id: str, fn: Callable[[], Any], **options: Any) -> Any:
        """Make a checkpoint of any kind, for ``call`` and the builder; ``options`` as of ``steps.Call``."""
        return self._take(self._call(id, fn, **options))

    def perform_together(self, calls: Sequence[Mapping[str, Any]]) -> Any:
        """Make checkpoints side by side, each described by the arguments of ``perform``; return their results in order.

        Raises:
            Exception: what one of them raised; if several did, a ``FinoflowError`` that names them all.
        """
        return self._take_together([self._call(**call) for call in calls], list)

    def sub_workflow(self, name: str, workflow_id: str, input: Any, *, timeout: Any = None) -> Any:
        """Start another workflow as a child run, park until it has ended, and return its result.

        Raises:
            Exception: what failed the child.
            SignalTimeout: it did not end in time, and was cancelled.
            WorkflowError: it was cancelled.
        """
        durations.check(timeout)

        def start(run_id: str) -> Execution:
            return begin(workflow_id, input, run_id=run_id, parent=self._drive.run)

        def ended(wait: Wait, news: Any) -> Any:
            if not self._drive.pivoted:
                self._drive.undoables.append(wait)
            if wait.outcome == Outcome.TIMED_OUT:
                raise SignalTimeout(f'Sub-workflow "{name}" timed out after {waits.length(wait)}')
            if news["status"] == RunStatus.ERROR:
                raise failures.rebuild(news["error"])
            if news["status"] != RunStatus.DONE:
                raise WorkflowError(f'Sub-workflow "{name}", run {news["run_id"]}, was {news["status"]}.')
            return news["result"]

        return self._wait(Asked("child", name, timeout, start=start), ended)

    def _step(self, id: str, fn: Any, *, retry: Retry | int | None = None, **options: Any) -> Call:
        return self._call(check_name(id, "step"), fn, retry=Retry.of(retry, steps.ONCE), **options)

    def _call(self, id: str, fn: Any, *, kind: str = StepKind.STEP, timeout: Any = None, **options: Any) -> Call:
        where = f'{kind} "{id}"'
        _check_function(fn, where, "it")
        if options.get("compensate") is not None:
            _check_function(options["compensate"], where, "compensate=")
        self._check_async(fn, where, options.get("atomic", False))
        if options.get("atomic") and is_async(options.get("compensate")):
            raise DefinitionError(f"{where}: with atomic=True its compensator must be an ordinary def, not async.")
        seconds = (durations.seconds(timeout) or None) if timeout is not None else None
        durations.check(seconds)
        return Call(id, StepKind(kind), fn, timeout=seconds, may_await=self._awaits, **options)

    def _check_async(self, fn: Any, where: str, atomic: bool) -> None:
        if is_async(fn):
            raise DefinitionError(f"{where}: an async function can be awaited in an async def workflow only.")

    # What follows is all that an async body does otherwise; see ``awaiting``.

    def _take(self, call: Call) -> Any:
        return steps.take(self._drive, self._next(), call)

    def _take_together(self, calls: Sequence[Call], then: Callable[[list[Any]], Any]) -> Any:
        return then(together.take(self._drive, [self._next() for _call in calls], calls))

    def _wait(self, asked: Asked, then: Callable[[Wait, Any], Any]) -> Any:
        return then(*waits.take(self._drive, self._next(), asked))

    def _next(self) -> Place:
        self._drive.enter()
        return self._branch.take()

    def play(self, body: Callable[..., Any]) -> Any:
        """Run the body to its end, and return its result."""
        return body(self, self.input)

    def leftover(self) -> Any:
        """Return a checkpoint that the run has recorded and the body did not come to, if there is one."""
        return self._drive.recorded.after("", self._drive.root.count)


def _arrived(wait: Wait, payload: Any) -> Any:
    if wait.outcome == Outcome.TIMED_OUT:
        raise SignalTimeout(f'Signal "{wait.name}" timed out after {waits.length(wait)}')
    return payload


def _decided(wait: Wait, payload: Any) -> Any:
    _arrived(wait, payload)
    answer = payload if isinstance(payload, dict) else {"approved": payload}
    if answer.get("approved") is False and (wait.approval or {}).get("on_reject") == "fail":
        by = f" by {answer['by']}" if answer.get("by") else ""
        why = f": {answer['reason']}" if answer.get("reason") else ""
        raise GateRejected(f'Gate "{wait.name}" was rejected{by}{why}', payload)
    return payload


def _has_result(step: Step) -> bool:
    return step.status == StepStatus.DONE and step.kind != StepKind.BRANCH


def _check_function(fn: Any, where: str, what: str) -> None:
    if not callable(fn):
        raise DefinitionError(f"{where}: give {what} a function to call, not {fn!r}.")
