"""Notifications on PostgreSQL: who is woken, when, and how often (rule W9)."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from typing import Any

import psycopg
import pytest
from django.contrib.auth.models import User
from django.db import connection, transaction

from django_finoflow import cancel, clock, decide, retry_run, signal, start, wakeup
from django_finoflow.attempt import Abort
from django_finoflow.claiming import Claimer
from django_finoflow.driver import drive
from django_finoflow.models import Execution
from tests.processes import Spawned, eventually

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.only_postgresql]

CHANGED, DUE = wakeup.CHANGED, wakeup.DUE


@pytest.fixture
def heard() -> Iterator[Callable[[], list[tuple[str, str]]]]:
    """What a plain connection that listens has heard since it was asked last: (channel, payload), in order of names."""
    parameters = connection.get_connection_params()
    for ours in ("cursor_factory", "context", "prepare_threshold"):
        parameters.pop(ours, None)
    with psycopg.connect(**parameters, autocommit=True) as listener:
        for channel in (CHANGED, DUE):
            listener.execute(f"LISTEN {channel}")
        yield lambda: sorted((notice.channel, notice.payload) for notice in listener.notifies(timeout=0.2))


def begin(run_id: str, *orders: dict[str, Any], **options: Any) -> Execution:
    return start("script", list(orders), run_id=run_id, **options)


def changed(run_id: str) -> tuple[str, str]:
    """Return what is heard by those who watch when a run has changed."""
    return CHANGED, str(Execution.objects.get(run_id=run_id).pk)


def work() -> None:
    """Drive what is due, in this process."""
    while runs := Claimer("me", [("script", 1)]).due():
        drive(runs[0], abort=Abort())


def test_w9_starts_deliveries_parks_and_ends_notify_and_checkpoints_never_do(heard: Callable[[], Any]) -> None:
    begin(
        "it", {"step": "a"}, {"step": "b", "atomic": True}, {"wait": "go"}, {"step": "c"}, {"gate": "ok"}, {"step": "d"}
    )
    due, rested = (DUE, "default"), changed("it")
    assert heard() == [due]
    work()
    assert heard() == [rested]
    signal("it", "go")
    assert heard() == [rested, due]
    work()
    assert heard() == [rested]
    decide("it", "ok", user=User.objects.create_superuser("root"), approved=True)
    assert heard() == [rested, due]
    work()
    assert heard() == [rested]


@pytest.mark.parametrize("count", [1, 5])
def test_w9_many_starts_of_one_transaction_notify_once_for_each_queue(heard: Callable[[], Any], count: int) -> None:
    with transaction.atomic():
        for number in range(count):
            begin(f"a{number}")
            begin(f"b{number}", queue="other")
        assert heard() == []
    assert sorted(heard()) == [(DUE, "default"), (DUE, "other")]


def test_w9_nothing_is_heard_of_what_was_rolled_back(heard: Callable[[], Any]) -> None:
    begin("it", {"wait": "go"})
    work()
    heard()
    with transaction.atomic():
        begin("other")
        signal("it", "go")
        transaction.set_rollback(True)
    assert heard() == []


def test_w9_errors_cancels_and_retries_are_told_as_well(heard: Callable[[], Any]) -> None:
    begin("bad", {"step": "a", "then": "fail"})
    begin("parked", {"wait": "go"})
    work()
    heard()
    retry_run("bad")
    assert heard() == [changed("bad"), (DUE, "default")]
    work()
    assert heard() == [changed("bad")]
    cancel("parked")
    assert heard() == [changed("parked")]


@pytest.mark.parametrize("count", [1, 5])
def test_w9_a_transaction_tells_of_each_run_that_it_changes_once_and_of_each_queue_once(
    heard: Callable[[], Any], count: int
) -> None:
    run_ids = [f"{number}" for number in range(count)]
    for run_id in run_ids:
        begin(run_id, {"wait": "go"}, {"wait": "on"})
    work()
    heard()
    with transaction.atomic():
        for run_id in run_ids:
            signal(run_id, "go")
            cancel(run_id)
    assert heard() == sorted([(DUE, "default"), *map(changed, run_ids)])


def test_w9_an_idle_worker_is_woken_long_before_its_poll_interval(spawn: Callable[..., Spawned]) -> None:
    worker = spawn("finoflow_worker", "--poll-interval", "60", "--queue", "quick", "--queue", "default")
    worker.wait_for_output("worker-started")
    time.sleep(6)  # a pause doubles from 20 ms: the one it is in now lasts for five seconds
    took = []
    for number in range(3):
        moment = clock.monotonic()
        begin(f"{number}", {"wait": "go"}, queue="quick")
        eventually(lambda: Execution.objects.get(run_id=f"{number}").status == "waiting", 30)  # noqa: B023
        signal(f"{number}", "go")
        eventually(lambda: Execution.objects.get(run_id=f"{number}").status == "done", 30)  # noqa: B023
        took.append(clock.monotonic() - moment)
        if number == 0:
            time.sleep(6)
    assert max(took) < 2
    worker.terminate()
    worker.finish()


def test_w9_all_slots_of_a_process_share_one_listening_connection(spawn: Callable[..., Spawned]) -> None:
    def listening() -> int:
        with connection.cursor() as cursor:
            cursor.execute(
                "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND query LIKE 'LISTEN%%'"
            )
            return int(cursor.fetchone()[0])

    worker = spawn("finoflow_worker", "--concurrency", "4", "--poll-interval", "60")
    for number in range(8):
        begin(f"{number}", {"step": "a", "seconds": 0.05}, {"step": "b"})
    eventually(lambda: Execution.objects.filter(status="done").count() == 8)
    eventually(lambda: listening() == 1)
    worker.terminate()
    worker.finish()


def test_w9_an_idle_worker_asks_little_of_the_database(spawn: Callable[..., Spawned]) -> None:
    """It looks when its growing pause is over, and not for every run that others end."""

    def transactions() -> int:
        with connection.cursor() as cursor:
            cursor.execute("SELECT pg_stat_clear_snapshot(), pg_stat_force_next_flush()")
            cursor.execute("SELECT xact_commit FROM pg_stat_database WHERE datname = current_database()")
            return int(cursor.fetchone()[0])

    begin("long", {"step": "long", "seconds": 60, "dry": True})
    worker = spawn("finoflow_worker", "--poll-interval", "60", "--lease", "60")
    eventually(lambda: Execution.objects.get(run_id="long").lease_until is not None)
    time.sleep(4)
    before = transactions()
    time.sleep(3)
    assert transactions() - before < 25
    worker.destroy()
