"""Which gates a person finds: ``inbox``, ``answerable_by`` and ``overdue``, quick with ten thousand open ones (A2)."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest
from django.contrib.auth.models import AnonymousUser
from django.db import connection
from django.utils import timezone
from freezegun import freeze_time

from django_finoflow import cancel, decide
from django_finoflow.clock import monotonic
from django_finoflow.models import Decision, Execution, Wait
from tests.gates import DECIDE, deciders, gate_of, person

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
    common = {"kind": "signal", "opened_at": now, "audience": '["",["finance"],[]]'}
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
def test_a2_there_is_an_index_of_open_gates_in_the_order_of_an_inbox():
    ann = person("ann", groups=("finance",))
    fill(10, ann)
    with connection.cursor() as cursor:
        cursor.execute("SET LOCAL enable_sort = off")  # else it depends on statistics, which tests of this file upset
        cursor.execute("SET LOCAL enable_bitmapscan = off")
    plan = Wait.objects.inbox(ann)[:50].explain()
    assert "finoflow_open_gates" in plan
    assert "Sort" not in plan
