"""Who works on a gate (A12): claim, release, hand on; none of it keeps others from deciding."""

from __future__ import annotations

from datetime import UTC, datetime
from functools import partial

import pytest
from freezegun import freeze_time

from django_finoflow import (
    PayloadError,
    RunNotFound,
    WorkflowError,
    cancel,
    claim_gate,
    decide,
    decisions,
    delegate_gate,
    events,
    release_gate,
    retry_run,
    signal,
)
from django_finoflow.models import GateEvent, Wait
from tests.gates import DECIDE, OVERRIDE, at_once, deciders, gate_of, person, refused
from tests.making import rolled_back, row

pytestmark = pytest.mark.django_db

START = datetime(2030, 1, 1, 12, tzinfo=UTC)
VERBS = {
    "claim": claim_gate,
    "release": release_gate,
    "delegate": lambda *arguments, user, **more: delegate_gate(*arguments, user=user, to=user, **more),
}


@pytest.fixture
def gate(make):
    """A function that parks a run at a gate with the given approval, and returns the run's id."""

    def gate(requester=None, timeout=None, **approval):
        flow = make(lambda ctx, input: ctx.wait_for_approval("pay", timeout=timeout, **approval), id=None)
        return flow.run(requester=requester).run_id

    return gate


def happened():
    return list(GateEvent.objects.order_by("pk").values_list("kind", "user_name", "to_name", "note"))


# -- claim -------------------------------------------------------------------------------------------------------------


def test_a12_a_claim_is_on_the_gate_and_in_its_history(gate):
    [ann] = deciders(1)
    run_id = gate()
    with freeze_time(START):
        claimed = claim_gate(run_id, "pay", user=ann)
    assert isinstance(claimed, Wait)
    kept = gate_of(run_id)
    assert (kept.claimed_by, kept.claimed_by_name, kept.claimed_at) == (ann, "decider-0", START)
    assert (claimed.claimed_by, claimed.claimed_at) == (ann, START)
    assert happened() == [("claimed", "decider-0", "", "")]
    assert decisions.history_of(kept)[-1].text == "decider-0 claimed it."


def test_a12_a_second_claim_is_refused_by_name_and_since_when(gate):
    ann, ben = deciders(2)
    run_id = gate()
    with freeze_time(START):
        claim_gate(run_id, "pay", user=ann)
    refusal = refused(claim_gate, run_id, "pay", user=ben)
    assert refusal.code == "claimed"
    assert "decider-0" in str(refusal)
    assert "2030" in str(refusal)


def test_a12_claiming_what_one_holds_changes_nothing(gate):
    [ann] = deciders(1)
    run_id = gate()
    claim_gate(run_id, "pay", user=ann)
    before = list(Wait.objects.values())
    assert claim_gate(run_id, "pay", user=ann).claimed_by == ann
    assert (list(Wait.objects.values()), len(happened())) == (before, 1)


def test_a12_a_claim_keeps_nobody_else_from_deciding_and_ends_with_the_gate(gate):
    ann, ben = deciders(2)
    run_id = gate()
    claim_gate(run_id, "pay", user=ann)
    decide(run_id, "pay", user=ben, approved=True)
    kept = gate_of(run_id)
    assert (kept.outcome, kept.claimed_by, kept.claimed_by_name, kept.claimed_at) == ("signalled", None, "", None)


@pytest.mark.parametrize("verb", [claim_gate, release_gate], ids=["claim", "release"])
def test_a12_a_claim_and_its_end_change_the_gates_token(gate, verb):
    ann, ben = deciders(2)
    run_id = gate()
    if verb is release_gate:
        claim_gate(run_id, "pay", user=ann)
    seen = decisions.token(gate_of(run_id))
    verb(run_id, "pay", user=ann)
    assert refused(decide, run_id, "pay", user=ben, approved=True, seen=seen).code == "changed"


def test_a12_whoever_has_voted_holds_the_gate_no_longer(gate):
    ann, ben = deciders(2)
    run_id = gate(quorum=2)
    claim_gate(run_id, "pay", user=ann)
    decide(run_id, "pay", user=ann, approved=True)
    assert gate_of(run_id).claimed_by is None
    assert refused(claim_gate, run_id, "pay", user=ann).code == "already-answered"
    claim_gate(run_id, "pay", user=ben)


def test_a12_the_vote_of_another_leaves_the_claim(gate):
    ann, ben = deciders(2)
    run_id = gate(quorum=2)
    claim_gate(run_id, "pay", user=ann)
    decide(run_id, "pay", user=ben, approved=True)
    assert gate_of(run_id).claimed_by == ann


def test_a12_a_claimer_who_was_deleted_holds_nothing_and_the_history_keeps_the_name(gate):
    ann, ben = deciders(2)
    run_id = gate()
    claim_gate(run_id, "pay", user=ann)
    ann.delete()
    assert claim_gate(run_id, "pay", user=ben).claimed_by == ben
    assert [entry.who for entry in decisions.history_of(gate_of(run_id))] == ["", "decider-0", "decider-1"]


