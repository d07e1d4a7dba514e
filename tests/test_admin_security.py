"""What an ordinary staff user cannot do in the admin, however they ask; and what comes from runs stays text."""

from __future__ import annotations

import re
from datetime import UTC, datetime
from typing import Any

import pytest
from django.contrib.admin.models import LogEntry
from django.contrib.auth.models import User
from django.test import Client

from django_finoflow import Workflow, api, registry
from django_finoflow.models import Decision, Execution, GateEvent, Wait
from tests.admin_site import (
    GATES,
    RUNS,
    ask,
    ask_budget,
    browser_of,
    button,
    chosen,
    detail,
    paperwork,
    person,
    run_of,
    seen,
)

pytestmark = pytest.mark.django_db

EVIL = "<script>alert('x')</script>{{ 7|add:7 }}{% now 'Y' %}"
OVERVIEW = f"{GATES}overview/"
GATE_PAGES = ("approve", "reject", "claim", "release", "delegate")


@pytest.fixture
def viewer() -> Client:
    """A browser of somebody who sees everything and may do nothing."""
    return browser_of(person("viewer", "view_wait", "view_execution"))


def everything() -> list[Any]:
    """Return all rows that a forged request might change, as values."""
    return [list(model.objects.order_by("pk").values()) for model in (Execution, Wait, Decision, GateEvent, LogEntry)]


# ── view-only staff ──


def test_view_only_staff_see_no_action_on_any_page(viewer: Client) -> None:
    gate = ask(timeout="1h")
    ask_budget()
    paperwork.run({"fails": True, "undo": "badly"})
    pages = [GATES, RUNS, OVERVIEW, detail(gate), "/admin/", "/admin/finoflow/"]
    for url in [*pages, *(f"{RUNS}{run.pk}/change/" for run in Execution.objects.all())]:
        text = viewer.get(url).content.decode()
        assert not re.search(r"finoflow_(approve|reject|claim|release|delegate|override|retry|cancel|resume)", text), (
            url
        )
        for verb in (*GATE_PAGES, "retry", "cancel", "resume", "abandon"):
            assert f"/{verb}/" not in text, url


@pytest.mark.parametrize("across", ["0", "1"])
@pytest.mark.parametrize("verb", ["approve", "reject"])
def test_view_only_staff_cannot_forge_an_answer_one_by_one_or_across_pages(
    verb: str, across: str, viewer: Client
) -> None:
    gates = [ask(), ask(), ask_budget(gate="remark")]
    chief = browser_of(person("chief", is_superuser=True))
    token = seen(chief.get(button(verb, gates[0])))
    before = everything()
    sent = {"action": f"finoflow_{verb}_selected", "_selected_action": chosen(*gates), "select_across": across}
    viewer.post(GATES, {**sent, "index": "0"}, follow=True)
    entries = " ".join(f"{gate.pk}:{token}" for gate in gates)
    assert viewer.post(f"{GATES}{verb}/", {"chosen": entries, "reason": "x", "override": "on"}).status_code == 403
    for gate in gates:
        forged = {"reason": "x", "seen": token, "override": "on", "answer-remark": "x"}
        assert viewer.post(button(verb, gate), forged).status_code == 403
    assert everything() == before


@pytest.mark.parametrize("page", GATE_PAGES)
def test_a_gate_that_is_not_visible_is_404_and_one_that_is_but_asks_others_403(page: str, viewer: Client) -> None:
    gate = ask(approval={"groups": ["board"]})
    manager = browser_of(person("manager", "decide_wait"))
    for method in ("get", "post"):
        assert getattr(manager, method)(button(page, gate)).status_code == 404
        assert getattr(viewer, method)(button(page, gate)).status_code == 403
        assert getattr(viewer, method)(button(page, gate).replace(str(gate.pk), "999999")).status_code == 404


