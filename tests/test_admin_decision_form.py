"""The decision page of the admin: the gate's own form, overriding, votes, holders, history; what bulk leaves out."""

from __future__ import annotations

import re
from typing import Any

import pytest
from django.contrib.admin.models import LogEntry
from django.contrib.auth.models import User
from django.test import Client
from django.utils import timezone
from django.utils.html import strip_tags

from django_finoflow import api, claim_gate
from django_finoflow.models import Decision, Wait
from tests.admin_site import (
    GATES,
    RUNS,
    ask,
    ask_budget,
    browser_of,
    button,
    chosen,
    detail,
    person,
    run_of,
    seen,
)

pytestmark = pytest.mark.django_db


def answer(client: Client, gate: Wait, how: str = "approve", **data: str) -> Any:
    """Open the decision page and send its form, as a browser does."""
    sent = {"reason": "", "seen": seen(client.get(button(how, gate))), **data}
    return client.post(button(how, gate), sent, follow=True)


def told(page: Any) -> list[str]:
    """Return what a page tells at its top."""
    return [str(message) for message in page.context["messages"]]


@pytest.fixture
def manager() -> User:
    """Somebody who decides gates that name nobody else."""
    return person("manager", "decide_wait")


@pytest.fixture
def chief() -> User:
    """Somebody who may decide any gate against its rules, and is asked by none."""
    return person("chief", "override_gate")


# ── the gate's own form ──


def test_the_page_shows_the_gates_own_form_and_its_cleaned_data_is_kept(manager: User) -> None:
    gate = ask_budget()
    client = browser_of(manager)
    text = client.get(button("approve", gate)).content.decode()
    assert "Cost centre" in text
    assert "As on the invoice." in text
    assert answer(client, gate, **{"answer-centre": "it-7", "answer-urgent": "on"}).redirect_chain
    assert Decision.objects.get().data == {"centre": "IT-7", "urgent": True}
    assert "IT-7" in client.get(detail(gate)).content.decode()


def test_what_was_filled_in_is_told_by_labels_at_the_gate_and_its_run(manager: User) -> None:
    gate = ask_budget()
    answer(browser_of(manager), gate, **{"answer-centre": "<i>it</i>"})
    client = browser_of(person("viewer", "view_wait", "view_execution"))
    pages = [client.get(detail(gate)), client.get(f"{RUNS}{gate.execution_id}/change/")]
    for text in [page.content.decode().partition("<thead>")[2] for page in pages]:
        decisions = text.rpartition("Reason</th>")[2]
        assert "<dt>Cost centre</dt>" in decisions
        assert "<dt>Urgent</dt>" in decisions
        assert "&lt;I&gt;IT" in decisions
        assert "<I>IT" not in decisions


def test_a_vote_of_several_is_told_as_recorded_with_how_many_are_needed(manager: User) -> None:
    client = browser_of(manager)
    [text] = told(answer(client, ask(approval={"title": "Pay?", "quorum": 2})))
    assert text == "You approved “Pay?”. Your approval is recorded: 1 of 2; one more is needed."
    [text] = told(answer(client, ask(approval={"title": "Pay?"})))
    assert text == "You approved “Pay?”."


def test_dates_of_a_page_of_the_admin_are_all_of_the_hosts_one_format(manager: User, settings: Any) -> None:
    settings.USE_THOUSAND_SEPARATOR = False  # with it, Django forgets the formats that it remembers
    settings.FORMAT_MODULE_PATH = "tests.formats"
    gate = ask(timeout="5d")
    claim_gate(run_of(gate).run_id, "approval", user=manager, wait=gate)
    client = browser_of(person("viewer", "view_wait", "view_execution", "decide_wait"))
    year, run = timezone.now().year, f"{RUNS}{gate.execution_id}/change/"
    axis = r'<div class="finoflow-axis".*?</div>'  # a scale of days: no moments
    for url in (detail(gate), run, button("approve", gate), f"{GATES}overview/", GATES, RUNS):
        text = strip_tags(re.sub(axis, "", client.get(url).content.decode(), flags=re.S))
        assert f"DATED {year}" in text
        assert re.findall(rf"(?<!DATED )\b(?:{year}|{year + 1})\b|SHORT", text) == []