# -- the same refusals as decide() -------------------------------------------------------------------------------------


@pytest.mark.parametrize("verb", VERBS)
def test_a12_only_what_can_be_decided_can_be_handled(gate, verb):
    ann, ben = deciders(2)
    act = partial(VERBS[verb], user=ann)
    with pytest.raises(RunNotFound):
        act("nowhere", "pay")
    run_id = gate()
    assert refused(act, run_id, "other").code == "not-a-gate"
    signal(run_id, "pay")
    assert refused(act, run_id, "pay").code == "not-open"
    cancelled = gate()
    cancel(cancelled)
    assert refused(act, cancelled, "pay").code == "not-open"
    with freeze_time(START) as clock:
        late = gate(timeout="1h")
        claim_gate(late, "pay", user=ben)
        clock.tick(3600)
        assert refused(act, late, "pay").code == "expired"


@pytest.mark.parametrize("verb", ["claim", "delegate"])
def test_a12_only_those_who_may_decide_claim_and_hand_on(gate, verb):
    ann = person("ann", DECIDE)
    act = partial(VERBS[verb], user=ann)
    assert refused(act, gate(groups=["finance"]), "pay").code == "not-eligible"
    assert refused(act, gate(requester=ann, exclude_requester=True), "pay").code == "excluded"


def test_a12_the_very_gate_is_meant_where_several_are_open(gate):
    [ann] = deciders(1)
    run_id = gate()
    first = gate_of(run_id)
    second = Wait.objects.get(pk=first.pk)
    second.pk, second.branch = None, "1"
    second.save()
    assert refused(claim_gate, run_id, "pay", user=ann).code == "ambiguous"
    claim_gate(run_id, "pay", user=ann, wait=second)
    assert [wait.claimed_by for wait in Wait.objects.order_by("pk")] == [None, ann]


def test_a12_a_claim_that_is_rolled_back_was_never_made(gate):
    ann, ben = deciders(2)
    run_id = gate()
    with rolled_back():
        claim_gate(run_id, "pay", user=ann)
    assert happened() == []
    assert claim_gate(run_id, "pay", user=ben)


# -- release -----------------------------------------------------------------------------------------------------------


def test_a12_the_holder_releases_and_somebody_else_may_claim(gate):
    ann, ben = deciders(2)
    run_id = gate()
    claim_gate(run_id, "pay", user=ann)
    assert release_gate(run_id, "pay", user=ann).claimed_by is None
    assert claim_gate(run_id, "pay", user=ben).claimed_by == ben
    assert [kind for kind, *_ in happened()] == ["claimed", "released", "claimed"]


def test_a12_others_release_nothing(gate):
    ann, ben = deciders(2)
    run_id = gate()
    assert refused(release_gate, run_id, "pay", user=ann).code == "not-claimed"
    claim_gate(run_id, "pay", user=ann)
    refusal = refused(release_gate, run_id, "pay", user=ben)
    assert (refusal.code, "decider-0" in str(refusal)) == ("not-claimed", True)


def test_a12_a_holder_of_override_gate_releases_what_an_absent_one_holds(gate):
    [ann] = deciders(1)
    run_id = gate()
    claim_gate(run_id, "pay", user=ann)
    release_gate(run_id, "pay", user=person("auditor", OVERRIDE))
    assert gate_of(run_id).claimed_by is None
    assert decisions.history_of(gate_of(run_id))[-1].text == "auditor released it from decider-0."


# -- delegate ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("held", [False, True])
def test_a12_a_gate_is_handed_on_by_its_holder_or_while_nobody_holds_it(gate, held):
    ann, ben = deciders(2)
    run_id = gate()
    if held:
        claim_gate(run_id, "pay", user=ann)
    given = delegate_gate(run_id, "pay", user=ann, to=ben, note=" you know them ")
    assert (given.claimed_by, gate_of(run_id).claimed_by_name) == (ben, "decider-1")
    assert happened()[-1] == ("delegated", "decider-0", "decider-1", "you know them")
    entry = decisions.history_of(gate_of(run_id))[-1]
    assert (entry.text, entry.who, entry.note) == ("decider-0 handed it to decider-1.", "decider-0", "you know them")


def test_a12_nobody_hands_on_what_another_holds(gate):
    ann, ben, cat = deciders(3)
    run_id = gate()
    claim_gate(run_id, "pay", user=ann)
    assert refused(delegate_gate, run_id, "pay", user=ben, to=cat).code == "claimed"


