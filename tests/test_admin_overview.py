"""The overview: what waits for whom since when, what is overdue, what is stuck and why; and the filters it leads to."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest
from django.contrib.auth.models import User
from django.test import Client
from django.urls import reverse
from django.utils import timezone
from django.utils.html import strip_tags

from django_finoflow import api
from django_finoflow.models import Execution, Step, Wait
from tests.admin_site import GATES, RUNS, ask, browser_of, button, paperwork, person, queries_of, run_of

pytestmark = pytest.mark.django_db

OVERVIEW = f"{GATES}overview/"


def late(gate: Wait) -> Wait:
    """Let a gate's deadline have passed an hour ago."""
    now = timezone.now()
    Wait.objects.filter(pk=gate.pk).update(opened_at=now - timedelta(days=3), due_at=now - timedelta(hours=1))
    return gate


def due(hours: int, **changes: Any) -> Execution:
    """Return a run that has been due for so long."""
    run = api.start(paperwork, {})
    Execution.objects.filter(pk=run.pk).update(due_at=timezone.now() - timedelta(hours=hours), **changes)
    return run


def stuck() -> Execution:
    """Return a run whose unwinding is stuck."""
    return Execution.objects.get(run_id=paperwork.run({"fails": True, "undo": "badly"}).run_id)


def tiles(page: Any) -> dict[str, int]:
    """Return the numbers at the top of the page."""
    return {tile.label: tile.number for tile in page.context["tiles"]}


def words(page: Any) -> str:
    """Return a page's words, without its tags."""
    return " ".join(strip_tags(page.content.decode()).split())


@pytest.fixture
def manager() -> User:
    """Somebody who decides gates that name nobody else, and sees no run."""
    return person("manager", "decide_wait")


@pytest.fixture
def everything() -> Client:
    """A browser of somebody who sees all there is, and answers nothing."""
    return browser_of(person("viewer", "view_wait", "view_execution"))


# ── what it says ──


def test_it_says_what_waits_for_whom_since_when(everything: Client) -> None:
    for _ in range(3):
        ask(approval={"groups": ["finance"]})
    old = ask(gate="sign-off", approval={"users": ["kim"]})
    Wait.objects.filter(pk=old.pk).update(opened_at=timezone.now() - timedelta(days=9))
    page = everything.get(OVERVIEW)
    rows = [(row["who"], row["name"], row["count"], row["late"]) for row in page.context["whom"]]
    assert rows == [("kim", "sign-off", 1, 0), ("members of finance", "approval", 3, 0)]
    assert "1 week, 2 days" in page.content.decode().replace("\xa0", " ")
    assert tiles(page)["gates are open"] == 4


def test_each_of_its_groups_leads_to_the_list_of_exactly_those_gates(everything: Client) -> None:
    gates = [ask(), ask(), ask(gate="approval-2"), ask(approval={"users": ["kim"]})]
    gates.append(ask(approval={"users": [f"somebody-{number}" for number in range(200)]}))
    rows = everything.get(OVERVIEW).context["whom"]
    assert [row["count"] for row in rows] == [2, 1, 1, 1]
    listed = [{gate.pk for gate in everything.get(row["url"]).context["cl"].result_list} for row in rows]
    assert listed[:3] == [{gates[0].pk, gates[1].pk}, {gates[2].pk}, {gates[3].pk}]
    assert gates[4].pk in listed[3]  # of too many people for an address: all gates of that name


def test_it_says_what_is_overdue_and_what_soon_will_be(everything: Client) -> None:
    passed = late(ask(approval={"title": "Passed?"}))
    soon = ask(approval={"title": "Soon?"}, timeout="20h")
    ask(approval={"title": "Much later?"}, timeout="30d")
    ask(approval={"title": "Never?"})
    page = everything.get(OVERVIEW)
    assert [gate.pk for gate, *_ in page.context["deadlines"]] == [passed.pk, soon.pk]
    assert tiles(page)["is overdue"] == 1


def test_it_says_what_is_stuck_and_why_and_what_to_do(everything: Client) -> None:
    run = stuck()
    page = everything.get(OVERVIEW)
    text = words(page)
    for part in (run.run_id, "a compensation has failed", "prepare: division by zero", "press Resume"):
        assert part in text
    assert tiles(page)["run is stuck"] == 1


def test_it_says_which_runs_are_due_and_not_taken_and_whether_they_are_known_here(everything: Client) -> None:
    due(2)
    due(3, workflow_id="of-another-project", queue="theirs")
    api.start(paperwork, {})  # due just now: nothing to wonder about
    page = everything.get(OVERVIEW)
    rows = [(row["workflow_id"], row["queue"], row["count"], row["is_known"]) for row in page.context["not_taken"]]
    assert rows == [("of-another-project", "theirs", 1, False), ("paperwork", "default", 1, True)]
    assert tiles(page)["due, but not taken by a worker"] == 2


def test_a_gate_whose_run_is_stuck_waits_for_nobody(everything: Client) -> None:
    gate = ask()
    Execution.objects.filter(pk=gate.execution_id).update(status="stuck", stuck_reason="too-many-crashes")
    page = everything.get(OVERVIEW)
    assert page.context["whom"] == []
    assert tiles(page)["gates are open"] == 0


