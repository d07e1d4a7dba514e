"""Several who must approve (A10): votes, one rejection, and what several at one moment come to."""

from __future__ import annotations

from functools import partial

import pytest
from django.db import connection

from django_finoflow import Approval, DecisionRefused, DefinitionError, Workflow, decide, decisions, registry, signal
from django_finoflow.models import Decision, Signal, Wait
from tests.gates import at_once, deciders, gate_of, refused
from tests.making import row

pytestmark = pytest.mark.django_db


def two_needed(ctx, input):
    return ctx.wait_for_approval("pay", quorum=2)


# -- counting ----------------------------------------------------------------------------------------------------------


def test_a10_the_gate_stays_open_until_so_many_have_approved(make):
    flow = make(two_needed)
    ann, ben = deciders(2)
    run_id = flow.run().run_id
    assert decisions.votes(gate_of(run_id)) == (0, 2)
    decide(run_id, "pay", user=ann, approved=True, data="first")
    assert (gate_of(run_id).outcome, row(run_id).status, row(run_id).due_at) == ("open", "waiting", None)
    assert decisions.votes(gate_of(run_id)) == (1, 2)
    assert not Signal.objects.exists()
    assert flow.resume(run_id).status == "waiting"
    decide(run_id, "pay", user=ben, approved=True, data="second")
    assert gate_of(run_id).outcome == "signalled"
    assert decisions.votes(gate_of(run_id)) == (2, 2)
    result = flow.resume(run_id).result
    assert (result["by"], result["data"], set(result)) == (
        ben.username,
        "second",
        {"approved", "by", "by_id", "reason", "data", "at"},
    )


def test_a10_one_rejection_rejects_whatever_was_approved_before(make):
    flow = make(two_needed)
    ann, ben, cat = deciders(3)
    run_id = flow.run().run_id
    decide(run_id, "pay", user=ann, approved=True)
    decide(run_id, "pay", user=ben, approved=False, reason="no")
    assert "decider-1 rejected it" in str(refused(decide, run_id, "pay", user=cat, approved=True))
    assert flow.resume(run_id).result["approved"] is False


def test_a10_a_person_has_one_vote(make):
    [ann] = deciders(1)
    run_id = make(two_needed).run().run_id
    decide(run_id, "pay", user=ann, approved=True)
    for approved in (True, False):
        refusal = refused(decide, run_id, "pay", user=ann, approved=approved, reason="again")
        assert refusal.code == "already-answered"


def test_a10_a_vote_changes_the_gates_token(make):
    ann, ben = deciders(2)
    run_id = make(two_needed).run().run_id
    seen = decisions.token(gate_of(run_id))
    decide(run_id, "pay", user=ann, approved=True)
    assert refused(decide, run_id, "pay", user=ben, approved=True, seen=seen).code == "changed"
    decide(run_id, "pay", user=ben, approved=True, seen=decisions.token(gate_of(run_id)))


def test_a10_the_vote_of_a_user_who_was_deleted_still_counts_and_their_name_stays(make):
    flow = make(two_needed)
    ann, ben = deciders(2)
    run_id = flow.run().run_id
    decide(run_id, "pay", user=ann, approved=True)
    ann.delete()
    assert decisions.votes(gate_of(run_id)) == (1, 2)
    decide(run_id, "pay", user=ben, approved=True)
    assert flow.resume(run_id).result["by"] == "decider-1"
    assert [entry.text for entry in decisions.history_of(gate_of(run_id))][1] == "decider-0 approved it."


def test_a10_a_signal_from_code_answers_with_votes_outstanding_and_is_told_as_such(make):
    flow = make(two_needed)
    ann, ben = deciders(2)
    run_id = flow.run().run_id
    decide(run_id, "pay", user=ann, approved=True)
    signal(run_id, "pay", {"approved": True})
    assert "signal from code" in str(refused(decide, run_id, "pay", user=ben, approved=True))
    history = decisions.history_of(gate_of(run_id))
    assert [entry.kind for entry in history] == ["opened", "approved", "closed"]


def test_a10_the_votes_are_in_the_history_and_the_last_one_decided(make):
    ann, ben = deciders(2)
    run_id = make(two_needed).run().run_id
    decide(run_id, "pay", user=ann, approved=True, reason="well")
    decide(run_id, "pay", user=ben, approved=True)
    gate = gate_of(run_id)
    assert [(e.kind, e.who, e.note) for e in decisions.history_of(gate)] == [
        ("opened", "", ""),
        ("approved", "decider-0", "well"),
        ("approved", "decider-1", ""),
    ]
    assert decisions.story(gate).startswith("decider-1 approved it on")


