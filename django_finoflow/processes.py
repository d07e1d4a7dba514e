"""``--processes N``: one parent that keeps N workers running.

Children live in sessions of their own, so that a signal to the parent's process group reaches each of them exactly
once, through the parent. A child whose parent has died notices at once and stops by itself.
"""

from __future__ import annotations

import logging
import multiprocessing.connection
import os
import signal
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from types import FrameType
from typing import TYPE_CHECKING, Any

import django
from django.core.management.base import OutputWrapper
from django.db import connections

from . import clock
from .report import Report

if TYPE_CHECKING:  # a child unpickles its orders before Django is set up, so before models can be imported
    from .options import Options
    from .worker import Worker

logger = logging.getLogger("django_finoflow.worker")

STOPPING = (signal.SIGTERM, signal.SIGINT)
#: Seconds within which two signals are one: a service manager signals every process, and the parent passes its own on.
ONE_SIGNAL = 0.5


class Supervisor:
    """Starts worker processes, starts again those that die, and passes on the signal to stop."""

    def __init__(self, options: Options, processes: int, verbosity: int):
        self._options = options
        self._count = processes
        self._verbosity = verbosity
        self._children: dict[int, Any] = {}
        #: Which databases this process uses, under a test runner others than the settings say.
        self._names = {alias: connections[alias].settings_dict["NAME"] for alias in connections}
        self._stopping = False

    def stop(self) -> None:
        """Tell the children to stop. May be called from a signal handler."""
        self._stopping = True
        terminate_children()

    def work(self) -> None:
        """Keep the workers running until ``stop()``, or until they have drained."""
        wanted = set(range(self._count))
        while wanted:
            for number in wanted - self._children.keys():
                self._children[number] = self._start(number)
                if self._stopping:  # told so before this child was there to be told
                    self._children[number].terminate()
            multiprocessing.connection.wait([child.sentinel for child in self._children.values()], timeout=1)
            for number, child in list(self._children.items()):
                if not child.is_alive():
                    wanted -= self._ended(number, child)

    def _start(self, number: int) -> Any:
        options = replace(self._options, name=f"{self._options.name or 'worker'}-{number + 1}")
        child = multiprocessing.get_context("spawn").Process(
            target=work_alone, args=(options, self._verbosity, self._names)
        )
        child.start()
        return child

    def _ended(self, number: int, child: Any) -> set[int]:
        """Note the end of a child; return the numbers that need no other."""
        del self._children[number]
        if self._stopping or (self._options.drain and child.exitcode == 0):
            return {number}
        if child.exitcode:
            logger.warning(
                "event=process-died worker=%s-%d exit=%s", self._options.name or "worker", number + 1, child.exitcode
            )
            time.sleep(1)
        return set()


def work_alone(options: Options, verbosity: int, databases: dict[str, Any]) -> None:
    """Be one worker process, on the databases of the parent."""
    if hasattr(os, "setsid"):
        os.setsid()
    django.setup()
    for alias, name in databases.items():
        connections[alias].settings_dict["NAME"] = name
        connections.settings[alias]["NAME"] = name  # for the connections of other threads
    from .worker import Worker

    with Report(OutputWrapper(sys.stdout), verbosity):
        worker = Worker(options)
        threading.Thread(target=stop_without_parent, args=(worker,), name="finoflow-parent", daemon=True).start()
        with stopped_by_signals(worker):
            worker.work()
        leave(worker)


def stop_without_parent(worker: Worker) -> None:
    """Wait for the parent's end, and stop the worker then."""
    parent = multiprocessing.parent_process()
    if parent is not None:
        parent.join()
        logger.warning("event=orphaned worker=%s", worker.name)
        worker.stop()


def leave(worker: Worker) -> None:
    """End this process if a body would not end: Python would wait for its event loop's thread (rule W4)."""
    if worker.has_left_behind and threading.current_thread() is threading.main_thread():
        logging.shutdown()
        for stream in (sys.stdout, sys.stderr):
            stream.flush()
        os._exit(0)


def terminate_children() -> None:
    """Send SIGTERM to all worker processes of this one."""
    for child in multiprocessing.active_children():
        child.terminate()


@contextmanager
def stopped_by_signals(boss: Any) -> Iterator[None]:
    """Let SIGTERM and SIGINT stop ``boss`` gracefully, and a second one the process at once (rule W4)."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    received: list[float] = []

    def stop(number: int, frame: FrameType | None) -> None:
        received.append(clock.monotonic())
        if len(received) == 1:
            boss.stop()
        elif received[-1] - received[0] > ONE_SIGNAL:
            for child in multiprocessing.active_children():
                child.kill()
            os._exit(128 + number)

    before = {number: signal.signal(number, stop) for number in STOPPING}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
