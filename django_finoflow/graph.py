"""The body of every builder workflow: go through its nodes in order, by the same ``ctx`` calls a function would make.

Whatever is recorded the engine records, so replay, retries, waits and undoing are its own. The walk keeps only what the
handlers are shown: the results and the payloads so far.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Mapping
from functools import cached_property
from typing import Any

from .attempt import Abort, current_attempt
from .builder import Workflow
from .context import Context
from .exceptions import DefinitionError, FinoflowError
from .nodes import (
    BranchNode,
    ForEachNode,
    LoopNode,
    MapNode,
    Node,
    ParallelNode,
    PivotNode,
    SleepNode,
    StepNode,
    SubWorkflowNode,
    WaitNode,
    check_items,
)
from .retry import Retry
from .state import StateBag
from .stops import Mismatch

ONCE = Retry(1)


def walk(definition: Workflow, ctx: Context) -> Any:
    """Go through the nodes of ``definition`` for the run of ``ctx``, and return its last step's result."""
    it = Walk(ctx)
    for node in definition.nodes:
        it.visit(node)
    return it.last


class Copies(Mapping[str, Any]):
    """A read-only mapping that gives copies: whatever a handler does to one, the others see what is recorded."""

    def __init__(self, values: Mapping[str, Any]):
        self._values = values
        self._copies: dict[str, Any] = {}

    def __getitem__(self, name: str) -> Any:
        if name not in self._copies:
            self._copies[name] = copy.deepcopy(self._values[name])
        return self._copies[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._values)

    def __len__(self) -> int:
        return len(self._values)

    def __repr__(self) -> str:
        return repr(dict(self))


class HandlerContext:
    """The ``ctx`` of a builder workflow's handlers and conditions.

    Attributes:
        input: what the run was started with; a copy.
        steps: the results so far by name, read-only. Of a step in a loop, ``name:0``, ``name:1`` … are the turns and
            ``name`` is the last one.
        signals: the payloads so far by name, read-only. For a loop's condition, ``items`` and a child's ``input``,
            which are asked again on replay, those of the waits that are passed.
        run_id: the run's id.
        requester: the user who started the run, or None.
        state: the run's durable bag.
        abort: set when what is being done is not wanted any more.
        idempotency_key: in a step, the same over all its attempts, and no other step's; else None.
        item: in a ``for_each`` only: the turn's item; a copy.
        index: in a ``for_each`` only: the turn's number, from 0.
    """

    def __init__(
        self, ctx: Context, results: Mapping[str, Any], signals: Callable[[], Mapping[str, Any]], **extra: Any
    ):
        self._ctx = ctx
        self._signals = signals
        self.steps = Copies(results)
        vars(self).update(copy.deepcopy(extra))

    @cached_property
    def input(self) -> Any:
        return copy.deepcopy(self._ctx.input)

    @cached_property
    def signals(self) -> Mapping[str, Any]:
        return Copies(self._signals())

    @property
    def run_id(self) -> str:
        return self._ctx.run_id

    @property
    def requester(self) -> Any:
        return self._ctx.requester

    @property
    def state(self) -> StateBag:
        return self._ctx.state

    @property
    def abort(self) -> Abort:
        attempt = current_attempt.get()
        return attempt.abort if attempt else self._ctx.abort

    @property
    def idempotency_key(self) -> str | None:
        attempt = current_attempt.get()
        return attempt.idempotency_key if attempt else None


