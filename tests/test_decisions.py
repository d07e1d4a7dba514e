"""A person's answer to a gate, given in code (A1–A3, A7)."""

from __future__ import annotations

import re
from contextlib import suppress
from datetime import UTC, datetime, timedelta

import pytest
from django.contrib.auth import get_user_model
from django.contrib.auth.models import AnonymousUser, Group, Permission
from django.db import transaction
from django.utils.translation import gettext_lazy
from freezegun import freeze_time

from django_finoflow import (
    Approval,
    DecisionRefused,
    DefinitionError,
    GateRejected,
    PayloadError,
    RunNotFound,
    SignalTimeout,
    WorkflowError,
    approval_link,
    cancel,
    claim_gate,
    decide,
    delegate_gate,
    release_gate,
    signal,
)
from django_finoflow.models import Decision, Execution, Signal, Wait
from tests.gates import gate_of, refused
from tests.making import rolled_back, row

pytestmark = pytest.mark.django_db

START = datetime(2030, 1, 1, tzinfo=UTC)


def person(name, *permissions, groups=(), **fields):
    user = get_user_model().objects.create_user(name, **fields)
    for permission in permissions:
        label, codename = permission.split(".")
        user.user_permissions.add(Permission.objects.get(content_type__app_label=label, codename=codename))
    for group in groups:
        user.groups.add(Group.objects.get_or_create(name=group)[0])
    return user


@pytest.fixture
def boss():
    return person("boss", "finoflow.decide_wait")


@pytest.fixture
def gate(make):
    """A function that parks a run at a gate with the given approval, and returns the workflow and the run's id."""

    def gate(requester=None, timeout=None, **approval):
        @make
        def flow(ctx, input):
            return ctx.wait_for_approval("pay", timeout=timeout, **approval)

        return flow, flow.run({"amount": 5}, requester=requester).run_id

    return gate


def refusal(*arguments, **keywords):
    """Return the code with which a decision is refused, having made sure that nothing was written."""
    before = [list(model.objects.values()) for model in (Execution, Wait, Signal, Decision)]
    with pytest.raises(DecisionRefused) as refused:
        decide(*arguments, **keywords)
    assert [list(model.objects.values()) for model in (Execution, Wait, Signal, Decision)] == before
    assert str(refused.value)
    return refused.value.code


# -- A1: one way to answer ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("approved", [True, False])
def test_a1_a_decision_delivers_its_payload_and_moves_the_run_on(gate, boss, approved):
    with freeze_time(START) as clock:
        flow, run_id = gate(timeout="7d")
        clock.tick(60)
        decision = decide(run_id, "pay", user=boss, approved=approved, reason=" because ", data={"limit": 7})
        now = START + timedelta(seconds=60)
        run = row(run_id)
        assert (run.status, run.due_at) == ("running", now)
        result = flow.resume(run_id).result
    assert result == {
        "approved": approved,
        "by": "boss",
        "by_id": boss.pk,
        "reason": "because",
        "data": {"limit": 7},
        "at": now,
    }
    assert decision == Decision.objects.get()
    assert (decision.user, decision.user_name, decision.approved, decision.reason) == (
        boss,
        "boss",
        approved,
        "because",
    )
    assert (decision.data, decision.channel, decision.decided_at) == ({"limit": 7}, "api", now)
    assert len(decision.digest) == 64
    assert decision.wait.outcome == "signalled"
    kept = Signal.objects.get()
    assert (kept.payload, kept.sender, kept.consumed_by) == (result, "boss", decision.wait)


def test_a1_a_replay_returns_the_same_decision(make, boss):
    seen = []

    @make
    def flow(ctx, input):
        seen.append(ctx.wait_for_approval("pay"))
        ctx.wait_for_signal("then")

    run_id = flow.run().run_id
    decide(run_id, "pay", user=boss, approved=True)
    flow.resume(run_id)
    boss.delete()
    signal(run_id, "then")
    flow.resume(run_id)
    assert seen[0] == seen[1]
    assert Decision.objects.get().user is None
    assert Decision.objects.get().user_name == "boss"


