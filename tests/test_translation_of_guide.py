"""The guide (workflows that stop and wait for a person), sentence by sentence: what it says holds, in Django's idiom.

Each test names the sentence it holds, in its words as far as they go over: ``waitFor`` is ``wait_for``, milliseconds
are texts such as "24h", the engine's work is done by ``.run()`` and ``.resume()``, and ``recover()`` is not needed:
whoever drives a run reads it from its rows. Where we do otherwise on purpose, the test's docstring says how.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from django.core.management import call_command
from freezegun import freeze_time

from django_finoflow import (
    AlreadySignalled,
    DefinitionError,
    RunNotLive,
    SignalRefused,
    SignalTimeout,
    UnknownSignal,
    Workflow,
    WorkflowError,
    cancel,
    get_run,
    list_runs,
    registry,
    signal,
    start,
)
from django_finoflow.events import signal_received, signal_timed_out
from django_finoflow.exceptions import InvalidSignalName
from django_finoflow.models import Signal
from tests.making import row

pytestmark = pytest.mark.django_db

START = datetime(2030, 1, 1, tzinfo=UTC)
DAY = timedelta(days=1)


class Company:
    """What the guide's handlers work with, as a list of what was done."""

    def __init__(self) -> None:
        self.done: list[str] = []
        self.made: set[str] = set()

    def workflow(self, id: str) -> Workflow:
        """Make a workflow, in the place of an earlier one of that id: as a redeployment does."""
        registry.unregister(id)
        self.made.add(id)
        return Workflow(id)

    def does(self, what: str) -> Callable[[Any], None]:
        return lambda ctx: self.done.append(what)

    def expense_approval(self) -> Workflow:
        """The guide's first example."""

        def submit(ctx: Any) -> dict[str, bool]:
            self.done.append(f"Expense of {ctx.input['amount']} needs review")
            return {"submitted": True}

        def process(ctx: Any) -> dict[str, str]:
            decision = ctx.signals["manager-approval"]
            return {"status": "paid" if decision["approved"] else "rejected"}

        return (
            self.workflow("expense-approval")
            .step("submit", submit)
            .wait_for("manager-approval", timeout="24h")
            .step("process", process)
        )

    def deletion(self) -> Workflow:
        """The guide's second example: a rejection unwinds."""

        def execute(ctx: Any) -> str:
            decision = ctx.signals["human-approval"]
            if not decision["approved"]:
                self.done.append("rejected")
                raise RuntimeError("operator rejected the action")
            self.done.append(f"deleted by {ctx.steps['propose']}")
            return "deleted"

        return (
            self.workflow("deletion")
            .step("propose", lambda ctx: f"plan for {ctx.input}", compensate=self.does("plan discarded"))
            .wait_for("human-approval", timeout="24h")
            .step("execute", execute, retry=1)
        )

    def sign_off(self) -> Workflow:
        """The guide's third example: gates in a chain."""
        return (
            self.workflow("sign-off")
            .step("submit", self.does("submitted"))
            .wait_for("manager-approval")
            .step("prepare-payment", self.does("prepared"))
            .wait_for("finance-approval")
            .step("pay", self.does("paid"))
        )


@pytest.fixture
def company() -> Iterator[Company]:
    company = Company()
    yield company
    for id in company.made:
        registry.unregister(id)


@pytest.fixture
def hear() -> Iterator[Callable[[Any], list[dict[str, Any]]]]:
    """Listen to a Django signal, and return the list that its facts will come in."""
    connected = []

    def hear(event: Any) -> list[dict[str, Any]]:
        heard: list[dict[str, Any]] = []

        def listener(sender: Any, **facts: Any) -> None:
            heard.append(facts)

        event.connect(listener, weak=False)
        connected.append((event, listener))
        return heard

    yield hear
    for event, listener in connected:
        event.disconnect(listener)


# -- stop, and wait for a person ---------------------------------------------------------------------------------------


def test_the_first_example_does_what_it_shows(company):
    flow = company.expense_approval()
    run = start("expense-approval", {"amount": 120})
    assert flow.resume(run.run_id).status == "waiting"
    assert company.done == ["Expense of 120 needs review"]
    signal(run.run_id, "manager-approval", {"approved": True})
    assert flow.resume(run.run_id).result == {"status": "paid"}


def test_and_so_it_does_when_the_answer_is_no(company):
    flow = company.expense_approval()
    run_id = flow.run({"amount": 120}).run_id
    signal(run_id, "manager-approval", {"approved": False})
    assert flow.resume(run_id).result == {"status": "rejected"}


