"""Which gates a person finds: ``inbox``, ``answerable_by`` and ``overdue``, quick with ten thousand open ones (A2)."""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta

import pytest
from django.contrib.auth.models import AnonymousUser
from django.core.management import call_command
from django.db import connection
from django.utils import timezone
from freezegun import freeze_time

from django_finoflow import Approval, Candidates, DefinitionError, WorkflowError, cancel, decide
from django_finoflow.audience import Audience
from django_finoflow.clock import monotonic
from django_finoflow.maintenance import index_gates
from django_finoflow.models import Candidate, Decision, Execution, Wait
from tests.gates import DECIDE, at_once, deciders, gate_of, person

pytestmark = pytest.mark.django_db

START = datetime(2030, 1, 1, 12, tzinfo=UTC)
HOUR = timedelta(hours=1)


@pytest.fixture
def gate(make):
    """A function that parks a run at a gate with the given approval, and returns the gate."""

    def gate(requester=None, timeout=None, **approval):
        flow = make(lambda ctx, input: ctx.wait_for_approval("pay", timeout=timeout, **approval), id=None)
        return gate_of(flow.run(requester=requester).run_id)

    return gate


def test_a2_an_inbox_has_the_earliest_deadline_first_and_what_has_none_last(gate):
    [ann] = deciders(1)
    with freeze_time(START) as clock:
        first = gate()
        clock.tick(60)
        made = {timeout: gate(timeout=timeout) for timeout in ("3h", None, "1h", "2h")}
        assert list(Wait.objects.inbox(ann)) == [made["1h"], made["2h"], made["3h"], first, made[None]]


def test_a2_an_inbox_has_only_what_can_be_answered_now(gate, make):
    ann, ben = deciders(2)
    with freeze_time(START) as clock:
        mine = gate(quorum=2)
        gate(groups=["finance"])
        gate(requester=ann, exclude_requester=True)
        decide(gate().execution.run_id, "pay", user=ben, approved=True)
        cancel(gate().execution.run_id)
        voted = gate(quorum=2)
        decide(voted.execution.run_id, "pay", user=ann, approved=True)
        stuck = gate()
        Execution.objects.filter(pk=stuck.execution_id).update(status="stuck")
        late = gate(timeout="1h")
        make(lambda ctx, input: ctx.wait_for_signal("machine"), id="machine").run()
        assert set(Wait.objects.inbox(ann)) == {mine, late}
        clock.tick(3600)
        assert set(Wait.objects.inbox(ann)) == {mine}
        assert list(Wait.objects.overdue()) == [late]
        assert {mine, late, voted, stuck} <= set(Wait.objects.answerable_by(ann))
        late.execution.cancel()
        assert list(Wait.objects.overdue()) == []


@pytest.mark.parametrize("user", [AnonymousUser(), None], ids=["unknown", "inactive"])
def test_a2_who_is_not_known_or_not_active_finds_nothing(gate, user):
    gate()
    user = user or person("gone", DECIDE, is_active=False)
    assert list(Wait.objects.inbox(user)) == list(Wait.objects.answerable_by(user)) == []


def fill(count, user):
    """Store so many runs that wait at a gate, of which ``user`` has decided another one of each tenth."""
    now = timezone.now()
    facts = {"workflow_id": "many", "status": "waiting", "created_at": now, "updated_at": now}
    begun = [Execution(run_id=f"{count}-{number}", **facts) for number in range(count)]
    runs = Execution.objects.bulk_create(begun, batch_size=500)
    rules = {"exclude_requester": True, "exclude_deciders_of": ["manager"], "quorum": 2}
    finance = Audience(groups=("finance",))
    common = {"kind": "signal", "opened_at": now, "audience": finance.dumps()}
    common["audience_digest"] = Candidate.objects.index(finance)
    Wait.objects.bulk_create(
        [
            Wait(
                execution=run,
                index=1,
                name="pay",
                excludes="\nmanager\n",
                approval={"title": f"Pay {number}?", **rules},
                due_at=now + HOUR * (number * 7919 % count + 1),
                **common,
            )
            for number, run in enumerate(runs)
        ],
        batch_size=500,
    )
    answered = {"name": "manager", "approval": {"title": "?"}, "outcome": "signalled", "closed_at": now}
    before = [Wait(execution=run, index=0, **answered, **common) for run in runs[::10]]
    made = {"user": user, "user_name": "ann", "approved": True, "decided_at": now}
    Decision.objects.bulk_create(
        [Decision(wait=wait, **made) for wait in Wait.objects.bulk_create(before, batch_size=500)], batch_size=500
    )
    analyze()


