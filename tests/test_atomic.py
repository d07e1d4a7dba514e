"""``atomic=True``: the body's writes and the checkpoint commit together, or neither does (D6)."""

from __future__ import annotations

import threading

import pytest
from django.db import OperationalError, connection, transaction

from django_finoflow import Retry, StepTimeout, WorkflowError, cancel, current_step, history, signal
from django_finoflow.models import Execution, Step
from django_finoflow.stops import LeaseLost
from tests.making import COMMITTED, elsewhere, outline, row
from tests.testapp.models import Entry, Slot

pytestmark = COMMITTED

SOON = Retry(5, initial=0)


def pay(label="paid"):
    return Entry.objects.create(run_id=current_step().run_id, label=label).label


@pytest.mark.django_db
@pytest.mark.parametrize("transactional", [False, True], ids=["in a TestCase", "for real"])
def test_d6_writes_and_checkpoint_are_there_together(make, transactional, request):
    if transactional:
        request.getfixturevalue("transactional_db")

    @make
    def flow(ctx, input):
        ctx.step("pay", pay, atomic=True)
        ctx.wait_for_signal("go")

    run = flow.run()
    signal(run.run_id, "go")
    flow.resume(run.run_id)
    assert Entry.objects.get().label == row(run.run_id).steps.get(step_id="pay").result == "paid"


@pytest.mark.parametrize("transactional", [False, True], ids=["in a TestCase", "for real"])
@pytest.mark.django_db
def test_d6_a_body_that_fails_leaves_no_writes(make, transactional, request):
    if transactional:
        request.getfixturevalue("transactional_db")

    def body():
        pay()
        raise ValueError("after paying")

    @make
    def flow(ctx, input):
        with pytest.raises(ValueError, match="after paying"):
            ctx.step("pay", body, atomic=True, retry=SOON)
        return ctx.step("next", Entry.objects.count, atomic=True)

    run = flow.run()
    assert run.result == 0
    assert [(step.status, step.attempts) for step in run.state.steps] == [("failed", 5), ("done", 1)]


def test_d6_a_database_error_in_the_body_is_the_steps_error_and_leaves_no_writes(make):
    Slot.objects.create(label="taken")

    @make
    def flow(ctx, input):
        try:
            ctx.step("pay", lambda: [pay(), Slot.objects.create(label="taken")], atomic=True)
        except Exception as error:
            return [type(error).__name__, ctx.step("next", Entry.objects.count)]

    assert flow.run().result == ["IntegrityError", 0]


def test_d6_a_result_that_cannot_be_stored_takes_the_writes_with_it(make):
    @make
    def flow(ctx, input):
        ctx.step("pay", lambda: [pay(), object()], atomic=True, retry=SOON)

    with pytest.raises(WorkflowError) as failure:
        flow.run()
    assert failure.value.state.steps[0].attempts == 1
    assert not Entry.objects.exists()


@pytest.mark.parametrize("retried", [False, True], ids=["first attempt", "after a failed one"])
def test_d6_a_lease_that_is_gone_takes_the_writes_with_it(make, retried):
    """The lease is lost while the body works, by a commit of somebody else's where the database allows one."""
    calls = []

    def body():
        calls.append(1)
        if retried and len(calls) == 1:
            raise ValueError
        pay()
        if connection.vendor == "postgresql":
            elsewhere(lambda: Execution.objects.update(lease_epoch=99))

    @make
    def flow(ctx, input):
        if not retried and connection.vendor == "sqlite":
            Execution.objects.update(lease_epoch=99)
        ctx.step("pay", body, atomic=True, retry=SOON)
        calls.append("next")

    if retried and connection.vendor == "sqlite":
        from django_finoflow.events import step_retrying

        def lose(**facts):
            Execution.objects.update(lease_epoch=99)

        step_retrying.connect(lose)
        try:
            run = flow.run()
        finally:
            step_retrying.disconnect(lose)
    else:
        run = flow.run()
    assert run.status == "running"
    assert "next" not in calls
    assert not Entry.objects.exists()
    assert not Step.objects.filter(status="done").exists()


@pytest.mark.only_postgresql(reason="SQLite has one lock for all rows")
def test_d6_the_run_is_not_locked_while_the_body_works(make):
    def body():
        pay()
        elsewhere(lambda: Execution.objects.update(recoveries=0))

    run = make(lambda ctx, input: ctx.step("pay", body, atomic=True), id="flow").run()
    assert run.status == "done"


