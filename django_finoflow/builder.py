"""``Workflow("id").step(...).wait_for(...)``: a workflow declared as a chain of nodes instead of written as a function.

Each call checks what it is given and adds one frozen node; the first use seals the chain. Nothing runs here: the engine
walks the nodes (see ``graph``) with the same ``ctx`` calls that a function workflow makes. Importing it needs no loaded
Django.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from datetime import datetime
from typing import Any, NoReturn, Self

from . import durations
from .approval import Approval
from .bridge import engine
from .exceptions import DefinitionError
from .names import check_name, check_signal_name
from .nodes import (
    BranchNode,
    ForEachNode,
    Handler,
    LoopNode,
    MapNode,
    Node,
    ParallelNode,
    PivotNode,
    SleepNode,
    StepNode,
    SubWorkflowNode,
    WaitNode,
    check_bound,
    check_duration,
    check_items,
    check_node_name,
    function,
    leave_room,
    step_node,
    told,
)
from .retry import Retry
from .workflow import Definition

Build = Callable[["Steps"], Any]

_ANYBODY = Approval()


class Steps:
    """What takes steps: a ``Workflow``, and the builder that a path, loop or parallel group hands to ``build``."""

    where: str

    def step(
        self,
        name: str,
        handler: Handler,
        *,
        retry: Retry | int | None = 3,
        timeout: Any = None,
        atomic: bool = False,
        compensate: Handler | None = None,
        output_schema: Any = None,
    ) -> Self:
        """Add a step. Its handler is called with one ``ctx`` (see ``graph.HandlerContext``).

        Args:
            name: under which later handlers find its result in ``ctx.steps``.
            handler: what it returns is recorded.
            retry: attempts in all, or a ``Retry``.
            timeout: how long an attempt may take, a duration; None or 0: as long as it likes.
            atomic: whether the handler's writes to the runs' database and the checkpoint commit together.
            compensate: called with one ``ctx`` to undo it, should the run fail later.
            output_schema: what the result must satisfy; one that does not is a failed attempt.

        Returns:
            This builder.

        Raises:
            DefinitionError: an argument is not of its kind, or the name is taken.
            DurationError: the timeout is no duration.
        """
        self._add(step_node(self.where, name, handler, retry, timeout, atomic, compensate, output_schema), name)
        return self

    def _add(self, node: Any, *names: str) -> None:
        raise NotImplementedError


class Nested(Steps):
    """The inside of a path, loop or parallel group: steps only."""

    def __init__(self, where: str):
        self.where = where
        self.steps: tuple[StepNode, ...] = ()
        self._open = True

    def __getattr__(self, name: str) -> NoReturn:
        if hasattr(Workflow, name):
            raise DefinitionError(f"{self.where}: only steps can be in it, so .{name} cannot be used here.")
        raise AttributeError(name)

    def _add(self, node: StepNode, *names: str) -> None:
        if not self._open:
            raise DefinitionError(f'{self.where}: step "{node.name}" is added too late: do it while it is built.')
        self.steps += (node,)

    @classmethod
    def built(cls, where: str, build: Build) -> tuple[StepNode, ...]:
        """Return the steps that ``build`` adds."""
        nested = cls(where)
        function(build, where)(nested)
        nested._open = False
        return nested.steps


class Workflow(Steps, Definition):
    """A workflow declared node by node; each method adds one and returns the workflow.

    A run's result is that of its last step. ``input_schema``, ``output_schema``, ``version``, ``queue`` and
    ``priority`` are as for ``@workflow``.

    Raises:
        DefinitionError: something is not of its kind, or the id and version are taken.
    """

    def __init__(
        self,
        id: str,
        *,
        input_schema: Any = None,
        output_schema: Any = None,
        version: int = 1,
        queue: str = "default",
        priority: int = 0,
    ):
        self.where = f'workflow "{id}"'
        self._nodes: list[Node] = []
        self._names: set[str] = set()
        self._sealed = False
        super().__init__(
            id=id,
            version=version,
            queue=queue,
            priority=priority,
            input_schema=input_schema,
            output_schema=output_schema,
            early_signals=True,
            gates={},
        )

    @property
    def nodes(self) -> tuple[Node, ...]:
        """The nodes so far, in order."""
        return tuple(self._nodes)

    @property
    def declared_signals(self) -> tuple[str, ...]:
        """The names that its runs can be signalled by, in order."""
        return tuple(node.event for node in self._nodes if isinstance(node, WaitNode))

    # -- the chain -----------------------------------------------------------------------------------------------------

    def wait_for(self, event: str, *, timeout: Any = None, approval: Approval | None = _ANYBODY) -> Self:
        """Add a wait for one signal, whose payload later handlers find in ``ctx.signals``.

        Args:
            event: the signal's name, used by this wait only.
            timeout: a duration from when the wait opens, or an aware ``datetime``; None: for ever; 0 has already
                passed. A deadline that passes fails the run.
            approval: what makes it a gate that a person answers; None: only ``signal()`` answers it.
        """
        where = f'{self.where}, wait for "{event}"'
        with told(where):
            check_signal_name(event)
            check_duration(timeout)
        if approval is not None and not isinstance(approval, Approval):
            raise DefinitionError(f"{where}: approval must be an Approval or None, not {approval!r}.")
        if event in self.declared_signals:
            raise DefinitionError(f"{where}: an earlier one has that name, and one signal would open both. Rename it.")
        self._add(WaitNode(event, timeout, approval))
        if approval is not None:
            self.gates[event] = approval
        return self

    def sleep(self, name: str, duration: Any) -> Self:
        """Add a pause of ``duration``, counted from when it is first reached, or until an aware ``datetime``."""
        where = f'{self.where}, sleep "{name}"'
        check_node_name(name, where)
        with told(where):
            check_duration(duration, needed=True)
        self._add(SleepNode(name, duration), name)
        return self

    def map(self, name: str, fn: Handler) -> Self:
        """Add a computation ``fn(ctx)``: recorded like a step, and tried once."""
        where = f'{self.where}, map "{name}"'
        check_node_name(name, where)
        self._add(MapNode(name, function(fn, where)), name)
        return self

    def pivot(self) -> Self:
        """Add the point of no return: a run that fails after it undoes nothing."""
        self._add(PivotNode())
        return self

    def branch(self, condition: Handler) -> Self:
        """Add a choice: ``condition(ctx)`` returns the name of one of the paths, which follow as ``.path(...)``.

        The choice is recorded before anything of it is done, and never made again.
        """
        number = sum(isinstance(node, BranchNode) for node in self._nodes)
        self._add(BranchNode(f"__branch:{number}", function(condition, f"{self.where}, branch {number}")))
        return self

    def path(self, name: str, build: Build) -> Self:
        """Add a path to the branch just before; ``build`` gets a builder to add its steps to, none if it likes."""
        where = f'{self.where}, path "{name}"'
        check_name(name, where)
        branch = self._nodes[-1] if self._nodes else None
        if not isinstance(branch, BranchNode):
            raise DefinitionError(f"{where}: a path follows .branch(...) or another path of it.")
        if name in dict(branch.paths):
            raise DefinitionError(f"{where}: the branch has a path of that name. Rename one.")
        steps = Nested.built(where, build)
        self._claim(step.name for step in steps)
        self._nodes[-1] = replace(branch, paths=(*branch.paths, (name, steps)))
        return self

    def parallel(self, build: Build) -> Self:
        """Add steps that run side by side; all have settled before the run goes on or fails."""
        steps = _filled(f"{self.where}, parallel group", build)
        self._add(ParallelNode(steps), *(step.name for step in steps))
        return self

    def do_until(self, condition: Callable[[Any, int], Any], build: Build, *, max_iterations: int = 100) -> Self:
        """Add a loop that ends once ``condition(ctx, turns)`` holds, which is asked after each turn, from 1.

        The condition is asked again on replay: it must depend on nothing but its ``ctx`` and the count.

        Args:
            condition: whether to end.
            build: gets a builder to add the steps of a turn to.
            max_iterations: the most turns; a loop that wants more fails the run.
        """
        return self._loop("do_until", condition, build, max_iterations)

    def do_while(self, condition: Callable[[Any, int], Any], build: Build, *, max_iterations: int = 100) -> Self:
        """Add a loop that goes on as long as ``condition(ctx, turns)`` holds, asked before each turn, from 0.

        Otherwise as ``do_until``.
        """
        return self._loop("do_while", condition, build, max_iterations)

    def for_each(
        self,
        name: str,
        items: Any,
        handler: Handler,
        *,
        max_iterations: int = 1000,
        retry: Retry | int | None = 3,
        timeout: Any = None,
        atomic: bool = False,
        compensate: Handler | None = None,
        output_schema: Any = None,
    ) -> Self:
        """Add a step that is done for each item in turn, as ``name:0``, ``name:1`` …; otherwise as ``step``.

        Args:
            name: under it alone ``ctx.steps`` has the last turn's result.
            items: a list or tuple, or a callable of ``ctx`` that returns one. It is called again on replay: it must
                depend on nothing but its ``ctx``.
            handler: its ``ctx``, and that of ``compensate``, has ``item`` and ``index``, too.
            max_iterations: the most items; more fail the run before the first turn.
        """
        where = f'{self.where}, for_each "{name}"'
        check_bound(max_iterations, where)
        step = step_node(self.where, name, handler, retry, timeout, atomic, compensate, output_schema)
        leave_room([step], max_iterations, where)
        if not callable(items):
            items = tuple(check_items(items, max_iterations, where))
        self._add(ForEachNode(step, items, max_iterations), name)
        return self

    def sub_workflow(self, name: str, workflow: Definition | str, input: Any = None, *, timeout: Any = None) -> Self:
        """Add a child run, whose result later handlers find in ``ctx.steps``; its failure fails this run.

        Args:
            name: the node's name.
            workflow: the child's definition, or its id.
            input: the child's input, or a callable of ``ctx`` that returns it.
            timeout: how long the child may take from its start, a duration or an aware ``datetime``; None: for ever.
        """
        where = f'{self.where}, sub_workflow "{name}"'
        check_node_name(name, where)
        workflow_id = workflow.id if isinstance(workflow, Definition) else check_name(workflow, f"{where}: workflow")
        with told(where):
            check_duration(timeout)
        self._add(SubWorkflowNode(name, workflow_id, input, timeout), name)
        return self

    def _loop(self, verb: str, condition: Callable[[Any, int], Any], build: Build, max_iterations: int) -> Self:
        where = f"{self.where}, {verb}"
        check_bound(max_iterations, where)
        function(condition, where)
        steps = _filled(where, build)
        leave_room(steps, max_iterations, where)
        node = LoopNode(condition, steps, max_iterations, until=verb == "do_until")
        self._add(node, *(step.name for step in steps))
        return self

    def _add(self, node: Any, *names: str) -> None:
        self._claim(names)
        self._nodes.append(node)

    def _claim(self, names: Any) -> None:
        if self._sealed:
            raise DefinitionError(f"{self.where} is in use and cannot change any more: add its steps where it is made.")
        taken = set(self._names)
        for name in names:
            if name in taken:
                raise DefinitionError(f'{self.where}: two steps are named "{name}". Rename one.')
            taken.add(name)
        self._names = taken

    # -- its use -------------------------------------------------------------------------------------------------------

    def seal(self) -> None:
        """End the building: check what could not be checked before, and let nothing be added any more.

        Raises:
            DefinitionError: it has no steps, or a branch no paths, or a gate excludes the deciders of none before it.
        """
        if not self._nodes:
            raise DefinitionError(f"{self.where} has no steps: add at least one, as .step(name, handler).")
        for node in self._nodes:
            if isinstance(node, BranchNode) and not node.paths:
                raise DefinitionError(f"{self.where}: a branch has no paths: add some, as .path(name, build).")
        self._check_exclusions()
        self._sealed = True

    def _check_exclusions(self) -> None:
        """Refuse a gate that excludes the deciders of one that is not before it: it would exclude nobody."""
        before: set[str] = set()
        for event, approval in self.gates.items():
            for other in approval.exclude_deciders_of:
                if other not in before:
                    why = "that is itself" if other == event else "no gate before it has that name"
                    raise DefinitionError(
                        f'{self.where}, gate "{event}": exclude_deciders_of names "{other}", but {why}.'
                    )
            before.add(event)

    def check_start(self, *, has_requester: bool) -> None:
        """Refuse a run that would fail at one of its gates for want of a requester (rule A2); seals the workflow.

        Raises:
            DefinitionError: a gate excludes the requester, and there is none; or it cannot be sealed.
        """
        self.seal()
        excluding = [event for event, approval in self.gates.items() if approval.exclude_requester]
        if excluding and not has_requester:
            raise DefinitionError(
                f'{self.where}: gate "{excluding[0]}" excludes the requester: start the run with requester=user.'
            )

    def warnings(self) -> list[str]:
        """Return what can be declared, but is hardly meant: a deadline that has passed when it is set, or is none."""
        waits = {f'wait for "{n.event}"': n.timeout for n in self._nodes if isinstance(n, WaitNode)}
        children = {f'sub_workflow "{n.name}"': n.timeout for n in self._nodes if isinstance(n, SubWorkflowNode)}
        passed = [
            f"{self.where}, {place}: timeout={timeout!r} has passed at once. Leave it out to wait for ever."
            for place, timeout in {**waits, **children}.items()
            if timeout is not None and not isinstance(timeout, datetime) and durations.seconds(timeout) == 0
        ]
        return passed + [
            f'{self.where}, wait for "{node.event}": on_timeout={node.approval.on_timeout!r} needs a timeout=.'
            for node in self._nodes
            if isinstance(node, WaitNode) and node.timeout is None and node.approval is not None
            if node.approval.on_timeout != "fail"
        ]

    def body(self, ctx: Any, input: Any) -> Any:
        """Walk the nodes for the run of ``ctx``; returns the last step's result."""
        self.seal()
        return engine().walk(self, ctx)

    def start(self, input: Any = None, **options: Any) -> Any:
        self.seal()
        return super().start(input, **options)

    def run(self, input: Any = None, **options: Any) -> Any:
        self.seal()
        return super().run(input, **options)

    def resume(self, run_id: str, **options: Any) -> Any:
        self.seal()
        return super().resume(run_id, **options)


def _filled(where: str, build: Build) -> tuple[StepNode, ...]:
    steps = Nested.built(where, build)
    if not steps:
        raise DefinitionError(f"{where}: it has no steps: add at least one to the builder that build gets.")
    return steps