def test_a1_on_reject_fail_raises_at_the_gate(gate, boss, make):
    flow, run_id = gate(on_reject="fail")
    decide(run_id, "pay", user=boss, approved=False, reason="too dear")
    with pytest.raises(WorkflowError, match='Gate "pay" was rejected by boss: too dear') as failure:
        flow.resume(run_id)
    error = failure.value.__cause__
    assert type(error) is GateRejected
    assert error.decision["by"] == "boss"


def test_a1_an_approval_at_a_gate_that_fails_on_reject_goes_on(gate, boss):
    flow, run_id = gate(on_reject="fail")
    decide(run_id, "pay", user=boss, approved=True)
    assert flow.resume(run_id).result["approved"] is True


@pytest.mark.parametrize(
    ("rule", "approved", "reason", "code"),
    [
        ("reject", False, "", "reason-required"),
        ("reject", False, " \n\t ", "reason-required"),
        ("reject", True, "", None),
        ("always", True, "", "reason-required"),
        ("always", False, "x", None),
        ("never", False, "", None),
    ],
)
def test_a1_a_reason_is_asked_for_as_the_gate_says_and_blank_is_none(gate, boss, rule, approved, reason, code):
    _, run_id = gate(require_reason=rule)
    if code:
        assert refusal(run_id, "pay", user=boss, approved=approved, reason=reason) == code
    else:
        assert decide(run_id, "pay", user=boss, approved=approved, reason=reason).approved is approved


@pytest.mark.parametrize("approved", [None, 1, 0, "yes", "false"], ids=repr)
def test_a1_yes_and_no_are_true_and_false_and_nothing_else(gate, boss, approved):
    _, run_id = gate(require_reason="never")
    with pytest.raises(TypeError, match="approved"):
        decide(run_id, "pay", user=boss, approved=approved)
    assert not Decision.objects.exists()


def test_a1_a_reason_or_data_that_cannot_be_stored_is_refused(gate, boss):
    _, run_id = gate()
    for wrong in ({"data": object()}, {"reason": "nul \0"}):
        with pytest.raises(PayloadError):
            decide(run_id, "pay", user=boss, approved=True, **wrong)
    assert not Decision.objects.exists()


@pytest.mark.parametrize("name", ["other", "machine", "rest"])
def test_a1_what_is_no_gate_is_refused(make, boss, name):
    @make
    def flow(ctx, input):
        ctx.sleep("rest", 0)
        ctx.wait_for_signal("machine")

    run_id = flow.run().run_id
    assert refusal(run_id, name, user=boss, approved=True) == "not-a-gate"
    assert refusal(run_id, name, user=boss, approved=True, wait=Wait.objects.get(name="machine")) == "not-a-gate"


def test_a1_a_gate_of_another_run_is_refused(gate, boss):
    _, one = gate()
    _, two = gate()
    other = row(two).waits.get()
    assert refusal(one, "pay", user=boss, approved=True, wait=other) == "not-a-gate"
    assert refusal(one, "pay", user=boss, approved=True, wait=other.pk) == "not-a-gate"
    assert decide(two, "pay", user=boss, approved=True, wait=other.pk).wait == other


def test_a1_a_wait_that_is_another_gates_is_refused_and_the_text_says_whose(gate, boss):
    (_, run_id), (_, other) = gate(), gate()
    theirs = gate_of(other)
    for wait in (theirs, theirs.pk):
        refusal = refused(decide, run_id, "pay", user=boss, approved=True, wait=wait)
        assert refusal.code == "not-a-gate"
        assert f'that of another gate, "pay" of run {other}' in str(refusal)
    assert "another gate" not in str(refused(decide, run_id, "pay", user=boss, approved=True, wait=theirs.pk + 99))