def test_d6_an_on_commit_hook_that_raises_is_logged_and_no_more(make, caplog):
    calls = []

    def body():
        calls.append("body")
        transaction.on_commit(lambda: 1 / 0)
        return pay()

    @make
    def flow(ctx, input):
        return [ctx.step("pay", body, atomic=True, retry=SOON), ctx.step("next", lambda: "went on")]

    run = flow.run()
    assert run.result == ["paid", "went on"]
    assert calls == ["body"]
    assert run.state.steps[0].attempts == 1
    assert Entry.objects.count() == 1
    assert "after-commit-error" in caplog.text


def test_d6_on_commit_hooks_of_the_body_run_once_it_is_committed(make):
    seen = []

    def body():
        transaction.on_commit(lambda: seen.append((Entry.objects.count(), Step.objects.count())))
        pay()

    make(lambda ctx, input: ctx.step("pay", body, atomic=True), id="flow").run()
    assert seen == [(1, 1)]


def once_at_commit(before=None, after=None):
    """Spoil this thread's next COMMIT: call ``before`` instead of it, or ``after`` behind it."""
    real = connection._commit

    def commit():
        del connection._commit
        if before is not None:
            before()
        real()
        if after is not None:
            after()

    connection._commit = commit


def answer_lost():
    if connection.vendor == "postgresql":
        connection.connection.close()
    raise OperationalError("the answer to COMMIT was lost")


def spoil(calls, **how):
    def body():
        calls.append("body")
        if len(calls) == 1:
            once_at_commit(**how)
        return pay()

    return body


@pytest.mark.parametrize("timeout", [None, "30s"], ids=["here", "in its own thread"])
@pytest.mark.parametrize("retry", [1, SOON], ids=["one attempt", "several"])
def test_d6_a_commit_whose_answer_is_lost_counts_as_done(make, retry, timeout):
    calls = []

    @make
    def flow(ctx, input):
        got = ctx.step("pay", spoil(calls, after=answer_lost), atomic=True, retry=retry, timeout=timeout)
        ctx.state.set("n", 1)
        return [got, ctx.step("next", lambda: "went on")]

    run = flow.run()
    assert run.result == ["paid", "went on"]
    assert calls == ["body"]
    assert Entry.objects.count() == 1
    assert outline(run.run_id) == [(0, "pay", "done"), (1, "next", "done")]


def test_d6_the_state_of_such_a_step_is_kept(make):
    @make
    def flow(ctx, input):
        def body():
            ctx.state.set("n", 1)
            once_at_commit(after=answer_lost)

        ctx.step("pay", body, atomic=True)
        return ctx.state.get("n")

    assert flow.run().result == 1


@pytest.mark.only_postgresql(reason="SQLite has no connection to lose")
@pytest.mark.parametrize("timeout", [None, "30s"], ids=["here", "in its own thread"])
def test_d6_a_commit_that_was_lost_with_its_connection_is_no_failed_attempt(make, timeout):
    calls = []

    def lose():
        connection.connection.close()

    @make
    def flow(ctx, input):
        return ctx.step("pay", spoil(calls, before=lose), atomic=True, timeout=timeout)

    run = flow.run()
    assert run.result == "paid"
    assert calls == ["body", "body"]
    assert run.state.steps[0].attempts == 1
    assert Entry.objects.count() == 1


@pytest.mark.only_postgresql(reason="SQLite has no connection to lose")
def test_d6_nor_is_a_fence_that_was_lost_with_its_connection(make):
    calls, cut = [], []

    def cutting(execute, sql, params, many, context):
        if "INSERT INTO finoflow_step" in sql and not cut:
            cut.append(sql)
            connection.connection.close()
        return execute(sql, params, many, context)

    @make
    def flow(ctx, input):
        return ctx.step("pay", lambda: calls.append("body") or pay(), atomic=True)

    with connection.execute_wrapper(cutting):
        run = flow.run()
    assert (run.result, calls, run.state.steps[0].attempts) == ("paid", ["body", "body"], 1)
    assert Entry.objects.count() == 1


class Deadlock(Exception):
    """As the driver of PostgreSQL reports one."""

    sqlstate = "40P01"


class SerializationFailure(Exception):
    """As the driver of PostgreSQL reports one."""

    sqlstate = "40001"


class Busy(Exception):
    """As the driver of SQLite reports a database that is locked."""

    sqlite_errorcode = 5


def refuse(cause):
    def refuse():
        raise OperationalError("try again") from cause

    return refuse


@pytest.mark.parametrize("cause", [Deadlock(), SerializationFailure(), Busy()], ids=lambda cause: type(cause).__name__)
@pytest.mark.parametrize("where", ["in the body", "at the commit"])
def test_d6_a_deadlock_or_serialization_failure_runs_the_body_again_without_counting(make, cause, where):
    calls = []

    def in_body(ctx):
        calls.append("body")
        ctx.state.set(f"call-{len(calls)}", True)
        pay()
        if len(calls) == 1 and where == "in the body":
            refuse(cause)()
        elif len(calls) == 1:
            once_at_commit(before=refuse(cause))

    @make
    def flow(ctx, input):
        ctx.step("pay", lambda: in_body(ctx), atomic=True)
        return ctx.state.entries()

    run = flow.run()
    assert run.result == {"call-2": True}
    assert run.state.steps[0].attempts == 1
    assert Entry.objects.count() == 1


