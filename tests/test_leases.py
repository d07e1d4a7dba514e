"""Claims, leases and the heartbeat (rules W1, W2, W3, W8), against real rows and real locks, and what a claim costs."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from typing import Any

import pytest
from django.db import connection, connections, transaction
from django.db.models import F
from django.db.models.functions import Now
from django.test.utils import CaptureQueriesContext

from django_finoflow import cancel, clock, leases, signal, start
from django_finoflow.attempt import Abort
from django_finoflow.claiming import Claimer
from django_finoflow.driver import drive
from django_finoflow.leases import Heartbeat, Lease
from django_finoflow.models import Execution
from tests.processes import eventually
from tests.testapp.models import Entry

KNOWN = [("script", 1), ("express", 1)]


def lease(
    limit: int = 10, *, owner: str = "me", known: Any = KNOWN, queues: Any = (), length: float = 30
) -> list[Execution]:
    """Claim what is due; if nothing is, what was left behind."""
    claimer = Claimer(owner, known, queues, length)
    return claimer.due(limit) or claimer.left_behind(limit)


def claim(limit: int = 10, **options: Any) -> list[str]:
    """The same, but return only the ids of the runs."""
    return [run.run_id for run in lease(limit, **options)]


def begin(run_id: str, workflow: str = "script", input: Any = (), **options: Any) -> Execution:
    return start(workflow, list(input), run_id=run_id, **options)


def change(run_id: str, **values: Any) -> None:
    """Change a run's row behind the engine's back."""
    assert Execution.objects.filter(run_id=run_id).update(**values) == 1


def row(run_id: str) -> Execution:
    return Execution.objects.get(run_id=run_id)


def let_lease_end(run_id: str) -> None:
    """Make a run look as if its worker had been silent for longer than its lease."""
    change(run_id, lease_until=Now() - timedelta(seconds=1))


# -- W1: what is claimed, and in what order ----------------------------------------------------------------------------


@pytest.mark.django_db
def test_w1_higher_priority_is_claimed_first_then_what_was_due_first() -> None:
    now = clock.now()
    for run_id, priority, ago in [
        ("late", 0, 1),
        ("early", 0, 60),
        ("urgent", 9, 1),
        ("lazy", -3, 999),
        ("vip", 9, 30),
    ]:
        begin(run_id, priority=priority)
        change(run_id, due_at=now - timedelta(seconds=ago))
    assert sorted(claim(3)) == ["early", "urgent", "vip"]
    assert claim(1) == ["late"]
    assert claim(5) == ["lazy"]


@pytest.mark.django_db
def test_w1_order_holds_across_workflows_versions_and_queues() -> None:
    now = clock.now()
    places = [("script", "default"), ("express", "default"), ("script", "b"), ("express", "a"), ("script", "a")]
    for number, (workflow, queue) in enumerate(places * 4):
        begin(f"{number:02}", workflow, queue=queue, priority=number % 2)
        change(f"{number:02}", due_at=now - timedelta(seconds=(number * 7) % 20 + 1))
    rows = sorted(Execution.objects.all(), key=lambda run: (-run.priority, run.due_at))
    assert [claim(1)[0] for _ in rows] == [run.run_id for run in rows]


@pytest.mark.django_db
def test_w1_a_claim_takes_the_best_of_a_long_backlog() -> None:
    now = clock.now()
    for number in range(60):
        begin(f"{number:02}")
        change(f"{number:02}", due_at=now - timedelta(seconds=number + 1))
    assert sorted(claim(10)) == [str(number) for number in range(50, 60)]


@pytest.mark.django_db
def test_w1_only_named_queues_are_taken_and_all_when_none_is_named() -> None:
    for queue in ("a", "b", "c"):
        begin(f"in-{queue}", queue=queue)
    assert sorted(claim(queues=("a", "c"))) == ["in-a", "in-c"]
    assert claim(queues=("nowhere",)) == []
    assert claim() == ["in-b"]


@pytest.mark.django_db
def test_w1_and_w10_only_registered_workflows_and_versions_are_taken() -> None:
    begin("mine")
    begin("older")
    change("older", version=7)
    begin("stranger")
    change("stranger", workflow_id="not-registered-here")
    assert claim() == ["mine"]
    assert claim(known=[]) == []
    assert claim(known=[("script", 7)]) == ["older"]


@pytest.mark.django_db
def test_w1_what_is_not_due_leased_parked_stuck_or_over_is_never_claimed() -> None:
    begin("later", at="1h")
    begin("held")
    assert claim() == ["held"]
    begin("parked")
    change("parked", due_at=None, status="waiting")
    for status in ("stuck", "done", "error", "cancelled"):
        begin(status)
        change(status, due_at=None, status=status)
    assert claim() == []


@pytest.mark.django_db
def test_w1_a_claim_sets_the_lease_clears_the_due_time_and_raises_the_epoch() -> None:
    begin("it")
    before = row("it").lease_epoch
    (run,) = lease(owner="somebody", length=20)
    stored = row("it")
    assert (stored.lease_owner, stored.due_at, stored.lease_epoch) == ("somebody", None, before + 1)
    assert run.lease_epoch == stored.lease_epoch
    assert 15 < (stored.lease_until - clock.now()).total_seconds() <= 21
    assert stored.started_at is not None


@pytest.mark.django_db
def test_w1_the_first_start_is_kept_when_a_run_is_claimed_again() -> None:
    begin("it")
    claim()
    first = row("it").started_at
    let_lease_end("it")
    claim()
    assert row("it").started_at == first


@pytest.mark.django_db
def test_w1_a_signal_while_the_run_is_driven_neither_ends_the_lease_nor_is_lost() -> None:
    begin("it", input=[{"wait": "first"}])
    (run,) = lease()
    drive(run, abort=Abort())
    signal("it", "first")  # due, and then claimed …
    (run,) = lease()
    Execution.objects.filter(pk=run.pk).update(due_at=clock.now())  # … and something comes while it is driven
    assert claim() == []
    assert row("it").lease_until is not None


@pytest.mark.django_db(transaction=True)
@pytest.mark.only_postgresql
def test_w1_rows_locked_by_another_are_skipped_not_waited_for() -> None:
    begin("locked", priority=9)
    begin("free")
    with locked_elsewhere("locked"):
        assert claim() == ["free"]
    assert claim() == ["locked"]


# -- W2: a dead worker's run -------------------------------------------------------------------------------------------


@pytest.mark.django_db
def test_w2_a_lease_that_ended_is_claimed_again_and_counted() -> None:
    begin("it")
    claim()
    assert claim() == []
    let_lease_end("it")
    assert claim() == ["it"]
    assert (row("it").recoveries, row("it").lease_epoch) == (1, 2)


@pytest.mark.django_db
def test_w2_left_behind_runs_keep_to_queues_and_known_workflows() -> None:
    for run_id in ("mine", "other-queue", "stranger"):
        begin(run_id)
    claim()
    for run_id in ("mine", "other-queue", "stranger"):
        let_lease_end(run_id)
    change("other-queue", queue="other")
    change("stranger", workflow_id="not-registered-here")
    assert claim(queues=("default",)) == ["mine"]
    assert claim() == ["other-queue"]


def crash(run_id: str) -> Execution:
    """Claim a run as a worker does that dies before it drives it, and return it as it was claimed."""
    let_lease_end(run_id) if row(run_id).lease_until else None
    (run,) = lease()
    return run


@pytest.mark.django_db
def test_w2_more_than_max_recoveries_without_progress_is_stuck_not_an_error(settings: Any) -> None:
    settings.FINOFLOW = {"MAX_RECOVERIES": 3}
    begin("it", input=[{"set": "seen", "value": 1}, {"step": "one"}])
    for expected in range(4):
        assert crash("it").recoveries == expected
    drive(crash("it"), abort=Abort())
    run = row("it")
    assert (run.status, run.stuck_reason, run.lease_until, run.due_at) == ("stuck", "too-many-crashes", None, None)
    assert "4 workers died" in run.error["message"]
    assert not Entry.objects.exists()
    assert claim() == []


@pytest.mark.django_db
def test_w2_exactly_max_recoveries_is_still_driven(settings: Any) -> None:
    settings.FINOFLOW = {"MAX_RECOVERIES": 3}
    begin("it", input=[{"step": "one"}])
    for _ in range(3):
        crash("it")
    drive(crash("it"), abort=Abort())
    assert row("it").status == "done"


@pytest.mark.django_db
def test_w2_recoveries_are_counted_afresh_after_progress(settings: Any) -> None:
    settings.FINOFLOW = {"MAX_RECOVERIES": 2}
    begin("it", input=[{"step": f"s{n}"} for n in range(6)])
    for done in range(5):
        for _ in range(2):
            crash("it")
        asked = iter([False, True])
        drive(crash("it"), abort=Abort(), stopping=lambda: next(asked))  # noqa: B023  (it is over before the next turn)
        assert (row("it").status, Entry.objects.count()) == ("running", done + 1)
    drive(crash("it"), abort=Abort())
    assert (row("it").status, row("it").recoveries) == ("done", 1)


@pytest.mark.django_db
def test_w2_a_row_that_cannot_be_read_ends_as_stuck_and_keeps_its_state(settings: Any) -> None:
    settings.FINOFLOW = {"MAX_RECOVERIES": 1}
    begin("it", input=[{"set": "kept", "value": 1}, {"step": "one"}, {"wait": "go"}])
    drive(crash("it"), abort=Abort())
    corrupt("finoflow_step", "result")
    signal("it", "go")
    for _ in range(2):
        with pytest.raises(ValueError):  # noqa: PT011  (any: what matters is what becomes of the run)
            drive(crash("it"), abort=Abort())
        assert row("it").status == "running"
    drive(crash("it"), abort=Abort())
    assert (row("it").status, row("it").stuck_reason, row("it").state) == ("stuck", "too-many-crashes", {"kept": 1})


def corrupt(table: str, column: str) -> None:
    """Make a payload one that the codec cannot have written."""
    with connection.cursor() as cursor:
        cursor.execute(f"UPDATE {table} SET {column} = %s", ['{"$": "no-such-type", "of": []}'])


# -- W3: safety hangs on the epoch alone -------------------------------------------------------------------------------


@pytest.mark.django_db
def test_w3_a_lease_given_back_is_due_at_once_and_no_crash_is_counted() -> None:
    begin("it")
    (run,) = lease()
    assert leases.give_back(Lease(run.pk, run.lease_epoch))
    assert claim() == ["it"]
    assert row("it").recoveries == 0


ENDS = {
    "a step": {"step": "one"},
    "an atomic step": {"step": "one", "atomic": True},
    "a failed step": {"step": "one", "then": "fail"},
    "a step to be tried again": {"step": "one", "then": "fail", "retry": 2},
    "a wait": {"wait": "go"},
    "the end": {"set": "one", "value": 1},
}


@pytest.mark.parametrize("end", ENDS)
@pytest.mark.django_db
def test_w3_who_comes_back_late_writes_nothing(end: str) -> None:
    begin("it", input=[ENDS[end]])
    late = crash("it")
    current = crash("it")
    drive(late, abort=Abort())
    assert (row("it").status, row("it").lease_epoch) == ("running", current.lease_epoch)
    assert row("it").steps.count() == row("it").waits.count() == 0
    if "atomic" in ENDS[end]:
        assert not Entry.objects.exists()
    assert not leases.give_back(Lease(late.pk, late.lease_epoch))
    drive(current, abort=Abort())
    assert row("it").lease_until is None


@pytest.mark.django_db
def test_w3_the_owner_name_protects_nothing_and_does_not_need_to() -> None:
    begin("it", input=[{"step": "one"}])
    late = crash("it")
    crash("it")
    change("it", lease_owner=late.lease_owner)
    drive(late, abort=Abort())
    assert row("it").steps.count() == 0


@pytest.mark.django_db
def test_w3_leases_use_the_databases_clock_and_due_times_ours() -> None:
    from freezegun import freeze_time

    begin("now")
    with freeze_time("2090-01-01"):
        begin("far")
        assert sorted(claim()) == ["far", "now"]
        assert row("now").lease_until.year < 2090
        assert claim() == []
    let_lease_end("now")
    with freeze_time("2001-01-01"):
        assert claim() == ["now"]


@pytest.mark.django_db
@pytest.mark.only_postgresql
def test_w3_the_skew_between_our_clock_and_the_databases_is_measured() -> None:
    from freezegun import freeze_time

    assert abs(leases.clock_skew()) < 5
    with freeze_time(clock.now() + timedelta(hours=2), tz_offset=0):
        assert 7190 < leases.clock_skew() < 7210


# -- W8: the heartbeat -------------------------------------------------------------------------------------------------


@contextmanager
def locked_elsewhere(run_id: str) -> Iterator[None]:
    """Hold a run's row FOR UPDATE in another connection; to wait for it in this thread is an error."""
    other = connection.copy()
    other.inc_thread_sharing()
    try:
        other.set_autocommit(False)
        with other.cursor() as cursor, connection.cursor() as ours:
            cursor.execute("SELECT id FROM finoflow_execution WHERE run_id = %s FOR UPDATE", [run_id])
            ours.execute("SET lock_timeout = '5s'")
        yield
    finally:
        other.rollback()
        other.close()
        with connection.cursor() as ours:
            ours.execute("RESET lock_timeout")


