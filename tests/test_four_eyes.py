"""Who has decided one gate may not decide the other (A11), superusers included; and deciding against the rules."""

from __future__ import annotations

import pytest
from django.contrib.auth.models import AnonymousUser

from django_finoflow import Approval, DefinitionError, Workflow, checks, decide, decisions, registry
from django_finoflow.models import Decision, Wait
from tests.gates import DECIDE, OVERRIDE, deciders, gate_of, person, refused

pytestmark = pytest.mark.django_db


@pytest.fixture
def second(make):
    """A function that brings a run to a second gate, which excludes the deciders of the first, and returns its id."""

    def second(first_by, *, approved=True, requester=None, **approval):
        @make
        def flow(ctx, input):
            ctx.wait_for_approval("manager")
            return ctx.wait_for_approval("pay", exclude_deciders_of=("manager",), **approval)

        run_id = flow.run(requester=requester).run_id
        decide(run_id, "manager", user=first_by, approved=approved, reason="so")
        flow.resume(run_id)
        return run_id

    return second


# -- exclusion ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("superuser", [False, True])
@pytest.mark.parametrize("approved", [True, False])
def test_a11_who_has_decided_the_one_gate_may_not_decide_the_other_superuser_or_not(second, superuser, approved):
    ann, ben = person("ann", DECIDE, is_superuser=superuser), person("ben", DECIDE)
    run_id = second(ann, approved=approved)
    refusal = refused(decide, run_id, "pay", user=ann, approved=True)
    assert refusal.code == "excluded"
    assert '"manager"' in str(refusal)
    assert decisions.why_not(gate_of(run_id, "pay"), ann).code == "excluded"
    assert not decisions.is_asked(gate_of(run_id, "pay"), ann)
    assert decide(run_id, "pay", user=ben, approved=True)


def test_a11_only_decisions_of_the_same_run_exclude(second):
    ann, ben = deciders(2)
    second(ann)
    other = second(ben)
    assert decide(other, "pay", user=ann, approved=True)


def test_a11_only_gates_of_that_name_exclude(make):
    [ann] = deciders(1)

    @make
    def flow(ctx, input):
        ctx.wait_for_approval("Manager")
        ctx.wait_for_approval("pay", exclude_deciders_of=("manager", "ager", "Manager2"))

    run_id = flow.run().run_id
    decide(run_id, "Manager", user=ann, approved=True)
    flow.resume(run_id)
    assert list(Wait.objects.inbox(ann)) == [gate_of(run_id, "pay")]
    assert decide(run_id, "pay", user=ann, approved=True)


def test_a11_a_decider_who_was_deleted_excludes_nobody_and_the_history_keeps_the_name(second):
    ann, ben = deciders(2)
    run_id = second(ann)
    ann.delete()
    assert decisions.history_of(gate_of(run_id, "manager"))[1].who == "decider-0"
    assert decide(run_id, "pay", user=ben, approved=True)


def test_a11_a_gate_in_a_loop_may_ask_for_somebody_else_each_time(make):
    ann, ben = deciders(2)

    @make
    def flow(ctx, input):
        for _ in range(2):
            ctx.wait_for_approval("pay", exclude_deciders_of=("pay",))

    run_id = flow.run().run_id
    decide(run_id, "pay", user=ann, approved=True)
    flow.resume(run_id)
    assert refused(decide, run_id, "pay", user=ann, approved=True).code == "excluded"
    decide(run_id, "pay", user=ben, approved=True)
    assert flow.resume(run_id).status == "done"


def test_a11_a_gate_that_names_itself_is_no_exclusion_from_itself_but_answered_already(make):
    ann, ben = deciders(2)
    flow = make(lambda ctx, input: ctx.wait_for_approval("pay", exclude_deciders_of=["pay"], quorum=2), id="flow")
    run_id = flow.run().run_id
    decide(run_id, "pay", user=ann, approved=True)
    assert refused(decide, run_id, "pay", user=ann, approved=True).code == "already-answered"
    assert list(Wait.objects.answerable_by(ann)) == [gate_of(run_id)]
    assert (list(Wait.objects.inbox(ann)), list(Wait.objects.inbox(ben))) == ([], [gate_of(run_id)])