def test_d6_a_constraint_that_is_checked_at_the_commit_is_a_failed_attempt(make):
    """The checkpoint is read again first; it is not there, so the attempt has failed."""
    from django.db import IntegrityError

    calls = []

    def refuse():
        raise IntegrityError("a deferred constraint")

    @make
    def flow(ctx, input):
        return ctx.step("pay", spoil(calls, before=refuse), atomic=True, retry=SOON)

    run = flow.run()
    assert (run.result, calls, run.state.steps[0].attempts) == ("paid", ["body", "body"], 2)
    assert Entry.objects.count() == 1


def test_d6_cancelling_while_the_body_works_takes_its_writes_back(make):
    def body():
        pay()
        if connection.vendor == "postgresql":
            elsewhere(lambda: cancel(current_run))

    @make
    def flow(ctx, input):
        if connection.vendor == "sqlite":
            cancel(ctx.run_id)
        ctx.step("pay", body, atomic=True)

    current_run = "r"
    run = flow.run(run_id=current_run)
    assert run.status == "cancelled"
    assert run.state.steps == ()
    assert not Entry.objects.exists()


def test_d6_a_drive_whose_lease_is_gone_stops_at_the_fence(make):
    raised = []

    @make
    def flow(ctx, input):
        Execution.objects.update(lease_epoch=99)
        try:
            ctx.step("pay", pay, atomic=True)
        except BaseException as error:
            raised.append(type(error))
            raise

    flow.run()
    assert raised == [LeaseLost]


# -- with a timeout ----------------------------------------------------------------------------------------------------


class Meeting:
    """Two threads that wait for one another, without a clock."""

    def __init__(self):
        self.reached, self.go = threading.Event(), threading.Event()

    def stop_here(self):
        self.reached.set()
        assert self.go.wait(20)


def test_t4_a_late_atomic_body_is_rolled_back_and_its_checkpoint_not_written(make):
    meeting, ended = Meeting(), threading.Event()

    def late():
        try:
            if connection.vendor == "postgresql":
                pay("late")
            meeting.stop_here()
            return "late"
        finally:
            transaction.on_commit(lambda: pytest.fail("a late body was committed"))
            ended.set()

    @make
    def flow(ctx, input):
        try:
            if connection.vendor == "sqlite":  # where one lock covers all, the late body would hold it
                ctx.step("late", lambda: meeting.stop_here(), timeout=0.05)
            else:
                ctx.step("late", late, atomic=True, timeout=0.05)
        except StepTimeout as error:
            return str(error)

    if connection.vendor == "sqlite":
        ended.set()
    run = flow.run()
    assert run.result == 'Step "late" took longer than 0.05s.'
    meeting.go.set()
    assert ended.wait(20)
    for thread in threading.enumerate():
        if thread.name == "finoflow-step":
            thread.join(20)
    assert not Entry.objects.exists()
    assert outline(run.run_id) == [(0, "late", "failed")]


@pytest.mark.parametrize("outcome", ["commits", "is refused"])
def test_t4_a_deadline_that_comes_while_the_body_commits_waits_for_the_commit(make, outcome, monkeypatch):
    from django_finoflow.bodies import Race

    meeting, calls = Meeting(), []
    asked = Race.win

    def win(self, runner):
        won = asked(self, runner)
        if runner == "deadline":
            calls.append(f"deadline {'won' if won else 'lost'}")
            meeting.go.set()
        return won

    monkeypatch.setattr(Race, "win", win)

    def body():
        calls.append("body")
        once_at_commit(before=at_commit)
        return pay()

    def at_commit():
        meeting.stop_here()
        if outcome == "is refused":
            refuse(Deadlock())()

    @make
    def flow(ctx, input):
        try:
            return ctx.step("pay", body, atomic=True, timeout=0.2)
        except StepTimeout:
            return "too late"

    run = flow.run()
    assert calls == ["body", "deadline lost"]
    assert run.result == ("paid" if outcome == "commits" else "too late")
    assert Entry.objects.count() == (1 if outcome == "commits" else 0)
    assert [step.status for step in run.state.steps] == ["done" if outcome == "commits" else "failed"]


def test_history_tells_whether_its_write_won(make):
    run = make(lambda ctx, input: None, id="flow").start()
    run.lease_epoch = 7
    with pytest.raises(LeaseLost), history.fenced(run):
        pytest.fail("a fence that lets everybody through")