def held(*run_ids: str, length: float = 30) -> list[Lease]:
    for run_id in run_ids:
        begin(run_id)
    runs = {run.run_id: run for run in lease(len(run_ids), length=length)}
    return [Lease(runs[run_id].pk, runs[run_id].lease_epoch) for run_id in run_ids]


def seconds_left(run_id: str) -> float:
    with connection.cursor() as cursor:
        cursor.execute(
            "SELECT EXTRACT(EPOCH FROM lease_until - now()) FROM finoflow_execution WHERE run_id = %s", [run_id]
        )
        return float(cursor.fetchone()[0])


@pytest.mark.django_db(transaction=True)
@pytest.mark.only_postgresql
def test_w8_one_locked_run_does_not_cost_the_others_their_leases() -> None:
    mine = held("a", "b", "c", length=2)
    with locked_elsewhere("b"):
        lost, again = leases.renew(mine, 100)
        assert (lost, again) == (set(), {mine[1]})
        assert seconds_left("a") > 90
        assert seconds_left("b") < 3
        assert seconds_left("c") > 90
    assert leases.renew(again, 100) == (set(), set())
    assert seconds_left("b") > 90


@pytest.mark.django_db(transaction=True)
@pytest.mark.only_postgresql
def test_w8_the_heartbeat_soon_tries_again_what_was_locked() -> None:
    heart = Heartbeat(9)  # comes round every 3 seconds, and in 0.3 to what was locked
    for lease in held("a", "b", length=3):
        heart.watch(lease, Abort())
    with locked_elsewhere("b"):
        heart.start()
        eventually(lambda: seconds_left("a") > 6)
        assert seconds_left("b") < 1
    released = clock.monotonic()
    eventually(lambda: seconds_left("b") > 6)
    assert clock.monotonic() - released < 2
    heart.stop()
    heart.join(20)