@pytest.mark.parametrize(("value", "error"), [("", "This field is required."), ("closed", "That one is closed.")])
@pytest.mark.parametrize("how", ["approve", "reject"])
def test_an_error_of_the_gates_own_form_is_shown_at_its_field_and_what_was_typed_stays(
    how: str, value: str, error: str, manager: User
) -> None:
    gate = ask_budget()
    page = answer(browser_of(manager), gate, how, reason="Typed already.", **{"answer-centre": value})
    text = page.content.decode()
    assert page.status_code == 200
    assert text.count(error) == len(["in the summary", "at the field"])
    assert 'href="#id_answer-centre"' in text
    assert "Typed already." in text
    assert not Decision.objects.exists()
    assert run_of(gate).waits.get().is_open


def test_a_gate_with_a_form_of_a_workflow_that_is_not_known_here_says_so_and_takes_no_answer(manager: User) -> None:
    gate = ask_budget()
    run_of(gate).__class__.objects.update(version=9)
    client = browser_of(manager)
    page = client.get(button("approve", gate))
    assert "which this site does not know" in page.content.decode()
    client.post(button("approve", gate), {"seen": page.context["token"], "answer-centre": "it"})
    assert not Decision.objects.exists()


# ── overriding ──


def test_who_may_override_decides_what_they_are_not_asked_with_a_reason_and_the_log_says_so(chief: User) -> None:
    gate = ask(approval={"title": "Board?", "groups": ["board"]})
    client = browser_of(chief)
    assert button("approve", gate) in client.get(detail(gate)).content.decode()
    assert "But you may override its rules, below." in client.get(button("approve", gate)).content.decode()
    page = answer(client, gate, reason="The board is away.")
    assert page.context["form"].errors["override"] == ['You may not decide "Board?".']
    page = answer(client, gate, override="on")
    assert page.context["form"].errors["reason"]
    assert not Decision.objects.exists()
    assert answer(client, gate, override="on", reason="The board is away.").redirect_chain
    made = Decision.objects.get()
    assert (made.override, made.user_name, made.reason) == (True, "chief", "The board is away.")
    assert LogEntry.objects.get().get_change_message() == "Approved against its rules. The board is away."
    assert "chief approved it against its rules" in client.get(detail(gate)).content.decode()


def test_overriding_is_not_offered_in_the_list_nor_to_who_may_not(manager: User, chief: User) -> None:
    gate = ask(requester=manager, approval={"exclude_requester": True})
    viewer = browser_of(person("viewer", "view_wait"))
    assert button("approve", gate) not in browser_of(chief).get(GATES).content.decode()
    assert "Override" not in viewer.get(detail(gate)).content.decode()
    other = person("other", "decide_wait")
    page = browser_of(other).get(button("approve", gate))
    assert "override" not in page.context["form"].fields
    forged = {"reason": "x", "seen": seen(page), "override": "on"}
    browser_of(other).post(button("approve", gate), forged)
    assert not Decision.objects.get().override


# ── votes, who may decide, history ──


def test_the_page_shows_votes_who_may_decide_who_holds_it_and_what_happened(manager: User) -> None:
    second = person("second", "decide_wait")
    gate = ask(approval={"title": "Two of us?", "quorum": 2})
    run_id = run_of(gate).run_id
    api.claim_gate(run_id, "approval", user=second, wait=gate)
    client = browser_of(manager)
    text = client.get(button("approve", gate)).content.decode()
    for part in ("0 of 2 approvals", "holders of the permission finoflow.decide_wait", "second, since"):
        assert part in text
    api.decide(run_id, "approval", user=second, approved=True, reason="Fine by me.", wait=gate)
    for page in (client.get(button("approve", gate)), client.get(detail(gate))):
        text = page.content.decode()
        for part in ("1 of 2 approvals", "second claimed it.", "second approved it.", "Fine by me."):
            assert part in text
    assert "1 of 2 approvals" in client.get(GATES).content.decode()
    assert answer(client, gate).redirect_chain
    assert run_of(gate).waits.get().outcome == "signalled"


