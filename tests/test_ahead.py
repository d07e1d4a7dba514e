"""Claiming ahead: quick runs are claimed several at once, and none of them waits for a slow one."""

from __future__ import annotations

import threading
from collections.abc import Callable

import pytest
from django.db import connections

from django_finoflow import clock, start
from django_finoflow.ahead import MOST, Ahead
from django_finoflow.models import Execution
from django_finoflow.options import Options
from django_finoflow.worker import Worker
from tests.processes import Spawned, eventually
from tests.testapp.models import Entry

Spawn = Callable[..., Spawned]


def test_a_worker_that_knows_nothing_claims_one_run() -> None:
    assert Ahead().appetite() == 1


def test_quick_drives_let_a_claim_take_more_and_never_too_many() -> None:
    ahead = Ahead()
    appetites = []
    for _ in range(30):
        ahead.note(0.001)
        appetites.append(ahead.appetite())
    assert appetites == sorted(appetites)
    assert appetites[-1] == MOST


def test_one_slow_drive_ends_that_at_once() -> None:
    ahead = Ahead()
    for _ in range(30):
        ahead.note(0.001)
    ahead.note(1.0)
    assert ahead.appetite() == 1


def test_runs_are_taken_in_the_order_they_were_claimed_and_stale_ones_are_not_taken(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    moment = 0.0
    monkeypatch.setattr(clock, "monotonic", lambda: moment)
    ahead = Ahead()
    ahead.put([Execution(run_id="a"), Execution(run_id="b")])
    moment = 0.15
    ahead.put([Execution(run_id="c")])
    assert str(ahead.take().run_id) == "a"
    moment = 0.25
    assert [run.run_id for run in ahead.take_stale()] == ["b"]
    assert ahead.take().run_id == "c"
    assert ahead.take() is None


@pytest.mark.django_db(transaction=True)
def test_what_was_claimed_ahead_of_a_slow_run_goes_back_and_is_driven_elsewhere(spawn: Spawn) -> None:
    start("script", [{"step": "slow", "seconds": 20, "heeds_abort": True}], run_id="slow", priority=1)
    for number in range(MOST - 1):
        start("script", [{"step": "behind"}], run_id=f"behind-{number}")
    busy = Worker(Options(concurrency=1, lease=60, grace=0))
    for _ in range(30):
        busy._ahead.note(0.001)  # its runs have been quick lately, so that its first claim takes all

    def work() -> None:
        busy.work()
        connections.close_all()

    thread = threading.Thread(target=work)
    thread.start()
    try:
        eventually(lambda: Entry.objects.filter(label="slow").exists(), 30)
        spawn("finoflow_worker", "--concurrency", "1")
        eventually(lambda: Entry.objects.filter(label="behind").count() == MOST - 1, 15)
        assert Execution.objects.get(run_id="slow").status == "running"
    finally:
        busy.stop()
        thread.join()
    behind = Execution.objects.filter(run_id__startswith="behind")
    eventually(lambda: set(behind.values_list("status", "recoveries")) == {("done", 0)}, 10)