def analyze():
    """Have statistics, as tables in use have. A vacuum between two tests notes that they are empty."""
    if connection.vendor == "postgresql":
        with connection.cursor() as cursor:
            cursor.execute("ANALYZE finoflow_wait, finoflow_execution, finoflow_decision, finoflow_candidate")


def seconds(work):
    """Return how long something takes."""
    began = monotonic()
    work()
    return monotonic() - began


def test_a2_an_inbox_costs_the_same_few_queries_and_stays_right_with_ten_thousand_open_gates(
    django_assert_num_queries,
):
    ann = person("ann", groups=("finance",))

    def look():
        fresh = type(ann).objects.get(pk=ann.pk)
        with django_assert_num_queries(3):
            page = list(Wait.objects.inbox(fresh).marked_for(fresh).select_related("execution")[:50])
        with django_assert_num_queries(3):
            return Wait.objects.inbox(fresh).count(), page

    fill(10, ann)
    assert look()[0] == 9
    fill(10_000, ann)
    count, page = look()
    assert count == 9009
    assert (len(page), any(gate.is_excluded for gate in page)) == (50, False)
    assert [gate.due_at for gate in page] == sorted(gate.due_at for gate in page)
    assert min(seconds(Wait.objects.inbox(ann).count) for _ in range(3)) < 0.5  # a bad plan takes seconds


@pytest.mark.only_postgresql(reason="plans are a database's own")
def test_a2_there_are_indexes_of_open_gates_in_the_order_of_an_inbox():
    ann = person("ann", groups=("finance",))
    fill(10, ann)
    with connection.cursor() as cursor:
        cursor.execute("SET LOCAL enable_sort = off")  # else it depends on statistics, which tests of this file upset
        cursor.execute("SET LOCAL enable_bitmapscan = off")
    for user in (ann, person("boss", is_superuser=True)):
        plan = Wait.objects.inbox(user)[:50].explain()
        assert re.search("finoflow_open_gates|finoflow_asked", plan)
        assert "Sort" not in plan


def test_a2_somebody_in_very_many_audiences_finds_the_same_gates(gate, monkeypatch):
    ann = person("ann", "auth.add_user", groups=("board",))
    mine = {gate(groups=["board"]), gate(users=["ann", "ben"]), gate(permission="auth.add_user")}
    gate(groups=["board"], permission="auth.delete_user")
    assert set(Wait.objects.inbox(ann)) == mine
    monkeypatch.setattr("django_finoflow.querysets.FEW", 2)
    assert set(Wait.objects.inbox(ann)) == mine


@pytest.mark.only_postgresql(reason="plans are a database's own")
@pytest.mark.parametrize(
    ("find", "index"),
    [
        # With few closed ones a planner may take the second for the first.
        (lambda user: Wait.objects.inbox(user), "finoflow_asked|finoflow_concerned"),
        (lambda user: Wait.objects.answerable_by(user).open_first(), "finoflow_concerned"),
        (lambda user: Wait.objects.gates().open_first(), "finoflow_open_first"),
    ],
    ids=["the open ones of one audience", "all of one audience", "all, open first"],
)
def test_a2_gates_are_found_by_an_index_however_many_there_are(find, index):
    ann = person("ann", groups=("board",))
    fill(200, ann)
    for number, gate in enumerate(Wait.objects.all()):
        digest = Candidate.objects.index(Audience(groups=(str(number or "board"),)))
        Wait.objects.filter(pk=gate.pk).update(audience_digest=digest)
    analyze()
    with connection.cursor() as cursor:
        cursor.execute("SET LOCAL enable_seqscan = off")  # as with more gates than a test makes
    assert re.search(index, find(ann)[:50].explain())