class Walk:
    """One walk through the nodes: what it has come by so far."""

    def __init__(self, ctx: Any):
        self.ctx = ctx
        self.last: Any = None
        self.results: dict[str, Any] = {}
        self.passed: dict[str, Any] = {}

    def visit(self, node: Node) -> None:
        """Do what one node says."""
        match node:
            case StepNode():
                self._step(node, node.name)
            case MapNode(name, fn):
                self._keep(self.ctx.perform(name, lambda: fn(self._now()), kind="map", retry=ONCE), name)
            case SleepNode(name, duration):
                self.ctx.sleep(name, duration)
            case WaitNode():
                self.passed[node.event] = self._wait(node)
            case PivotNode():
                self.ctx.pivot()
            case BranchNode():
                self._branch(node)
            case ParallelNode(steps):
                results = self.ctx.perform_together([self._call(step, step.name) for step in steps])
                for step, result in zip(steps, results, strict=True):
                    self._keep(result, step.name)
            case LoopNode():
                self._loop(node)
            case ForEachNode():
                self._for_each(node)
            case SubWorkflowNode(name, workflow_id, input, timeout):
                given = input(self._again()) if callable(input) else input
                self._keep(self.ctx.sub_workflow(name, workflow_id, given, timeout=timeout), name)

    def _step(self, step: StepNode, id: str, **extra: Any) -> None:
        self._keep(self.ctx.perform(**self._call(step, id, **extra), extra=extra), id, step.name)

    def _call(self, step: StepNode, id: str, **extra: Any) -> dict[str, Any]:
        return {
            "id": id,
            "fn": lambda: step.handler(self._now(**extra)),
            "retry": step.retry,
            "timeout": step.timeout,
            "atomic": step.atomic,
            "compensate": step.compensate,
            "output_schema": step.output_schema,
        }

    def _keep(self, result: Any, *names: str) -> None:
        self.last = result
        self.results.update(dict.fromkeys(names, result))

    def _wait(self, node: WaitNode) -> Any:
        if node.approval is None:
            return self.ctx.wait_for_signal(node.event, timeout=node.timeout)
        # What the approval asks for with a function of the context is asked with the one that handlers know.
        return self.ctx.wait_for_approval(node.event, timeout=node.timeout, **node.approval.bound(self._bound))

    def _bound(self, fn: Callable[[Any], Any]) -> Callable[[Any], Any]:
        return lambda ctx: fn(self._now())

    def _branch(self, node: BranchNode) -> None:
        paths = dict(node.paths)

        def choose() -> str:
            choice = node.condition(self._now())
            if isinstance(choice, str) and choice in paths:
                return choice
            raise DefinitionError(f"The branch's condition returned {choice!r}, which is no path of it: {known}.")

        known = ", ".join(f'"{name}"' for name in paths)
        chosen = self.ctx.perform(node.id, choose, kind="branch", retry=ONCE)
        if chosen not in paths:  # it was there when it was chosen
            raise Mismatch(
                f'The run has taken the path "{chosen}" of {node.id}, but the workflow has only {known}. '
                f"Bring the old path back, or register the change under a new version."
            )
        for step in paths[chosen]:
            self._step(step, step.name)

    def _loop(self, node: LoopNode) -> None:
        turns = 0
        while self._goes_on(node, turns):
            if turns == node.max_iterations:
                names = ", ".join(f'"{step.name}"' for step in node.steps)
                raise FinoflowError(f"The loop of {names} did not end within max_iterations={turns}.")
            for step in node.steps:
                self._step(step, f"{step.name}:{turns}")
            turns += 1

    def _goes_on(self, node: LoopNode, turns: int) -> bool:
        if node.until and turns == 0:
            return True
        return bool(node.condition(self._again(), turns)) != node.until

    def _for_each(self, node: ForEachNode) -> None:
        items = node.items(self._again()) if callable(node.items) else node.items
        check_items(items, node.max_iterations, f'for_each "{node.step.name}"')
        for index, item in enumerate(items):
            self._step(node.step, f"{node.step.name}:{index}", item=item, index=index)

    def _now(self, **extra: Any) -> HandlerContext:
        """Return a context for what is called once and recorded."""
        return HandlerContext(self.ctx, self.results, self.ctx.signals, **extra)

    def _again(self) -> HandlerContext:
        """Return a context for what is asked again on replay: a signal that came since must not change the answer."""
        return HandlerContext(self.ctx, self.results, lambda: self.passed)
