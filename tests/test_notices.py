"""Reminders and escalations (A13): from rows, in time, once each, whatever restarts and however many look."""

from __future__ import annotations

import logging
from datetime import UTC, datetime, timedelta

import pytest
from django.core.management import call_command
from django.db import connection, transaction
from freezegun import freeze_time

from django_finoflow import (
    Approval,
    Candidates,
    DefinitionError,
    DurationError,
    Workflow,
    cancel,
    claim_gate,
    decide,
    decisions,
    events,
    maintenance,
    registry,
    retry_run,
    signal,
    start,
)
from django_finoflow.maintenance import give_notices
from django_finoflow.models import Execution, GateEvent, Wait
from tests.gates import DECIDE, at_once, deciders, gate_of, person, refused
from tests.making import COMMITTED, elsewhere, row
from tests.processes import eventually

pytestmark = pytest.mark.django_db

START = datetime(2030, 1, 1, 12, tzinfo=UTC)
HOUR = timedelta(hours=1)
DIRECTORS = Candidates(groups=["directors"])


@pytest.fixture
def gate(make):
    """A function that parks a run at a gate with the given approval at the start of 2030, and returns the run's id."""

    def gate(timeout=None, **approval):
        flow = make(lambda ctx, input: ctx.wait_for_approval("pay", timeout=timeout, **approval), id=None)
        with freeze_time(START):
            return flow.run().run_id

    return gate


def at(hours, act=give_notices):
    """Do something so many hours after the start."""
    with freeze_time(START + HOUR * hours):
        return act()


def happened():
    return [
        (event.kind, (event.happened_at - START) / HOUR, event.user, event.user_name)
        for event in GateEvent.objects.order_by("pk")
    ]


# -- reminders ---------------------------------------------------------------------------------------------------------


def test_a13_a_reminder_is_given_when_it_is_due_and_once(gate):
    run_id = gate(remind=("20h", "4h"))
    assert gate_of(run_id).notice_due_at == START + 4 * HOUR
    assert [at(hours) for hours in (0, 3.9, 4, 4, 5, 19, 20, 21, 1000)] == [0, 0, 1, 0, 0, 0, 1, 0, 0]
    assert happened() == [("reminded", 4, None, ""), ("reminded", 20, None, "")]
    kept = gate_of(run_id)
    assert (kept.notices, kept.notice_due_at, kept.outcome) == (2, None, "open")


def test_a13_reminders_that_piled_up_while_no_worker_ran_are_one(gate):
    run_id = gate(remind=("1h", "2h", "3h", "30h"))
    assert [at(10), at(10), at(30)] == [1, 0, 1]
    assert happened() == [("reminded", 10, None, ""), ("reminded", 30, None, "")]
    assert gate_of(run_id).notices == 4


def test_a13_a_moment_is_a_time_of_a_reminder_too(gate):
    gate(remind=(START + 2 * HOUR,))
    assert [at(1), at(2)] == [0, 1]


def test_a13_a_gate_that_says_nothing_of_it_gets_no_notices(gate):
    assert gate_of(gate()).notice_due_at is None
    assert at(10_000) == 0


def test_a13_times_that_lie_behind_the_deadline_are_left_out(gate):
    run_id = gate(timeout="10h", remind=("4h", "10h", "20h"))
    assert [notice["at"] for notice in gate_of(run_id).approval["notices"]] == [START + 4 * HOUR]


def test_a13_after_the_deadline_nobody_is_reminded_of_what_can_not_be_answered_any_more(gate):
    run_id = gate(timeout="10h", remind=("4h",), escalate=("5h", DIRECTORS))
    assert at(11) == 0
    assert happened() == []
    assert gate_of(run_id).notice_due_at is None
    assert at(12) == 0


def test_a13_the_schedule_is_fixed_when_the_gate_opens_whatever_newer_code_says(make):
    flow = make(lambda ctx, input: ctx.wait_for_approval("pay", remind=("4h",)), id="flow")
    with freeze_time(START):
        run_id = flow.run().run_id
        make.redeploy(flow, lambda ctx, input: ctx.wait_for_approval("pay", remind=("1h",))).resume(run_id)
    assert [at(1), at(4)] == [0, 1]


