"""What a builder workflow is made of: frozen nodes, and the checks that each is put through before it is one."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from . import durations, schemas
from .approval import Approval
from .exceptions import DefinitionError, DurationError
from .names import LONGEST, check_name
from .retry import Retry

Handler = Callable[[Any], Any]

_RESERVED = re.compile(r"sub:|.*:[0-9]+\Z")
_SOME_DAY = datetime(2026, 1, 1, tzinfo=UTC)  # durations are only checked here; the time now asks for settings


class Node:
    """One link of the chain; each kind is a frozen dataclass."""


@dataclass(frozen=True)
class StepNode(Node):
    """A handler, called as a checkpoint. ``timeout`` is in seconds."""

    name: str
    handler: Handler
    retry: Retry
    timeout: float | None
    atomic: bool
    compensate: Handler | None
    output_schema: Any


@dataclass(frozen=True)
class MapNode(Node):
    """A computation, recorded like a step."""

    name: str
    fn: Handler


@dataclass(frozen=True)
class SleepNode(Node):
    """A pause: a duration or a moment."""

    name: str
    duration: Any


@dataclass(frozen=True)
class WaitNode(Node):
    """A wait for a signal; with an ``approval`` it is a gate. ``timeout`` is a duration or a moment."""

    event: str
    timeout: Any
    approval: Approval | None


@dataclass(frozen=True)
class PivotNode(Node):
    """The point after which nothing is undone."""


@dataclass(frozen=True)
class BranchNode(Node):
    """A choice among named paths. ``id`` is that of its checkpoint, which no step can have."""

    id: str
    condition: Handler
    paths: tuple[tuple[str, tuple[StepNode, ...]], ...] = ()


@dataclass(frozen=True)
class ParallelNode(Node):
    """Steps that run side by side."""

    steps: tuple[StepNode, ...]


@dataclass(frozen=True)
class LoopNode(Node):
    """Steps in turns: until the condition holds, which is first asked after a turn; or while it holds, asked before."""

    condition: Callable[[Any, int], Any]
    steps: tuple[StepNode, ...]
    max_iterations: int
    until: bool


@dataclass(frozen=True)
class ForEachNode(Node):
    """One step in turns, one for each item. ``items`` is a tuple, or a callable that gives the items."""

    step: StepNode
    items: Any
    max_iterations: int


@dataclass(frozen=True)
class SubWorkflowNode(Node):
    """A child run. ``input`` is a value, or a callable that gives it; ``timeout`` a duration or a moment."""

    name: str
    workflow_id: str
    input: Any
    timeout: Any


def check_items(items: Any, most: int, where: str) -> Any:
    """Return the items of a ``for_each``, if they can be gone through.

    Raises:
        DefinitionError: they are no list or tuple, or more than ``most``.
    """
    if not isinstance(items, list | tuple):
        raise DefinitionError(f"{where}: items must be a list or tuple, not {type(items).__name__}.")
    if len(items) > most:
        raise DefinitionError(f"{where}: {len(items)} items are more than max_iterations={most}.")
    return items


def step_node(
    where: str,
    name: str,
    handler: Handler,
    retry: Any,
    timeout: Any,
    atomic: bool,
    compensate: Handler | None,
    output_schema: Any,
) -> StepNode:
    """Return the node of a step of ``where``.

    Raises:
        DefinitionError: an argument is not of its kind.
        DurationError: the timeout is no duration.
    """
    where = f'{where}, step "{name}"'
    check_node_name(name, where)
    function(handler, where)
    if compensate is not None:
        function(compensate, f"{where}: compensate")
    with told(where):
        policy = Retry.of(retry, Retry(3))
        seconds = None if timeout is None else durations.seconds(timeout) or None
        check_duration(seconds)
    schemas.check(output_schema, f"{where}: output_schema")
    return StepNode(name, handler, policy, seconds, bool(atomic), compensate, output_schema)


def function(fn: Any, where: str) -> Any:
    """Return ``fn``, if it is an ordinary function."""
    if not callable(fn):
        raise DefinitionError(f"{where}: give it a function, not {fn!r}.")
    if inspect.iscoroutinefunction(fn) or inspect.isasyncgenfunction(fn) or inspect.isgeneratorfunction(fn):
        raise DefinitionError(f"{where}: its function must be an ordinary def, not async and not a generator.")
    return fn


def check_node_name(name: Any, where: str) -> None:
    """Refuse what cannot name a node (rule B1)."""
    check_name(name, where)
    if _RESERVED.match(name):
        raise DefinitionError(f'{where}: a name that begins with "sub:" or ends in ":<digits>" is kept for the engine.')


def leave_room(steps: Any, turns: int, where: str) -> None:
    """Refuse names that would be too long to store once the number of a turn is added."""
    for step in steps:
        check_name(step.name, where, longest=LONGEST - len(f":{turns - 1}"))


def check_duration(value: Any, *, needed: bool = False) -> None:
    """Refuse what is no duration and no moment; None passes, unless one is ``needed``.

    It needs no settings, unlike ``durations.check``.
    """
    if value is not None or needed:
        durations.due(value, _SOME_DAY)


def check_bound(value: Any, where: str) -> None:
    """Refuse what cannot be a ``max_iterations``."""
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        raise DefinitionError(f"{where}: max_iterations must be a whole number of at least 1, not {value!r}.")


@contextmanager
def told(where: str) -> Iterator[None]:
    """Put the place before what is wrong there."""
    try:
        yield
    except (DefinitionError, DurationError) as error:
        raise type(error)(f"{where}: {error}") from None
