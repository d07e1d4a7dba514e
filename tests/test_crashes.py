"""Workers and servers that die at the worst moment (rules D5, D6, D15, W2, W3, W5): the ledger proves what happened."""

from __future__ import annotations

import os
import random
import signal as signals
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from django_finoflow import start
from django_finoflow.models import Execution, Step
from tests import databases
from tests.processes import Spawned, eventually
from tests.testapp.models import Entry

pytestmark = pytest.mark.django_db(transaction=True)

Spawn = Callable[..., Spawned]


def begin(run_id: str, *orders: dict[str, Any], **options: Any) -> Execution:
    return start("script", list(orders), run_id=run_id, **options)


def row(run_id: str) -> Execution:
    return Execution.objects.get(run_id=run_id)


def labels(run_id: str) -> list[str]:
    return list(Entry.objects.filter(run_id=run_id).values_list("label", flat=True))


def drivers(run_id: str) -> list[int]:
    return list(Entry.objects.filter(run_id=run_id).values_list("amount", flat=True))


# -- kill -9 -----------------------------------------------------------------------------------------------------------


def test_kill_9_at_random_moments_loses_no_result_and_repeats_no_atomic_step(spawn: Spawn) -> None:
    seed = random.SystemRandom().randrange(10**6)
    print(f"seed {seed}")
    dice = random.Random(seed)
    for number in range(200):
        orders = [{"step": f"s{n}", "atomic": (n + number) % 2 == 0, "seconds": 0.004} for n in range(5)]
        begin(f"{number:03}", *orders)
    kept: dict[tuple[int, int], Any] = {}
    kills = 0
    while kills < 6 or left():
        options = {"FINOFLOW_TEST_SQLITE": "tuned"} if kills else {}
        worker = spawn("finoflow_worker", "--lease", "1", "--poll-interval", "0.1", "--concurrency", "4", **options)
        worker.wait_for_output("worker-started")
        if kills >= 6:
            eventually(lambda: not left(), 60)
            worker.terminate()
            worker.finish()
            break
        eventually_after(dice.uniform(0.05, 0.7))
        worker.destroy()
        kills += 1
        kept |= {(step.execution_id, step.index): step.result for step in Step.objects.all()}
    assert Counter(Execution.objects.values_list("status", flat=True)) == {"done": 200}
    assert 0 < len(kept) <= 1000
    now = {(step.execution_id, step.index): step.result for step in Step.objects.all()}
    assert {place: now[place] for place in kept} == kept
    for run in Execution.objects.all():
        assert run.result == [now[run.pk, index] for index in range(5)]
    ledger = Counter(Entry.objects.values_list("run_id", "label"))
    for number in range(200):
        for n in range(5):
            times = ledger[f"{number:03}", f"s{n}"]
            assert times == 1 if (n + number) % 2 == 0 else times >= 1
    assert sum(ledger.values()) < 1100


def left() -> bool:
    return Execution.objects.exclude(status="done").exists()


def eventually_after(seconds: float) -> None:
    """Let a worker work for a while: here the passing of time is the very thing."""
    import time

    time.sleep(seconds)


def test_w2_a_dead_workers_run_is_driven_again_when_its_lease_ends(spawn: Spawn) -> None:
    begin("it", {"step": "first"}, {"step": "second", "seconds": 60}, {"step": "third"})
    worker = spawn("finoflow_worker", "--lease", "1")
    eventually(lambda: labels("it") == ["first", "second"])
    worker.destroy()
    Execution.objects.filter(run_id="it").update(input=[{"step": "first"}, {"step": "second"}, {"step": "third"}])
    other = spawn("finoflow_worker", "--lease", "1", "--poll-interval", "0.1")
    eventually(lambda: row("it").status == "done")
    assert labels("it") == ["first", "second", "second", "third"]
    assert row("it").recoveries == 1
    assert f"run=it recoveries=1" in other.output  # noqa: F541
    other.terminate()
    other.finish()


def test_w2_a_step_that_kills_its_workers_ends_as_stuck_and_its_neighbours_live(spawn: Spawn, tmp_path: Path) -> None:
    short = settings_with(tmp_path, MAX_RECOVERIES=2)
    begin("deadly", {"step": "first"}, {"step": "bomb", "then": "die"})
    begin("calm", {"step": "one"}, {"step": "two"}, priority=-1)
    deaths = 0
    while row("deadly").status != "stuck":
        worker = spawn("finoflow_worker", "--lease", "0.3", "--poll-interval", "0.05", "--concurrency", "1", **short)
        eventually(lambda: worker.poll() is not None or row("deadly").status == "stuck")  # noqa: B023
        deaths += worker.poll() == -signals.SIGKILL
        assert deaths < 5
    assert (deaths, row("deadly").stuck_reason) == (3, "too-many-crashes")
    assert labels("deadly") == ["first", "bomb", "bomb", "bomb"]
    eventually(lambda: row("calm").status == "done")


