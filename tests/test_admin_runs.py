"""Runs in the admin: read-only pages for operators, and what they can do: retry, cancel, resume, abandon (rule A6)."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from datetime import UTC, datetime
from decimal import Decimal
from typing import Any

import pytest
from django.contrib.admin.models import LogEntry
from django.contrib.auth.models import User
from django.test import Client
from django.utils.html import strip_tags

from django_finoflow import RunNotResumable, Workflow, WorkflowError, api, registry
from django_finoflow.admin.acting import VERBS
from django_finoflow.models import Execution, Step
from django_finoflow.statuses import Rollback, RunStatus, StuckReason
from tests.admin_site import RUNS, ask, browser_of, button, chosen, paperwork, person, queries_of, run_of

pytestmark = pytest.mark.django_db


def page_of(run: Execution) -> str:
    """Return the address of a run's page."""
    return f"{RUNS}{run.pk}/change/"


def failed(**input: Any) -> Execution:
    """Return a run that has ended in an error."""
    with pytest.raises(WorkflowError) as caught:
        paperwork.run({"fails": True, **input})
    return Execution.objects.get(run_id=caught.value.state.run_id)


def stuck() -> Execution:
    """Return a run whose unwinding is stuck."""
    result = paperwork.run({"fails": True, "undo": "badly"})
    return Execution.objects.get(run_id=result.run_id)


#: A run that each verb can be done with.
ACCEPTED = {"retry": failed, "cancel": lambda: run_of(ask()), "resume": stuck, "abandon": stuck}


def tick(client: Client, verb: str, runs: list[Execution], **data: Any) -> Any:
    """Choose runs in the list and press Go."""
    sent = {"action": f"finoflow_{verb}_selected", "_selected_action": chosen(*runs), "index": "0", **data}
    return client.post(RUNS, sent, follow=True)


def confirm(client: Client, page: Any) -> Any:
    """Send the form of the page that asks."""
    return client.post(page.context["action"], {"chosen": page.context["chosen"]}, follow=True)


def told(page: Any) -> list[str]:
    """Return what a page tells at its top."""
    return [str(message) for message in page.context["messages"]]


@pytest.fixture
def operator() -> User:
    """Somebody who may see, retry and cancel runs."""
    return person("operator", "view_execution", "retry_execution", "cancel_execution")


@pytest.fixture
def viewer() -> Client:
    """A browser of somebody who may only see runs."""
    return browser_of(person("viewer", "view_execution"))


# ── the list ──


def test_the_list_tells_status_age_what_a_run_waits_for_and_who_asked(viewer: Client) -> None:
    ask(requester=person("ann"), key="k-1", timeout=datetime(2099, 1, 2, 12, tzinfo=UTC))
    paperwork.run({"sleep": datetime(2099, 3, 4, 12, tzinfo=UTC)})
    page = viewer.get(RUNS).content.decode()
    for text in ("waiting", "k-1", "ann", "minutes", "gate approval until Jan. 2, 2099", "nap until March 4, 2099"):
        assert text in page


def test_the_list_is_filtered_by_status_workflow_and_queue_and_searched(viewer: Client) -> None:
    ann = person("ann")
    done = api.start(paperwork, {}, key="k-1", requester=ann, queue="slow")
    broken = failed()

    def found(**query: str) -> set[str]:
        return {run.run_id for run in viewer.get(RUNS, query).context["cl"].result_list}

    assert found(status__exact="error") == {broken.run_id}
    assert found(queue="slow") == {done.run_id}
    assert found(workflow_id="other") == set()
    assert found(workflow_id="paperwork") == {done.run_id, broken.run_id}
    for query in (done.run_id, "k-1", "ann"):
        assert found(q=query) == {done.run_id}


def test_the_list_asks_the_database_equally_often_however_many_runs_and_reads_no_payload(operator: User) -> None:
    client = browser_of(operator)
    ask(timeout="1h"), failed()
    few = queries_of(client, RUNS)
    for _ in range(4):
        ask(timeout="1h"), failed()
    assert queries_of(client, RUNS) == few
    deferred = client.get(RUNS).context["cl"].result_list[0].get_deferred_fields()
    assert deferred == {"input", "state", "result", "error"}


# ── one run ──


