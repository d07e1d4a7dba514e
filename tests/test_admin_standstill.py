"""Why a run does not move, in plain words, on its page; and the recorded-versus-asked pair of a replay mismatch."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from django.test import Client
from django.utils import timezone
from django.utils.html import strip_tags

from django_finoflow import Retry, WorkflowError, api, registry
from django_finoflow.models import Execution, Wait
from tests.admin_site import RUNS, ask, browser_of, detail, paperwork, person, run_of
from tests.making import Workshop

pytestmark = pytest.mark.django_db

SOME_DAY = datetime(2099, 3, 4, 12, tzinfo=UTC)


@pytest.fixture
def viewer() -> Client:
    """A browser of somebody who may only see runs."""
    return browser_of(person("viewer", "view_execution"))


def page_of(client: Client, run: Execution) -> Any:
    """Return the page of a run."""
    return client.get(f"{RUNS}{run.pk}/change/")


def said(client: Client, run: Execution) -> str:
    """Return what a run's page says about why it stands still, as text."""
    html = page_of(client, run).content.decode()
    found = html.partition('id="finoflow-standstill"')[2].partition("</section>")[0].partition(">")[2]
    return " ".join(strip_tags(found.replace("<", " <")).replace("\xa0", " ").split())


def changed(run: Execution, **changes: Any) -> Execution:
    """Write to a run's row, and return it."""
    Execution.objects.filter(pk=run.pk).update(**changes)
    return run


def test_a_gate_is_told_with_whom_it_waits_for_and_since_when(viewer: Client) -> None:
    gate = ask(approval={"title": "Pay the plumber?", "groups": ["board"], "users": ["kim"]}, timeout=SOME_DAY)
    Wait.objects.update(opened_at=timezone.now() - timedelta(days=3, hours=2))
    text = said(viewer, run_of(gate))
    assert text.startswith("What it is doing")
    for part in ("3 days, 2 hours", "“Pay the plumber?”", "members of board or kim", "Its deadline is March 4, 2099"):
        assert part in text
    assert ".." not in text


def test_a_gate_is_linked_for_those_only_who_may_see_it(viewer: Client) -> None:
    gate = ask()
    both = browser_of(person("both", "view_execution", "view_wait"))
    assert said(both, run_of(gate)).endswith("Look")
    assert "Look" not in said(viewer, run_of(gate))
    assert detail(gate) not in page_of(viewer, run_of(gate)).content.decode()


def test_a_timer_a_signal_and_a_child_are_told_apart(viewer: Client, make: Workshop) -> None:
    sleeping = Execution.objects.get(run_id=paperwork.run({"sleep": SOME_DAY}).run_id)
    assert "It sleeps (“nap”) until March 4, 2099" in said(viewer, sleeping)

    @make
    def listening(ctx: Any, input: Any) -> Any:
        return ctx.wait_for_signal("payment-arrived")

    run = Execution.objects.get(run_id=listening.run().run_id)
    assert "for the signal “payment-arrived”, which comes from code" in said(viewer, run)
    Wait.objects.filter(execution=run).update(kind="child", name="papers")
    assert "for its child run “papers” to end" in said(viewer, run)


def test_a_retry_is_told_with_when_it_is_due(viewer: Client, make: Workshop) -> None:
    @make
    def flaky(ctx: Any, input: Any) -> None:
        ctx.step("call the bank", lambda: 1 / 0, retry=Retry(5, initial="1d"))

    run = Execution.objects.get(run_id=flaky.run().run_id)
    run.steps.update(due_at=SOME_DAY)
    assert "Attempt 1 at “call the bank” failed; the next is due at March 4, 2099" in said(viewer, run)


def test_a_run_that_a_worker_drives_is_told_with_its_lease(viewer: Client) -> None:
    run = changed(api.start(paperwork, {}), due_at=None, lease_owner="worker-7", lease_until=SOME_DAY)
    text = said(viewer, run)
    assert "A worker (worker-7) is driving it" in text
    assert "until March 4, 2099" in text


def test_a_silent_worker_is_told_and_what_to_ask(viewer: Client) -> None:
    long_ago = datetime(2020, 1, 1, tzinfo=UTC)
    run = changed(api.start(paperwork, {}), due_at=None, lease_owner="worker-7", lease_until=long_ago)
    text = said(viewer, run)
    assert text.startswith("Why it does not move")
    assert "The worker that drove it (worker-7) has been silent" in text
    assert "Is one running?" in text


def test_a_run_that_is_due_just_now_is_no_trouble(viewer: Client) -> None:
    text = said(viewer, api.start(paperwork, {}, queue="slow"))
    assert text.startswith("What it is doing")
    assert "the next free worker of queue “slow” takes it" in text


def test_a_run_that_nobody_takes_is_told_with_its_queue_and_what_to_ask(viewer: Client) -> None:
    run = changed(api.start(paperwork, {}, queue="slow"), due_at=timezone.now() - timedelta(hours=2))
    text = said(viewer, run)
    assert "It has been due for 2 hours, but no worker has taken it. Is a worker running" in text
    changed(api.start(paperwork, {}, queue="slow"), due_at=None, lease_until=SOME_DAY)
    assert "Workers are busy with other runs of queue “slow”" in said(viewer, run)


def test_a_passed_deadline_that_nobody_has_closed_is_told(viewer: Client) -> None:
    gate = ask(timeout="1h")
    passed = timezone.now() - timedelta(minutes=30)
    Wait.objects.update(due_at=passed)
    text = said(viewer, changed(run_of(gate), due_at=passed))
    assert "It has been due for 30 minutes" in text
    assert "The deadline of “approval” passed at" in text