# -- escalation --------------------------------------------------------------------------------------------------------


def test_a13_an_escalation_asks_more_people_and_those_who_were_asked_may_still_decide(gate):
    member, director = person("member", groups=("finance",)), person("director", groups=("directors",))
    first, second = (gate(groups=["finance"], escalate=("12h", DIRECTORS)) for _ in range(2))
    assert at(11, lambda: refused(decide, first, "pay", user=director, approved=True)).code == "not-eligible"
    assert list(Wait.objects.inbox(director)) == []
    assert at(12) == 2
    assert set(Wait.objects.inbox(director)) == {gate_of(first), gate_of(second)}
    decide(first, "pay", user=director, approved=True)
    decide(second, "pay", user=member, approved=True)
    assert happened() == [("escalated", 12, None, "")] * 2


def test_a13_a_gate_that_names_nobody_keeps_its_holders_of_decide_wait_beside_those_added(gate):
    holder, director, stranger = person("holder", DECIDE), person("director", groups=("directors",)), person("stranger")
    run_id = gate(quorum=2, escalate=("12h", DIRECTORS))
    at(12)
    assert refused(decide, run_id, "pay", user=stranger, approved=True).code == "not-eligible"
    for user in (holder, director):
        decide(run_id, "pay", user=user, approved=True)
    assert gate_of(run_id).outcome == "signalled"


def test_a13_candidates_that_name_nobody_are_the_holders_of_decide_wait(gate):
    run_id = gate(groups=["finance"], escalate=("12h", Candidates()))
    at(12)
    assert decide(run_id, "pay", user=person("holder", DECIDE), approved=True)


def test_a13_a_permission_of_candidates_binds_them_and_not_the_others(gate):
    run_id = gate(users=["ann"], quorum=2, escalate=("1h", Candidates(permission=DECIDE, groups=["directors"])))
    at(1)
    without, holder = person("without", groups=("directors",)), person("holder", DECIDE, groups=("directors",))
    assert refused(decide, run_id, "pay", user=without, approved=True).code == "not-eligible"
    for user in (holder, person("ann")):
        decide(run_id, "pay", user=user, approved=True)
    assert decisions.candidates_text(gate_of(run_id)) == (
        "ann; or members of directors, with the permission finoflow.decide_wait"
    )


def test_a13_exclusions_bind_those_who_are_added(make):
    director = person("director", groups=("directors",))
    approval = {"groups": ["finance"], "exclude_requester": True, "escalate": ("12h", DIRECTORS)}
    flow = make(lambda ctx, input: ctx.wait_for_approval("pay", **approval), id="flow")
    with freeze_time(START):
        run_id = flow.run(requester=director).run_id
    at(12)
    assert refused(decide, run_id, "pay", user=director, approved=True).code == "excluded"


def test_a13_several_escalations_add_up_each_in_its_time_and_are_told_in_words(gate):
    run_id = gate(users=["ann"], escalate=(("24h", Candidates(users=["chief"])), ("12h", DIRECTORS)))
    at(12)
    assert gate_of(run_id).audience == '["",[],["ann"],[["",["directors"],[]]]]'
    at(24)
    assert gate_of(run_id).audience == '["",[],["ann"],[["",["directors"],[]],["",[],["chief"]]]]'
    assert [entry.text for entry in decisions.history_of(gate_of(run_id))] == [
        "The gate was opened.",
        "It was escalated: now it may be decided by members of directors, too.",
        "It was escalated: now it may be decided by chief, too.",
    ]
    assert decisions.candidates_text(gate_of(run_id)) == "ann; or members of directors; or chief"


def test_a13_an_escalation_ends_the_claim_and_changes_the_token(gate):
    [ann] = deciders(1)
    run_id = gate(escalate=("12h", DIRECTORS))
    claim_gate(run_id, "pay", user=ann)
    seen = decisions.token(gate_of(run_id))
    at(12)
    kept = gate_of(run_id)
    assert (kept.claimed_by, kept.claimed_by_name, kept.claimed_at) == (None, "", None)
    assert refused(decide, run_id, "pay", user=ann, approved=True, seen=seen).code == "changed"


