"""Workflows that worker processes find by themselves. A run does what its input says, so a test is read in one place.

``script`` takes a list of orders, each a dict with one verb: ``[{"step": "pay"}, {"wait": "go", "timeout": "1h"}]``.
Every ``step`` leaves an ``Entry`` (its label the step's id, its amount the process that did it) and returns a token
that no other call would, so that a test can tell whether a body was called twice, or a result lost.
"""

from __future__ import annotations

import os
import secrets
import signal
import time
from typing import Any

from django.db import connection, transaction

from django_finoflow import SignalTimeout, workflow

from .models import Entry


@workflow(id="script")
def script(ctx: Any, input: list[dict[str, Any]]) -> list[Any]:
    """Do what the input says, and return what came of each order."""
    return [obey(ctx, dict(order)) for order in input]


@workflow(id="express", queue="express", priority=5)
def express(ctx: Any, input: list[dict[str, Any]]) -> list[Any]:
    """The same in a queue of its own, and before others."""
    return [obey(ctx, dict(order)) for order in input]


@workflow(id="mailbox", early_signals=True)
def mailbox(ctx: Any, input: int) -> list[Any]:
    """Receive so many letters, some of which may have come before."""
    return [ctx.wait_for_signal("letter") for _ in range(input)]


@workflow(id="deployed")
def deployed(ctx: Any, input: Any) -> list[Any]:
    """A body that a deployment changes: its first step's id comes from the environment."""
    first = ctx.step(os.environ.get("FINOFLOW_TEST_SHAPE", "old"), lambda: "first")
    ctx.wait_for_signal("go")
    return [first, ctx.step("last", lambda: "last")]


@workflow(id="reminding")
def reminding(ctx: Any, input: str) -> Any:
    """Wait for a person, of which they are reminded in so much time."""
    return ctx.wait_for_approval("gate", remind=[input])


def obey(ctx: Any, order: dict[str, Any]) -> Any:
    """Do one order within a run."""
    if "step" in order:
        keyword = {"atomic": order.get("atomic", False), "retry": order.get("retry")}
        return ctx.step(order["step"], lambda: body(ctx, order), **keyword)
    if "sleep" in order:
        return ctx.sleep(order["sleep"], order["until"])
    if "gate" in order:
        return ctx.wait_for_approval(order["gate"], timeout=order.get("timeout"))["by"]
    if "wait" in order:
        try:
            return ctx.wait_for_signal(order["wait"], timeout=order.get("timeout"))
        except SignalTimeout:
            return "timed out"
    if "set" in order:
        return ctx.state.set(order["set"], order["value"])
    raise ValueError(f"unknown order {sorted(order)}")


def body(ctx: Any, order: dict[str, Any]) -> str:
    """What a step does: leave an entry (unless it is ``dry``), take its time, then maybe something nasty."""
    if not order.get("dry"):
        Entry.objects.create(run_id=ctx.run_id, label=order["step"], amount=os.getpid())
    wait = ctx.abort.wait if order.get("heeds_abort") else time.sleep
    wait(order.get("seconds", 0))
    if nasty := order.get("then"):
        NASTY[nasty](ctx)
    return f"{order['step']} {secrets.token_hex(8)}"


def die(ctx: Any) -> None:
    """End the process as a crash does."""
    os.kill(os.getpid(), signal.SIGKILL)


def lose_connection(ctx: Any) -> None:
    """Have the server end this thread's connection, which the next statement finds out."""
    with connection.cursor() as cursor:
        cursor.execute("SELECT pg_terminate_backend(pg_backend_pid())")


def lose_connection_unawares(ctx: Any) -> None:
    """Have the server end this thread's connection behind the body's back, once for each run: the engine finds out."""
    if ctx.run_id in unlucky:
        return
    unlucky.add(ctx.run_id)
    with connection.cursor() as cursor:
        cursor.execute("SELECT pg_backend_pid()")
        mine = cursor.fetchone()[0]
    other = connection.copy()
    with other.cursor() as cursor:
        cursor.execute("SELECT pg_terminate_backend(%s)", [mine])
    other.close()


def fail(ctx: Any) -> None:
    """Raise what a programmer did not think of."""
    raise RuntimeError("as ordered")


def leave_transaction_open(ctx: Any) -> None:
    """Open a transaction and forget it."""
    transaction.set_autocommit(False)


def leave_block_open(ctx: Any) -> None:
    """Enter an atomic block and never leave it."""
    transaction.atomic().__enter__()


unlucky: set[str] = set()

NASTY = {
    "die": die,
    "lose connection": lose_connection,
    "lose connection unawares": lose_connection_unawares,
    "fail": fail,
    "leave transaction open": leave_transaction_open,
    "leave block open": leave_block_open,
}