@pytest.mark.django_db(transaction=True)
def test_w8_a_lost_lease_sets_abort_and_is_watched_no_more() -> None:
    mine, taken, gone = held("mine", "taken", "gone")
    aborts = {lease: Abort() for lease in (mine, taken, gone)}
    heart = Heartbeat(30)
    for lease, abort in aborts.items():
        heart.watch(lease, abort)
    change("taken", lease_epoch=F("lease_epoch") + 1)
    Execution.objects.get(run_id="gone").delete()
    assert heart.beat() is False
    assert [abort.is_set() for abort in aborts.values()] == [False, True, True]
    assert set(heart._held) == {mine}


@pytest.mark.django_db(transaction=True)
def test_d14_cancel_reaches_whoever_drives_at_the_next_heartbeat() -> None:
    (lease,) = held("it")
    abort = Abort()
    heart = Heartbeat(0.3)
    heart.watch(lease, abort)
    heart.start()
    assert cancel("it")
    assert abort.wait(20)
    heart.stop()
    heart.join(20)
    assert row("it").status == "cancelled"


@pytest.mark.django_db(transaction=True)
def test_w8_all_leases_of_a_process_are_renewed_in_a_constant_number_of_statements() -> None:
    mine = held(*[f"{n:02}" for n in range(20)])
    with CaptureQueriesContext(connection) as queries:
        leases.renew(mine, 30)
    with CaptureQueriesContext(connection) as fewer:
        leases.renew(mine[:2], 30)
    assert len(queries) == len(fewer) <= 5