def test_a11_one_vote_excludes_though_the_gate_needs_more(make):
    ann, ben = deciders(2)

    @make
    def flow(ctx, input):
        ctx.wait_for_approval("manager", quorum=2)
        ctx.wait_for_approval("pay", exclude_deciders_of=("manager",))

    run_id = flow.run().run_id
    for user in (ann, ben):
        decide(run_id, "manager", user=user, approved=True)
    flow.resume(run_id)
    for user in (ann, ben):
        assert refused(decide, run_id, "pay", user=user, approved=True).code == "excluded"


def test_a11_the_text_of_who_may_decide_names_those_who_may_not(second):
    ann, ben = deciders(2)
    run_id = second(ann, requester=ben, exclude_requester=True, groups=["finance", "legal"])
    text = decisions.candidates_text(gate_of(run_id, "pay"))
    people, requester = "members of finance or members of legal", "but not decider-1, who asked for it"
    assert text == f"{people}; {requester}; nor whoever decided “manager”"
    text = decisions.candidates_text(gate_of(second(ann, groups=["finance"]), "pay"))
    assert text == "members of finance; but not whoever decided “manager”"


@pytest.mark.parametrize("given", ["manager", [""], [5], 5, None], ids=repr)
def test_a11_the_other_gates_are_a_list_of_names(given):
    with pytest.raises(DefinitionError, match="exclude_deciders_of"):
        Approval(exclude_deciders_of=given)


# -- who finds it ------------------------------------------------------------------------------------------------------


def test_a11_a_gate_is_in_nobodys_inbox_who_is_excluded_from_it(second):
    ann, ben = person("ann", is_superuser=True), person("ben", DECIDE)
    gate = gate_of(second(ann), "pay")
    for user, mine in ((ann, []), (ben, [gate])):
        assert list(Wait.objects.inbox(user)) == mine
        assert list(Wait.objects.answerable_by(user).filter(name="pay")) == mine


def test_a11_marked_gates_know_the_exclusion_without_another_query(second, django_assert_num_queries):
    ann, ben = deciders(2)
    gates = [gate_of(second(user), "pay").pk for user in (ann, ben, ann)]
    some = Wait.objects.filter(pk__in=gates).order_by("pk").select_related("execution").prefetch_related("decisions")
    page = list(some.marked_for(ann))
    ann = type(ann).objects.get(pk=ann.pk)
    ann.has_perm(DECIDE)
    with django_assert_num_queries(0):
        codes = [getattr(decisions.why_not(gate, ann), "code", None) for gate in page]
    assert codes == ["excluded", None, "excluded"]
    # Marks are for one user: for another the rows are asked.
    assert [decisions.is_asked(gate, ben) for gate in page] == [True, False, True]


# -- in a builder workflow ---------------------------------------------------------------------------------------------


@pytest.fixture
def building():
    yield lambda: Workflow("built-eyes")
    registry.unregister("built-eyes")


@pytest.mark.parametrize(
    ("names", "why"),
    [(["manger"], "no gate before it"), (["pay"], "that is itself"), (["later"], "no gate before it")],
    ids=str,
)
def test_a11_a_builders_gate_that_excludes_the_deciders_of_no_gate_before_it_is_refused(building, names, why):
    flow = building().wait_for("manager").wait_for("url", approval=None)
    flow.wait_for("pay", approval=Approval(exclude_deciders_of=names)).wait_for("later").step("end", lambda ctx: None)
    with pytest.raises(DefinitionError, match=f'gate "pay": exclude_deciders_of names "{names[0]}", but {why}'):
        flow.start()
    assert any("exclude_deciders_of" in error.msg for error in checks.check_workflows(None))


def test_a11_a_builders_gate_excludes_the_deciders_of_gates_before_it(building):
    ann, ben = deciders(2)
    flow = building().wait_for("manager").wait_for("pay", approval=Approval(exclude_deciders_of=["manager"]))
    run_id = flow.run().run_id
    decide(run_id, "manager", user=ann, approved=True)
    flow.resume(run_id)
    assert refused(decide, run_id, "pay", user=ann, approved=True).code == "excluded"
    assert decide(run_id, "pay", user=ben, approved=True)


def test_a11_a_functions_gates_that_name_one_that_is_not_declared_are_warned_of(make):
    gates = {"manager": Approval(), "pay": Approval(exclude_deciders_of=["manager", "manger"])}
    make(lambda ctx, input: None, id="warned", gates=gates)
    [warning] = [found for found in checks.check_workflows(None) if "warned" in found.msg]
    assert warning.id == "finoflow.W004"
    assert '"manger"' in warning.msg