def test_a_vote_or_a_claim_since_the_page_was_shown_shows_it_again_and_keeps_what_was_typed(manager: User) -> None:
    second = person("second", "decide_wait")
    gate = ask(approval={"quorum": 3})
    client = browser_of(manager)
    for change in (api.claim_gate, lambda *place, **who: api.decide(*place, approved=True, **who)):
        old = seen(client.get(button("approve", gate)))
        change(run_of(gate).run_id, "approval", user=second, wait=gate)
        page = client.post(button("approve", gate), {"reason": "Typed already.", "seen": old})
        assert told(page) == ["The gate has changed since it was shown. Look again and decide."]
        assert "Typed already." in page.content.decode()
        assert not Decision.objects.filter(user=manager).exists()
    client.post(button("approve", gate), {"reason": "", "seen": seen(page)})
    assert Decision.objects.get(user=manager).approved


def test_the_deciders_of_another_gate_are_excluded_by_name(manager: User) -> None:
    gate = ask(gate="second", approval={"exclude_deciders_of": ["first"]})
    place = {"execution": gate.execution, "index": 90, "kind": "signal", "name": "first"}
    first = Wait.objects.create(**place, opened_at=gate.opened_at, approval={}, audience=gate.audience)
    Decision.objects.create(
        wait=first, user=manager, user_name="manager", approved=True, channel="api", decided_at=gate.opened_at
    )
    client = browser_of(manager)
    assert button("approve", gate) not in client.get(GATES).content.decode()
    assert client.get(button("approve", gate)).status_code == 404
    manager.user_permissions.add(*person("viewer", "view_wait").user_permissions.all())
    assert browser_of(User.objects.get(pk=manager.pk)).get(button("approve", gate)).status_code == 403


# ── several at once ──


def tick(client: Client, how: str, gates: list[Wait], **data: Any) -> Any:
    """Choose gates in the list and press Go."""
    sent = {"action": f"finoflow_{how}_selected", "_selected_action": chosen(*gates), "index": "0", **data}
    return client.post(GATES, sent, follow=True)


@pytest.mark.parametrize("how", ["approve", "reject"])
def test_a5_bulk_leaves_out_gates_whose_form_must_be_filled_in_and_names_them(how: str, manager: User) -> None:
    plain = ask(approval={"title": "Plain?"})
    strict = ask_budget(approval={"title": "Strict?"})
    lax = ask_budget(gate="remark", approval={"title": "Lax?"})
    client = browser_of(manager)
    page = tick(client, how, [plain, strict, lax])
    assert "decide it on its own page" in page.content.decode()
    sent = {"chosen": page.context["chosen"], "reason": "All the same."}
    done = client.post(page.context["action"], sent, follow=True)
    verb = {"approve": "approved", "reject": "rejected"}[how]
    assert told(done) == [
        f"2 gates were {verb}.",
        "Strict?: It has a form to fill in: decide it on its own page.",
    ]
    assert {made.wait_id: made.data for made in Decision.objects.all()} == {plain.pk: None, lax.pk: {"remark": ""}}


def test_a5_bulk_never_overrides(chief: User) -> None:
    gates = [ask(approval={"groups": ["board"]}) for _ in range(2)]
    forged = {"chosen": " ".join(f"{gate.pk}:x" for gate in gates), "reason": "x", "override": "on"}
    assert browser_of(chief).post(f"{GATES}approve/", forged).status_code in (302, 403)
    assert not Decision.objects.exists()


def test_a5_bulk_gives_one_vote_of_several_like_any_other(manager: User) -> None:
    gates = [ask(approval={"quorum": 2}) for _ in range(2)]
    client = browser_of(manager)
    alone = ask()
    page = tick(client, "approve", [*gates, alone])
    assert "Approve 3 of 3" in page.content.decode()
    page = client.post(page.context["action"], {"chosen": page.context["chosen"], "reason": ""}, follow=True)
    assert Decision.objects.count() == 3
    assert all(run_of(gate).waits.get().is_open for gate in gates)
    assert told(page) == [
        "Your approvals of 2 gates were recorded; more must approve them.",
        "1 gate was approved.",
    ]