def test_a_parked_run_releases_its_worker_slot_and_keeps_its_durable_state(company):
    run_id = company.sign_off().run("claim").run_id
    run = row(run_id)
    assert (run.lease_owner, run.lease_until, run.due_at) == ("", None, None)
    assert (run.input, [step.id for step in run.snapshot().steps]) == ("claim", ["submit"])


def test_it_can_sit_there_for_a_day_across_a_redeploy_and_still_pick_up_exactly_where_it_left_off(company):
    with freeze_time(START) as now:
        run_id = company.sign_off().run().run_id
        now.tick(DAY)
        redeployed = company.sign_off()
        signal(run_id, "manager-approval")
        redeployed.resume(run_id)
    assert company.done == ["submitted", "prepared"]


def test_wait_for_pauses_a_run_until_something_outside_it_says_to_continue(company):
    flow = company.sign_off()
    run_id = flow.run().run_id
    flow.resume(run_id)
    flow.resume(run_id)
    assert company.done == ["submitted"]
    signal(run_id, "manager-approval")
    flow.resume(run_id)
    assert company.done == ["submitted", "prepared"]


def test_the_payload_lands_in_ctx_signals_for_every_step_after_the_gate(company):
    seen = []
    flow = company.workflow("payload").wait_for("manager-approval")
    for name in ("one", "two"):
        flow.step(name, lambda ctx: seen.append(ctx.signals["manager-approval"]))
    run_id = flow.run().run_id
    signal(run_id, "manager-approval", {"by": "ann"})
    flow.resume(run_id)
    assert seen == [{"by": "ann"}] * 2


# -- it survives a restart ---------------------------------------------------------------------------------------------


def test_an_approval_already_accepted_before_a_crash_is_stored_and_is_not_lost(company):
    run_id = company.expense_approval().run({"amount": 1}).run_id
    signal(run_id, "manager-approval", {"approved": True})
    after_the_crash = company.expense_approval()
    assert after_the_crash.resume(run_id).result == {"status": "paid"}
    assert len(company.done) == 1


def test_nobody_could_signal_while_the_only_engine_process_is_down(company):
    """Here anybody can: a signal is a row, and needs neither a worker nor the definition's own process."""
    flow = company.expense_approval()
    run_id = flow.start({"amount": 1}).run_id
    signal(run_id, "manager-approval", {"approved": True})
    assert flow.resume(run_id).result == {"status": "paid"}


def test_the_remaining_time_is_computed_from_when_the_wait_actually_started(company):
    with freeze_time(START) as now:
        run_id = company.expense_approval().run({"amount": 1}).run_id
        now.tick(timedelta(hours=23, minutes=59))
        restarted = company.expense_approval()
        assert restarted.resume(run_id).waiting_on.due_at == START + DAY
        now.tick(timedelta(minutes=1))
        with pytest.raises(WorkflowError, match="timed out"):
            restarted.resume(run_id)


def test_without_recovery_an_untouched_timed_run_would_remain_parked(company):
    """Here it does not: the deadline is in its row, and any worker that runs finds it due."""
    with freeze_time(START) as now:
        run_id = company.expense_approval().run({"amount": 1}).run_id
        now.tick(DAY)
        call_command("finoflow_worker", "--drain", "--verbosity", "0")
    assert row(run_id).status == "error"


# -- rejection should unwind -------------------------------------------------------------------------------------------


def test_throw_on_it_and_everything_the_run_did_before_the_gate_is_rolled_back(company):
    flow = company.deletion()
    run_id = flow.run("old files").run_id
    signal(run_id, "human-approval", {"approved": False})
    with pytest.raises(WorkflowError, match="operator rejected the action"):
        flow.resume(run_id)
    assert company.done == ["rejected", "plan discarded"]
    assert (row(run_id).status, row(run_id).rollback) == ("error", "completed")


def test_an_approval_does_not_unwind_and_the_step_after_the_gate_sees_the_plan(company):
    flow = company.deletion()
    run_id = flow.run("old files").run_id
    signal(run_id, "human-approval", {"approved": True})
    assert flow.resume(run_id).result == "deleted"
    assert company.done == ["deleted by plan for old files"]


def test_note_retry_1_a_deliberate_throw_should_be_believed_the_first_time(company):
    flow = company.deletion()
    run_id = flow.run("old files").run_id
    signal(run_id, "human-approval", {"approved": False})
    with pytest.raises(WorkflowError):
        flow.resume(run_id)
    assert company.done.count("rejected") == 1
    assert row(run_id).snapshot().steps[-1].attempts == 1