def test_another_gates_token_decides_nothing() -> None:
    manager = browser_of(person("manager", "decide_wait"))
    one, other = ask(), ask()
    token = seen(manager.get(button("approve", one)))
    manager.post(button("approve", other), {"reason": "", "seen": token})
    manager.post(f"{GATES}approve/", {"reason": "", "chosen": f"{other.pk}:{token}"})
    assert not Decision.objects.exists()


@pytest.mark.parametrize("method", ["get", "head"])
def test_get_and_head_decide_and_change_nothing_on_any_page(method: str) -> None:
    boss = browser_of(person("boss", is_superuser=True))
    gate, budget = ask(), ask_budget()
    before = everything()
    query = {"reason": "x", "seen": seen(boss.get(button("approve", gate))), "override": "on", "to": "boss"}
    query |= {"chosen": str(gate.pk), "answer-centre": "it"}
    for name in GATE_PAGES:
        for one in (gate, budget):
            getattr(boss, method)(button(name, one), query)
    for url in (OVERVIEW, f"{GATES}approve/", f"{GATES}reject/", *(f"{RUNS}{verb}/" for verb in ("cancel", "retry"))):
        getattr(boss, method)(url, query)
    assert everything() == before


@pytest.mark.parametrize("url", ["approve", "reject", "claim", "delegate"])
def test_every_post_without_the_csrf_token_is_403(url: str) -> None:
    gate = ask()
    client = browser_of(person("boss", is_superuser=True), enforce_csrf_checks=True)
    data = {"reason": "x", "seen": seen(client.get(button("approve", gate))), "to": "boss"}
    assert client.post(button(url, gate), data).status_code == 403
    assert client.post(OVERVIEW, data).status_code == 403


@pytest.mark.parametrize(
    "changes", [{"outcome": "signalled"}, {"claimed_by": "1"}, {"audience": '["",[],["viewer"]]'}, {"notices": "9"}]
)
def test_the_model_forms_cannot_edit_state_superusers_included(changes: dict[str, str]) -> None:
    boss = browser_of(person("boss", is_superuser=True))
    gate = ask()
    before = everything()
    assert boss.post(detail(gate), {**changes, "_save": "Save"}).status_code == 403
    assert boss.post(f"{GATES}add/", changes).status_code == 403
    assert boss.post(f"{GATES}{gate.pk}/delete/", {"post": "yes"}).status_code == 403
    boss.post(GATES, {"action": "delete_selected", "_selected_action": chosen(gate), "post": "yes", "index": "0"})
    sent = {"form-TOTAL_FORMS": "1", "form-INITIAL_FORMS": "1", "form-0-id": str(gate.pk), **changes, "_save": "Save"}
    boss.post(GATES, sent)
    assert everything() == before


def test_deleting_a_user_keeps_their_name_on_decisions_claims_and_history() -> None:
    boss = browser_of(person("boss", is_superuser=True))
    gone = person("gone-away", "decide_wait")
    gate = ask(requester=gone, approval={"quorum": 2})
    api.claim_gate(run_of(gate).run_id, gate.name, user=gone, wait=gate)
    api.decide(run_of(gate).run_id, gate.name, user=gone, approved=True, wait=gate)
    gone.delete()
    text = boss.get(detail(gate)).content.decode()
    for part in ("gone-away claimed it.", "gone-away approved it.", "<td>gone-away</td>"):
        assert part in text
    run_page = boss.get(f"{RUNS}{gate.execution_id}/change/").content.decode()
    assert "approved by gone-away" in run_page


# ── what comes from runs, forms and people stays text ──


