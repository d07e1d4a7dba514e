"""One drive: a leased run, what it has recorded, and where its body stands.

The context, the steps and the waits of one drive share this object; it also guards them. A body that swallows what
stops it meets the same stop again at its next checkpoint (rule D9).
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from datetime import datetime
from typing import Any, NoReturn

from django.db import Error, connections

from . import conf, history, schemas
from .attempt import Abort, current_attempt
from .branches import Branch
from .exceptions import CheckpointRefused, DriveRefused, ValidationFailed
from .history import History, Place
from .models import Execution, Step, Wait
from .state import StateBag
from .statuses import RunStatus
from .stops import DriveStopped, Exhausted, Interrupted, LeaseLost, Mismatch, WriteRefused
from .trouble import insist

logger = logging.getLogger("django_finoflow")


def in_test_case() -> bool:
    """Whether the runs' database is inside a ``TestCase``, where no other thread can see what it does (rule T8)."""
    blocks = connections[conf.database()].atomic_blocks
    return bool(blocks) and bool(getattr(blocks[-1], "_from_testcase", False))


def is_open_transaction() -> bool:
    """Whether a transaction is open on the runs' database, other than a ``TestCase``'s."""
    connection = connections[conf.database()]
    return (connection.in_atomic_block or not connection.get_autocommit()) and not in_test_case()


def drop_connection() -> None:
    """Give up the runs' connection of this thread with whatever is open on it; the next use makes another."""
    connections[conf.database()].close()
    del connections[conf.database()]


def refuse_open_transaction() -> None:
    """Refuse to drive where checkpoints would not be durable: inside the caller's transaction (rule D5).

    Raises:
        DriveRefused: a transaction is open, and it is not a ``TestCase``'s.
    """
    if is_open_transaction():
        raise DriveRefused(
            "A run cannot be driven inside an open transaction, because its checkpoints would not be durable. "
            "Leave the atomic block first, or use start() and let a worker drive it."
        )


