"""The worker: slots that claim due runs and drive them, a heartbeat that keeps their leases, and a way to stop.

Each slot is a thread with its own database connection, and claims for itself: one run at a time, or a few while runs
are quick (see ``ahead``). While nothing is due the slots sit, and one is called when the alarm rings or the poll
interval is over; a slot that found work calls the next. So an idle worker costs one cheap query an interval, however
many slots it has.
"""

from __future__ import annotations

import logging
import secrets
import threading
from contextlib import nullcontext
from typing import Any

from django.core.exceptions import ImproperlyConfigured
from django.db import Error, connections

from . import clock, conf, history, leases, maintenance, registry
from .ahead import Ahead
from .attempt import Abort
from .claiming import Claimer
from .drive import in_test_case
from .driver import drive
from .leases import Heartbeat, Lease
from .listen import Alarm
from .models import Execution
from .options import Options

logger = logging.getLogger("django_finoflow.worker")

#: Seconds that a step has to come to its end once its ``abort`` is set.
LAST_WORDS = 5.0
#: Seconds between two tries while the database is away, at the most.
RECONNECT = 1.0
#: Seconds by which a worker's clock may differ from the database's before it says so.
SKEW = 1.0


class Bench:
    """Where idle slots sit. A call that finds nobody sitting is kept for the next who sits down."""

    def __init__(self) -> None:
        self._condition = threading.Condition()
        self._called = False

    def sit(self, seconds: float) -> None:
        """Sit until called, ``seconds`` at the most."""
        with self._condition:
            if not self._called:
                self._condition.wait(seconds)
            self._called = False

    def call_one(self) -> None:
        """Call one of those who sit."""
        with self._condition:
            self._called = True
            self._condition.notify()

    def call_all(self) -> None:
        """Call everybody."""
        with self._condition:
            self._called = True
            self._condition.notify_all()


