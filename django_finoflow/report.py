"""What a worker prints: one line per event worth a person's eye, as ``key=value``.

``--verbosity 0`` prints nothing, 1 what needs a look (failed, stuck, recovered, trouble) and the worker's own comings
and goings, 2 each run's end and wait too, 3 each step.
"""

from __future__ import annotations

import logging
from typing import Any

from django.core.management.base import OutputWrapper

from . import clock, events

LEVELS = {0: logging.CRITICAL, 1: logging.INFO, 2: logging.INFO, 3: logging.DEBUG}
NEWS = {
    1: {"run-failed": events.run_failed, "run-stuck": events.run_stuck},
    2: {
        "run-started": events.run_started,
        "run-waiting": events.run_waiting,
        "run-done": events.run_done,
        "run-cancelled": events.run_cancelled,
    },
    3: {"step-done": events.step_done, "step-failed": events.step_failed, "step-retrying": events.step_retrying},
}
#: Facts that may hold what a user entered, or be long: never in a log.
PRIVATE = frozenset({"input", "result", "payload", "signal"})


class Report(logging.Handler):
    """Prints log records and events while it is entered.

    Args:
        out: where to.
        verbosity: how much, as Django's.
    """

    def __init__(self, out: OutputWrapper, verbosity: int):
        super().__init__(LEVELS.get(verbosity, logging.DEBUG))
        self._out = out
        self._receivers = [
            (event, self._receiver(name))
            for level, news in NEWS.items()
            if level <= verbosity
            for name, event in news.items()
        ]
        self._logger = logging.getLogger("django_finoflow")

    def emit(self, record: logging.LogRecord) -> None:
        self._print(record.getMessage())
        if record.exc_info:
            self._print(logging.Formatter().formatException(record.exc_info))

    def __enter__(self) -> Report:
        self._level, self._propagate = self._logger.level, self._logger.propagate
        self._logger.setLevel(self.level)
        self._logger.propagate = False
        self._logger.addHandler(self)
        for event, receiver in self._receivers:
            event.connect(receiver, weak=False)
        return self

    def __exit__(self, *exc: Any) -> None:
        for event, receiver in self._receivers:
            event.disconnect(receiver)
        self._logger.removeHandler(self)
        self._logger.setLevel(self._level)
        self._logger.propagate = self._propagate

    def _receiver(self, name: str) -> Any:
        def receive(sender: str, **facts: Any) -> None:
            parts = [
                f"event={name}",
                f"workflow={sender}",
                *(_fact(k, v) for k, v in facts.items() if k not in PRIVATE),
            ]
            self._print(" ".join(parts))

        return receive

    def _print(self, line: str) -> None:
        self._out.write(f"{clock.now():%Y-%m-%dT%H:%M:%S}Z {line}")
        self._out.flush()


def _fact(name: str, value: Any) -> str:
    if name == "error" and isinstance(value, dict):
        value = f"{value.get('type')}: {value.get('message')}"
    text = str(value)
    return f"{'run' if name == 'run_id' else name}={text if text.isprintable() and ' ' not in text else repr(text)}"