class Drive:
    """The state of one drive.

    Args:
        run: the run, as leased.
        recorded: what it has recorded.
        abort: set when the drive is to end early.
        stopping: whether the worker claims no more: the drive then stops at its next checkpoint.
        on_checkpoint: called after each stored checkpoint.
    """

    def __init__(
        self,
        run: Execution,
        recorded: History,
        abort: Abort,
        stopping: Callable[[], bool],
        on_checkpoint: Callable[[], None] | None = None,
    ):
        self.run = run
        self.recorded = recorded
        self.abort = abort
        self.stopping = stopping
        self.on_checkpoint = on_checkpoint
        self.root = Branch()
        #: Whether the body is async, and so runs beside the thread that drives.
        self.on_loop = False
        #: The places that the body has come to.
        self.visited: set[Place] = set()
        #: When what it has yet to come to was settled, the first last; made when it is first asked for.
        self._to_come: list[tuple[datetime, Place]] | None = None
        #: What can be undone, as the body comes to it; nothing any more once it has pivoted.
        self.undoables: list[Any] = []
        self.pivoted = False
        #: Whether this drive only gathers what can be undone, and does nothing new.
        self.unwinding = run.status == RunStatus.COMPENSATING
        #: The payloads of the run's signals by name, if they have been asked for.
        self.signals: dict[str, Any] | None = None
        self.current_step = ""
        self.stopped: DriveStopped | None = None
        #: The context that the body got, once it has one.
        self.ctx: Any = None
        self._thread = threading.get_ident()

    @property
    def bag(self) -> StateBag:
        """The run's bag, as the root branch sees it."""
        return self.root.bag

    def follow_thread(self) -> None:
        """Let this thread, and no other, ask for checkpoints."""
        self._thread = threading.get_ident()
        self.bag.follow_thread()

    def enter(self) -> None:
        """Guard a checkpoint that is about to be made or replayed.

        Raises:
            CheckpointRefused: it is asked for inside a step, in another thread, or inside a transaction of the body's.
            DriveStopped: the drive is over; or it should be, and stops here.
        """
        if current_attempt.get() is not None:
            raise CheckpointRefused(
                "A checkpoint was asked for inside a step's body: make it a step of its own, after this one."
            )
        if threading.get_ident() != self._thread:
            raise CheckpointRefused("A checkpoint was asked for in a thread that does not drive the run.")
        if not self.on_loop and is_open_transaction():
            raise CheckpointRefused(
                "A checkpoint was asked for inside a transaction that the body opened: it would not be durable. "
                "Do the writes in a step with atomic=True."
            )
        if self.stopped is not None:
            raise self.stopped

    def leave_if_stopping(self) -> None:
        """Stop the drive, before new work begins, if it is to end early."""
        if self.is_stopping():
            self.stop(Interrupted())

    def is_stopping(self) -> bool:
        """Whether the drive is to end early."""
        return self.abort.is_set() or self.stopping()

    def leave_if_exhausted(self) -> None:
        """Stop a drive that only gathers what can be undone, where something new would begin."""
        if self.unwinding:
            self.stop(Exhausted())

    def stop(self, reason: DriveStopped) -> NoReturn:
        """Stop the drive for ``reason``, now and at each further checkpoint."""
        self.stopped = reason
        raise reason

    def pause(self, seconds: float) -> None:
        """Wait ``seconds``, or until the drive is to end early, which stops it."""
        self.abort.wait(seconds)
        self.leave_if_stopping()

    def write(self, work: Callable[[], Any]) -> Any:
        """Do one of the engine's writes, through trouble that passes, and return what it returns.

        Raises:
            LeaseLost: the run is not ours any more; nothing was written.
        """
        try:
            return insist(work, using=conf.database(), pause=self._pause_in_trouble)
        except LeaseLost as lost:
            self.abort.set()
            self.stop(lost)
        except Error as error:
            self.stop(WriteRefused(error))

    def _pause_in_trouble(self, seconds: float) -> None:
        # A worker that only stops gracefully still stores what its steps have done; one that is out of grace does not
        # wait on.
        if self.abort.wait(seconds):
            self.stop(LeaseLost())

    def recall(self, place: Place, kind: str, id: str) -> Step | Wait | None:
        """Return what is recorded at ``place``, if it is what the body asks for.

        Raises:
            Mismatch: it is something else (rule D3).
        """
        self.visited.add(place)
        found = self.recorded.at(place)
        if found is not None and (kind_of(found), id_of(found)) != (kind, id):
            self.mismatch(found, (kind, id))
        return found

    def is_behind(self, settled_at: datetime | None) -> bool:
        """Whether the body has yet to come to something that was settled before that moment."""
        if self._to_come is None:
            recorded = list(self.recorded.checkpoints.items())  # another thread may be adding to them
            found = [(at, place) for place, checkpoint in recorded if (at := settled_when(checkpoint)) is not None]
            self._to_come = sorted(found, reverse=True)
        while self._to_come and self._to_come[-1][1] in self.visited:
            self._to_come.pop()
        return bool(self._to_come) and settled_at is not None and self._to_come[-1][0] < settled_at

    def missed(self) -> list[Step]:
        """Return the recorded steps that can be undone and that the body has not come to."""
        if self.pivoted:
            return []
        unseen = [c for place, c in list(self.recorded.checkpoints.items()) if place not in self.visited]
        return [c for c in unseen if isinstance(c, Step) and c.is_settled and c.compensable and not c.compensation]

    def mismatch(self, found: Step | Wait, asked: tuple[str, str] | None) -> NoReturn:
        """Stop the drive because the body does not ask for what is recorded, but for (kind, id) or nothing more."""
        branch = f' of branch "{found.branch}"' if found.branch else ""
        recorded = (kind_of(found), id_of(found))
        other = "nothing more" if asked is None else f'{asked[0]} "{asked[1]}"'
        self.stop(
            Mismatch(
                f'At position {found.index}{branch} the run has recorded {recorded[0]} "{recorded[1]}", but the '
                f"workflow asked for {other}. Bring the old order back, or register the change under a new version.",
                {"branch": found.branch, "position": found.index, "recorded": recorded, "asked": asked},
            )
        )

    def rebuilt(self, schema: Any, stored: Any, what: str) -> Any:
        """Return a recorded value as its schema gives it.

        Raises:
            Mismatch: the schema has changed since and refuses it; a deployment that takes it again lets the run go on.
        """
        try:
            return schemas.rebuild(schema, stored)
        except ValidationFailed as refused:
            self.stop(Mismatch(f"The recorded {what} does not satisfy its schema any more: {refused}"))

    def store(self, checkpoint: Step | Wait) -> None:
        """Note a stored checkpoint, and tell whoever asked to be told."""
        self.recorded.add(checkpoint)
        self.current_step = id_of(checkpoint)
        if self.on_checkpoint:
            try:
                self.on_checkpoint()
            except Exception:
                logger.exception("event=on-checkpoint-failed run=%s", self.run.run_id)

    def progress(self) -> dict[str, Any]:
        """Return what is brought up to date on the run's row at each park and end."""
        return {
            "cursor": self.recorded.cursor(),
            "state": self.bag.entries() or None,
            "current_step": self.current_step,
        }

    def go_on(self) -> None:
        """Note that a waiting run has new work to do."""
        if self.run.status == RunStatus.WAITING:
            self.write(self._resume)

    def _resume(self) -> None:
        with history.fenced(self.run):
            history.resume(self.run)
        self.run.status = RunStatus.RUNNING


def kind_of(checkpoint: Step | Wait) -> str:
    """Return what made a checkpoint, in the word that users know: step, activity, sleep, signal or approval."""
    if isinstance(checkpoint, Step):
        return str(checkpoint.kind)
    if checkpoint.kind == "timer":
        return "sleep"
    return "approval" if checkpoint.is_gate else str(checkpoint.kind)


def settled_when(checkpoint: Step | Wait) -> datetime | None:
    """Return when a checkpoint was settled, if it is."""
    if isinstance(checkpoint, Step):
        return checkpoint.finished_at if checkpoint.is_settled else None
    return None if checkpoint.is_open else checkpoint.closed_at


def id_of(checkpoint: Step | Wait) -> str:
    """Return a checkpoint's id."""
    return checkpoint.step_id if isinstance(checkpoint, Step) else checkpoint.name