def test_a13_a_reminder_leaves_claim_and_token_as_they_are(gate):
    [ann] = deciders(1)
    run_id = gate(remind=("1h",))
    claim_gate(run_id, "pay", user=ann)
    seen = decisions.token(gate_of(run_id))
    at(1)
    assert gate_of(run_id).claimed_by == ann
    assert decide(run_id, "pay", user=ann, approved=True, seen=seen)


def test_a13_of_what_was_missed_each_escalation_is_given_and_then_one_reminder(gate):
    escalate = (("2h", DIRECTORS), ("6h", Candidates(users=["chief"])))
    run_id = gate(users=["ann"], remind=("1h", "3h", "5h"), escalate=escalate)
    assert [at(24), at(24)] == [1, 0]
    assert [kind for kind, *_ in happened()] == ["escalated", "escalated", "reminded"]
    assert decisions.candidates_text(gate_of(run_id)) == "ann; or members of directors; or chief"


def test_a13_candidates_may_depend_on_the_run_and_are_evaluated_once_when_the_gate_opens(make):
    asked = []

    def chief(ctx):
        asked.append(1)
        return [ctx.input["chief"]]

    flow = make(
        lambda ctx, input: ctx.wait_for_approval("pay", escalate=("1h", Candidates(users=chief))), id="with-chief"
    )
    with freeze_time(START):
        run_id = flow.run({"chief": "ann"}).run_id
    at(1)
    flow.resume(run_id)
    assert asked == [1]
    assert decide(run_id, "pay", user=person("ann"), approved=True)


def test_a13_a_builders_candidates_get_the_context_of_handlers():
    them = Candidates(users=lambda ctx: [ctx.steps["chief"]])
    flow = Workflow("built-notices").step("chief", lambda ctx: "ann")
    flow.wait_for("pay", approval=Approval(remind=["1h"], escalate=("2h", them)))
    try:
        with freeze_time(START):
            run_id = flow.run().run_id
        assert [at(1), at(2)] == [1, 1]
        assert decide(run_id, "pay", user=person("ann"), approved=True)
    finally:
        registry.unregister("built-notices")


def test_a13_candidates_of_whom_nobody_is_found_are_an_error_in_the_body(make):
    @make
    def flow(ctx, input):
        with pytest.raises(DefinitionError, match="found nobody"):
            ctx.wait_for_approval("pay", escalate=("1h", Candidates(users=lambda ctx: [])))

    assert flow.run().status == "done"


# -- who gets none -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("end", ["decided", "signalled", "cancelled"])
def test_a13_a_gate_that_is_closed_gets_no_notices(gate, end):
    run_id = gate(remind=("1h",))
    if end == "decided":
        decide(run_id, "pay", user=deciders(1)[0], approved=True)
    elif end == "signalled":
        signal(run_id, "pay")
    else:
        cancel(run_id)
    assert at(2) == 0
    assert happened() == []


def test_a13_a_stuck_run_gets_none_until_it_goes_on_and_then_one_for_all_it_missed(make):
    flow = make(lambda ctx, input: ctx.wait_for_approval("pay", remind=("1h", "2h")), id="flow")
    body = flow.body
    with freeze_time(START):
        run_id = flow.run().run_id
        broken = make.redeploy(flow, lambda ctx, input: None)
        broken.resume(run_id)
    assert row(run_id).status == "stuck"
    assert at(3) == 0
    mended = make.redeploy(broken, body)
    retry_run(run_id)
    assert mended.resume(run_id).status == "waiting"
    assert at(4) == 1
    assert happened() == [("reminded", 4, None, "")]


def test_a13_stuck_runs_do_not_take_the_places_of_others(gate):
    stuck, sound = gate(remind=("1h",)), gate(remind=("2h",))
    Execution.objects.filter(run_id=stuck).update(status="stuck")
    assert at(3, lambda: give_notices(limit=1)) == 1
    assert GateEvent.objects.get().wait.execution.run_id == sound