@pytest.mark.parametrize("user", [None, "boss", 5], ids=repr)
def test_a1_who_is_no_user_object_is_a_type_error_that_names_the_argument(gate, boss, user):
    _, run_id = gate()
    for act, named in (
        (lambda: decide(run_id, "pay", user=user, approved=True), "decide(user=...)"),
        (lambda: claim_gate(run_id, "pay", user=user), "claim_gate(user=...)"),
        (lambda: release_gate(run_id, "pay", user=user), "release_gate(user=...)"),
        (lambda: delegate_gate(run_id, "pay", user=user, to=boss), "delegate_gate(user=...)"),
        (lambda: delegate_gate(run_id, "pay", user=boss, to=user), "delegate_gate(to=...)"),
        (lambda: approval_link(gate_of(run_id), user), "approval_link(user)"),
    ):
        with pytest.raises(TypeError, match=re.escape(f"{named} is a user object, such as request.user")):
            act()
    assert not Decision.objects.exists()


@pytest.mark.parametrize("title", [5, ["Pay?"], b"Pay?"], ids=repr)
def test_a_title_is_a_text_or_a_callable(title):
    with pytest.raises(DefinitionError, match="title"):
        Approval(title=title)
    assert Approval(title=gettext_lazy("Pay?")).title == "Pay?"


def test_a1_an_unknown_run_is_not_found(boss):
    with pytest.raises(RunNotFound):
        decide("nowhere", "pay", user=boss, approved=True)


def test_a1_several_open_gates_of_one_name_are_ambiguous_and_the_wait_says_which(gate, boss):
    """Parallel branches open such gates; here the second one is made by hand."""
    _, run_id = gate()
    first = row(run_id).waits.get()
    second = Wait.objects.get(pk=first.pk)
    second.pk, second.branch = None, "1"
    second.save()
    assert refusal(run_id, "pay", user=boss, approved=True) == "ambiguous"
    decision = decide(run_id, "pay", user=boss, approved=True, wait=second)
    assert decision.wait == second
    first.refresh_from_db()
    assert (first.outcome, Signal.objects.get().consumed_by) == ("open", second)


def test_a1_a_token_of_what_was_shown_must_still_fit(gate, boss):
    from django_finoflow import decisions

    _, run_id = gate()
    assert refusal(run_id, "pay", user=boss, approved=True, seen="of another page") == "changed"
    seen = decisions.token(row(run_id).waits.get())
    assert decide(run_id, "pay", user=boss, approved=True, seen=seen).approved


def test_a1_a_bare_signal_still_answers_a_gate_from_code(gate):
    flow, run_id = gate(exclude_requester=False)
    signal(run_id, "pay", {"approved": True, "by": "the batch"}, sender="batch")
    assert flow.resume(run_id).result == {"approved": True, "by": "the batch"}
    assert Signal.objects.get().sender == "batch"
    assert not Decision.objects.exists()


@pytest.mark.parametrize("payload", [None, "no", {"approved": False}, {"approved": None}], ids=repr)
def test_a1_whatever_it_carries(gate, payload):
    flow, run_id = gate(on_reject="fail")
    signal(run_id, "pay", payload)
    if payload == {"approved": False}:
        with pytest.raises(WorkflowError, match='Gate "pay" was rejected'):
            flow.resume(run_id)
    else:
        assert flow.resume(run_id).result == payload


def test_a1_the_question_is_evaluated_once_when_the_gate_opens(make, boss):
    asked = []

    def title(ctx):
        asked.append("title")
        return f"Pay {ctx.input['amount']}?"

    @make
    def flow(ctx, input):
        ctx.wait_for_approval("pay", title=title, show=lambda ctx: {"Amount": ctx.input["amount"], 7: "label"})
        ctx.wait_for_signal("then")

    run_id = flow.run({"amount": 5}).run_id
    flow.resume(run_id)
    gate = row(run_id).waits.get()
    assert (gate.title, gate.shown) == ("Pay 5?", {"Amount": 5, "7": "label"})
    assert list(gate.shown) == ["Amount", "7"]  # as the author has put it
    decide(run_id, "pay", user=boss, approved=True)
    flow.resume(run_id)
    assert asked == ["title"]