def test_a2_gates_that_ask_the_same_people_share_their_candidates(gate):
    first, second, other = gate(groups=["b", "a"]), gate(groups=["a", "b"]), gate(groups=["a"], users=["a"])
    assert first.audience_digest == second.audience_digest != other.audience_digest
    assert candidates_of(first) == [("", "a", ""), ("", "b", "")]
    assert candidates_of(other) == [("", "", "a"), ("", "a", "")]
    assert candidates_of(gate()) == [(DECIDE, "", "")]


def candidates_of(gate):
    found = Candidate.objects.filter(digest=gate.audience_digest)
    return sorted(found.values_list("permission", "group_name", "user_name"))


@pytest.mark.django_db(transaction=True)
def test_a2_runs_that_open_gates_for_the_same_new_audience_at_once_wait_for_nobody(make):
    ann = person("ann", groups=("new",))
    flow = make(lambda ctx, input: ctx.wait_for_approval("pay", groups=["new"]), id="same-audience")
    runs = at_once(*[flow.run] * 8)
    assert [run.status for run in runs] == ["waiting"] * 8
    assert Wait.objects.inbox(ann).count() == 8


def test_a2_gates_that_older_code_opens_during_a_deployment_are_found_at_the_next_look_of_a_worker(gate):
    ann, ben = person("ann", groups=("board",)), person("ben")
    wide, plain = gate(groups=["board"]), gate(users=["ben"])
    Candidate.objects.all().delete()
    Wait.objects.update(audience_digest="")
    assert list(Wait.objects.inbox(ann)) == list(Wait.objects.inbox(ben)) == []
    assert [index_gates(), index_gates()] == [2, 0]
    assert (list(Wait.objects.inbox(ann)), list(Wait.objects.inbox(ben))) == ([wide], [plain])


def test_w6_a_gate_whose_audience_cannot_be_read_hides_no_other_and_is_reported_once(gate, caplog):
    ann = person("ann", groups=("board",))
    bad, good = gate(groups=["board"]), gate(groups=["board"])
    Wait.objects.update(audience_digest="")
    Wait.objects.filter(pk=bad.pk).update(audience="no JSON")
    assert [index_gates(), index_gates()] == [2, 0]
    assert list(Wait.objects.inbox(ann)) == [good]
    [record] = [record for record in caplog.records if "gate-not-indexed" in record.message]
    assert str(bad.pk) in record.message


@pytest.mark.django_db(transaction=True)
def test_a_worker_that_drains_indexes_what_older_code_has_opened(gate):
    Wait.objects.filter(pk=gate(groups=["board"]).pk).update(audience_digest="")
    call_command("finoflow_worker", "--drain")
    assert list(Wait.objects.inbox(person("ann", groups=("board",)))) == [Wait.objects.get()]


BAD_NAMES = ["x" * 256, " board", "board\n", "a\0b", "\ud800"]


@pytest.mark.parametrize("name", BAD_NAMES)
def test_what_can_be_nobodys_name_is_refused_when_it_is_declared(name):
    for declared in ({"groups": [name]}, {"users": ["ann", name]}, {"permission": f"{name}.auth"}):
        for kind in (Approval, Candidates):
            with pytest.raises(DefinitionError, match=re.escape(repr(name)[1:-1])):
                kind(**declared)


@pytest.mark.parametrize("name", BAD_NAMES)
def test_what_can_be_nobodys_name_fails_a_run_whose_callable_returns_it(name, make):
    flow = make(lambda ctx, input: ctx.wait_for_approval("pay", users=lambda ctx: [name]), id="bad-name")
    with pytest.raises(WorkflowError) as caught:
        flow.run()
    assert isinstance(caught.value.__cause__, DefinitionError)
    assert not Wait.objects.exists()


def test_a_name_as_long_as_names_may_be_is_found(gate):
    long = "x" * 255
    assert list(Wait.objects.inbox(person("ann", groups=(long[:150],)))) == []
    longest = gate(groups=[long])
    assert candidates_of(longest) == [("", long, "")]