# -- override ----------------------------------------------------------------------------------------------------------


@pytest.fixture
def auditor():
    return person("auditor", OVERRIDE)


@pytest.mark.parametrize("approved", [True, False])
def test_a11_a_holder_of_override_gate_decides_against_all_rules_at_once_and_it_is_recorded(make, auditor, approved):
    @make
    def flow(ctx, input):
        return ctx.wait_for_approval(
            "pay", groups=["finance"], quorum=3, exclude_requester=True, require_reason="never"
        )

    run_id = flow.run(requester=auditor).run_id
    assert refused(decide, run_id, "pay", user=auditor, approved=approved, reason="fire").code == "not-eligible"
    made = decide(run_id, "pay", user=auditor, approved=approved, reason="fire", override=True)
    assert (made.override, made.reason, made.user_name) == (True, "fire", "auditor")
    gate = gate_of(run_id)
    verb = "approved" if approved else "rejected"
    assert f"auditor {verb} it against its rules" in decisions.story(gate)
    assert decisions.history_of(gate)[-1].text == f"auditor {verb} it against its rules."
    assert flow.resume(run_id).result["approved"] is approved


def test_a11_an_override_gives_a_reason_whatever_the_gate_says(make, auditor):
    flow = make(lambda ctx, input: ctx.wait_for_approval("pay", require_reason="never"), id="flow")
    run_id = flow.run().run_id
    assert decisions.needs_reason(gate_of(run_id), True, override=True)
    for reason in ("", " \n"):
        refusal = refused(decide, run_id, "pay", user=auditor, approved=True, reason=reason, override=True)
        assert refusal.code == "reason-required"


def test_a11_nobody_else_overrides_however_eligible(make):
    flow = make(lambda ctx, input: ctx.wait_for_approval("pay"), id="flow")
    run_id = flow.run().run_id
    gone = person("gone", OVERRIDE, is_active=False)
    for user in (person("ann", DECIDE), gone, AnonymousUser(), person("root", is_superuser=True, is_active=False)):
        assert not decisions.may_override(user)
        refusal = refused(decide, run_id, "pay", user=user, approved=True, reason="x", override=True)
        assert refusal.code == "not-eligible"


def test_a11_an_exclusion_binds_superusers_who_do_not_say_that_they_override(second):
    root = person("root", is_superuser=True)
    run_id = second(root)
    assert refused(decide, run_id, "pay", user=root, approved=True).code == "excluded"
    assert decide(run_id, "pay", user=root, approved=True, reason="nobody else is left", override=True).override


def test_a11_an_override_is_too_late_when_others_are_and_answers_once(make, auditor):
    flow = make(lambda ctx, input: ctx.wait_for_approval("pay", quorum=2), id="flow")
    auditor.user_permissions.set([*auditor.user_permissions.all(), *person("x", DECIDE).user_permissions.all()])
    voted, closed = flow.run().run_id, flow.run().run_id
    decide(voted, "pay", user=auditor, approved=True)
    again = {"user": auditor, "approved": True, "reason": "x", "override": True}
    assert refused(decide, voted, "pay", **again).code == "already-answered"
    decide(closed, "pay", user=person("ben", DECIDE), approved=False, reason="no")
    assert refused(decide, closed, "pay", **again).code == "not-open"
    third = flow.run().run_id
    assert refused(decide, third, "pay", **again, seen="another state").code == "changed"


def test_a11_whoever_overrides_one_gate_has_decided_it_for_the_next(second, auditor):
    ann = person("ann", OVERRIDE, DECIDE)
    run_id = second(ann)
    assert Decision.objects.filter(wait__name="manager", user=ann).exists()
    assert refused(decide, run_id, "pay", user=ann, approved=True).code == "excluded"


@pytest.mark.parametrize("override", [None, 1, "yes"], ids=repr)
def test_a11_to_override_is_said_by_true_and_nothing_else(make, auditor, override):
    run_id = make(lambda ctx, input: ctx.wait_for_approval("pay"), id="flow").run().run_id
    with pytest.raises(TypeError, match="override"):
        decide(run_id, "pay", user=auditor, approved=True, reason="x", override=override)
    assert not Decision.objects.exists()