def test_a1_what_a_gate_does_not_say_is_taken_from_the_definition(make):
    @make(gates={"pay": Approval(title="Pay?", groups=["finance"], require_reason="always")})
    def flow(ctx, input):
        ctx.wait_for_approval("pay", title="Pay now?")

    gate = row(flow.run().run_id).waits.get()
    assert gate.approval["title"] == "Pay now?"
    assert gate.approval["require_reason"] == "always"
    assert "finance" in gate.audience


def test_a1_what_a_gate_does_not_know_is_refused_and_takes_no_position(make):
    @make
    def flow(ctx, input):
        with pytest.raises(DefinitionError, match="Approval has no argument colour"):
            ctx.wait_for_approval("pay", colour="green")
        with pytest.raises(DefinitionError, match="require_reason"):
            ctx.wait_for_approval("pay", require_reason="sometimes")

    assert flow.run().state.steps == ()


@pytest.mark.parametrize("given", ["finance", [""], [5], 5, None], ids=repr)
def test_a1_groups_and_users_are_lists_of_names(given):
    for argument in ("groups", "users"):
        with pytest.raises(DefinitionError, match=argument):
            Approval(**{argument: given})


def test_a1_two_conflicting_decisions_the_first_one_stands(gate, boss):
    flow, run_id = gate()
    decide(run_id, "pay", user=boss, approved=True)
    other = person("other", "finoflow.decide_wait")
    assert refusal(run_id, "pay", user=other, approved=False, reason="no") == "not-open"
    assert flow.resume(run_id).result["by"] == "boss"


def test_a1_a_person_answers_once(gate, boss):
    _, run_id = gate()
    gate_row = row(run_id).waits.get()
    Decision.objects.create(wait=gate_row, user=boss, user_name="boss", approved=True, decided_at=START)
    assert refusal(run_id, "pay", user=boss, approved=True) == "already-answered"


def test_a1_a_decision_that_is_rolled_back_was_never_made(gate, boss):
    flow, run_id = gate()
    with rolled_back():
        decide(run_id, "pay", user=boss, approved=True)
    assert not Decision.objects.exists()
    assert row(run_id).waits.get().outcome == "open"
    decide(run_id, "pay", user=boss, approved=False, reason="on second thoughts")
    assert flow.resume(run_id).result["approved"] is False


def test_a1_the_callers_transaction_stays_usable_after_a_refusal(gate, boss):
    _, run_id = gate()
    with transaction.atomic():
        with pytest.raises(DecisionRefused):
            decide(run_id, "pay", user=AnonymousUser(), approved=True)
        assert decide(run_id, "pay", user=boss, approved=True)


# -- A2: who -----------------------------------------------------------------------------------------------------------

PERMITTED = "finoflow.decide_wait"
AUDIENCES = {
    "nobody named: holders of decide_wait": ({}, [PERMITTED], [], True),
    "nobody named: not just anybody": ({}, [], ["finance"], False),
    "a permission: its holders": ({"permission": "finoflow.view_wait"}, ["finoflow.view_wait"], [], True),
    "a permission: not others'": ({"permission": "finoflow.view_wait"}, [PERMITTED], [], False),
    "a group: its members, without a permission": ({"groups": ["finance"]}, [], ["finance"], True),
    "a group: not others, with one": ({"groups": ["finance"]}, [PERMITTED], ["sales"], False),
    "one of several groups": ({"groups": ["legal", "finance"]}, [], ["finance"], True),
    "users: by name": ({"users": ["ann"]}, [], [], True),
    "users: not others": ({"users": ["bob"]}, [PERMITTED], [], False),
    "users by a callable": ({"users": lambda ctx: [ctx.input["name"]]}, [], [], True),
    "groups or users": ({"groups": ["legal"], "users": ["ann"]}, [], [], True),
    "a permission and a group: both": (
        {"permission": PERMITTED, "groups": ["finance"]},
        [PERMITTED],
        ["finance"],
        True,
    ),
    "a permission and a group: only the group": (
        {"permission": PERMITTED, "groups": ["finance"]},
        [],
        ["finance"],
        False,
    ),
    "a permission and a group: only the permission": (
        {"permission": PERMITTED, "groups": ["x"]},
        [PERMITTED],
        [],
        False,
    ),
}