def evil_rows(boss: User) -> tuple[list[Wait], list[Execution]]:
    """Return gates and runs of which every text is markup and template syntax."""
    mean = person("mean", "decide_wait")
    User.objects.filter(pk=mean.pk).update(username=EVIL)
    mean.refresh_from_db()
    approval = {"title": EVIL, "show": {EVIL: EVIL}, "users": [EVIL, "boss"], "quorum": 2}
    gates = [ask(mean, key=f"{EVIL}{n}", gate=EVIL, approval=approval, timeout="1h") for n in range(2)]
    gates.append(ask_budget(mean, approval={"title": EVIL, "groups": [EVIL]}))
    run = run_of(gates[0])
    api.delegate_gate(run.run_id, EVIL, user=boss, to=mean, wait=gates[0], note=EVIL)
    api.decide(run.run_id, EVIL, user=mean, approved=True, reason=EVIL, data={EVIL: EVIL}, wait=gates[0])
    run.steps.create(
        index=7,
        step_id=EVIL,
        status="retrying",
        started_at=run.created_at,
        due_at=datetime(2099, 1, 1, tzinfo=UTC),
        error={"type": EVIL, "message": EVIL},
    )
    Execution.objects.filter(pk=run.pk).update(queue=EVIL, requester_name=EVIL)
    stuck = run_of(gates[1])
    pair = {"branch": EVIL, "position": 3, "recorded": (EVIL, EVIL), "asked": (EVIL, EVIL)}
    Execution.objects.filter(pk=stuck.pk).update(
        status="stuck", stuck_reason="replay-mismatch", workflow_id=EVIL, error={"message": EVIL, "mismatch": pair}
    )
    due = api.start(paperwork, {}, queue="other")
    Execution.objects.filter(pk=due.pk).update(
        queue=EVIL, workflow_id=EVIL, due_at=datetime(2020, 1, 1, tzinfo=UTC), lease_owner=EVIL
    )
    driven = api.start(paperwork, {})
    Execution.objects.filter(pk=driven.pk).update(lease_owner=EVIL, lease_until=datetime(2020, 1, 1, tzinfo=UTC))
    return gates, list(Execution.objects.all())


def test_markup_and_template_syntax_stay_text_on_every_page_and_in_every_error() -> None:
    boss = person("boss", is_superuser=True)
    client = browser_of(boss)
    gates, runs = evil_rows(boss)
    typed = {"reason": EVIL, "seen": EVIL, "answer-centre": EVIL, "to": EVIL, "note": EVIL, "override": "on"}
    pages = [client.get(OVERVIEW), client.get(GATES), client.get(RUNS), client.get(f"{RUNS}?q={EVIL}")]
    pages += [client.get(f"{RUNS}{run.pk}/change/") for run in runs]
    pages += [client.get(detail(gate)) for gate in gates]
    pages += [client.get(button(name, gate)) for gate in gates for name in GATE_PAGES]
    pages += [client.post(button(name, gate), typed, follow=True) for gate in gates for name in GATE_PAGES]
    pages += [client.get(f"{GATES}{gate.pk}/history/") for gate in gates]
    ticked = {"action": "finoflow_approve_selected", "index": "0", "_selected_action": chosen(*gates)}
    pages.append(client.post(GATES, ticked))
    wrong = 0
    for page in pages:
        text = page.content.decode()
        assert page.status_code == 200, page.request["PATH_INFO"]
        assert "<script>alert" not in text, page.request["PATH_INFO"]
        wrong += "{{ 7|add:7 }}" in text
    assert wrong >= len(pages) - 6  # a few of these pages have nothing of a run on them


def test_markup_in_a_graph_stays_text() -> None:
    made = Workflow(f"graph {EVIL}").step(EVIL, lambda ctx: 1).branch(lambda ctx: EVIL)
    made.path(EVIL, lambda path: path.step(f"{EVIL}.", lambda ctx: 1)).wait_for("go")
    try:
        run = Execution.objects.get(run_id=made.run().run_id)
        text = browser_of(person("viewer", "view_execution")).get(f"{RUNS}{run.pk}/change/").content.decode()
        assert "finoflow-chain" in text
        assert "<script>alert" not in text
        assert "{{ 7|add:7 }}" in text
    finally:
        registry.unregister(made.id)
