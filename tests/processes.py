"""Processes that a test starts against its own database, and waiting for what they do.

Nothing here reads a clock: a test may have frozen it.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import TypeVar

ROOT = Path(__file__).resolve().parent.parent
GLANCE = 0.02  # seconds between two looks

T = TypeVar("T")


class Spawned(subprocess.Popen):
    """A Python process in a process group of its own, with all its output in one file.

    Args:
        arguments: what follows ``python`` on the command line.
        env: the whole environment.
        log: the file for standard output and standard error.
    """

    def __init__(self, arguments: list[str], env: dict[str, str], log: Path) -> None:
        self.log = log
        with log.open("wb") as file:
            super().__init__(
                [sys.executable, *arguments],
                cwd=ROOT,
                env=env,
                stdin=subprocess.DEVNULL,
                stdout=file,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )

    @property
    def output(self) -> str:
        """Everything it has printed so far."""
        return self.log.read_text(errors="replace")

    def signal_group(self, number: int) -> None:
        """Send a signal to the process and all its children. No error if they are gone."""
        with suppress(ProcessLookupError):
            os.killpg(self.pid, number)

    def wait_for_output(self, text: str, seconds: float = 20) -> str:
        """Return the output once ``text`` is in it; fail with the output when the process ends or time is up before."""
        for _ in range(int(seconds / GLANCE)):
            ended = self.poll() is not None  # asked first: what is printed last must still be seen
            if text in (output := self.output):
                return output
            if ended:
                break
            time.sleep(GLANCE)
        raise AssertionError(f"{text!r} did not come (exit code {self.poll()}). Output:\n{self.output}")

    def finish(self, seconds: float = 60) -> str:
        """Wait until it ends by itself and return its output; fail with the output unless the exit code is 0."""
        with suppress(subprocess.TimeoutExpired):
            self.wait(seconds)
        assert self.poll() == 0, f"exit code {self.poll()}. Output:\n{self.output}"
        return self.output

    def destroy(self) -> None:
        """Kill the process and its children and reap it."""
        self.signal_group(signal.SIGKILL)
        self.wait()


def eventually(probe: Callable[[], T], seconds: float = 20) -> T:
    """Call ``probe`` until it returns something true, and return that; fail after ``seconds``."""
    for _ in range(int(seconds / GLANCE)):
        if found := probe():
            return found
        time.sleep(GLANCE)
    raise AssertionError(f"not within {seconds} seconds: {probe}")