def test_a12_a_gate_is_handed_only_to_those_who_may_decide_it(make):
    ann, ben, cat = deciders(3)

    @make
    def flow(ctx, input):
        ctx.wait_for_approval("manager")
        ctx.wait_for_approval("pay", exclude_requester=True, exclude_deciders_of=["manager"], quorum=2)

    run_id = flow.run(requester=ben).run_id
    decide(run_id, "manager", user=cat, approved=True)
    flow.resume(run_id)
    for to, code in ((person("stranger"), "not-eligible"), (ben, "excluded"), (cat, "excluded")):
        refusal = refused(delegate_gate, run_id, "pay", user=ann, to=to)
        assert (refusal.code, to.username in str(refusal)) == (code, True)
    dan = person("dan", DECIDE)
    decide(run_id, "pay", user=dan, approved=True)
    assert refused(delegate_gate, run_id, "pay", user=ann, to=dan).code == "already-answered"
    gone = person("gone", DECIDE, is_active=False)
    assert refused(delegate_gate, run_id, "pay", user=ann, to=gone).code == "not-eligible"


def test_a12_a_note_that_cannot_be_stored_is_refused(gate):
    ann, ben = deciders(2)
    run_id = gate()
    with pytest.raises(PayloadError):
        delegate_gate(run_id, "pay", user=ann, to=ben, note="nul \0")
    assert happened() == []


def test_a12_handing_on_is_told_after_the_commit(gate, django_capture_on_commit_callbacks):
    ann, ben = deciders(2)
    run_id = gate()
    told = []

    def hear(sender, signal, **facts):
        told.append(facts)

    events.gate_delegated.connect(hear)
    try:
        with django_capture_on_commit_callbacks(execute=True):
            delegate_gate(run_id, "pay", user=ann, to=ben)
            assert told == []
        with django_capture_on_commit_callbacks(execute=True):
            delegate_gate(run_id, "pay", user=ben, to=ben)  # holds it already: nothing happened
    finally:
        events.gate_delegated.disconnect(hear)
    facts = {"run_id": run_id, "name": "pay", "wait": gate_of(run_id).pk, "by": "decider-0", "to": "decider-1"}
    assert told == [facts]


# -- the end of the run ------------------------------------------------------------------------------------------------


def test_a12_a_gate_that_is_opened_again_is_held_by_nobody(make):
    [ann] = deciders(1)
    flow = make(lambda ctx, input: ctx.wait_for_approval("pay"), id="flow")
    run_id = flow.run().run_id
    claim_gate(run_id, "pay", user=ann)
    cancel(run_id)
    kept = gate_of(run_id)
    assert (kept.outcome, kept.claimed_by, kept.claimed_by_name, kept.claimed_at) == ("cancelled", None, "", None)


def test_a12_nor_is_one_of_a_run_that_failed_and_is_tried_again(make):
    """A branch that is still open when the run fails is made by hand."""
    [ann] = deciders(1)

    @make
    def flow(ctx, input):
        ctx.wait_for_signal("go")
        raise ValueError

    run = flow.run()
    asked = {"approval": {"title": "Pay?"}, "audience": '["",[],[]]', "opened_at": START}
    Wait.objects.create(execution=row(run.run_id), branch="1", index=0, kind="signal", name="pay", **asked)
    claim_gate(run.run_id, "pay", user=ann)
    signal(run.run_id, "go")
    with pytest.raises(WorkflowError):
        flow.resume(run.run_id)
    retry_run(run.run_id)
    kept = gate_of(run.run_id, "pay")
    assert (kept.outcome, kept.claimed_by_name) == ("open", "")


# -- at one moment -----------------------------------------------------------------------------------------------------


@pytest.mark.django_db(transaction=True)
@pytest.mark.only_postgresql(reason="on SQLite one writes at a time anyway")
def test_a12_of_two_claims_at_once_one_holds_and_the_other_is_told_who(gate):
    people = deciders(2)
    winners = set()
    for _ in range(20):
        run_id = gate()
        came = at_once(*(partial(claim_gate, run_id, "pay", user=user) for user in people))
        [refusal] = [one for one in came if not isinstance(one, Wait)]
        holder = gate_of(run_id).claimed_by
        assert (refusal.code, holder.username in str(refusal)) == ("claimed", True)
        assert GateEvent.objects.filter(wait__execution__run_id=run_id).count() == 1
        winners.add(holder.username)
    assert winners == {"decider-0", "decider-1"}


@pytest.mark.django_db(transaction=True)
@pytest.mark.only_postgresql(reason="on SQLite one writes at a time anyway")
def test_a12_a_claim_and_a_decision_at_once_leave_no_claim_on_a_decided_gate(gate):
    ann, ben = deciders(2)
    for _ in range(15):
        run_id = gate()
        at_once(partial(claim_gate, run_id, "pay", user=ann), partial(decide, run_id, "pay", user=ben, approved=True))
        kept = gate_of(run_id)
        assert (kept.outcome, kept.claimed_by, kept.claimed_at) == ("signalled", None, None)
