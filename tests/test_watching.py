"""Watching runs: on PostgreSQL one thread and connection for all, woken by notifications (rule W9); else by looking.

Where a test sets ``POLL_INTERVAL`` to a minute, only a notification explains that something is seen.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from typing import Any

import pytest
from asgiref.sync import async_to_sync, sync_to_async
from django.core.management import call_command
from django.db import OperationalError, connection, transaction
from django.test import override_settings
from django.utils import timezone

from django_finoflow import (
    RunNotFound,
    RunState,
    awatch_run,
    cancel,
    clock,
    delete_run,
    lookout,
    signal,
    start,
    wait_for_end,
    wakeup,
    watch_run,
    watching,
)
from django_finoflow.listener import Listener
from django_finoflow.watched import Watched
from tests.making import COMMITTED, elsewhere, row
from tests.processes import Spawned, eventually
from tests.watchers import Overheard, lookouts, nobody_is_left, other_connections, overheard, settled

Spawn = Callable[..., Spawned]

MINUTE = override_settings(FINOFLOW={"POLL_INTERVAL": "60s"})
told = pytest.mark.only_postgresql(reason="there are no notifications elsewhere")


@pytest.fixture
def parked(make: Any) -> Callable[..., str]:
    """Make a run that waits for the signal ``go``, and return its id."""

    @make(id="parked")
    def parked(ctx: Any, input: Any) -> Any:
        return ctx.wait_for_signal("go")

    return lambda run_id="it", input=None: parked.run(input, run_id=run_id).run_id


@pytest.fixture
def kept() -> Iterator[Overheard]:
    with overheard() as kept:
        yield kept


class Audience:
    """People who watch one run each, in threads of their own, and what they have seen."""

    def __init__(self, *run_ids: str, besides: int = 0, timeout: int = 50) -> None:
        self._timeout = timeout
        self.states: list[list[RunState]] = [[] for _ in run_ids]
        self.errors: list[Exception] = []
        self._threads = [
            threading.Thread(target=elsewhere, args=(lambda run_id=run_id, states=states: self._watch(run_id, states),))
            for run_id, states in zip(run_ids, self.states, strict=True)
        ]
        for thread in self._threads:
            thread.start()
        eventually(lambda: all(self.states))
        if connection.vendor == "postgresql":
            settled(len(run_ids) + besides)

    @property
    def seen(self) -> list[list[str]]:
        """What each has seen: the statuses, in order."""
        return [[state.status for state in states] for states in self.states]

    def _watch(self, run_id: str, states: list[RunState]) -> None:
        try:
            states.extend(watch_run(run_id, timeout=self._timeout))
        except Exception as error:
            self.errors.append(error)

    def leave(self) -> None:
        for thread in self._threads:
            thread.join(60)


# -- W9: woken ---------------------------------------------------------------------------------------------------------


@COMMITTED
@told
@MINUTE
def test_w9_a_watcher_is_woken_by_what_another_process_does_long_before_its_poll_interval(
    spawn: Spawn, spawn_code: Spawn
) -> None:
    worker = spawn("finoflow_worker", "--poll-interval", "60")
    start("script", [{"wait": "go"}, {"step": "long", "seconds": 3}], run_id="it")
    worker.wait_for_output("worker-started")
    eventually(lambda: row("it").status == "waiting")
    audience = Audience("it")
    spawn_code("from django_finoflow import signal; signal('it', 'go')").finish()
    eventually(lambda: audience.seen == [["waiting", "running"]], 1)
    # By now it is looked at after pauses that double from 20 ms. The one in which it ends lasts for 2.5 seconds.
    audience.leave()
    took = (timezone.now() - row("it").finished_at).total_seconds()
    assert audience.seen == [["waiting", "running", "done"]]
    assert took < 1
    worker.terminate()
    worker.finish()


@COMMITTED
@told
@MINUTE
@pytest.mark.parametrize(
    ("act", "status"),
    [(lambda: cancel("it"), "cancelled"), (lambda: signal("it", "go"), "running")],
    ids=["cancel", "signal"],
)
def test_w9_a_watcher_of_a_parked_run_is_woken_by_whatever_comes_for_it(
    parked: Any, act: Callable[[], Any], status: str
) -> None:
    parked()
    audience = Audience("it")
    act()
    eventually(lambda: audience.seen == [["waiting", status]], 2)
    cancel("it")
    audience.leave()


@COMMITTED
@told
@MINUTE
def test_w9_a_change_between_the_first_state_and_the_listening_is_not_missed(
    parked: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = lookout.watching

    def after_a_change(*arguments: Any) -> Any:
        elsewhere(lambda: cancel("it"))
        return real(*arguments)

    parked()
    monkeypatch.setattr(lookout, "watching", after_a_change)
    moment = clock.monotonic()
    assert [state.status for state in watch_run("it", timeout=50)] == ["waiting", "cancelled"]
    assert clock.monotonic() - moment < 5


@COMMITTED
@told
@MINUTE
def test_w9_a_run_that_is_deleted_while_it_is_watched_is_told_at_once(parked: Any) -> None:
    parked()
    audience = Audience("it")
    delete_run("it", force=True)
    audience.leave()
    assert [type(error) for error in audience.errors] == [RunNotFound]


@COMMITTED
@told
def test_steps_which_notify_nobody_are_seen_between_a_start_and_an_end(spawn: Spawn) -> None:
    start("script", [{"step": f"s{number}", "seconds": 0.3} for number in range(6)], run_id="it")
    worker = spawn("finoflow_worker", "--max-runs", "1")
    seen = {len(state.steps) for state in watch_run("it", timeout=50)}
    assert len(seen) >= 4
    assert max(seen) == 6
    worker.finish()


# -- W9: one for all ---------------------------------------------------------------------------------------------------


@COMMITTED
@told
@MINUTE
def test_w9_two_hundred_watchers_in_threads_and_on_an_event_loop_share_one_thread_and_one_connection(
    parked: Any,
) -> None:
    run_ids = [parked(f"{number:03}") for number in range(140)]
    assert other_connections() == 0
    threads = Audience(*run_ids[:60])
    seen: list[list[str]] = []

    async def watch(run_id: str) -> None:
        seen.append([state.status async for state in awatch_run(run_id, timeout=50)])

    async def watch_all() -> None:
        async with asyncio.TaskGroup() as group:
            for run_id in run_ids:
                group.create_task(watch(run_id))
            await asyncio.sleep(2)
            assert await sync_to_async(other_connections)() == 1
            assert lookouts() == 1
            for run_id in run_ids:
                await sync_to_async(cancel)(run_id)

    async_to_sync(watch_all)()
    threads.leave()
    assert [*seen, *threads.seen] == [["waiting", "cancelled"]] * 200
    nobody_is_left()


@COMMITTED
@told
@MINUTE
def test_w9_a_run_that_many_watch_is_read_once_for_all_of_them(parked: Any, kept: Overheard) -> None:
    audience = Audience(*[parked()] * 50)
    eventually(lambda: kept.statements)
    time.sleep(0.5)
    before = len(kept.of("SELECT"))
    cancel("it")
    audience.leave()
    assert audience.seen == [["waiting", "cancelled"]] * 50
    assert len(kept.of("SELECT")) - before < 10  # one look and one snapshot; or two, if one came in between


@COMMITTED
@told
@MINUTE
def test_w9_what_happens_to_other_runs_costs_those_who_watch_no_statement(parked: Any, kept: Overheard) -> None:
    audience = Audience(parked())
    eventually(lambda: kept.statements)
    time.sleep(0.3)
    before = list(kept.statements)
    for number in range(30):
        cancel(parked(f"other {number}"))
    time.sleep(0.3)
    assert kept.statements == before
    cancel("it")
    audience.leave()


@COMMITTED
@told
@override_settings(FINOFLOW={"POLL_INTERVAL": "500ms"})
def test_w9_while_nothing_happens_many_runs_are_looked_at_together_and_none_is_read(
    parked: Any, kept: Overheard
) -> None:
    # Fewer than the server lets in at once: each looks for itself first.
    audience = Audience(*[parked(f"{number:03}") for number in range(60)])
    time.sleep(1)
    kept.statements.clear()
    time.sleep(2)
    looks = list(kept.statements)
    for number in range(60):
        cancel(f"{number:03}")
    audience.leave()
    assert 3 <= len(looks) <= 40  # four intervals, and in each ten groups of those who began within 50 ms
    assert [sql for sql in looks if '"result"' in sql] == []


@pytest.mark.only_sqlite(reason="needs no database")
@override_settings(FINOFLOW={"POLL_INTERVAL": "500ms"})
def test_runs_that_are_nearly_due_share_a_look_and_after_a_long_look_only_what_is_urgent_is_looked_at(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    now = 0.0
    monkeypatch.setattr(clock, "monotonic", lambda: now)
    shared = lookout.Lookout()
    ann, ben = shared._runs[1], shared._runs[2] = Watched("ann"), Watched("ben")
    assert shared._due() == [1, 2]
    ann.look_later(has_changed=False, rests=True)
    now = 0.03
    ben.look_later(has_changed=False, rests=True)
    now = 0.49
    assert shared._due() == []
    now = 0.51
    assert shared._due() == [1, 2]
    shared._rest_until = 0.6
    assert shared._due() == []
    ben.look_at_once()
    assert shared._due() == [2]
    now = 0.61
    assert shared._due() == [1, 2]
    shared.bell.close()


@COMMITTED
@told
@MINUTE
def test_each_watcher_has_a_state_of_its_own_to_change(parked: Any) -> None:
    parked(input={"n": [1]})
    audience = Audience("it", "it")
    cancel("it")
    audience.leave()
    ann, ben = (states[-1] for states in audience.states)
    assert ann.status == ben.status == "cancelled"
    ann.input["n"].append(2)
    assert ben.input == {"n": [1]}


@COMMITTED
@told
@MINUTE
def test_who_is_slow_is_shown_the_latest_state_and_not_each_that_has_passed() -> None:
    start("mailbox", 2, run_id="it")
    drain()
    with closing(watch_run("it", timeout=50)) as states:
        next(states)
        signal("it", "letter")
        assert next(states).status == "running"
        quick = Audience("it", besides=1)
        drain()
        eventually(lambda: quick.seen[0][-1] == "waiting")
        cancel("it")
        quick.leave()
        assert quick.seen[0][-2:] == ["waiting", "cancelled"]
        assert [state.status for state in states] == ["cancelled"]


# -- W9: trouble -------------------------------------------------------------------------------------------------------


@COMMITTED
@told
@MINUTE
def test_w9_a_listening_connection_that_is_killed_is_opened_again_and_nothing_is_missed(
    parked: Any, kept: Overheard, caplog: pytest.LogCaptureFixture
) -> None:
    audience = Audience(parked("first"), parked("second"))
    eventually(lambda: kept.of("LISTEN"))
    first = kept.backend
    with connection.cursor() as cursor:
        cursor.execute("SELECT pg_terminate_backend(%s)", [first])
    cancel("first")  # while nobody listens
    eventually(lambda: len(kept.of("LISTEN")) == 2)
    assert kept.backend != first
    assert "event=watch-failed" in caplog.text
    eventually(lambda: audience.seen[0] == ["waiting", "cancelled"])
    cancel("second")
    audience.leave()
    assert audience.seen[1] == ["waiting", "cancelled"]
    nobody_is_left()


@COMMITTED
@told
@override_settings(FINOFLOW={"POLL_INTERVAL": "300ms"})
def test_w9_where_a_pooler_lets_nobody_listen_the_rows_are_looked_at(
    parked: Any, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def refuse(listener: Listener) -> None:
        raise OperationalError("no LISTEN here")

    monkeypatch.setattr(Listener, "listen", refuse)
    audience = Audience(parked())
    eventually(lambda: "event=listen-failed" in caplog.text)
    cancel("it")
    audience.leave()
    assert audience.seen == [["waiting", "cancelled"]]
    assert caplog.text.count("event=listen-failed") == 1


@COMMITTED
@told
@override_settings(FINOFLOW={"POLL_INTERVAL": "300ms"})
def test_w9_a_notification_that_is_lost_costs_a_poll_interval(parked: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Listener, "heard", lambda listener: [])
    audience = Audience(parked())
    cancel("it")
    audience.leave()
    assert audience.seen == [["waiting", "cancelled"]]


@COMMITTED
@told
@MINUTE
@pytest.mark.parametrize("junk", ["", "x", "-1", "9" * 5000], ids=["nothing", "word", "negative", "huge"])
def test_whatever_strangers_send_on_the_channel_disturbs_nobody(parked: Any, junk: str) -> None:
    audience = Audience(parked())
    with connection.cursor() as cursor:
        cursor.execute("SELECT pg_notify(%s, %s)", [wakeup.CHANGED, junk])
    cancel("it")
    audience.leave()
    assert audience.seen == [["waiting", "cancelled"]]


@COMMITTED
@told
@MINUTE
def test_a_run_that_cannot_be_read_is_the_trouble_of_those_who_watch_it_only(
    parked: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = lookout.snapshot

    def snapshot(run_id: str) -> RunState:
        if run_id == "bad":
            raise ValueError("cannot be read")
        return real(run_id)

    monkeypatch.setattr(lookout, "snapshot", snapshot)
    audience = Audience(parked("good"))
    with closing(watch_run(parked("bad"), timeout=50)) as states:
        next(states)
        cancel("bad")
        with pytest.raises(ValueError, match="cannot be read"):
            next(states)
    cancel("good")
    audience.leave()
    assert audience.seen == [["waiting", "cancelled"]]


@COMMITTED
@told
@MINUTE
def test_an_error_that_ends_the_shared_thread_is_raised_in_all_who_watch_and_the_next_begin_anew(
    parked: Any, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def break_down(**_: Any) -> None:
        raise ArithmeticError("a bug")

    with closing(watch_run(parked(), timeout=50)) as states, monkeypatch.context() as patch:
        next(states)
        patch.setattr(lookout, "marks", break_down)
        with pytest.raises(ArithmeticError):
            next(states)
    assert "event=watch-ended" in caplog.text
    nobody_is_left()
    audience = Audience("it")
    cancel("it")
    audience.leave()
    assert audience.seen == [["waiting", "cancelled"]]


# -- coming and going --------------------------------------------------------------------------------------------------


@COMMITTED
@told
@MINUTE
def test_w9_when_the_last_watcher_leaves_thread_and_connection_are_gone_and_the_next_gets_others(parked: Any) -> None:
    for number in range(3):
        ann, ben = (watch_run(parked(f"{number} {name}"), timeout=50) for name in ("ann", "ben"))
        assert [next(ann).status, next(ben).status] == ["waiting"] * 2
        signal(f"{number} ann", "go")
        signal(f"{number} ben", "go")
        assert [next(ann).status, next(ben).status] == ["running"] * 2
        ann.close()
        time.sleep(0.2)
        assert (lookouts(), other_connections()) == (1, 1)
        del ben  # not closed, but forgotten
        nobody_is_left()


FORK = """
    import os, threading
    from django.conf import settings
    from django.db import connections
    settings.FINOFLOW = {"POLL_INTERVAL": 60}
    from django_finoflow import cancel, signal, watch_run

    states = watch_run("parents", timeout=20)
    next(states)
    signal("parents", "letter")
    assert next(states).status == "running"  # so the thread is there, and listens
    connections.close_all()
    if (child := os.fork()) == 0:
        mine = watch_run("childs", timeout=20)
        next(mine)
        signal("childs", "letter")
        print("child", next(mine).status, len(threading.enumerate()), flush=True)
        mine.close()
        states.close()
        connections.close_all()
        os._exit(0)
    assert os.waitpid(child, 0)[1] == 0
    cancel("parents")
    print("parent", next(states).status, flush=True)
    states.close()