def test_a13_a_vote_does_not_stop_the_reminders(gate):
    run_id = gate(quorum=2, remind=("1h",))
    decide(run_id, "pay", user=deciders(1)[0], approved=True)
    assert at(1) == 1


# -- once, whatever happens --------------------------------------------------------------------------------------------


def test_a13_what_dies_before_its_commit_has_given_nothing_and_the_next_one_gives_it(gate, monkeypatch):
    gate(remind=("1h",), escalate=("1h", DIRECTORS))
    real = maintenance._note

    def dying(gate, notice, now):
        real(gate, notice, now)
        if notice["kind"] == "remind":
            raise KeyboardInterrupt

    monkeypatch.setattr(maintenance, "_note", dying)
    with pytest.raises(KeyboardInterrupt):
        at(1)
    assert happened() == []
    assert "directors" not in Wait.objects.get().audience
    monkeypatch.undo()
    assert [at(2), at(2)] == [1, 0]
    assert [kind for kind, *_ in happened()] == ["escalated", "reminded"]


def test_a13_one_broken_gate_costs_the_others_nothing_and_is_reported_once(gate, caplog):
    broken, sound = gate(remind=("1h",)), gate(remind=("2h",))
    Wait.objects.filter(execution__run_id=broken).update(approval={"title": "without a schedule"})
    with caplog.at_level(logging.ERROR):
        assert [at(3), at(3)] == [1, 0]
    assert [event.wait.execution.run_id for event in GateEvent.objects.all()] == [sound]
    assert [record.getMessage() for record in caplog.records] == [f"event=notice-failed gate={gate_of(broken).pk}"]


def test_a13_only_some_are_given_at_a_time_the_longest_due_first(gate):
    gates = [gate(remind=(f"{hours}h",)) for hours in (3, 1, 2)]
    assert at(9, lambda: give_notices(limit=2)) == 2
    given = set(GateEvent.objects.values_list("wait__execution__run_id", flat=True))
    assert given == {gates[1], gates[2]}
    assert at(9, lambda: give_notices(limit=2)) == 1


def test_a13_a_worker_that_drains_gives_all_that_is_due(gate, monkeypatch):
    limits = []

    def few(limit=2):
        limits.append(limit)
        return give_notices(limit)

    monkeypatch.setattr(maintenance, "give_notices", few)
    for _ in range(5):
        gate(remind=("1h",))
    with freeze_time(START + HOUR):
        call_command("finoflow_worker", "--drain", verbosity=0)
    assert len(happened()) == 5
    assert len(limits) == 4


def test_a13_each_is_told_after_the_commit(gate, django_capture_on_commit_callbacks):
    told = []

    def hear(sender, signal, **facts):
        told.append((signal is events.gate_escalated, facts))

    run_id = gate(remind=("1h",), escalate=("1h", DIRECTORS))
    for event in (events.gate_reminded, events.gate_escalated):
        event.connect(hear)
    try:
        with django_capture_on_commit_callbacks(execute=True):
            at(1)
            assert told == []
    finally:
        for event in (events.gate_reminded, events.gate_escalated):
            event.disconnect(hear)
    facts = {"run_id": run_id, "name": "pay", "wait": gate_of(run_id).pk}
    assert told == [(True, facts), (False, facts)]


@pytest.mark.django_db(transaction=True)
@pytest.mark.only_postgresql(reason="on SQLite one writes at a time anyway")
def test_a13_two_workers_at_once_give_each_notice_once(gate):
    for _ in range(10):
        gate(remind=("1h",), escalate=("1h", DIRECTORS))
    for _ in range(3):
        with freeze_time(START + HOUR):  # for the threads, too
            at_once(*[give_notices] * 4)
    with freeze_time(START + HOUR):
        give_notices()
    assert sorted(kind for kind, *_ in happened()) == ["escalated"] * 10 + ["reminded"] * 10
    assert set(Wait.objects.values_list("notices", flat=True)) == {2}


