"""A builder workflow as a random test knows it: what its nodes are, and a model that says what a drive must come to.

The model is a plain interpreter of the rules over a dict of what is recorded. It shares no code with the engine. What a
handler does depends on nothing but how often it was called before (``calls``), so the model can foretell each call.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from typing import Any

FOREVER = 99


@dataclass(frozen=True)
class Step:
    """A step whose first ``fails`` calls fail.

    ``undo`` is how many calls of its compensator fail, None if it has none; ``pause`` is in seconds; ``sends`` is the
    gate whose signal its handler sends.
    """

    name: str
    fails: int = 0
    budget: int = 1
    pause: int = 0
    undo: int | None = None
    atomic: bool = False
    sends: str = ""


@dataclass(frozen=True)
class Map:
    name: str
    fails: int = 0
    budget = 1
    pause = 0
    undo = None
    atomic = False
    sends = ""


@dataclass(frozen=True)
class Gate:
    """A wait; ``kind`` is ``signal``, ``approval``, or ``strict`` for an approval whose rejection fails the run."""

    name: str
    timeout: int | None = None
    kind: str = "approval"


@dataclass(frozen=True)
class Sleep:
    name: str
    seconds: int


@dataclass(frozen=True)
class Pivot:
    pass


@dataclass(frozen=True)
class Branch:
    """A branch that chooses another path each time it is asked."""

    id: str
    paths: tuple[tuple[Step, ...], ...]


@dataclass(frozen=True)
class Loop:
    steps: tuple[Step, ...]
    turns: int
    bound: int
    until: bool


@dataclass(frozen=True)
class ForEach:
    step: Step
    items: int


@dataclass(frozen=True)
class Parallel:
    steps: tuple[Step, ...]


Node = Step | Map | Gate | Sleep | Pivot | Branch | Loop | ForEach | Parallel


def steps_of(node: Node) -> tuple[Any, ...]:
    """Return the steps and maps in a node."""
    match node:
        case Step() | Map():
            return (node,)
        case Branch(_, paths):
            return tuple(step for path in paths for step in path)
        case Loop() | Parallel():
            return node.steps
        case ForEach():
            return (node.step,)
    return ()


def gates_before(nodes: tuple[Node, ...], id: str) -> list[str]:
    """Return the names of the gates before the step that ``id`` is one turn of."""
    names: list[str] = []
    for node in nodes:
        if bare(id) in [step.name for step in steps_of(node)]:
            break
        names += [node.name] if isinstance(node, Gate) else []
    return names


def bare(id: str) -> str:
    """Return a step's name without its turn."""
    return id.partition(":")[0]


@dataclass(frozen=True)
class Record:
    """What is recorded at one position. ``due`` is of an open wait, or of the next attempt."""

    id: str
    kind: str
    status: str
    attempts: int = 1
    result: Any = None
    due: datetime | None = None
    error: str | None = None
    undo: str = ""

    @property
    def is_wait(self) -> bool:
        return self.kind in ("timer", "signal")

    @property
    def is_settled_step(self) -> bool:
        return not self.is_wait and self.status in ("done", "failed")


@dataclass
class Facts:
    """All that is stored of a run, as far as it matters here."""

    places: dict[int, Record] = field(default_factory=dict)
    signals: dict[str, Any] = field(default_factory=dict)
    status: str = "running"
    error: str | None = None
    rollback: str = ""
    result: Any = None
    due: datetime | None = None
    leased: bool = False

    def copy(self) -> Facts:
        return replace(self, places=dict(self.places), signals=dict(self.signals))

    @property
    def is_over(self) -> bool:
        return self.status in ("done", "error", "cancelled")

    @property
    def cursor(self) -> int:
        """The first position not yet done."""
        position = 0
        while (r := self.places.get(position)) and (r.status != "open" if r.is_wait else r.status == "done"):
            position += 1
        return position


class Parked(Exception):
    """The run waits."""


class Failed(Exception):
    """The body has failed."""


