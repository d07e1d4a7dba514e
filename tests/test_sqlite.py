"""SQLite as Django sets it up by default: one file, one writer, no write-ahead log (rule S7)."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from django_finoflow import start
from django_finoflow.models import Execution
from tests.processes import Spawned, eventually
from tests.testapp.models import Entry

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.only_sqlite]

Spawn = Callable[..., Spawned]

WEB = """
    from django.contrib.auth.models import User
    from django_finoflow import decide, signal, start
    from django_finoflow.models import Execution

    import sys, time
    count, boss = int(sys.argv[1]), User.objects.get(username="boss")

    def parked(run_id, wait):
        there = Execution.objects.filter(run_id=run_id, status="waiting", waits__name=wait, waits__outcome="open")
        while not there.exists():
            time.sleep(0.005)

    for number in range(count):
        run_id = f"web-{number}"
        orders = [{"step": "a"}, {"wait": "go"}, {"step": "b", "atomic": True}, {"gate": "ok"}, {"step": "c"}]
        start("script", orders, run_id=run_id)
        parked(run_id, "go")
        signal(run_id, "go", number)
        parked(run_id, "ok")
        decide(run_id, "ok", user=boss, approved=True)
    print("no trouble")
"""


@pytest.mark.parametrize("options", ["default", "tuned"])
def test_no_user_of_one_web_process_and_one_worker_sees_a_locked_database(
    spawn: Spawn, spawn_code: Callable[..., Spawned], options: str
) -> None:
    from django.contrib.auth.models import User

    User.objects.create_superuser("boss")
    worker = spawn("finoflow_worker", FINOFLOW_TEST_SQLITE=options)
    for number in range(25):  # keep it busy meanwhile
        start("script", [{"step": f"s{n}", "seconds": 0.01} for n in range(5)], run_id=f"busy-{number}")
    web = spawn_code(WEB, "15", FINOFLOW_TEST_SQLITE=options)
    assert "no trouble" in web.finish(90)
    eventually(lambda: not Execution.objects.exclude(status="done").exists(), 60)
    worker.terminate()
    output = worker.finish()
    assert "event=database-trouble" not in output
    assert Entry.objects.filter(run_id__startswith="web").count() == 15 * 3


def test_two_workers_started_at_the_same_moment_on_a_default_configuration_both_live(spawn: Spawn) -> None:
    for number in range(60):
        start(
            "script",
            [{"step": "a", "seconds": 0.01}, {"step": "b", "atomic": True}, {"step": "c"}],
            run_id=f"{number:02}",
        )
    workers = [spawn("finoflow_worker", "--poll-interval", "0.1") for _ in range(2)]
    eventually(lambda: Execution.objects.filter(status="done").count() == 60, 60)
    assert Entry.objects.count() == 180
    assert len(set(Entry.objects.values_list("amount", flat=True))) == 2
    for worker in workers:
        assert worker.poll() is None
        worker.terminate()
        worker.finish()


def test_s7_the_engines_own_writes_outwait_a_long_transaction_of_somebody_else(spawn: Spawn) -> None:
    """Longer than the five seconds that SQLite waits by itself."""
    from django.db import transaction

    start("script", [{"step": "a", "seconds": 0.5}, {"step": "b"}], run_id="it")
    worker = spawn("finoflow_worker", "--lease", "60", "--poll-interval", "0.1")
    eventually(lambda: Entry.objects.filter(label="a").exists())
    with transaction.atomic():
        Entry.objects.create(run_id="mine", label="lock")
        worker.wait_for_output("event=database-trouble", 30)
    eventually(lambda: Execution.objects.get(run_id="it").status == "done", 40)
    assert list(Entry.objects.filter(run_id="it").values_list("label", flat=True)) == ["a", "b"]
    worker.terminate()
    worker.finish()
