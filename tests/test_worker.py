"""The worker command as its users run it: real processes, real signals (rules W1, W4, W5, W6, W10, and §7)."""

from __future__ import annotations

import os
import re
import signal as signals
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest
from django.core.management import CommandError, call_command
from django.db import connection, transaction
from freezegun import freeze_time

from django_finoflow import clock, decide, signal, start
from django_finoflow.models import Execution, Step
from django_finoflow.options import Options
from django_finoflow.worker import Worker
from tests.processes import Spawned, eventually
from tests.testapp.models import Entry

pytestmark = pytest.mark.django_db(transaction=True)

Spawn = Callable[..., Spawned]


def begin(run_id: str, *orders: dict[str, Any], workflow: str = "script", **options: Any) -> Execution:
    return start(workflow, list(orders), run_id=run_id, **options)


def row(run_id: str) -> Execution:
    return Execution.objects.get(run_id=run_id)


def status(run_id: str) -> str:
    return row(run_id).status


def labels(run_id: str) -> list[str]:
    return list(Entry.objects.filter(run_id=run_id).values_list("label", flat=True))


def drivers(run_id: str) -> set[int]:
    """The processes that called the steps of a run."""
    return set(Entry.objects.filter(run_id=run_id).values_list("amount", flat=True))


def alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    with open(f"/proc/{pid}/stat") as file:
        return file.read().rsplit(")", 1)[1].split()[0] != "Z"


# -- §7: the command line ----------------------------------------------------------------------------------------------


def test_drain_works_until_nothing_is_due_and_exits_0(spawn: Spawn) -> None:
    for number in range(30):
        begin(f"{number}", {"step": "one"}, {"step": "two", "atomic": True})
    begin("parked", {"wait": "go"})
    begin("later", at="1h")
    spawn("finoflow_worker", "--drain").finish()
    assert Execution.objects.filter(status="done").count() == 30
    assert (status("parked"), status("later")) == ("waiting", "running")
    assert Entry.objects.count() == 60


def test_drain_with_nothing_to_do_ends_at_once(spawn: Spawn) -> None:
    assert "runs=0" in spawn("finoflow_worker", "--drain").finish()


def test_drain_with_several_processes_ends_when_all_are_done(spawn: Spawn) -> None:
    for number in range(20):
        begin(f"{number}", {"step": "one"})
    output = spawn("finoflow_worker", "--drain", "--processes", "2").finish()
    assert Execution.objects.filter(status="done").count() == 20
    assert "process-died" not in output
    assert output.count("event=worker-stopped") == 2


def test_drain_ends_only_after_the_last_run_though_other_slots_are_idle(spawn: Spawn) -> None:
    begin("slow", {"step": "one", "seconds": 1}, {"step": "two"})
    spawn("finoflow_worker", "--drain", "--concurrency", "3").finish()
    assert status("slow") == "done"


def test_max_runs_counts_what_was_driven_and_not_what_was_looked_for(spawn: Spawn) -> None:
    worker = spawn("finoflow_worker", "--max-runs", "2", "--concurrency", "4", "--poll-interval", "0.05")
    worker.wait_for_output("worker-started")
    begin("one", {"step": "s"})
    eventually(lambda: status("one") == "done")
    begin("two", {"step": "s"})
    assert "runs=2" in worker.finish()
    assert status("two") == "done"


def test_max_runs_lets_every_drive_come_to_its_end(spawn: Spawn) -> None:
    for number in range(6):
        begin(f"{number}", *[{"step": f"s{n}", "seconds": 0.05 * (number + 1)} for n in range(3)])
    spawn("finoflow_worker", "--max-runs", "4", "--concurrency", "4").finish()
    assert Execution.objects.filter(status="done").count() == 4
    assert set(Execution.objects.values_list("lease_until", flat=True)) == {None}


def test_w1_a_worker_takes_from_its_queues_only(spawn: Spawn) -> None:
    begin("default", {"step": "one"})
    begin("express", {"step": "one"}, workflow="express")
    begin("other", {"step": "one"}, queue="other")
    spawn("finoflow_worker", "--drain", "--queue", "express", "--queue", "other").finish()
    assert [status(run_id) for run_id in ("default", "express", "other")] == ["running", "done", "done"]