# -- multi-stage sign-off ----------------------------------------------------------------------------------------------


def test_chain_gates_each_one_parks_the_run_again(company):
    flow = company.sign_off()
    run = flow.run()
    for gate, so_far in (("manager-approval", ["submitted"]), ("finance-approval", ["submitted", "prepared"])):
        assert (run.status, run.waiting_on.name, company.done) == ("waiting", gate, so_far)
        signal(run.run_id, gate)
        run = flow.resume(run.run_id)
    assert (run.status, company.done) == ("done", ["submitted", "prepared", "paid"])


def test_a_signal_for_an_event_the_run_is_not_waiting_on_is_recorded_and_consumed_later(company):
    flow = company.sign_off()
    run_id = flow.run().run_id
    signal(run_id, "finance-approval")
    assert flow.resume(run_id).waiting_on.name == "manager-approval"
    signal(run_id, "manager-approval")
    assert flow.resume(run_id).status == "done"


def test_so_ordering_mistakes_are_silent_rather_than_loud(company):
    """Mistakes in the name are loud here: one that no gate declares is refused."""
    run_id = company.sign_off().run().run_id
    with pytest.raises(UnknownSignal):
        signal(run_id, "manger-approval")


# -- timeouts ----------------------------------------------------------------------------------------------------------


def test_if_nothing_arrives_in_time_an_event_fires_the_run_fails_and_the_rollback_begins(
    company, hear, django_capture_on_commit_callbacks
):
    heard = hear(signal_timed_out)
    with freeze_time(START) as now:
        flow = company.deletion()
        run_id = flow.run("old files").run_id
        now.tick(DAY)
        with django_capture_on_commit_callbacks(execute=True), pytest.raises(WorkflowError) as failed:
            flow.resume(run_id)
    assert isinstance(failed.value.__cause__, SignalTimeout)
    assert [(facts["run_id"], facts["name"]) for facts in heard] == [(run_id, "human-approval")]
    assert company.done == ["plan discarded"]


def test_without_a_timeout_the_run_waits_indefinitely(company):
    with freeze_time(START) as now:
        flow = company.sign_off()
        run_id = flow.run().run_id
        now.tick(timedelta(days=36500))
        run = flow.resume(run_id)
        assert (run.status, run.waiting_on.due_at) == ("waiting", None)


def test_a_90_day_gate_does_not_wrap_around_and_fire_immediately(company):
    with freeze_time(START) as now:
        flow = company.workflow("patient").wait_for("manager-approval", timeout="90d").step("pay", company.does("paid"))
        run_id = flow.run().run_id
        for days in (25, 25, 39):
            now.tick(timedelta(days=days))
            assert flow.resume(run_id).waiting_on.due_at == START + timedelta(days=90)
        now.tick(DAY)
        with pytest.raises(WorkflowError, match="timed out after 7776000s"):
            flow.resume(run_id)


# -- checking on a parked run ------------------------------------------------------------------------------------------


def test_a_parked_run_says_that_it_waits_and_when_the_wait_started(company):
    with freeze_time(START):
        run_id = company.expense_approval().run({"amount": 1}).run_id
    run = get_run(run_id)
    assert run.status == "waiting"
    assert run.waits.get(name="manager-approval").opened_at == START
    assert run.snapshot().waiting_on.opened_at == START
    assert get_run("nowhere") is None


def test_everything_parked_across_every_workflow(company):
    one, two = company.sign_off().run(), company.expense_approval().run({"amount": 1})
    company.workflow("ends").step("at-once", lambda ctx: None).run()
    assert [run.run_id for run in list_runs(None, "waiting")] == [two.run_id, one.run_id]


def test_listing_returns_100_rows_by_default_and_supports_deterministic_pages(company):
    """Our pages begin with the newest; runs of the same moment go by their id."""
    flow = company.sign_off()
    with freeze_time(START):
        started = [flow.start().run_id for _ in range(105)]
    everything = [run.run_id for run in list_runs(limit=105)]
    assert sorted(everything) == sorted(started)
    assert [run.run_id for run in list_runs()] == everything[:100]
    assert [run.run_id for run in list_runs(limit=100, offset=100)] == everything[100:]


def test_passing_0_is_a_deadline_that_has_already_passed_so_the_gate_fails_at_once_and_the_run_rolls_back(company):
    flow = company.workflow("zero").step("a", company.does("done"), compensate=company.does("undone"))
    flow.wait_for("manager-approval", timeout=0).step("b", company.does("too much"))
    with pytest.raises(WorkflowError, match='Signal "manager-approval" timed out after 0s'):
        flow.run()
    assert company.done == ["done", "undone"]