class Worker:
    """Drives due runs until it is told to stop."""

    def __init__(self, options: Options):
        self.options = options
        self.token = secrets.token_hex(16)
        self.name = options.name or f"worker-{self.token[:8]}"
        self._told = False
        self._bench = Bench()
        self._alarm = Alarm(conf.database(), options.queues)
        self._heartbeat = Heartbeat(options.lease)
        self._driving: dict[Lease, Abort] = {}
        self._ahead = Ahead()
        self._lock = threading.Lock()
        #: Where only so many runs are wanted, one slot claims at a time.
        self._turn: Any = nullcontext() if options.max_runs is None else threading.Lock()
        self._begun = 0
        self._look_behind = True
        self._claimer = Claimer(self.token, registry.known(), options.queues, options.lease)

    def stop(self) -> None:
        """Claim no more; end when the running steps have ended. May be called from a signal handler."""
        self._told = True  # no Event: its lock may be held by what the handler interrupts
        self._alarm.ring()

    def work(self) -> None:
        """Work until ``stop()``, or until nothing is due (drain), or until ``max_runs`` are done."""
        self._look_around()
        if self.options.drain:
            self._give_notices()
        if self.options.drain and in_test_case():
            self._slot()
            self._alarm.close()
            return
        self._heartbeat.start()
        slots = [
            threading.Thread(target=self._slot, name=f"finoflow-slot-{number}", daemon=True)
            for number in range(self.options.concurrency)
        ]
        for slot in slots:
            slot.start()
        self._stand_watch(slots)
        self._finish(slots)

    def _look_around(self) -> None:
        """Say hello, compare clocks, and give runs that an older deployment could not replay another try (rule W10)."""
        check_pool(self.options.concurrency)
        known = registry.known()
        queues = ",".join(self.options.queues) or "all"
        logger.info(
            "event=worker-started worker=%s queues=%s slots=%d workflows=%d",
            self.name, queues, self.options.concurrency, len(known),
        )  # fmt: skip
        if not known:
            logger.warning(
                "event=nothing-to-do worker=%s reason=%r", self.name, "no app has a workflows.py with a workflow"
            )
        while not self._told:
            try:
                skew = leases.clock_skew()
                revived = history.revive_mismatched(known, self.options.queues)
                break
            except Error as error:
                self._report_trouble(error)
        else:
            return
        if abs(skew) > SKEW:
            logger.warning("event=clock-skew worker=%s seconds=%.1f", self.name, skew)
        if revived:
            logger.info("event=mismatches-retried worker=%s runs=%d", self.name, revived)

    def _stand_watch(self, slots: list[threading.Thread]) -> None:
        """Call a slot whenever something may be due, until it is time to stop or the slots have ended."""
        pause, begun, notices = clock.Pause(self.options.poll_interval), 0, clock.monotonic()
        while not self._told and any(slot.is_alive() for slot in slots):
            if not self.options.drain and clock.monotonic() >= notices:
                self._give_notices()
                notices = clock.monotonic() + self.options.poll_interval
            if self._alarm.wait(pause.next()) or self._begun > begun:
                pause.reset()
            begun = self._begun
            self._look_behind = True
            self._give_back(self._ahead.take_stale())
            self._bench.call_one()

    @property
    def has_left_behind(self) -> bool:
        """Whether a body went on when the worker had ended: Python cannot end its thread."""
        return bool(self._driving)

    def _give_notices(self) -> None:
        """Remind and escalate what is due; all of it to drain, else some, and the rest at the next look."""
        try:
            while maintenance.index_gates() + maintenance.give_notices() and self.options.drain and not self._told:
                pass
        except Error as error:
            self._report_trouble(error)

    def _finish(self, slots: list[threading.Thread]) -> None:
        """Let running steps end, ask them to hurry, then leave (rule W4)."""
        self._told = True
        self._bench.call_all()
        self._give_back(self._ahead.take_stale(patience=0))
        logger.info("event=worker-stopping worker=%s runs=%d", self.name, len(self._driving))
        if not _joined(slots, self.options.grace):
            logger.warning("event=grace-over worker=%s runs=%d", self.name, len(self._driving))
            for abort in list(self._driving.values()):
                abort.set()
            _joined(slots, LAST_WORDS)
        self._heartbeat.stop()
        self._release(list(self._driving))
        self._alarm.close()
        logger.info("event=worker-stopped worker=%s runs=%d", self.name, self._begun)

    def _give_back(self, runs: list[Execution]) -> None:
        """Let go of runs that were claimed ahead and would wait for too long."""
        for run in runs:
            lease = Lease(run.pk, run.lease_epoch)
            self._heartbeat.forget(lease)
            self._driving.pop(lease, None)
            self._release([lease])
            with self._lock:
                self._begun -= 1

    def _release(self, held: list[Lease]) -> None:
        for lease in held:
            try:
                leases.give_back(lease)
            except Error as error:
                logger.warning("event=lease-not-released worker=%s error=%r", self.name, str(error).strip())

    def _slot(self) -> None:
        """Claim and drive, one run after another, until it is time to stop."""
        while not self._told and not self._has_enough():
            run = self._claim()
            if run is not None:
                self._bench.call_one()
                self._drive(run)
            elif not self.options.drain:
                self._bench.sit(60)
            elif self._driving:
                self._bench.sit(0.05)
            else:
                break
        self._bench.call_one()
        self._alarm.ring()
        if not in_test_case():
            connections.close_all()

    def _has_enough(self) -> bool:
        return self.options.max_runs is not None and self._begun >= self.options.max_runs

    def _claim(self) -> Execution | None:
        """Claim a run, if one is due, however often the database has to be asked for that."""
        with self._turn:
            while not self._told and not self._has_enough():
                if (waiting := self._ahead.take()) is not None:
                    return waiting
                try:
                    found = self._find()
                except Exception as error:  # whatever it is: a slot that ends would be missed
                    self._report_trouble(error)
                    continue
                return self._hold(found)
            return None

    def _find(self) -> list[Execution]:
        """Lease what is due.

        What dead workers left behind, once in a poll interval and whenever nothing else is to do; that one by one,
        so that a run that kills its workers takes no other with it twice.
        """
        wanted = 1 if self.options.max_runs is not None else self._ahead.appetite()
        if self._look_behind:
            self._look_behind = False
            return self._claimer.left_behind() or self._claimer.due(wanted)
        return self._claimer.due(wanted) or self._claimer.left_behind()

    def _hold(self, found: list[Execution]) -> Execution | None:
        """Keep the leases of what was found; return the first, and let the others wait for a slot."""
        for run in found:
            lease = Lease(run.pk, run.lease_epoch)
            self._driving[lease] = abort = Abort()
            self._heartbeat.watch(lease, abort)
        with self._lock:
            self._begun += len(found)
        self._ahead.put(found[1:])
        return found[0] if found else None

    def _drive(self, run: Execution) -> None:
        lease = Lease(run.pk, run.lease_epoch)
        began = clock.monotonic()
        if run.recoveries:
            logger.warning("event=run-recovered worker=%s run=%s recoveries=%d", self.name, run.run_id, run.recoveries)
        try:
            drive(run, abort=self._driving[lease], stopping=lambda: self._told)
        except BaseException:
            # Whatever it is, it is this run's trouble: its lease runs out, and too many such ends make it stuck.
            logger.exception("event=drive-failed worker=%s run=%s workflow=%s", self.name, run.run_id, run.workflow_id)
        finally:
            self._heartbeat.forget(lease)
            self._driving.pop(lease, None)
            self._ahead.note(clock.monotonic() - began)
            _tidy_connections()

    def _report_trouble(self, error: Exception) -> None:
        """Say that the database is away, let go of the connection, and wait a moment (rule W5)."""
        logger.warning("event=database-trouble worker=%s error=%r", self.name, str(error).strip())
        connections[conf.database()].close()
        pause = clock.Pause(0.1)
        end = clock.monotonic() + min(self.options.poll_interval, RECONNECT)
        while not self._told and clock.monotonic() < end:
            pause(end)


def check_pool(concurrency: int) -> None:
    """Refuse a connection pool that is too small: without its connection the heartbeat would lose every lease.

    Raises:
        ImproperlyConfigured: each slot, the heartbeat, the listener and the watch cannot have a connection at once.
    """
    connection = connections[conf.database()]
    pool = connection.settings_dict.get("OPTIONS", {}).get("pool")
    if not pool:
        return
    given = pool if isinstance(pool, dict) else {}
    most, needed = given.get("max_size") or given.get("min_size", 4), concurrency + 3
    if most < needed:
        raise ImproperlyConfigured(
            f"The connection pool of DATABASES[{connection.alias!r}] holds {most} connections, and a worker with "
            f"{concurrency} slots needs {needed}: set OPTIONS['pool'] = {{'max_size': {needed}}}, or do without a pool."
        )


def _joined(threads: list[threading.Thread], seconds: float) -> bool:
    """Wait for threads to end, ``seconds`` at the most; return whether all have."""
    end = clock.monotonic() + seconds
    for thread in threads:
        thread.join(max(0.0, end - clock.monotonic()))
    return not any(thread.is_alive() for thread in threads)


def _tidy_connections() -> None:
    """Close what user code left broken, too old or amidst a transaction; keep the runs' own, which is used at once."""
    if in_test_case():
        return
    for connection in connections.all(initialized_only=True):
        if connection.in_atomic_block or not (connection.autocommit or connection.connection is None):
            connection.close()
            del connections[connection.alias]
        elif connection.alias != conf.database() or connection.errors_occurred:
            connection.close_if_unusable_or_obsolete()