def test_w1_a_busy_worker_takes_the_urgent_first(spawn: Spawn) -> None:
    for number in range(5):
        begin(f"usual-{number}", {"step": "one"})
    begin("urgent", {"step": "one"}, priority=1)
    spawn("finoflow_worker", "--drain", "--concurrency", "1").finish()
    order = list(Entry.objects.values_list("run_id", flat=True))
    assert order == ["urgent", *(f"usual-{number}" for number in range(5))]


def test_a_wrong_argument_is_refused_with_exit_code_2(spawn: Spawn) -> None:
    worker = spawn("finoflow_worker", "--concurrency", "0")
    assert worker.wait(60) == 2
    assert "'0' is no whole number of at least 1" in worker.output


@pytest.mark.parametrize(
    "arguments", [["--processes", "-1"], ["--lease", "soon"], ["--max-runs", "x"], ["--grace", "nan"]]
)
def test_numbers_and_times_that_cannot_be_are_refused_by_name(arguments: list[str]) -> None:
    with pytest.raises(CommandError, match=arguments[0]):
        call_command("finoflow_worker", *arguments)


# -- §7: what it prints ------------------------------------------------------------------------------------------------

SECRET = "xyzzy-4711"
LINE = re.compile(r"""^\S+Z event=[\w-]+( [\w-]+=('[^']*'|"[^"]*"|[^\s'"]\S*|''))*$""")


def printed(spawn: Spawn, verbosity: int) -> str:
    """What a worker prints of a run that does all there is to do; the secret is in every payload of it."""
    orders = [{"set": "word", "value": SECRET}, {"step": "one", "note": SECRET}, {"wait": "go"}, {"gate": "ok"}]
    begin("talkative", *orders)
    begin("failing", {"step": "bad", "then": "fail", "note": SECRET})
    worker = spawn(
        "finoflow_worker", "--verbosity", str(verbosity), "--poll-interval", "0.05", FINOFLOW_TEST_SQLITE="tuned"
    )
    eventually(lambda: status("talkative") == "waiting")
    signal("talkative", "go", {"word": SECRET})
    eventually(lambda: row("talkative").waits.gates().open().exists() and status("talkative") == "waiting")
    decide("talkative", "ok", user=superuser(), approved=True, reason="fine", data={"word": SECRET})
    eventually(lambda: status("talkative") == "done" and status("failing") == "error")
    worker.terminate()
    return worker.finish()


def superuser() -> Any:
    from django.contrib.auth.models import User

    return User.objects.create_superuser("root")


@pytest.mark.parametrize(
    ("verbosity", "shown", "hidden"),
    [
        (
            1,
            ["event=worker-started", "event=run-failed", "event=worker-stopped"],
            ["event=run-done", "event=step-done"],
        ),
        (3, ["event=step-done", "event=step-failed", "run=talkative", "step_id=one"], []),
    ],
)
def test_each_line_is_one_event_in_key_value_form_and_holds_no_payload(
    spawn: Spawn, verbosity: int, shown: list[str], hidden: list[str]
) -> None:
    output = printed(spawn, verbosity)
    assert [text for text in shown if text not in output] == []
    assert [text for text in hidden if text in output] == []
    assert [line for line in output.splitlines() if not LINE.match(line)] == []
    assert SECRET not in output


def test_verbosity_0_prints_nothing_and_2_the_ends_of_runs(spawn: Spawn) -> None:
    for verbosity, shown in ((0, []), (2, ["event=run-done"])):
        begin(f"it-{verbosity}", {"step": "one"})
        output = spawn(
            "finoflow_worker", "--drain", "--verbosity", str(verbosity), FINOFLOW_TEST_SQLITE="tuned"
        ).finish()
        assert [text for text in shown if text not in output] == []
        assert "step-done" not in output
        assert bool(output) == bool(verbosity)


# -- W3: clocks --------------------------------------------------------------------------------------------------------


@pytest.mark.only_postgresql
@pytest.mark.parametrize(("ahead", "warned"), [(0, False), (3600, True), (-3600, True)])
def test_w3_a_worker_whose_clock_is_off_says_so(caplog: pytest.LogCaptureFixture, ahead: int, warned: bool) -> None:
    with freeze_time(clock.now() + timedelta(seconds=ahead)):
        worker = Worker(Options())
        worker._look_around()
    worker._alarm.close()
    assert ("event=clock-skew" in caplog.text) == warned