class Model:
    """What must come of each thing that can happen to a run of ``nodes``.

    ``trace`` is the calls of the last drive: what was called, for which step, and what it was shown. ``moments`` are
    what was stored after each of its writes.
    """

    def __init__(self, nodes: tuple[Node, ...], now: datetime):
        self.nodes = nodes
        self.steps = {step.name: step for node in nodes for step in steps_of(node)}
        self.facts = Facts(due=now)
        self.calls: Counter[str] = Counter()
        self.trace: list[tuple[str, str, Any]] = []
        self.moments: list[Facts] = []
        self.pivoted = False

    # -- what people do ------------------------------------------------------------------------------------------------

    def signal(self, name: str, payload: Any, now: datetime) -> str:
        """Deliver a signal; return the name of the refusal, or nothing."""
        if self.facts.status not in ("running", "waiting"):
            return "RunNotLive"
        if name not in [node.name for node in self.nodes if isinstance(node, Gate)]:
            return "UnknownSignal"
        if name in self.facts.signals:
            return "AlreadySignalled"
        self.facts.signals[name] = payload
        for position, record in self.facts.places.items():
            if (record.kind, record.id, record.status) == ("signal", name, "open"):
                self.facts.places[position] = replace(record, status="signalled", result=payload, due=None)
                self.facts.due, self.facts.status = now, "running"
        return ""

    def cancel(self) -> bool:
        if self.facts.is_over or self.facts.status in ("compensating", "stuck"):
            return False
        for position, record in self.facts.places.items():
            if record.status == "open":
                self.facts.places[position] = replace(record, status="cancelled", due=None)
        self.facts.status, self.facts.due, self.facts.leased = "cancelled", None, False
        return True

    def retry(self, now: datetime) -> bool:
        if (self.facts.status, self.facts.rollback) != ("error", "not-applicable"):
            return False
        places = self.facts.places
        self.facts.places = {p: r for p, r in places.items() if r.is_wait or r.status != "failed"}
        self._be("running", due=now, error=None, rollback="")
        return True

    def resume_compensation(self, now: datetime) -> bool:
        if self.facts.status != "stuck":
            return False
        self._be("compensating", due=now)
        return True

    def abandon_compensation(self) -> bool:
        if self.facts.status != "stuck":
            return False
        for position, record in self._undoable():
            if not record.undo:
                self.facts.places[position] = replace(record, undo="skipped")
        self._be("error", rollback="stuck")
        return True

    # -- a drive -------------------------------------------------------------------------------------------------------

    def drive(self, now: datetime) -> None:
        """Go as far as it goes."""
        self.trace, self.moments = [], []
        self.now, self.position, self.pivoted = now, 0, False
        self.results: dict[str, Any] = {}
        self.facts.due, self.facts.leased = None, True
        self._note()
        if self.facts.status == "compensating":
            self._unwind()
        else:
            self._walk()
        self.facts.leased = False

    def _walk(self) -> None:
        last = None
        try:
            for node in self.nodes:
                for result in self._visit(node):
                    last = result
        except Parked:
            self._be("waiting", due=self.until)
        except Failed as failed:
            if self.pivoted or not self._undoable():
                self._be("error", error=str(failed), rollback="not-applicable")
            else:
                self._be("compensating", error=str(failed))
                self._unwind()
        else:
            self._be("done", result=last)

    def _visit(self, node: Node) -> Iterator[Any]:
        match node:
            case Step() | Map():
                yield self._step(node, node.name, "map" if isinstance(node, Map) else "step")
            case Gate() | Sleep():
                self._wait(node)
            case Pivot():
                self.pivoted = True
            case Branch():
                for step in node.paths[self._choice(node)]:
                    yield self._step(step, step.name)
            case Loop():
                turns = 0
                while turns < (max(node.turns, 1) if node.until else node.turns):
                    if turns == node.bound:
                        names = ", ".join(f'"{step.name}"' for step in node.steps)
                        raise Failed(f"The loop of {names} did not end within max_iterations={turns}.")
                    for step in node.steps:
                        yield self._step(step, f"{step.name}:{turns}")
                    turns += 1
            case ForEach():
                for index in range(node.items):
                    yield self._step(node.step, f"{node.step.name}:{index}")
            case Parallel():
                yield self._together(node.steps)[-1]

    def _step(self, step: Any, id: str, kind: str = "step") -> Any:
        position = self._next()
        self._try(step, position, id, kind, dict(self.results))
        record = self.facts.places[position]
        if record.status == "retrying":
            self._park(record.due)
        if record.status == "failed":
            raise Failed(record.error)
        self.results |= {id: record.result, bare(id): record.result}
        return record.result

    def _together(self, steps: tuple[Step, ...]) -> list[Any]:
        positions = [self._next() for _step in steps]
        for position, step in zip(positions, steps, strict=True):
            self._try(step, position, step.name, "step", dict(self.results))
        records = [self.facts.places[position] for position in positions]
        if waiting := [record.due for record in records if record.status == "retrying"]:
            self._park(min(waiting))
        failures = [record.error for record in records if record.status == "failed"]
        if failures:
            raise Failed(failures[0] if len(failures) == 1 else f"{len(failures)} failures: " + "; ".join(failures))
        self.results |= {record.id: record.result for record in records}
        return [record.result for record in records]

    def _try(self, step: Any, position: int, id: str, kind: str, results: dict[str, Any]) -> None:
        """Make the attempts that may be made now."""
        record = self.facts.places.get(position) or Record(id, kind, "new", attempts=0)
        while not record.is_settled_step and (record.due is None or record.due <= self.now):
            number = self._call("call", id, {"steps": results, "signals": self._payloads(id)})
            fails, attempts = number <= step.fails, record.attempts + 1
            if step.sends and not (fails and step.atomic):
                self.facts.signals.setdefault(step.sends, f"from {step.name}")
                if not step.atomic:
                    self._note()
            if not fails:
                record = Record(id, kind, "done", attempts, f"{id}#{number}")
            elif attempts < step.budget:
                due = self.now + timedelta(seconds=step.pause)
                record = Record(id, kind, "retrying", attempts, None, due, f"{id} fails, call {number}")
            else:
                record = Record(id, kind, "failed", attempts, None, None, f"{id} fails, call {number}")
            self._record(position, record)

    def _choice(self, branch: Branch) -> int:
        position = self._next()
        if position not in self.facts.places:
            number = self._call("call", branch.id, {"steps": dict(self.results)})
            self._record(position, Record(branch.id, "branch", "done", 1, f"p{number % len(branch.paths)}"))
        return int(self.facts.places[position].result[1:])

    def _wait(self, node: Gate | Sleep) -> None:
        position = self._next()
        seconds = node.timeout if isinstance(node, Gate) else node.seconds
        due = None if seconds is None else self.now + timedelta(seconds=seconds)
        kind = "signal" if isinstance(node, Gate) else "timer"
        record = self.facts.places.get(position) or Record(node.name, kind, "open", due=due)
        if record.status == "open" and kind == "signal" and node.name in self.facts.signals:
            record = replace(record, status="signalled", result=self.facts.signals[node.name], due=None)
        elif record.status == "open" and record.due is not None and record.due <= self.now:
            record = replace(record, status="fired" if kind == "timer" else "timed-out", due=None)
        elif record.status == "open":
            self.facts.places[position] = record
            self._park(record.due)
        self._record(position, record)
        if record.status == "timed-out":
            raise Failed(f'Signal "{node.name}" timed out after {seconds}s')
        rejected = record.result is False or record.result == {"approved": False}
        if isinstance(node, Gate) and node.kind == "strict" and rejected:
            raise Failed(f'Gate "{node.name}" was rejected')

    def _unwind(self) -> None:
        for position, record in sorted(self._undoable(), reverse=True):
            if record.undo in ("compensated", "skipped"):
                continue
            places = [r for _p, r in sorted(self.facts.places.items()) if r.status == "done" and r.kind != "branch"]
            shown = {"result": record.result, "error": record.error, "run_error": self.facts.error}
            shown["steps"] = {name: r.result for r in places for name in (r.id, bare(r.id))}
            number = self._call("undo", record.id, {**shown, "signals": self._payloads(record.id)})
            if number <= self.steps[bare(record.id)].undo:
                self.facts.places[position] = replace(record, undo="failed")
                self._be("stuck")
                return
            self._record(position, replace(record, undo="compensated"))
        self._be("error", rollback="completed")

    def _undoable(self) -> list[tuple[int, Record]]:
        """Return what has a compensator and has settled, with its position."""
        steps = [(p, r) for p, r in self.facts.places.items() if r.is_settled_step and r.kind == "step"]
        return [(p, r) for p, r in steps if self.steps[bare(r.id)].undo is not None]

    def _payloads(self, id: str) -> dict[str, Any]:
        return {name: self.facts.signals[name] for name in gates_before(self.nodes, id)}

    def _call(self, what: str, id: str, shown: Any) -> int:
        self.trace.append((what, id, shown))
        self.calls[what, id] += 1
        return self.calls[what, id]

    def _next(self) -> int:
        self.position += 1
        return self.position - 1

    def _park(self, due: datetime | None) -> None:
        self.until = due
        raise Parked

    def _record(self, position: int, record: Record) -> None:
        if self.facts.places.get(position) != record:
            self.facts.places[position] = record
            self._note()

    def _be(self, status: str, *, due: datetime | None = None, **changes: Any) -> None:
        self.facts = replace(self.facts, status=status, due=due, **changes)
        self._note()

    def _note(self) -> None:
        self.moments.append(self.facts.copy())