def test_watch_for_the_one_value_that_breaks_every_gate(company):
    """A literal 0 is warned of by a system check, which asks this."""
    assert "has passed at once" in company.workflow("zero").wait_for("ok", timeout=0).warnings()[0]


def test_on_a_step_timeout_0_does_mean_unbounded(company):
    flow = company.workflow("zero").step("a", company.does("done"), timeout=0)
    assert flow.run().status == "done"


# -- a signal only reaches a live run ----------------------------------------------------------------------------------


def ended(company: Company, how: str) -> str:
    """Return the id of a run that has ended that way."""
    flow = company.deletion()
    run_id = flow.run("old files").run_id
    if how == "cancelled":
        cancel(run_id)
        return run_id
    signal(run_id, "human-approval", {"approved": how == "done"})
    with suppress(WorkflowError):
        flow.resume(run_id)
    assert row(run_id).status == how
    return run_id


@pytest.mark.parametrize("how", ["done", "error", "cancelled"])
def test_signal_throws_if_the_run_is_not_running_or_waiting(company, hear, django_capture_on_commit_callbacks, how):
    run_id = ended(company, how)
    before, heard = row(run_id).snapshot(), hear(signal_received)
    with django_capture_on_commit_callbacks(execute=True), pytest.raises(RunNotLive, match="cannot receive the signal"):
        signal(run_id, "human-approval", {"approved": True})
    assert row(run_id).snapshot() == before
    assert heard == []


def test_an_approval_racing_a_run_to_its_end_is_real_so_handle_the_rejection(company):
    run_id = ended(company, "cancelled")
    try:
        signal(run_id, "human-approval", {"approved": True, "by": 7})
    except SignalRefused as error:
        reconciled = str(error)
    assert "cancelled" in reconciled


def test_the_payload_is_optional_and_a_signal_without_counts_as_a_delivery(company):
    flow = company.workflow("bare").wait_for("manager-approval").step("a", lambda ctx: dict(ctx.signals))
    run_id = flow.run().run_id
    signal(run_id, "manager-approval")
    assert flow.resume(run_id).result == {"manager-approval": None}


def test_a_duplicate_signal_is_rejected_and_cannot_overwrite_the_accepted_approval_payload(company):
    flow = company.expense_approval()
    run_id = flow.run({"amount": 1}).run_id
    signal(run_id, "manager-approval", {"approved": True})
    with pytest.raises(AlreadySignalled):
        signal(run_id, "manager-approval", {"approved": False})
    assert flow.resume(run_id).result == {"status": "paid"}


@pytest.mark.parametrize("name", ["", "__proto__"])
def test_an_event_name_that_cannot_be_stored_is_refused_when_declared_and_again_at_signal(company, name):
    with pytest.raises(DefinitionError):
        company.workflow("names").wait_for(name)
    run_id = company.sign_off().run().run_id
    with pytest.raises(InvalidSignalName):
        signal(run_id, name)
    assert not Signal.objects.exists()


# -- one event per gate ------------------------------------------------------------------------------------------------


def test_a_workflow_that_declares_the_same_event_twice_is_rejected(company):
    flow = company.workflow("twice").wait_for("approve").step("release-funds", company.does("released"))
    with pytest.raises(DefinitionError, match='"approve"'):
        flow.wait_for("approve")


def test_a_delivered_signal_is_never_consumed_ctx_signals_keeps_it_for_the_rest_of_the_run(company):
    flow = (
        company.workflow("kept").wait_for("manager-approval").step("a", lambda ctx: None).wait_for("finance-approval")
    )
    flow.step("b", lambda ctx: dict(ctx.signals))
    run_id = flow.run().run_id
    for number, gate in enumerate(["manager-approval", "finance-approval"]):
        signal(run_id, gate, number)
        run = flow.resume(run_id)
    assert run.result == {"manager-approval": 0, "finance-approval": 1}


def test_signals_then_records_who_approved_what(company):
    flow = company.sign_off()
    run_id = flow.run().run_id
    for gate, by in (("manager-approval", "ann"), ("finance-approval", "bob")):
        signal(run_id, gate, {"by": by})
        flow.resume(run_id)
    assert [(s.name, s.payload["by"]) for s in row(run_id).snapshot().signals] == [
        ("manager-approval", "ann"),
        ("finance-approval", "bob"),
    ]
