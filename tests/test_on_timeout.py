"""Deadlines that decide (A8): approve or reject by nobody, in the drive that finds the deadline passed."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest
from django.core.management import call_command
from freezegun import freeze_time

from django_finoflow import (
    Approval,
    DefinitionError,
    GateRejected,
    SignalTimeout,
    Workflow,
    WorkflowError,
    checks,
    decide,
    decisions,
    events,
    registry,
    signal,
)
from django_finoflow.models import Decision, Signal
from tests.gates import deciders, gate_of, refused
from tests.making import row

pytestmark = pytest.mark.django_db

START = datetime(2030, 1, 1, 12, tzinfo=UTC)
HOUR = timedelta(hours=1)


def asking(on_timeout, timeout="1h", **approval):
    return lambda ctx, input: ctx.wait_for_approval("pay", timeout=timeout, on_timeout=on_timeout, **approval)


@pytest.mark.parametrize(("on_timeout", "approved"), [("approve", True), ("reject", False)])
def test_a8_a_passed_deadline_decides_by_nobody(make, on_timeout, approved):
    flow = make(asking(on_timeout), id="flow")
    with freeze_time(START) as clock:
        run_id = flow.run().run_id
        clock.tick(HOUR)
        result = flow.resume(run_id).result
    now = START + HOUR
    assert result == {"approved": approved, "by": None, "by_id": None, "reason": "", "data": None, "at": now}
    made = Decision.objects.get()
    assert (made.user, made.user_name, made.channel, made.approved, made.override, made.decided_at) == (
        None,
        "",
        "timer",
        approved,
        False,
        now,
    )
    assert len(made.digest) == 64
    gate = gate_of(run_id)
    assert (gate.outcome, gate.closed_at) == ("signalled", now)
    kept = Signal.objects.get()
    assert (kept.payload, kept.sender, kept.consumed_by) == (result, "", gate)
    assert (row(run_id).status, row(run_id).due_at) == ("done", None)


def test_a8_nothing_is_decided_before_the_deadline(make):
    flow = make(asking("approve"), id="flow")
    with freeze_time(START) as clock:
        run_id = flow.run().run_id
        clock.tick(HOUR - timedelta(seconds=1))
        assert flow.resume(run_id).status == "waiting"
    assert not Decision.objects.exists()


def test_a8_a_replay_returns_the_same_decision_and_the_run_parks_at_what_follows(make):
    seen = []

    @make
    def flow(ctx, input):
        seen.append(asking("approve")(ctx, input))
        ctx.wait_for_signal("then")

    with freeze_time(START) as clock:
        run_id = flow.run().run_id
        clock.tick(HOUR)
        assert flow.resume(run_id).waiting_on.name == "then"
        assert (row(run_id).status, row(run_id).due_at) == ("waiting", None)
        clock.tick(HOUR)
        flow.resume(run_id)
    assert len(seen) == 2
    assert seen[0] == seen[1]
    assert Decision.objects.count() == 1


def test_a8_an_answer_in_time_beats_the_deadline(make):
    [ann] = deciders(1)
    flow = make(asking("approve"), id="flow")
    with freeze_time(START) as clock:
        run_id = flow.run().run_id
        decide(run_id, "pay", user=ann, approved=False, reason="no")
        clock.tick(HOUR * 2)
        assert flow.resume(run_id).result["by"] == "decider-0"
    assert Decision.objects.count() == 1


def test_a8_an_answer_after_the_deadline_is_refused_whether_the_run_has_noticed_or_not(make):
    [ann] = deciders(1)
    flow = make(asking("reject"), id="flow")
    with freeze_time(START) as clock:
        run_id = flow.run().run_id
        clock.tick(HOUR)
        assert refused(decide, run_id, "pay", user=ann, approved=True).code == "expired"
        flow.resume(run_id)
        refusal = refused(decide, run_id, "pay", user=ann, approved=True)
    assert refusal.code == "not-open"
    assert "deadline passed, which rejected it" in str(refusal)


def test_a8_a_signal_from_code_still_beats_a_deadline_that_nobody_has_noticed(make):
    flow = make(asking("approve"), id="flow")
    with freeze_time(START) as clock:
        run_id = flow.run().run_id
        clock.tick(HOUR * 2)
        signal(run_id, "pay", "by code")
        assert flow.resume(run_id).result == "by code"
    assert not Decision.objects.exists()


def test_a8_votes_that_were_too_few_do_not_count_against_it(make):
    [ann] = deciders(1)
    flow = make(asking("reject", quorum=2), id="flow")
    with freeze_time(START) as clock:
        run_id = flow.run().run_id
        clock.tick(60)
        decide(run_id, "pay", user=ann, approved=True)
        clock.tick(HOUR)
        assert flow.resume(run_id).result["approved"] is False
    gate = gate_of(run_id)
    assert "deadline passed, which rejected it" in decisions.story(gate)
    assert [entry.text for entry in decisions.history_of(gate)] == [
        "The gate was opened.",
        "decider-0 approved it.",
        "The deadline passed, which rejected it.",
    ]


@pytest.mark.parametrize("form", ["function", "builder"])
def test_a8_on_reject_fail_raises_for_a_deadline_too(make, form):
    approval = {"on_timeout": "reject", "on_reject": "fail"}
    if form == "function":
        flow = make(lambda ctx, input: ctx.wait_for_approval("pay", timeout="1h", **approval), id="flow")
    else:
        flow = Workflow("built-late").wait_for("pay", timeout="1h", approval=Approval(**approval))
        flow.step("end", lambda ctx: None)
    try:
        with freeze_time(START) as clock:
            run_id = flow.run().run_id
            clock.tick(HOUR)
            with pytest.raises(WorkflowError, match='Gate "pay" was rejected') as failure:
                flow.resume(run_id)
    finally:
        if form == "builder":
            registry.unregister("built-late")
    assert type(failure.value.__cause__) is GateRejected
    assert row(run_id).status == "error"


def test_a8_fail_is_the_default_and_times_out(make):
    flow = make(lambda ctx, input: ctx.wait_for_approval("pay", timeout="1h"), id="flow")
    with freeze_time(START) as clock:
        run_id = flow.run().run_id
        clock.tick(HOUR)
        with pytest.raises(WorkflowError) as failure:
            flow.resume(run_id)
    assert type(failure.value.__cause__) is SignalTimeout
    assert gate_of(run_id).outcome == "timed-out"
    assert [entry.kind for entry in decisions.history_of(gate_of(run_id))] == ["opened", "closed"]


def test_a8_a_deadline_that_has_passed_when_the_gate_opens_decides_at_once(make):
    result = make(asking("approve", timeout=0), id="flow").run().result
    assert (result["approved"], result["by"]) == (True, None)


def test_a8_both_stories_are_told_the_passed_deadline_and_the_decision(make, django_capture_on_commit_callbacks):
    flow = make(asking("approve"), id="flow")
    told = []

    def listen(event):
        return lambda sender, signal, **facts: told.append((event, facts))

    receivers = {event: listen(event) for event in ("signal_timed_out", "signal_received", "gate_decided")}
    for event, receiver in receivers.items():
        getattr(events, event).connect(receiver)
    try:
        with freeze_time(START) as clock, django_capture_on_commit_callbacks(execute=True):
            run_id = flow.run().run_id
            clock.tick(HOUR)
            flow.resume(run_id)
    finally:
        for event, receiver in receivers.items():
            getattr(events, event).disconnect(receiver)
    assert [event for event, _ in told] == ["signal_timed_out", "signal_received", "gate_decided"]
    gate = gate_of(run_id)
    assert told[2][1] == {"run_id": run_id, "name": "pay", "wait": gate.pk, "approved": True, "by": None}


def test_a8_what_is_snapshotted_when_the_gate_opens_stays_whatever_newer_code_says(make):
    flow = make(asking("reject"), id="flow")
    with freeze_time(START) as clock:
        run_id = flow.run().run_id
        changed = make.redeploy(flow, asking("approve"))
        clock.tick(HOUR)
        assert changed.resume(run_id).result["approved"] is False


@pytest.mark.parametrize("given", ["ignore", "", None, True], ids=repr)
def test_a8_a_deadline_fails_approves_or_rejects_and_nothing_else(given):
    with pytest.raises(DefinitionError, match="on_timeout"):
        Approval(on_timeout=given)


def test_a8_a_builders_gate_without_a_deadline_that_says_what_it_does_is_warned_of():
    Workflow("built-odd").wait_for("pay", approval=Approval(on_timeout="approve")).step("end", lambda ctx: None)
    try:
        [warning] = [found for found in checks.check_workflows(None) if "built-odd" in found.msg]
    finally:
        registry.unregister("built-odd")
    assert (warning.id, "on_timeout" in warning.msg) == ("finoflow.W004", True)


def test_a8_a_worker_decides_it_and_the_run_goes_on(make):
    flow = make(asking("approve", timeout="1s"), id="flow")
    with freeze_time(START) as clock:
        run_id = flow.start().run_id
        call_command("finoflow_worker", "--drain", verbosity=0)
        assert row(run_id).status == "waiting"
        clock.tick(2)
        call_command("finoflow_worker", "--drain", verbosity=0)
        assert row(run_id).status == "done"
    assert row(run_id).result["approved"] is True