def test_the_page_of_a_run_tells_its_steps_and_waits_by_position_its_signals_and_its_decisions(viewer: Client) -> None:
    gate = ask(requester=person("ann"), prepared={"price": Decimal("1.50")}, key="k-1")
    run = run_of(gate)
    api.decide(run.run_id, "approval", user=person("kim", "decide_wait"), approved=True, reason="Because.")
    paperwork.resume(run.run_id)
    page = viewer.get(page_of(run))
    assert [(row.position, row.kind, row.name) for row in page.context["rows"]] == [
        (0, "step", "prepare"),
        (1, "gate", "approval"),
    ]
    text = page.content.decode()
    for part in ("1.50", "Because.", "kim", "ann", "k-1", "done", "signalled", "approved"):
        assert part in text


def test_the_page_of_a_failed_run_tells_the_error_and_unfolds_the_traceback(viewer: Client) -> None:
    text = viewer.get(page_of(failed())).content.decode()
    assert "ValueError: invalid literal for int() with base 10: &#x27;broken&#x27;" in text
    assert "<summary>Traceback</summary>" in text


def test_a_long_payload_is_shortened_and_unfolds_to_all_of_it(viewer: Client) -> None:
    text = viewer.get(page_of(run_of(ask(prepared="long " * 200)))).content.decode()
    assert f"<summary>{'long ' * 47}" in text
    assert "long " * 200 in text


def test_the_page_of_a_run_asks_the_database_equally_often_however_long_the_run(viewer: Client) -> None:
    short, long = ask(), ask()
    run = run_of(long)
    for index in range(2, 30):
        run.steps.create(branch="", index=index, step_id="more", status="done", result={"n": index})
    assert queries_of(viewer, page_of(run)) == queries_of(viewer, page_of(run_of(short)))


def test_a_run_of_very_many_steps_shows_the_last_thousand_and_says_so(viewer: Client) -> None:
    run = run_of(ask())
    Step.objects.bulk_create(
        Step(execution=run, index=index, step_id="more", status="done") for index in range(2, 1102)
    )
    page = viewer.get(page_of(run))
    assert len(page.context["rows"]) == 1000
    assert page.context["rows"][-1].position == 1101
    assert "The positions before 102 are not shown." in page.content.decode()


@pytest.fixture
def with_child() -> Iterator[Execution]:
    """A run that waits for its child."""
    flow = Workflow("with-child").sub_workflow("papers", paperwork, {})
    yield Execution.objects.get(run_id=flow.run().run_id)
    registry.unregister(flow.id)


def test_parent_and_children_are_linked_and_so_is_the_child_from_where_it_is_waited_for(
    with_child: Execution, viewer: Client
) -> None:
    child = with_child.children.get()
    page = viewer.get(page_of(with_child))
    [row] = page.context["rows"]
    assert (row.kind, row.name, row.link) == ("child run", "papers", page_of(child))
    links = page.content.decode().count(f'<a href="{page_of(child)}">')
    assert links == len(["facts", "why it stands still", "picture", "table"])
    assert page_of(with_child) in viewer.get(page_of(child)).content.decode()


def test_a_child_that_was_deleted_is_not_linked(with_child: Execution, viewer: Client) -> None:
    with_child.children.get().delete()
    [row] = viewer.get(page_of(with_child)).context["rows"]
    assert row.link == ""


def compensations(page: Any) -> list[str]:
    """Return what a run's page tells of each step's compensation, as text."""
    return [strip_tags(row.undo).strip() for row in page.context["rows"]]


@pytest.mark.parametrize(
    ("fails", "undo", "told", "rollback"),
    [
        (False, None, "", ""),
        (False, "well", "can be undone", ""),
        (True, "well", "compensated", "completed"),
        (True, "badly", "failed ZeroDivisionError: division by zero", ""),
    ],
)
def test_the_page_of_a_run_tells_what_became_of_each_compensation(
    fails: bool, undo: str | None, told: str, rollback: str, viewer: Client
) -> None:
    with suppress(WorkflowError):
        paperwork.run({"fails": fails, "undo": undo})
    page = viewer.get(page_of(Execution.objects.get()))
    first, _gate_or_failure = compensations(page)
    assert first.startswith(told)
    assert bool(first) == bool(told)
    assert ("Compensation</th>" in page.content.decode()) == bool(told)
    assert (page.context["rows"][0].undone is not None) == fails
    assert page.context["adminform"].model_admin.rolled_back(page.context["original"]) == rollback