# -- W4: stopping ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("number", [signals.SIGTERM, signals.SIGINT])
def test_w4_a_signal_lets_the_running_step_finish_and_the_run_goes_on_elsewhere(spawn: Spawn, number: int) -> None:
    begin("it", {"step": "long", "seconds": 1.5}, {"step": "next"})
    first = spawn("finoflow_worker")
    eventually(lambda: labels("it") == ["long"])
    first.send_signal(number)
    first.finish()
    assert labels("it") == ["long"]
    assert (row("it").steps.get().status, row("it").lease_until) == ("done", None)
    spawn("finoflow_worker", "--drain").finish()
    assert (status("it"), row("it").recoveries, labels("it")) == ("done", 0, ["long", "next"])
    assert len(drivers("it")) == 2


def test_w4_an_idle_worker_stops_at_once_and_exits_0(spawn: Spawn) -> None:
    worker = spawn("finoflow_worker", "--poll-interval", "60")
    worker.wait_for_output("worker-started")
    worker.terminate()
    worker.finish(10)


def test_w4_a_stopping_worker_claims_no_more(spawn: Spawn) -> None:
    begin("it", {"step": "long", "seconds": 1.5})
    worker = spawn("finoflow_worker", "--poll-interval", "0.05")
    eventually(lambda: labels("it") == ["long"])
    worker.terminate()
    begin("late", {"step": "one"})
    worker.finish()
    assert (status("it"), status("late"), labels("late")) == ("done", "running", [])


def test_w4_after_the_grace_abort_is_set_and_what_ends_then_still_counts(spawn: Spawn) -> None:
    begin("it", {"step": "long", "seconds": 60, "heeds_abort": True}, {"step": "next"})
    worker = spawn("finoflow_worker", "--grace", "0.5")
    eventually(lambda: labels("it") == ["long"])
    worker.terminate()
    worker.finish(20)
    assert (row("it").steps.get().status, row("it").lease_until, row("it").recoveries) == ("done", None, 0)
    assert row("it").due_at <= clock.now()


def test_w4_a_deaf_step_is_left_behind_and_its_lease_released(spawn: Spawn) -> None:
    begin("it", {"step": "deaf", "seconds": 60})
    worker = spawn("finoflow_worker", "--grace", "0.2")
    eventually(lambda: labels("it") == ["deaf"])
    worker.terminate()
    worker.finish(20)
    assert not row("it").steps.exists()
    assert (row("it").lease_until, row("it").recoveries) == (None, 0)
    assert row("it").due_at <= clock.now()


def test_w4_a_second_signal_stops_at_once_and_the_lease_runs_out_by_itself(spawn: Spawn) -> None:
    begin("it", {"step": "long", "seconds": 60})
    worker = spawn("finoflow_worker")
    eventually(lambda: labels("it") == ["long"])
    worker.terminate()
    worker.wait_for_output("event=worker-stopping")
    signal_until_it_ends(worker, signals.SIGINT)
    assert worker.returncode == 128 + signals.SIGINT
    assert row("it").lease_until is not None


def signal_until_it_ends(process: Spawned, number: int) -> None:
    """Signal again and again, as an impatient person does: what comes right after the first counts as one with it."""

    def has_ended() -> bool:
        process.send_signal(number)
        return process.poll() is not None

    eventually(has_ended, 10)


# -- W4: several processes ---------------------------------------------------------------------------------------------


def family(spawn: Spawn, *arguments: str) -> tuple[Spawned, set[int]]:
    """Start two worker processes under one parent; return it and the children's ids."""
    parent = spawn("finoflow_worker", "--processes", "2", "--concurrency", "1", "--poll-interval", "0.05", *arguments)
    eventually(lambda: parent.output.count("event=worker-started") == 2)
    children = set(descendants(parent.pid))
    assert len(children) == 2
    return parent, children


def test_w4_a_signal_to_the_whole_group_stops_parent_and_children_gracefully(spawn: Spawn) -> None:
    parent, children = family(spawn)
    begin("it", {"step": "long", "seconds": 1.5}, {"step": "next"})
    eventually(lambda: labels("it") == ["long"])
    parent.signal_group(signals.SIGTERM)
    output = parent.finish()
    assert not any(alive(pid) for pid in children)
    assert output.count("event=worker-stopped") == 2
    assert row("it").steps.get().status == "done"
    assert (row("it").lease_until, row("it").recoveries) == (None, 0)


def test_w4_a_signal_to_the_parent_alone_stops_all(spawn: Spawn) -> None:
    parent, children = family(spawn)
    parent.terminate()
    parent.finish()
    assert not any(alive(pid) for pid in children)