@pytest.mark.parametrize("case", AUDIENCES)
def test_a2_who_may_decide(make, case):
    approval, permissions, groups, admitted = AUDIENCES[case]
    ann = person("ann", *permissions, groups=groups)
    flow = make(lambda ctx, input: ctx.wait_for_approval("pay", **approval), id="flow")
    run_id = flow.run({"name": "ann"}).run_id
    if admitted:
        assert decide(run_id, "pay", user=ann, approved=True).user == ann
    else:
        assert refusal(run_id, "pay", user=ann, approved=True) == "not-eligible"


@pytest.mark.parametrize(
    "approval", [{}, {"permission": "finoflow.view_wait"}, {"groups": ["x"]}, {"users": ["bob"]}], ids=str
)
def test_a2_superusers_pass_all_of_these(gate, approval):
    _, run_id = gate(**approval)
    assert decide(run_id, "pay", user=person("root", is_superuser=True), approved=True)


@pytest.mark.parametrize("named", [{}, {"users": ["ann"]}], ids=str)
def test_a2_whoever_is_not_active_or_not_known_may_not(gate, named):
    _, run_id = gate(**named)
    ann = person("ann", PERMITTED, is_active=False)
    root = person("root", is_superuser=True, is_active=False)
    for user in (ann, root, AnonymousUser()):
        assert refusal(run_id, "pay", user=user, approved=True) == "not-eligible"


@pytest.mark.parametrize("superuser", [False, True])
def test_a2_the_requester_is_excluded_superuser_or_not(gate, boss, superuser):
    ann = person("ann", PERMITTED, is_superuser=superuser)
    _, run_id = gate(requester=ann, exclude_requester=True)
    assert refusal(run_id, "pay", user=ann, approved=True) == "excluded"
    assert decide(run_id, "pay", user=boss, approved=True)


def test_a2_without_the_exclusion_the_requester_may_decide(gate, boss):
    _, run_id = gate(requester=boss)
    assert decide(run_id, "pay", user=boss, approved=True)


def test_a2_a_requester_who_was_deleted_excludes_nobody(make, boss):
    ann = person("ann")

    @make
    def flow(ctx, input):
        ctx.wait_for_signal("first")
        return ctx.wait_for_approval("pay", exclude_requester=True)

    run_id = flow.run(requester=ann).run_id
    ann.delete()
    signal(run_id, "first")
    assert flow.resume(run_id).status == "waiting"
    assert decide(run_id, "pay", user=boss, approved=True)


def test_a2_a_gate_that_excludes_the_requester_is_an_error_for_a_run_without_one(make):
    caught = []

    @make
    def flow(ctx, input):
        try:
            ctx.wait_for_approval("pay", exclude_requester=True)
        except DefinitionError as error:
            caught.append(str(error))

    assert flow.run().status == "done"
    assert "start it with requester=user" in caught[0]
    assert not Wait.objects.exists()


# -- A3: too late ------------------------------------------------------------------------------------------------------


def said(run_id, user, **keywords):
    with pytest.raises(DecisionRefused) as refused:
        decide(run_id, "pay", user=user, approved=True, **keywords)
    return refused.value.code, str(refused.value)


@freeze_time(START)
def test_a3_an_answered_gate_says_by_whom_and_when(gate, boss):
    flow, run_id = gate()
    decide(run_id, "pay", user=boss, approved=False, reason="no")
    for _ in range(2):
        code, text = said(run_id, person(f"late-{_}", PERMITTED))
        assert code == "not-open"
        assert "boss rejected it" in text
        assert "2030" in text
        flow.resume(run_id)


def test_a3_a_gate_answered_by_code_says_so(gate, boss):
    _, run_id = gate()
    signal(run_id, "pay", True)
    code, text = said(run_id, boss)
    assert code == "not-open"
    assert "signal from code" in text