"""


@COMMITTED
@told
def test_a_forked_process_watches_by_itself_and_does_not_end_its_parents_listening(spawn_code: Spawn) -> None:
    for run_id in ("parents", "childs"):
        start("mailbox", 1, run_id=run_id)
    drain()
    output = spawn_code(FORK).finish(30)
    assert "child running 2" in output
    assert "parent cancelled" in output
    assert "watch-failed" not in output


def drain() -> None:
    call_command("finoflow_worker", "--drain", verbosity=0)


# -- T8, and other transactions ----------------------------------------------------------------------------------------


@pytest.mark.django_db
def test_t8_inside_a_test_case_a_watcher_looks_for_itself_on_its_own_thread(parked: Any) -> None:
    threads = set(threading.enumerate())
    seen = []
    for state in watch_run(parked(), timeout=20):
        seen.append(state.status)
        assert set(threading.enumerate()) <= threads
        cancel("it")
    assert seen == ["waiting", "cancelled"]


@COMMITTED
def test_within_a_transaction_a_watcher_sees_what_is_not_committed_yet(parked: Any) -> None:
    with transaction.atomic():
        start("parked", run_id="mine")
        seen = []
        for state in watch_run("mine", timeout=20):
            seen.append(state.status)
            cancel("mine")
        assert lookouts() == 0
        transaction.set_rollback(True)
    assert seen == ["running", "cancelled"]


@COMMITTED
def test_a_watcher_that_looks_for_itself_reads_a_run_only_when_it_has_changed(
    parked: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    real, reads = watching.snapshot, []

    def snapshot(run_id: str) -> RunState:
        reads.append(run_id)
        return real(run_id)

    monkeypatch.setattr(watching, "snapshot", snapshot)
    parked()
    with transaction.atomic():
        assert len(list(watch_run("it", timeout="400ms"))) == 1
    assert reads == ["it"]


@COMMITTED
@MINUTE
def test_what_changes_just_before_the_time_is_up_is_seen(parked: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Listener, "heard", lambda listener: [])
    audience = Audience(parked(), timeout=2)
    cancel("it")
    audience.leave()
    assert audience.seen == [["waiting", "cancelled"]]


@COMMITTED
def test_waiting_for_the_end_of_a_run_that_has_ended_starts_no_thread(
    make: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = make(lambda ctx, input: 5, id="flow").run()
    monkeypatch.delattr(lookout, "watching")
    assert wait_for_end(run.run_id) == 5