@pytest.mark.django_db(transaction=True)
@pytest.mark.only_postgresql
def test_w8_heartbeats_and_cancels_of_many_runs_never_deadlock() -> None:
    mine = held(*[f"{n:02}" for n in range(30)])
    trouble: list[BaseException] = []

    def guarded(work: Callable[[], Any]) -> Callable[[], None]:
        def run() -> None:
            try:
                work()
            except BaseException as error:
                trouble.append(error)
            finally:
                connections.close_all()

        return run

    def beat() -> None:
        for _ in range(30):
            leases.renew(reversed(mine), 30)

    def lock_all() -> None:
        for _ in range(10):
            with transaction.atomic():
                list(Execution.objects.order_by("pk").select_for_update())

    threads = [threading.Thread(target=guarded(work)) for work in (beat, beat, lock_all, lock_all)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert trouble == []


# -- What a claim costs ------------------------------------------------------------------------------------------------

MANY = 20_000
FAR = "30 days"


def fill(name: str, workflow: str, due: str | None, count: int = MANY) -> None:
    """Insert many runs at once, of three priorities, due at an offset from now; None: parked without a deadline."""
    if connection.vendor == "postgresql":
        now, moment = "now()", f"now() + interval '{due}'" if due else "NULL::timestamptz"
        numbers = f"generate_series(1, {count}) AS numbers(n)"
    else:
        now, moment = "datetime('now')", f"datetime('now', '{due}')" if due else "NULL"
        numbers = f"(WITH RECURSIVE c(n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM c WHERE n < {count}) SELECT n FROM c)"
    with connection.cursor() as cursor:
        cursor.execute(
            f"""INSERT INTO finoflow_execution (
                run_id, workflow_id, version, status, stuck_reason, queue, priority, due_at, lease_owner, lease_epoch,
                recoveries, checkpoints, cursor, current_step, rollback, requester_name, created_at, updated_at)
            SELECT '{name}-' || n, '{workflow}', 1, 'running', '', 'default', n - n / 3 * 3, {moment},
                '', 0, 0, 0, 0, '', '', '', {now}, {now} FROM {numbers}"""
        )


def statements(work: Callable[[], Any]) -> list[tuple[str, Any]]:
    """Do ``work``, undo it, and return its statements that read or write runs."""
    found: list[tuple[str, Any]] = []

    def note(execute: Any, sql: str, params: Any, many: bool, context: Any) -> Any:
        found.append((sql, params))
        return execute(sql, params, many, context)

    with transaction.atomic():
        with connection.execute_wrapper(note):
            work()
        transaction.set_rollback(True)
    return [(sql, params) for sql, params in found if "finoflow_execution" in sql]


def nodes(plan: dict[str, Any]) -> Iterator[dict[str, Any]]:
    yield plan
    for below in plan.get("Plans", []):
        yield from nodes(below)


def plan_of(sql: str, params: Any) -> list[dict[str, Any]]:
    with transaction.atomic(), connection.cursor() as cursor:
        cursor.execute("EXPLAIN (ANALYZE, BUFFERS, FORMAT JSON) " + sql, params)
        (answer,) = cursor.fetchone()
        transaction.set_rollback(True)
    answer = json.loads(answer) if isinstance(answer, str) else answer
    return list(nodes(answer[0]["Plan"]))


def rows_read(plan: list[dict[str, Any]]) -> float:
    """How many rows the scans of the table of runs looked at, those that a filter threw away included."""
    looked = ("Actual Rows", "Rows Removed by Filter", "Rows Removed by Index Recheck")
    scans = [node for node in plan if node.get("Relation Name") == "finoflow_execution" and "Scan" in node["Node Type"]]
    return sum(sum(node.get(name, 0) for name in looked) * node["Actual Loops"] for node in scans)


@pytest.mark.parametrize("analyzed", ["now", "when it was empty", "never"])
@pytest.mark.django_db(transaction=True)
@pytest.mark.only_postgresql
def test_w1_a_claim_costs_the_same_whatever_is_parked_due_later_waiting_or_unknown(analyzed: str) -> None:
    with connection.cursor() as cursor:
        if analyzed == "when it was empty":
            cursor.execute("ANALYZE finoflow_execution")
        fill("parked", "script", None)
        fill("later", "script", FAR)
        fill("stranger", "not-registered-here", "-1 hour")
        if analyzed == "now":
            cursor.execute("ANALYZE finoflow_execution")
    check_cost(analyzed, found=0)
    fill("due", "script", "-1 hour")
    if analyzed == "now":
        with connection.cursor() as cursor:
            cursor.execute("ANALYZE finoflow_execution")
    check_cost(analyzed, found=10)


def check_cost(analyzed: str, found: int) -> None:
    claimer = Claimer("me", [*KNOWN, ("mailbox", 1), ("deployed", 1)])
    for claiming, expected in ((claimer.due, found), (claimer.left_behind, 0)):
        got: list[Execution] = []
        for sql, params in statements(lambda: got.extend(claiming(10))):  # noqa: B023
            plan = plan_of(sql, params)
            where = f"{analyzed}, {claiming.__name__}: {json.dumps(plan[0], indent=1)}"
            scans = [node for node in plan if node.get("Relation Name") == "finoflow_execution"]
            assert "Seq Scan" not in {node["Node Type"] for node in scans}, where
            assert rows_read(plan) < 500, where
            assert all(node["Actual Rows"] < 500 for node in plan if "Sort" in node["Node Type"]), where
            assert sum(plan[0].get(name, 0) for name in ("Shared Hit Blocks", "Shared Read Blocks")) < 3000, where
        assert len(got) == expected


@pytest.mark.django_db
@pytest.mark.only_sqlite
def test_w1_a_claim_on_sqlite_walks_the_index_made_for_it() -> None:
    fill("parked", "script", None, 500)
    fill("later", "script", FAR, 500)
    fill("due", "script", "-1 hour", 500)
    claimer = Claimer("me", KNOWN)
    for claiming in (claimer.due, claimer.left_behind):
        for sql, params in statements(lambda: claiming(10)):  # noqa: B023
            with connection.cursor() as cursor:
                cursor.execute("EXPLAIN QUERY PLAN " + sql, params)
                plan = [row[3] for row in cursor.fetchall()]
            index = "finoflow_claim" if claiming == claimer.due else "finoflow_lease"
            by_key = [line for line in plan if "USING INTEGER PRIMARY KEY" in line]
            assert any(index in line for line in plan) or sql.lstrip().startswith("UPDATE"), plan
            assert [line for line in plan if line.startswith("SCAN") and "finoflow" in line] == [], plan
            assert all("USING" in line for line in plan if line.startswith("SEARCH") and line not in by_key), plan


@pytest.mark.django_db
@pytest.mark.only_sqlite
def test_w1_a_claim_on_sqlite_takes_no_longer_for_a_long_backlog() -> None:
    """Counted in steps of SQLite's own machine, which no other process can slow down."""
    costs = []
    for size in (500, 8_000):
        fill(f"parked-{size}", "script", None, size)
        fill(f"later-{size}", "script", FAR, size)
        fill(f"stranger-{size}", "not-registered-here", "-1 hour", size)
        fill(f"due-{size}", "script", "-1 hour", size)
        costs.append(machine_steps(lambda: Claimer("me", KNOWN).due(10)))
    assert costs[1] < 2 * costs[0]


def machine_steps(work: Callable[[], Any]) -> int:
    counted = [0]

    def count() -> int:
        counted[0] += 1
        return 0

    connection.connection.set_progress_handler(count, 10)
    try:
        work()
    finally:
        connection.connection.set_progress_handler(None, 0)
    return counted[0]