def test_w4_a_second_signal_to_the_parent_stops_the_children_at_once_too(spawn: Spawn) -> None:
    parent, children = family(spawn)
    begin("it", {"step": "long", "seconds": 60})
    eventually(lambda: labels("it") == ["long"])
    parent.terminate()
    eventually(lambda: parent.output.count("event=worker-stopping") == 2)
    signal_until_it_ends(parent, signals.SIGTERM)
    assert parent.returncode == 128 + signals.SIGTERM
    eventually(lambda: not any(alive(pid) for pid in children), 10)


def test_w4_children_of_a_parent_that_was_killed_stop_by_themselves(spawn: Spawn) -> None:
    parent, children = family(spawn, "--poll-interval", "60")
    parent.kill()
    parent.wait(10)
    eventually(lambda: not any(alive(pid) for pid in children), 20)
    assert parent.output.count("event=orphaned") == 2


def test_w4_a_child_that_was_killed_is_replaced(spawn: Spawn) -> None:
    parent, children = family(spawn, "--lease", "1")
    os.kill(children.pop(), signals.SIGKILL)
    parent.wait_for_output("event=process-died")
    eventually(lambda: parent.output.count("event=worker-started") == 3)
    parent.terminate()
    parent.finish()


def test_w4_a_parent_told_to_stop_while_it_starts_leaves_nobody_behind(spawn: Spawn) -> None:
    for _ in range(2):
        parent = spawn("finoflow_worker", "--processes", "3")
        eventually(lambda: descendants(parent.pid))  # noqa: B023  (asked at once)
        parent.terminate()
        parent.wait(30)
        assert parent.returncode == 0
        assert not descendants(parent.pid)


def descendants(pid: int) -> list[int]:
    """Children that a process has now, but for Python's own helper."""
    found = []
    for entry in os.listdir("/proc"):
        try:
            with open(f"/proc/{entry}/stat") as stat, open(f"/proc/{entry}/cmdline") as command:
                if int(stat.read().rsplit(")", 1)[1].split()[1]) == pid and "spawn_main" in command.read():
                    found.append(int(entry))
        except (OSError, ValueError):
            continue
    return found


# -- W6: one bad run never stops the others ----------------------------------------------------------------------------


def corrupt(table: str, column: str, run: Execution) -> None:
    """Make a payload one that no version of the codec has written."""
    owner = "id" if table == "finoflow_execution" else "execution_id"
    with connection.cursor() as cursor:
        cursor.execute(f"UPDATE {table} SET {column} = %s WHERE {owner} = %s", ['{"$": "nonsense", "of": []}', run.pk])


def test_w6_unknown_workflows_and_broken_rows_never_stop_the_others(spawn: Spawn) -> None:
    unknown = begin("unknown", {"step": "one"}, priority=9)
    Execution.objects.filter(pk=unknown.pk).update(workflow_id="nobody-knows")
    corrupt("finoflow_execution", "input", begin("bad-input", {"step": "one"}, priority=9))
    for name in ("bad-result", "bad-signal", "bad-input-later"):
        begin(name, {"step": "one"}, {"wait": "go"}, {"step": "two"}, priority=9)
    spawn("finoflow_worker", "--drain").finish()
    corrupt("finoflow_execution", "input", row("bad-input-later"))
    for name, table, column in [("bad-result", "step", "result"), ("bad-signal", "signal", "payload")]:
        signal(name, "go")
        corrupt(f"finoflow_{table}", column, row(name))
    Execution.objects.filter(run_id="bad-input-later").update(due_at=clock.now())
    for number in range(5):
        begin(f"good-{number}", {"step": "one"})
    output = spawn(
        "finoflow_worker", "--drain", "--concurrency", "1", "--lease", "0.2", "--poll-interval", "0.05"
    ).finish()
    assert [status(f"good-{number}") for number in range(5)] == ["done"] * 5
    assert (status("unknown"), labels("unknown")) == ("running", [])
    for name in ("bad-input", "bad-input-later"):
        ended = Execution.objects.defer("input").get(run_id=name)
        assert (ended.status, ended.error["type"].rpartition(".")[2]) == ("error", "PayloadError")
    assert "event=drive-failed" in output
    assert "run=bad-result" in output