def test_a10_the_quorum_may_depend_on_the_run_and_is_fixed_when_the_gate_opens(make):
    flow = make(lambda ctx, input: ctx.wait_for_approval("pay", quorum=lambda ctx: 2 if ctx.input > 100 else 1), id="q")
    assert [decisions.votes(gate_of(flow.run(amount).run_id)) for amount in (5, 500)] == [(0, 1), (0, 2)]


def test_a10_a_builders_quorum_gets_the_context_of_handlers(make):
    flow = (
        Workflow("built-quorum")
        .step("amount", lambda ctx: 500)
        .wait_for("pay", approval=Approval(quorum=lambda ctx: 1 + (ctx.steps["amount"] > 100)))
    )
    try:
        assert decisions.votes(gate_of(flow.run().run_id)) == (0, 2)
    finally:
        registry.unregister("built-quorum")


@pytest.mark.parametrize("quorum", [0, -1, True, 1.5, "2", None, 2**31], ids=repr)
def test_a10_a_quorum_is_a_whole_number_of_at_least_one(make, quorum):
    with pytest.raises(DefinitionError, match="quorum"):
        Approval(quorum=quorum)

    @make
    def flow(ctx, input):
        with pytest.raises(DefinitionError, match="quorum"):
            ctx.wait_for_approval("pay", quorum=lambda ctx: quorum)

    assert flow.run().status == "done"
    assert not Wait.objects.exists()


# -- at one moment -----------------------------------------------------------------------------------------------------

real = pytest.mark.django_db(transaction=True)
on_postgresql = pytest.mark.only_postgresql(reason="on SQLite one writes at a time anyway")


@real
@on_postgresql
def test_a10_two_deciders_at_the_same_moment_resolve_a_quorum_of_two_exactly_once(make):
    flow = make(two_needed)
    people = deciders(2)
    for _ in range(15):
        run_id = flow.run().run_id
        came = at_once(*(partial(decide, run_id, "pay", user=user, approved=True) for user in people))
        assert [type(one) for one in came] == [Decision, Decision]
        assert Signal.objects.filter(execution__run_id=run_id).count() == 1
        gate = gate_of(run_id)
        assert (gate.outcome, gate.decisions.count()) == ("signalled", 2)
        last = max(came, key=lambda made: (made.decided_at, made.pk))
        assert flow.resume(run_id).result["by_id"] == last.user_id


@real
@on_postgresql
def test_a10_an_approval_and_a_rejection_at_the_same_moment_end_in_one_rejection(make):
    flow = make(two_needed)
    ann, ben = deciders(2)
    for _ in range(15):
        run_id = flow.run().run_id
        came = at_once(
            partial(decide, run_id, "pay", user=ann, approved=True),
            partial(decide, run_id, "pay", user=ben, approved=False, reason="no"),
        )
        assert isinstance(came[1], Decision)
        assert isinstance(came[0], Decision) or came[0].code == "not-open"
        assert flow.resume(run_id).result["approved"] is False


@real
@on_postgresql
def test_a1_of_twenty_deciders_at_once_one_decides_and_the_others_are_told_who(make):
    flow = make(lambda ctx, input: ctx.wait_for_approval("pay"), id="flow")
    people = deciders(20)
    run_id = flow.run().run_id
    came = at_once(*(partial(decide, run_id, "pay", user=user, approved=True) for user in people))
    [made] = [one for one in came if isinstance(one, Decision)]
    others = [one for one in came if isinstance(one, DecisionRefused)]
    assert (len(others), {one.code for one in others}) == (19, {"not-open"})
    assert all(f"{made.user_name} approved it" in str(one) for one in others)
    assert (Decision.objects.count(), Signal.objects.count()) == (1, 1)


@real
@on_postgresql
def test_a1_one_person_who_clicks_twice_at_once_decides_once(make):
    flow = make(two_needed)
    [ann] = deciders(1)
    for _ in range(10):
        run_id = flow.run().run_id
        came = at_once(*[partial(decide, run_id, "pay", user=ann, approved=True)] * 2)
        assert sorted(type(one).__name__ for one in came) == ["Decision", "DecisionRefused"]
        assert gate_of(run_id).decisions.count() == 1
    assert connection.vendor == "postgresql"