def test_it_offers_to_answer_what_waits_for_the_reader_the_most_urgent_first(manager: User) -> None:
    calm, urgent = ask(approval={"title": "Calm?"}), ask(approval={"title": "Urgent?"}, timeout="1h")
    late(ask(timeout="1h"))
    page = browser_of(manager).get(OVERVIEW)
    assert [gate.pk for gate, *_ in page.context["mine"]] == [urgent.pk, calm.pk]
    assert button("approve", urgent) in page.content.decode()
    assert tiles(page)["wait for you"] == 2


def test_each_number_is_that_of_the_list_it_leads_to() -> None:
    client = browser_of(person("boss", is_superuser=True))
    ask(), late(ask()), ask(timeout="1h"), stuck(), due(2)
    silent = due(1)
    Execution.objects.filter(pk=silent.pk).update(due_at=None, lease_owner="w", lease_until="2020-01-01T00:00Z")
    page = client.get(OVERVIEW)
    for tile in page.context["tiles"]:
        assert client.get(tile.url).context["cl"].result_count == tile.number, tile.label
        assert tile.number > 0


# ── who may see it ──


def test_a_decider_sees_of_the_overview_their_own_gates_and_nothing_of_runs(manager: User) -> None:
    ask(secret="confidential", key="k-7")
    hidden = ask(approval={"title": "For the board?", "groups": ["board"]})
    stuck()
    page = browser_of(manager).get(OVERVIEW)
    text = page.content.decode()
    assert set(tiles(page)) == {"waits for you", "gate is open", "are overdue"}
    assert tiles(page)["gate is open"] == 1
    for secret in ("For the board?", "board", "confidential", "k-7", RUNS, run_of(hidden).run_id, "stuck, and why"):
        assert secret not in text


def test_who_may_see_runs_only_sees_of_the_overview_no_gate(manager: User) -> None:
    ask(approval={"title": "Secret question?"})
    page = browser_of(person("operator", "view_execution")).get(OVERVIEW)
    assert set(tiles(page)) == {"runs are stuck", "due, but not taken by a worker", "held by a worker that is silent"}
    assert "Secret question?" not in page.content.decode()


def test_staff_who_may_see_neither_get_no_overview_and_others_no_admin() -> None:
    ask()
    assert browser_of(person("nobody")).get(OVERVIEW).status_code == 403
    outside = person("outside", "view_wait")
    User.objects.filter(pk=outside.pk).update(is_staff=False)
    assert browser_of(outside).get(OVERVIEW).status_code == 302
    assert Client().get(OVERVIEW).status_code == 302


def test_the_app_and_both_lists_lead_to_the_overview(everything: Client) -> None:
    assert reverse("admin:finoflow_overview") == OVERVIEW
    for url in ("/admin/finoflow/", GATES, RUNS):
        assert f'href="{OVERVIEW}"' in everything.get(url).content.decode()


def test_the_overview_is_there_on_a_second_admin_site_and_stays_on_it(settings: Any, everything: Client) -> None:
    settings.ROOT_URLCONF = "tests.second_site"
    ask(), stuck()
    text = everything.get(OVERVIEW.replace("/admin/", "/second/")).content.decode()
    assert "/second/finoflow/execution/" in text
    assert '"/admin/' not in text


def test_the_overview_asks_the_database_equally_often_however_much_there_is() -> None:
    client = browser_of(person("boss", is_superuser=True))

    def more() -> None:
        ask(), late(ask(approval={"exclude_requester": True}, requester=client_user)), stuck(), due(2)

    client_user = person("ann", "decide_wait")
    more()
    few = queries_of(client, OVERVIEW)
    for _ in range(4):
        more()
    assert queries_of(client, OVERVIEW) == few


# ── the filters of the runs ──


def test_the_filters_of_runs_find_mine_and_overdue_and_workflows() -> None:
    boss = person("boss", is_superuser=True)
    client = browser_of(boss)
    asked = run_of(ask(requester=boss, approval={"exclude_requester": True}))
    answers = run_of(ask())
    passed = run_of(late(ask()))
    waits_long = due(2)
    silent = due(1)
    Execution.objects.filter(pk=silent.pk).update(due_at=None, lease_owner="w", lease_until="2020-01-01T00:00Z")
    over = run_of(late(ask()))
    Execution.objects.filter(pk=over.pk).update(status="cancelled", due_at=None)

    def found(**query: str) -> set[int]:
        return {run.pk for run in client.get(RUNS, query).context["cl"].result_list}

    assert found(mine="asked") == {asked.pk}
    assert found(mine="answer") == {answers.pk}
    assert found(overdue="deadline") == {passed.pk}
    assert found(overdue="due") == {waits_long.pk}
    assert found(overdue="silent") == {silent.pk}
    assert found(workflow_id="paperwork") >= {asked.pk, silent.pk}
    assert found(workflow_id="other") == set()


def test_a_stuck_runs_row_tells_the_compensation_that_failed_not_only_the_runs_error(everything: Client) -> None:
    run = stuck()
    Step.objects.filter(execution=run, step_id="prepare").update(compensation_error={"message": "bank is closed"})
    assert "prepare: bank is closed" in words(everything.get(OVERVIEW))