def test_w6_a_run_whose_row_cannot_be_read_ends_as_stuck(spawn: Spawn) -> None:
    begin("bad", {"step": "one"}, {"wait": "go"}, {"step": "two"})
    spawn("finoflow_worker", "--drain").finish()
    signal("bad", "go")
    corrupt("finoflow_step", "result", row("bad"))
    worker = spawn("finoflow_worker", "--lease", "0.1", "--poll-interval", "0.05")
    eventually(lambda: status("bad") == "stuck", 30)
    assert row("bad").stuck_reason == "too-many-crashes"
    Step.objects.filter(execution=row("bad")).update(result="mended")
    row("bad").retry()
    eventually(lambda: status("bad") == "done")
    worker.terminate()
    worker.finish()


@pytest.mark.parametrize("leak", ["leave transaction open", "leave block open"])
def test_w6_a_body_that_leaves_a_transaction_open_harms_only_its_own_run(spawn: Spawn, leak: str) -> None:
    begin("leaky", {"step": "bad", "then": leak}, {"step": "two"}, priority=9)
    for number in range(5):
        begin(f"good-{number}", {"step": "one"})
    worker = spawn("finoflow_worker", "--concurrency", "1", "--poll-interval", "0.05", "--lease", "1")
    eventually(lambda: Execution.objects.filter(status="done", run_id__startswith="good").count() == 5, 30)
    worker.terminate()
    worker.finish()
    assert status("leaky") != "done" or labels("leaky").count("two") == 1


# -- W10: rolling deployment -------------------------------------------------------------------------------------------


def test_w10_a_run_stuck_for_a_mismatch_is_healed_by_the_next_worker_that_knows_it(spawn: Spawn) -> None:
    start("deployed", run_id="it")
    spawn("finoflow_worker", "--drain", FINOFLOW_TEST_SHAPE="old").finish()
    signal("it", "go")
    spawn("finoflow_worker", "--drain", FINOFLOW_TEST_SHAPE="new").finish()
    assert (status("it"), row("it").stuck_reason) == ("stuck", "replay-mismatch")
    assert '"old"' in row("it").error["message"]
    assert '"new"' in row("it").error["message"]
    output = spawn("finoflow_worker", "--drain", FINOFLOW_TEST_SHAPE="old").finish()
    assert "event=mismatches-retried" in output
    assert (status("it"), row("it").result, row("it").error) == ("done", ["first", "last"], None)


def test_w10_a_worker_tries_a_stuck_run_once_and_only_when_it_starts(spawn: Spawn) -> None:
    start("deployed", run_id="it")
    spawn("finoflow_worker", "--drain", FINOFLOW_TEST_SHAPE="old").finish()
    signal("it", "go")
    worker = spawn("finoflow_worker", "--poll-interval", "0.02", "--verbosity", "2", FINOFLOW_TEST_SHAPE="new")
    worker.wait_for_output("event=run-stuck")
    start("script", [], run_id="another")
    eventually(lambda: status("another") == "done")
    worker.terminate()
    assert worker.finish().count("event=run-stuck") == 1


# -- S7 ----------------------------------------------------------------------------------------------------------------


def test_s7_a_run_started_inside_atomic_is_never_seen_half_made_nor_driven_before_the_commit(spawn: Spawn) -> None:
    worker = spawn("finoflow_worker", "--poll-interval", "0.02")
    worker.wait_for_output("worker-started")
    with transaction.atomic():
        begin("undone", {"step": "one"})
        transaction.set_rollback(True)
    with transaction.atomic():
        begin("it", {"step": "one"})
        if connection.vendor == "postgresql":  # SQLite has one writer: there the worker's very look would wait for us
            begin_in_another_connection("meanwhile")
            eventually(lambda: status_in_another_connection("meanwhile") == "done")
        assert status("it") == "running"
        Entry.objects.create(run_id="it", label="mine")
    eventually(lambda: status("it") == "done")
    assert labels("it") == ["mine", "one"]
    assert not Execution.objects.filter(run_id="undone").exists()
    assert labels("undone") == []
    worker.terminate()
    worker.finish()


def begin_in_another_connection(run_id: str) -> None:
    elsewhere(lambda: begin(run_id, {"step": "one"}))


def status_in_another_connection(run_id: str) -> str:
    return elsewhere(lambda: status(run_id))


def elsewhere(work: Callable[[], Any]) -> Any:
    """Do ``work`` in a thread of its own, so in a connection of its own."""
    from concurrent.futures import ThreadPoolExecutor

    from django.db import connections

    def closing() -> Any:
        try:
            return work()
        finally:
            connections.close_all()

    with ThreadPoolExecutor(1) as pool:
        return pool.submit(closing).result()
