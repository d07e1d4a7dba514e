"""Workflows that live as long as one test: made on the spot, deployed anew with another body, forgotten at its end."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import count
from typing import Any

import pytest
from django.core.exceptions import ObjectDoesNotExist
from django.db import connection, transaction

from django_finoflow import get_run, registry, workflow
from django_finoflow.models import Execution
from django_finoflow.workflow import FunctionWorkflow

Body = Callable[..., Any]

#: A database with real commits, for threads and faults. Only the tables of these apps are emptied afterwards, which is
#: much quicker than emptying all of them; so these tests have no users.
COMMITTED = pytest.mark.django_db(transaction=True, available_apps=["django_finoflow", "tests.testapp"])


class Workshop:
    """Makes workflows: as a decorator (``@make`` or ``@make(version=2)``), and anew under its id (``redeploy``)."""

    def __init__(self) -> None:
        self._numbers = count(1)
        self._made: list[str] = []

    def __call__(self, body: Body | None = None, *, id: str | None = None, **options: Any) -> Any:
        if body is None:
            return lambda body: self(body, id=id, **options)
        name = id or f"{body.__name__}-{next(self._numbers)}"
        self._made.append(name)
        return workflow(id=name, **options)(body)

    def redeploy(self, flow: FunctionWorkflow, body: Body, **options: Any) -> FunctionWorkflow:
        """Register ``body`` in the place of ``flow``, as a process with newer code would find it."""
        registry.unregister(flow.id, flow.version)
        return workflow(id=flow.id, version=flow.version, **options)(body)

    def forget(self) -> None:
        """Unregister everything that was made."""
        for name in self._made:
            registry.unregister(name)


class Interruption:
    """Ends this process, as the engine sees it, whenever it is set: as Ctrl-C would, without any word on the run.

    Call it in a body or step; set ``armed`` to False before the run is driven again.
    """

    armed = True

    def __call__(self) -> None:
        if self.armed:
            raise KeyboardInterrupt


@contextmanager
def rolled_back() -> Iterator[None]:
    """A caller's transaction that comes to nothing in the end."""
    with transaction.atomic():
        yield
        transaction.set_rollback(True)


def elsewhere(work: Callable[[], Any]) -> None:
    """Do something in another thread, and so on another connection to the database."""
    problems = []

    def run() -> None:
        try:
            work()
        except BaseException as error:
            problems.append(error)
        finally:
            connection.close()

    thread = threading.Thread(target=run)
    thread.start()
    thread.join()
    assert problems == []


def row(run_id: str) -> Execution:
    """Return the row of a run as it is now."""
    run = get_run(run_id)
    if run is None:
        raise ObjectDoesNotExist(run_id)
    return run


def outline(run_id: str) -> list[tuple[int, str, str]]:
    """Return position, id and status of every checkpoint that is over."""
    return [(step.index, step.id, step.status) for step in row(run_id).snapshot().steps]