def settings_with(folder: Path, **values: Any) -> dict[str, str]:
    """The environment of a process whose settings have these values in ``FINOFLOW``."""
    base = os.environ.get("DJANGO_SETTINGS_MODULE", "tests.settings")
    (folder / "special_settings.py").write_text(f"from {base} import *\nFINOFLOW = {values!r}\n")
    path = os.pathsep.join([str(folder), str(Path(__file__).resolve().parent.parent), os.environ.get("PYTHONPATH", "")])
    return {"DJANGO_SETTINGS_MODULE": "special_settings", "PYTHONPATH": path}


def test_w2_a_kill_9_is_counted_and_a_graceful_stop_is_not(spawn: Spawn) -> None:
    begin("it", *[{"step": f"s{n}", "seconds": 0.3} for n in range(8)])
    for graceful in (True, False, True):
        seen = len(labels("it"))
        worker = spawn("finoflow_worker", "--lease", "1", "--poll-interval", "0.05")
        eventually(lambda: len(labels("it")) > seen)  # noqa: B023
        worker.terminate() if graceful else worker.kill()
        worker.wait(30)
    spawn("finoflow_worker", "--drain").finish()
    assert row("it").recoveries == 1


# -- SIGSTOP -----------------------------------------------------------------------------------------------------------


def test_d15_and_w3_a_worker_stopped_past_its_lease_writes_nothing_when_it_comes_back(spawn: Spawn) -> None:
    begin("it", {"step": "one", "seconds": 1}, {"step": "two"})
    paused = spawn("finoflow_worker", "--lease", "1", "--poll-interval", "0.05", "--verbosity", "3")
    eventually(lambda: labels("it") == ["one"])
    os.kill(paused.pid, signals.SIGSTOP)
    spawned = spawn("finoflow_worker", "--lease", "1", "--poll-interval", "0.05")
    eventually(lambda: row("it").status == "done", 30)
    spawned.terminate()
    spawned.finish()
    before = [whole("it"), *map(repr, Entry.objects.values_list("label", "amount"))]
    os.kill(paused.pid, signals.SIGCONT)
    begin("after", {"step": "proof of life"})
    eventually(lambda: row("after").status == "done")
    paused.terminate()
    paused.finish()
    after = [whole("it"), *map(repr, Entry.objects.exclude(run_id="after").values_list("label", "amount"))]
    assert after == before
    assert labels("it") == ["one", "one", "two"]
    assert drivers("it")[1] == drivers("it")[2] != drivers("it")[0] == drivers("after")[0]
    assert "event=run-done workflow=script run=it" not in paused.output


def whole(run_id: str) -> Any:
    """Everything that is stored of a run."""
    runs, steps = Execution.objects.filter(run_id=run_id), Step.objects.filter(execution__run_id=run_id).order_by("pk")
    return [list(runs.values()), list(steps.values())]


# -- a step longer than the lease --------------------------------------------------------------------------------------


@pytest.mark.parametrize("atomic", [False, True])
def test_w8_a_step_longer_than_the_lease_runs_once_with_two_workers_looking_on(spawn: Spawn, atomic: bool) -> None:
    workers = [spawn("finoflow_worker", "--lease", "1", "--poll-interval", "0.1") for _ in range(2)]
    for worker in workers:
        worker.wait_for_output("worker-started")
    begin("it", {"step": "long", "seconds": 3.5, "atomic": atomic}, {"step": "next", "seconds": 1.5}, {"step": "last"})
    eventually(lambda: row("it").status == "done", 40)
    assert labels("it") == ["long", "next", "last"]
    assert len(set(drivers("it"))) == 1
    for worker in workers:
        worker.terminate()
        worker.finish()


# -- W5: the database goes away ----------------------------------------------------------------------------------------