@pytest.mark.parametrize("reason", ["Below the limit.", "<b>waived</b>", "x" * 1000])
def test_a3_a_gate_that_code_waived_tells_the_reason_that_the_signal_carries(gate, boss, reason):
    _, run_id = gate()
    signal(run_id, "pay", {"approved": True, "reason": f" {reason} "})
    assert f"A signal from code answered it: {reason[:200]}" in said(run_id, boss)[1]
    assert len(said(run_id, boss)[1]) < 500


@pytest.mark.parametrize("payload", [{"reason": ""}, {"reason": 5}, {"reason": None}, ["reason"], None])
def test_a3_a_signal_without_a_reason_is_told_without_one(gate, boss, payload):
    flow, run_id = gate()
    signal(run_id, "pay", payload)
    flow.resume(run_id)
    assert "A signal from code answered it on" in said(run_id, boss)[1]


def test_a3_a_deadline_that_has_passed_is_final_for_people_even_while_the_run_still_waits(gate, boss):
    with freeze_time(START) as clock:
        flow, run_id = gate(timeout="1h")
        clock.tick(3600)
        assert row(run_id).status == "waiting"
        assert refusal(run_id, "pay", user=boss, approved=True) == "expired"
        assert "deadline passed" in said(run_id, boss)[1]
        with pytest.raises(WorkflowError) as failure:
            flow.resume(run_id)
        assert type(failure.value.__cause__) is SignalTimeout
        assert refusal(run_id, "pay", user=boss, approved=True) == "not-open"
        assert "deadline passed" in said(run_id, boss)[1]


def test_a3_a_moment_before_the_deadline_is_in_time(gate, boss):
    with freeze_time(START) as clock:
        flow, run_id = gate(timeout="1h")
        clock.tick(3599)
        decide(run_id, "pay", user=boss, approved=True)
        clock.tick(99999)
        assert flow.resume(run_id).result["approved"] is True


def test_a3_a_cancelled_runs_gate_says_so(gate, boss):
    _, run_id = gate()
    cancel(run_id)
    code, text = said(run_id, boss)
    assert code == "not-open"
    assert "cancelled" in text


def test_a3_a_stuck_runs_gate_takes_no_decision_until_the_run_goes_on(make, boss):
    flow = make(lambda ctx, input: ctx.wait_for_approval("pay"), id="flow")
    old = flow.body
    run_id = flow.run().run_id
    broken = make.redeploy(flow, lambda ctx, input: None)
    broken.resume(run_id)
    code, text = said(run_id, boss)
    assert code == "not-open"
    assert "stuck" in text
    mended = make.redeploy(broken, old)
    mended.resume(run_id)
    decide(run_id, "pay", user=boss, approved=True)
    assert mended.resume(run_id).result["by"] == "boss"


# -- A7: with the run, its gates ---------------------------------------------------------------------------------------


def test_a7_when_a_run_is_cancelled_its_gates_close_in_the_same_transaction(gate, boss):
    _, run_id = gate()
    with transaction.atomic():
        cancel(run_id)
        assert row(run_id).waits.get().outcome == "cancelled"
    assert row(run_id).waits.get().closed_at is not None


@pytest.mark.parametrize("ends", ["done", "error"])
def test_a7_when_a_run_ends_otherwise_too(make, boss, ends):
    """A branch that is still open when the run ends is made by hand; parallel bodies come later."""

    @make
    def flow(ctx, input):
        ctx.wait_for_signal("go")
        if ends == "error":
            raise ValueError

    run_id = flow.run().run_id
    asked = {"approval": {"title": "Pay?"}, "audience": '["",[],[]]', "opened_at": START}
    Wait.objects.create(execution=row(run_id), branch="1", index=0, kind="signal", name="pay", **asked)
    signal(run_id, "go")
    with suppress(WorkflowError):
        flow.resume(run_id)
    assert row(run_id).status == ends
    assert row(run_id).waits.get(name="pay").outcome == "cancelled"
    assert said(run_id, boss)[0] == "not-open"