def give_without_waiting():
    """Give what is due, or fail: the lock is held by whoever waits for us."""
    with connection.cursor() as cursor:
        cursor.execute("SET lock_timeout = '2s'")
    give_notices()


@pytest.mark.django_db(transaction=True)
@pytest.mark.only_postgresql(reason="on SQLite one writes at a time anyway")
def test_a13_a_locked_run_is_passed_over_and_costs_the_others_nothing(gate):
    locked, free = gate(remind=("1h",)), gate(remind=("2h",))
    with transaction.atomic():
        decide(locked, "pay", user=deciders(1)[0], approved=True)
        with freeze_time(START + 3 * HOUR):
            elsewhere(give_without_waiting)
    assert [event.wait.execution.run_id for event in GateEvent.objects.all()] == [free]


@pytest.mark.only_postgresql(reason="the planner of SQLite has no such words")
def test_a13_looking_for_what_is_due_reads_an_index_of_that_alone(django_assert_num_queries):
    with connection.cursor() as cursor:
        cursor.execute("SET LOCAL enable_seqscan = off")
    due = Wait.objects.open().filter(notice_due_at__lte=START).order_by("notice_due_at", "pk")
    assert "finoflow_notices" in due.explain()
    with django_assert_num_queries(1):
        give_notices()


# -- workers -----------------------------------------------------------------------------------------------------------


@COMMITTED
def test_a13_a_worker_gives_what_is_due_while_it_works(spawn):
    """A gate that a worker has parked itself is reminded of by it, and once."""
    start("reminding", "0.3s", run_id="r")
    spawn("finoflow_worker", "--poll-interval", "0.1", "--concurrency", "1")
    eventually(lambda: GateEvent.objects.filter(kind="reminded", wait__execution__run_id="r").exists())
    assert GateEvent.objects.count() == 1


#: A worker that is killed when it has written one notice, and has not committed it.
KILLED = """
    import os, signal
    from django_finoflow import maintenance

    real = maintenance._note

    def note(*arguments):
        real(*arguments)
        print("written", flush=True)
        os.kill(os.getpid(), signal.SIGKILL)

    maintenance._note = note
    maintenance.give_notices()
"""


@COMMITTED
def test_a13_a_worker_that_is_killed_between_has_given_nothing_and_another_gives_it(spawn_code, gate):
    past = datetime(2020, 1, 1, tzinfo=UTC)  # on any clock
    run_id = gate(remind=(past,), escalate=(past, DIRECTORS))
    killed = spawn_code(KILLED)
    killed.wait(30)
    assert "written" in killed.output
    assert (happened(), gate_of(run_id).notices) == ([], 0)
    assert [give_notices(), give_notices()] == [1, 0]
    assert [kind for kind, *_ in happened()] == ["escalated", "reminded"]


# -- declared ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("times", ["4h", {"4h"}, 5, None, {"4h": 1}], ids=repr)
def test_a13_reminders_are_a_list_of_times(times):
    with pytest.raises(DefinitionError, match="remind"):
        Approval(remind=times)


@pytest.mark.parametrize("time", ["soon", -1, True, None, float("nan"), datetime(2030, 1, 1)], ids=repr)
def test_a13_each_time_is_a_duration_or_an_aware_moment(time):
    with pytest.raises(DurationError, match="remind"):
        Approval(remind=[time])
    with pytest.raises(DurationError, match="escalate"):
        Approval(escalate=(time, DIRECTORS))


@pytest.mark.parametrize(
    "given",
    ["12h", ("12h",), ("12h", "directors"), ("12h", {"groups": ["x"]}), [("12h",)], DIRECTORS, None, 5],
    ids=repr,
)
def test_a13_an_escalation_is_a_time_and_candidates(given):
    with pytest.raises(DefinitionError, match="escalate"):
        Approval(escalate=given)


@pytest.mark.parametrize("argument", [{"groups": "x"}, {"users": [1]}, {"permission": "no dot"}], ids=str)
def test_a13_candidates_are_checked_when_they_are_made(argument):
    with pytest.raises(DefinitionError, match="Candidates"):
        Candidates(**argument)