@pytest.mark.only_postgresql
def test_w5_a_connection_lost_inside_a_step_is_that_steps_failure(spawn: Spawn) -> None:
    begin("it", {"step": "unlucky", "then": "lose connection"}, {"step": "next"})
    begin("retried", {"step": "unlucky", "then": "lose connection", "retry": 2}, {"step": "next"})
    begin("atomic", {"step": "unlucky", "then": "lose connection", "atomic": True})
    spawn("finoflow_worker", "--drain", "--concurrency", "1").finish()
    for run_id, times in (("it", 1), ("retried", 2), ("atomic", 0)):
        assert (row(run_id).status, labels(run_id)) == ("error", ["unlucky"] * times)
        assert row(run_id).error["type"] == "django.db.utils.OperationalError"
        assert row(run_id).steps.get().status == "failed"
        assert row(run_id).recoveries == 0


@pytest.mark.only_postgresql
def test_w5_a_connection_lost_before_the_engines_own_write_is_nobodys_failure(spawn: Spawn) -> None:
    begin("plain", {"step": "one", "then": "lose connection unawares"}, {"step": "two"})
    begin("atomic", {"step": "one", "then": "lose connection unawares", "atomic": True, "retry": 1}, {"step": "two"})
    begin("last", {"step": "one"}, {"step": "two", "then": "lose connection unawares"})
    spawn("finoflow_worker", "--drain", "--concurrency", "1").finish(90)
    assert (row("plain").status, labels("plain")) == ("done", ["one", "two"])
    assert (row("last").status, labels("last")) == ("done", ["one", "two"])
    assert row("plain").recoveries == row("last").recoveries == 0
    assert (row("atomic").status, labels("atomic")) == ("done", ["one", "two"])
    assert row("atomic").steps.get(index=0).attempts == 1


@pytest.fixture
def own_server(spawn: Spawn) -> Iterator[tuple[databases.OwnPostgreSQL, dict[str, str]]]:
    """A PostgreSQL that may be restarted, with our tables in it, and the environment of its processes."""
    try:
        with databases.own_postgresql() as server:
            env = {"FINOFLOW_TEST_POSTGRES": server.url, "FINOFLOW_TEST_NAME": "postgres"}
            spawn("migrate", "--verbosity", "0", **env).finish()
            yield server, env
    except databases.Unreachable as why:
        pytest.skip(str(why))


@pytest.mark.only_postgresql
def test_w5_a_restarted_postgresql_costs_a_working_worker_nothing_and_it_listens_again(
    own_server: tuple[databases.OwnPostgreSQL, dict[str, str]], spawn: Spawn, spawn_code: Spawn
) -> None:
    import psycopg

    server, env = own_server

    def asked(sql: str) -> Any:
        try:
            with psycopg.connect(server.url, autocommit=True) as connection:
                return connection.execute(sql).fetchone()[0]
        except psycopg.OperationalError:
            return None

    begin_many = """
        import sys
        from django_finoflow import start
        orders = [{"step": f"s{n}", "dry": True, "seconds": 0.02, "atomic": n == 2} for n in range(4)]
        for number in range(int(sys.argv[2])):
            start("script", orders, run_id=f"{sys.argv[1]}-{number:03}")
    """
    done = "SELECT count(*) FROM finoflow_execution WHERE status = 'done'"
    spawn_code(begin_many, "first", "120", **env).finish()
    worker = spawn("finoflow_worker", "--poll-interval", "60", "--concurrency", "4", **env)
    for mode, before in (("fast", 15), ("immediate", 50)):
        eventually(lambda: (asked(done) or 0) >= before)  # noqa: B023
        server.restart(mode)
    eventually(lambda: asked(done) == 120, 60)
    worker.wait_for_output("event=listen-failed")
    # A claim that committed, and whose answer the restart swallowed, is left behind by nobody and counts as a crash.
    assert asked("SELECT sum(recoveries) FROM finoflow_execution") <= 2
    assert asked("SELECT count(*) FROM finoflow_step WHERE status = 'done'") == 480
    eventually(lambda: asked("SELECT count(*) FROM pg_stat_activity WHERE query LIKE 'LISTEN%'") == 1)
    spawn_code(begin_many, "second", "5", **env).finish()
    eventually(lambda: asked(done) == 125, 10)
    worker.terminate()
    worker.finish()


@pytest.mark.only_postgresql
def test_w5_a_worker_that_finds_no_database_waits_for_it(
    own_server: tuple[databases.OwnPostgreSQL, dict[str, str]], spawn: Spawn
) -> None:
    server, env = own_server
    gone = server.url.replace("host=", "host=/nowhere")
    worker = spawn("finoflow_worker", "--poll-interval", "0.1", **{**env, "FINOFLOW_TEST_POSTGRES": gone})
    worker.wait_for_output("event=database-trouble")
    assert worker.poll() is None
    worker.terminate()
    worker.finish(20)
