"""Definitions: ``@workflow`` for a body, ``@activity`` for a reusable step; both a ``def`` or an ``async def``.

A definition is only a description with verbs; the engine performs them. Importing it needs no loaded Django.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from typing import Any

from asgiref.sync import sync_to_async

from . import registry, schemas
from .approval import Approval
from .bridge import engine
from .exceptions import DefinitionError
from .names import check_name
from .retry import Retry

Body = Callable[..., Any]


class Activity:
    """A reusable step: what ``@activity`` makes of a function ``fn(input, ctx)``. Calling it calls the function."""

    def __init__(
        self, fn: Body, *, id: str, retry: Retry | None, input_schema: Any, output_schema: Any, compensate: Body | None
    ):
        self.id = check_name(id, "activity")
        self.fn = _function(fn, f'activity "{id}"')
        self.retry = retry
        self.compensate = None if compensate is None else _function(compensate, f'activity "{id}" compensate')
        schemas.check(input_schema, f'activity "{id}" input_schema')
        schemas.check(output_schema, f'activity "{id}" output_schema')
        self.input_schema, self.output_schema = input_schema, output_schema
        self.__name__ = getattr(fn, "__name__", id)
        self.__doc__ = fn.__doc__

    def __call__(self, input: Any = None, ctx: Any = None) -> Any:
        """Call the function itself, without a checkpoint. For unit tests."""
        return self.fn(input, ctx)

    def __repr__(self) -> str:
        return f"<Activity {self.id}>"


class Definition:
    """What every workflow offers, whatever its body is written as.

    ``body(ctx, input)`` is what a drive runs.
    """

    body: Body

    @property
    def is_async(self) -> bool:
        """Whether the body is an ``async def``."""
        return is_async(self.body)

    def __init__(
        self,
        *,
        id: str,
        version: int,
        queue: str,
        priority: int,
        input_schema: Any,
        output_schema: Any,
        early_signals: bool,
        gates: Mapping[str, Approval],
    ):
        where = f'workflow "{id}"'
        self.id = check_name(id, "workflow")
        self.version = _whole(version, f"{where}: version", least=1)
        self.queue = check_name(queue, f"{where}: queue", longest=100)
        self.priority = _whole(priority, f"{where}: priority", least=-(2**31))
        schemas.check(input_schema, f"{where} input_schema")
        schemas.check(output_schema, f"{where} output_schema")
        self.input_schema, self.output_schema = input_schema, output_schema
        self.early_signals = early_signals
        self.gates = {check_name(name, f"{where}: gate"): _approval(gate, where, name) for name, gate in gates.items()}
        registry.register(self)

    def __repr__(self) -> str:
        return f"<Workflow {self.id} version {self.version}>"

    @property
    def declared_signals(self) -> tuple[str, ...] | None:
        """The signals that its runs can get, each once and early if it likes (rule S4); None: as they wait (S5)."""
        return None

    def seal(self) -> None:
        """End the building of a workflow that is built step by step."""

    def warnings(self) -> list[str]:
        """Return what is allowed but odd, a sentence each."""
        return []

    def check_start(self, *, has_requester: bool) -> None:
        """Refuse a run that could not go well, before it exists."""

    def start(self, input: Any = None, **options: Any) -> Any:
        """Insert a run and return its ``Execution``; a worker drives it. Options as for ``django_finoflow.start``."""
        return engine().start(self, input, **options)

    def run(
        self,
        input: Any = None,
        *,
        abort: Any = None,
        on_checkpoint: Callable[[Any], None] | None = None,
        **options: Any,
    ) -> Any:
        """Start a run and drive it in this process until it ends or waits.

        Args:
            input: what the body gets, validated by the workflow's ``input_schema``.
            abort: an event (``is_set()``); when it is set the drive stops at the next checkpoint and the run stays due.
            on_checkpoint: called with a ``RunState`` after each stored checkpoint.
            options: as for ``start``.

        Returns:
            A ``RunResult``: the run is done, waiting, stuck or cancelled; or running, if ``abort`` stopped it or ``at``
            lies ahead.

        Raises:
            DriveRefused: a transaction is open.
            RunLeased: the ``key`` is in use for a run that a worker holds.
            WorkflowError: the body failed; its cause is the original error.
        """
        return engine().run(self, input, abort=abort, on_checkpoint=on_checkpoint, **options)

    def resume(self, run_id: str, *, abort: Any = None, on_checkpoint: Callable[[Any], None] | None = None) -> Any:
        """Drive an existing run of this workflow in this process, as ``run`` does.

        Raises:
            DriveRefused: a transaction is open.
            RunNotFound: no run has that id.
            RunLeased: a worker holds it at this moment.
            UnknownWorkflow: its version is not registered in this process.
            RunNotResumable: it was cancelled, or belongs to another workflow.
            WorkflowError: the body failed.
        """
        return engine().resume(self, run_id, abort=abort, on_checkpoint=on_checkpoint)

    async def arun(self, input: Any = None, **options: Any) -> Any:
        """Do what ``run`` does, from async code. It holds the thread of all sync code of an ASGI process meanwhile."""
        return await sync_to_async(self.run)(input, **options)

    async def aresume(self, run_id: str, **options: Any) -> Any:
        """Do what ``resume`` does, from async code, as ``arun``."""
        return await sync_to_async(self.resume)(run_id, **options)

    def signal(self, run_id: str, name: str, payload: Any = None, *, sender: str | None = None) -> Any:
        """Deliver a signal to a run; see ``django_finoflow.signal``."""
        return engine().signal(run_id, name, payload, sender=sender)

    async def astart(self, input: Any = None, **options: Any) -> Any:
        """Do what ``start`` does, from async code."""
        return await sync_to_async(self.start)(input, **options)

    async def asignal(self, run_id: str, name: str, payload: Any = None, *, sender: str | None = None) -> Any:
        """Do what ``signal`` does, from async code."""
        return await sync_to_async(self.signal)(run_id, name, payload, sender=sender)


class FunctionWorkflow(Definition):
    """A workflow whose body is a function ``body(ctx, input)``, async or not. Calling it calls the function."""

    def __init__(self, body: Body, **options: Any):
        self.body = _function(body, f'workflow "{options.get("id")}"')
        self.__name__ = getattr(body, "__name__", options["id"])
        self.__doc__ = body.__doc__
        super().__init__(**options)

    def warnings(self) -> list[str]:
        """Return which gates exclude the deciders of one that is not declared: a mistyped name excludes nobody."""
        return [
            f'workflow "{self.id}": gate "{name}" excludes the deciders of "{other}", which its gates do not declare.'
            for name, approval in self.gates.items()
            for other in approval.exclude_deciders_of
            if other not in self.gates
        ]

    def __call__(self, ctx: Any, input: Any = None) -> Any:
        """Call the body itself with a context of your making. For unit tests."""
        return self.body(ctx, input)


def workflow(
    *,
    id: str,
    input_schema: Any = None,
    output_schema: Any = None,
    version: int = 1,
    queue: str = "default",
    priority: int = 0,
    early_signals: bool = False,
    gates: Mapping[str, Approval] | None = None,
) -> Callable[[Body], FunctionWorkflow]:
    """Make a workflow of a function ``body(ctx, input)``.

    Args:
        id: the workflow's name in every row; it must not change while runs are alive, so it is never taken from the
            function.
        input_schema: what input must satisfy before a run exists: a pydantic model or ``TypeAdapter``, a dataclass, a
            Django ``Form`` class, or a callable that returns the value to keep.
        output_schema: the same for the result.
        version: raise it when old runs cannot go on with the new body, and keep the old one registered until they have
            ended.
        queue: which workers drive it; see ``finoflow_worker --queue``.
        priority: higher goes first.
        early_signals: whether a signal may come before its wait; they are then queued and consumed oldest first.
        gates: the approvals of this workflow's gates by name; ``ctx.wait_for_approval`` takes from here what it does
            not say.

    Raises:
        DefinitionError: something is not of its kind, or the id and version are taken.
    """

    def decorate(body: Body) -> FunctionWorkflow:
        return FunctionWorkflow(
            body,
            id=id,
            input_schema=input_schema,
            output_schema=output_schema,
            version=version,
            queue=queue,
            priority=priority,
            early_signals=early_signals,
            gates=gates or {},
        )

    return decorate


def activity(
    *,
    id: str,
    retry: Retry | int | None = None,
    input_schema: Any = None,
    output_schema: Any = None,
    compensate: Body | None = None,
) -> Callable[[Body], Activity]:
    """Make a reusable step of a function ``fn(input, ctx)``; a workflow calls it by ``ctx.call``.

    Args:
        id: its checkpoint's id.
        retry: how often it is tried, unless the call says otherwise; default: once.
        input_schema: what its input must satisfy.
        output_schema: what its result must satisfy; a result that does not is a failed attempt.
        compensate: undoes it should the run fail later; called with one ``ctx``.

    Raises:
        DefinitionError: something is not of its kind.
    """
    policy = None if retry is None else Retry.of(retry, Retry(1))
    return lambda fn: Activity(
        fn,
        id=id,
        retry=policy,
        input_schema=input_schema,
        output_schema=output_schema,
        compensate=compensate,
    )


def _function(fn: Body, where: str) -> Body:
    if not callable(fn):
        raise DefinitionError(f"{where}: decorate a function, not {fn!r}.")
    if inspect.isasyncgenfunction(fn) or inspect.isgeneratorfunction(fn):
        raise DefinitionError(f"{where}: its function must be a def or an async def, not a generator.")
    return fn


def is_async(fn: Any) -> bool:
    """Whether calling ``fn`` gives something to await, as far as that can be seen before."""
    return inspect.iscoroutinefunction(fn) or inspect.iscoroutinefunction(getattr(fn, "__call__", None))  # noqa: B004


def _whole(value: Any, where: str, least: int) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or not least <= value < 2**31:
        raise DefinitionError(f"{where} must be a whole number of at least {least}, not {value!r}.")
    return value


def _approval(gate: Any, where: str, name: str) -> Approval:
    if not isinstance(gate, Approval):
        raise DefinitionError(f'{where}: gates["{name}"] must be an Approval, not {gate!r}.')
    return gate