def test_the_page_of_an_abandoned_run_tells_its_rollback_and_what_was_skipped(viewer: Client) -> None:
    run = stuck()
    run.steps.create(branch="", index=7, step_id="other", status="done", compensable=True)
    api.abandon_compensation(run.run_id)
    page = viewer.get(page_of(run))
    assert compensations(page)[-1] == "skipped"
    assert '<div class="readonly">stuck</div>' in page.content.decode()


@pytest.mark.parametrize(
    ("status", "told"), [("done", "can be undone"), ("cancelled", "not undone"), ("error", "not undone")]
)
def test_what_will_never_be_undone_is_not_said_to_be(status: str, told: str, viewer: Client) -> None:
    run = run_of(ask(undo="well"))
    Execution.objects.filter(pk=run.pk).update(status=status)
    assert compensations(viewer.get(page_of(run)))[0] == told


def test_gates_are_linked_for_those_only_who_may_see_them(viewer: Client) -> None:
    gate = ask()
    link = f"/admin/finoflow/wait/{gate.pk}/change/"
    assert link not in viewer.get(page_of(run_of(gate))).content.decode()
    both = browser_of(person("both", "view_execution", "view_wait"))
    assert link in both.get(page_of(run_of(gate))).content.decode()


def test_a6_nobody_adds_changes_or_deletes_a_run_superusers_included(admin_client: Client) -> None:
    run = run_of(ask())
    assert admin_client.get(f"{RUNS}add/").status_code == 403
    assert admin_client.get(f"{RUNS}{run.pk}/delete/").status_code == 403
    assert admin_client.post(page_of(run), {"status": "done", "_save": "Save"}).status_code == 403
    tick(admin_client, "delete", [run], action="delete_selected")
    assert Execution.objects.get().status == "waiting"


@pytest.mark.parametrize("address", ["abc", "0", "9" * 30, "1_2"])
def test_an_address_of_no_run_is_no_error(address: str, admin_client: Client) -> None:
    assert admin_client.get(f"{RUNS}{address}/change/").status_code == 302


# ── retry and cancel ──


def test_cancel_asks_first_and_its_post_cancels(operator: User) -> None:
    run = run_of(ask())
    client = browser_of(operator)
    assert button("cancel", run) in client.get(RUNS).content.decode()
    assert button("cancel", run) in client.get(page_of(run)).content.decode()
    page = client.get(button("cancel", run))
    assert run.run_id in page.content.decode()
    assert Execution.objects.get().status == "waiting"
    assert told(confirm(client, page)) == ["1 run was cancelled."]
    assert Execution.objects.get().status == "cancelled"
    entry = LogEntry.objects.get()
    assert (entry.user, entry.object_id, entry.get_change_message()) == (operator, str(run.pk), "Cancelled.")


def test_retry_asks_first_and_its_post_makes_the_run_due(operator: User) -> None:
    run = failed()
    client = browser_of(operator)
    page = client.get(button("retry", run))
    assert Execution.objects.get().status == "error"
    assert told(confirm(client, page)) == ["1 run will be tried again."]
    again = Execution.objects.get()
    assert (again.status, again.due_at is not None) == ("running", True)
    assert LogEntry.objects.get().get_change_message() == "Tried again."


def test_bulk_cancel_and_retry_report_what_was_refused(operator: User) -> None:
    waiting, over, broken = run_of(ask()), run_of(ask()), failed()
    api.cancel(over.run_id)
    client = browser_of(operator)
    assert told(confirm(client, tick(client, "cancel", [waiting, over]))) == [
        "1 run was cancelled.",
        f"paperwork {over.run_id}: it has ended, or is unwinding",
    ]
    messages = told(confirm(client, tick(client, "retry", [broken, over], select_across="1")))
    assert messages[0] == "1 run will be tried again."
    assert len(messages) == 3
    assert LogEntry.objects.count() == 2