def test_a_run_of_a_workflow_or_version_that_is_not_known_here_says_so(viewer: Client) -> None:
    gate = ask()
    text = said(viewer, changed(run_of(gate), version=7))
    assert "This process does not know workflow “paperwork”, version 7." in text
    assert "deploy its code" in text
    due = changed(api.start(paperwork, {}), workflow_id="elsewhere", due_at=timezone.now() - timedelta(hours=2))
    assert "It has been due for 2 hours, but no worker has taken it. This process does not know" in said(viewer, due)


@pytest.mark.parametrize(
    ("reason", "why", "advice"),
    [
        ("replay-mismatch", "the code asks for other checkpoints", "press Retry"),
        ("compensation-failed", "a compensation has failed", "press Resume"),
        ("too-many-crashes", "too many workers died", "press Retry"),
    ],
)
def test_a_stuck_run_is_told_with_why_and_what_to_do(reason: str, why: str, advice: str, viewer: Client) -> None:
    text = said(viewer, changed(run_of(ask()), status="stuck", stuck_reason=reason, due_at=None))
    assert text.startswith("Why it does not move")
    assert why in text
    assert advice in text


def test_a_failed_run_says_whether_it_can_be_tried_again(viewer: Client) -> None:
    with pytest.raises(WorkflowError):
        paperwork.run({"fails": True})
    assert "Retry tries the failed steps afresh" in said(viewer, Execution.objects.get())
    with pytest.raises(WorkflowError):
        paperwork.run({"fails": True, "undo": "well"})
    assert "start another" in said(viewer, Execution.objects.latest("pk"))


def test_a_run_that_a_rejection_has_ended_says_so_and_is_no_trouble(viewer: Client) -> None:
    gate = ask(approval={"on_reject": "fail"})
    boss = person("boss", is_superuser=True)
    api.decide(run_of(gate).run_id, gate.name, user=boss, approved=False, reason="No cranes.")
    with pytest.raises(WorkflowError):
        paperwork.resume(run_of(gate).run_id)
    text = said(viewer, run_of(gate))
    assert text.startswith("How it ended")
    assert "It has ended with a rejection: Gate &quot;approval&quot; was rejected by boss: No cranes." in text
    assert "failed" not in text


@pytest.mark.parametrize("status", ["done", "cancelled"])
def test_a_run_that_is_over_and_well_says_nothing(status: str, viewer: Client) -> None:
    run = changed(run_of(ask()), status=status, due_at=None)
    assert "finoflow-standstill" not in page_of(viewer, run).content.decode()


def test_a_run_that_is_to_begin_later_says_when(viewer: Client) -> None:
    assert "It begins, or goes on, at March 4, 2099" in said(viewer, api.start(paperwork, {}, at=SOME_DAY))


def test_a_run_that_is_undone_and_waits_for_its_childs_undoing_says_so(viewer: Client) -> None:
    run = changed(api.start(paperwork, {}), status="compensating", due_at=None)
    assert "waits for the undoing of a child run" in said(viewer, run)


# ── the pair of a replay mismatch ──


@pytest.mark.parametrize(
    ("asks", "asked"),
    [
        (lambda ctx: ctx.step("charge card", lambda: 1), "step charge card"),
        (lambda ctx: ctx.sleep("charge", "1d"), "sleep charge"),
        (lambda ctx: None, "nothing more"),
    ],
)
def test_d3_a_mismatch_is_shown_as_a_pair_of_what_is_recorded_and_what_was_asked(
    asks: Any, asked: str, viewer: Client, make: Workshop
) -> None:
    @make
    def paying(ctx: Any, input: Any) -> None:
        ctx.step("reserve", lambda: 1)
        ctx.step("charge", lambda: 1)
        ctx.wait_for_signal("go")

    def changed_body(ctx: Any, input: Any) -> None:
        ctx.step("reserve", lambda: 1)
        asks(ctx)

    run_id = paying.run().run_id
    again = make.redeploy(paying, changed_body)
    api.signal(run_id, "go")
    again.resume(run_id)
    run = Execution.objects.get(run_id=run_id)
    text = said(viewer, run)
    assert f"Position 1 The run has recorded The workflow asked for step charge {asked}" in text
    assert run.error["mismatch"]["recorded"] == ("step", "charge")
    assert set(run.snapshot().error) == {"type", "message", "traceback"}


def test_an_older_mismatch_without_a_pair_is_shown_all_the_same(viewer: Client) -> None:
    run = changed(run_of(ask()), status="stuck", stuck_reason="replay-mismatch", error={"type": "E", "message": "old"})
    assert "the code asks for other checkpoints" in said(viewer, run)
    assert 'class="finoflow-pair"' not in page_of(viewer, run).content.decode()
    changed(run, error=None)
    assert "the code asks for other checkpoints" in said(viewer, run)


def test_what_is_said_takes_equally_many_queries_however_many_waits_there_are(viewer: Client) -> None:
    from tests.admin_site import queries_of

    run = run_of(ask())
    few = queries_of(viewer, f"{RUNS}{run.pk}/change/")
    for index in range(5, 15):
        gate = run.waits.get(index=1)
        gate.pk, gate.index = None, index
        gate.save(force_insert=True)
    assert queries_of(viewer, f"{RUNS}{run.pk}/change/") == few


def test_a_definition_that_went_away_is_no_error_on_any_page(viewer: Client) -> None:
    run = run_of(ask())
    definition = registry.get("paperwork")
    registry.unregister("paperwork")
    try:
        assert "This process does not know" in said(viewer, run)
    finally:
        registry.register(definition)