@pytest.mark.parametrize(
    ("verb", "status", "said", "logged"),
    [
        ("resume", "compensating", "1 unwinding will go on.", "Unwinding resumed."),
        ("abandon", "error", "1 unwinding was abandoned.", "Unwinding abandoned."),
    ],
)
def test_c3_resume_and_abandon_ask_first_and_their_post_acts(
    verb: str, status: str, said: str, logged: str, operator: User
) -> None:
    run, client = stuck(), browser_of(operator)
    assert button(verb, run) in client.get(RUNS).content.decode()
    assert button(verb, run) in client.get(page_of(run)).content.decode()
    page = client.get(button(verb, run))
    assert run.run_id in page.content.decode()
    assert Execution.objects.get().status == "stuck"
    assert told(confirm(client, page)) == [said]
    assert Execution.objects.get().status == status
    entry = LogEntry.objects.get()
    assert (entry.user, entry.object_id, entry.get_change_message()) == (operator, str(run.pk), logged)


@pytest.mark.parametrize("verb", ["resume", "abandon"])
def test_bulk_resume_and_abandon_report_what_was_refused(verb: str, operator: User) -> None:
    first, second, waiting = stuck(), stuck(), run_of(ask())
    client = browser_of(operator)
    done, refusal = told(confirm(client, tick(client, verb, [first, second, waiting])))
    assert done.startswith("2 unwindings")
    assert refusal.startswith(f"paperwork {waiting.run_id}: Run {waiting.run_id} is waiting")
    assert LogEntry.objects.count() == 2


@pytest.mark.parametrize("verb", VERBS)
def test_a_get_does_nothing(verb: str, operator: User) -> None:
    run = ACCEPTED[verb]()
    client = browser_of(operator)
    for url in (button(verb, run), f"{RUNS}{verb}/"):
        client.get(url, {"chosen": str(run.pk)})
        client.head(url)
        client.put(url, {"chosen": str(run.pk)})
    assert Execution.objects.get().status == run.status


@pytest.mark.parametrize("verb", VERBS)
def test_who_may_only_see_runs_can_do_nothing_with_them(verb: str, viewer: Client) -> None:
    run = ACCEPTED[verb]()
    for page in (viewer.get(RUNS), viewer.get(page_of(run))):
        assert button(verb, run) not in page.content.decode()
        assert f"finoflow_{verb}_selected" not in page.content.decode()
    assert viewer.get(button(verb, run)).status_code == 403
    assert viewer.post(button(verb, run)).status_code == 403
    assert viewer.post(f"{RUNS}{verb}/", {"chosen": str(run.pk)}).status_code == 403
    tick(viewer, verb, [run], select_across="1")
    assert Execution.objects.get().status == run.status


@pytest.mark.parametrize("verb", VERBS)
def test_who_may_not_see_runs_can_do_nothing_with_them_either(verb: str) -> None:
    run = ACCEPTED[verb]()
    client = browser_of(person("blind", "retry_execution", "cancel_execution"))
    assert client.get(button(verb, run)).status_code == 403
    assert client.post(f"{RUNS}{verb}/", {"chosen": str(run.pk)}).status_code == 403
    assert Execution.objects.get().status == run.status


@pytest.mark.parametrize("verb", VERBS)
def test_each_verb_needs_its_own_permission(verb: str) -> None:
    other = {"retry": "cancel", "cancel": "retry"}[VERBS[verb].permission]
    run, client = ACCEPTED[verb](), browser_of(person("other", "view_execution", f"{other}_execution"))
    assert client.post(f"{RUNS}{verb}/", {"chosen": str(run.pk)}).status_code == 403
    assert Execution.objects.get().status == run.status


def test_cancelling_without_the_csrf_token_is_refused(operator: User) -> None:
    run = run_of(ask())
    client = browser_of(operator, enforce_csrf_checks=True)
    assert client.post(f"{RUNS}cancel/", {"chosen": str(run.pk)}).status_code == 403
    assert Execution.objects.get().status == "waiting"


STATES = [(status, "", "") for status in RunStatus.values]
STATES += [("error", rollback, "") for rollback in Rollback.values]
STATES += [("stuck", "", reason) for reason in StuckReason.values]


@pytest.mark.parametrize(("status", "rollback", "reason"), STATES)
def test_buttons_are_shown_exactly_where_the_api_would_accept(status: str, rollback: str, reason: str) -> None:
    run = api.start(paperwork, {})
    state = {"status": status, "rollback": rollback, "stuck_reason": reason}
    Execution.objects.filter(pk=run.pk).update(**state)
    run.refresh_from_db()
    for verb in VERBS.values():
        Execution.objects.filter(pk=run.pk).update(**state)
        try:
            verb.act(run)
        except RunNotResumable:
            assert not verb.accepts(run)
        else:
            assert verb.accepts(run)
