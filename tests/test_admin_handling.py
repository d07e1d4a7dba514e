"""Claim, release and hand over in the admin: a page asks, its POST does it, and the log keeps it."""

from __future__ import annotations

from typing import Any

import pytest
from django.contrib.admin.models import LogEntry
from django.contrib.auth.models import User
from django.test import Client

from django_finoflow import api
from django_finoflow.models import Wait
from tests.admin_site import ask, browser_of, button, detail, person, run_of

pytestmark = pytest.mark.django_db

VERBS = ("claim", "release", "delegate")


@pytest.fixture
def manager() -> User:
    """Somebody who decides gates that name nobody else."""
    return person("manager", "decide_wait")


@pytest.fixture
def second() -> User:
    """Somebody else who does."""
    return person("second", "decide_wait")


def press(client: Client, verb: str, gate: Wait, **data: str) -> Any:
    """Open the page of a button and send its form."""
    assert client.get(button(verb, gate)).status_code == 200
    return client.post(button(verb, gate), data, follow=True)


def told(page: Any) -> list[str]:
    """Return what a page tells at its top."""
    return [str(message) for message in page.context["messages"]]


def holder(gate: Wait) -> str:
    """Return the name of who has claimed a gate."""
    return str(Wait.objects.get(pk=gate.pk).claimed_by_name)


def claimed(gate: Wait, user: User) -> Wait:
    """Claim a gate, and return it."""
    return api.claim_gate(run_of(gate).run_id, gate.name, user=user, wait=gate)


def shown(client: Client, gate: Wait) -> set[str]:
    """Return the buttons of claims that a gate's page shows."""
    text = client.get(detail(gate)).content.decode()
    return {verb for verb in VERBS if button(verb, gate) in text}


def test_a_gate_is_claimed_and_released_by_its_buttons_and_the_log_keeps_both(manager: User) -> None:
    gate, client = ask(approval={"title": "Pay?"}), browser_of(manager)
    assert shown(client, gate) == {"claim", "delegate"}
    assert told(press(client, "claim", gate)) == ["You claimed “Pay?”."]
    assert holder(gate) == "manager"
    assert shown(client, gate) == {"release", "delegate"}
    assert told(press(client, "release", gate)) == ["You released “Pay?”."]
    assert holder(gate) == ""
    assert {entry.get_change_message() for entry in LogEntry.objects.all()} == {"Claimed.", "Released."}


def test_a_second_claim_is_refused_by_name(manager: User, second: User) -> None:
    gate, client = ask(), browser_of(manager)
    assert client.get(button("claim", gate)).status_code == 200
    claimed(gate, second)
    [message] = told(client.post(button("claim", gate), follow=True))
    assert "is claimed by second" in message
    assert holder(gate) == "second"
    assert shown(client, gate) == set()
    assert not LogEntry.objects.exists()


def test_a_claim_does_not_keep_another_from_deciding(manager: User, second: User) -> None:
    gate, client = ask(), browser_of(manager)
    claimed(gate, second)
    page = client.get(button("approve", gate))
    client.post(button("approve", gate), {"reason": "", "seen": page.context["token"]})
    assert run_of(gate).waits.get().outcome == "signalled"


def test_a_gate_is_handed_over_to_somebody_who_may_decide_it(manager: User, second: User) -> None:
    gate, client = ask(approval={"title": "Pay?"}), browser_of(manager)
    assert "second" in client.get(button("delegate", gate)).content.decode()
    page = press(client, "delegate", gate, to="second", note="You know them.")
    assert told(page) == ["You handed “Pay?” over to second."]
    assert holder(gate) == "second"
    assert LogEntry.objects.get().get_change_message() == "Handed over to second. You know them."
    assert "manager handed it to second." in page.content.decode()
    assert "You know them." in page.content.decode()


@pytest.mark.parametrize("to", ["", "nobody-of-that-name", "outsider", "requester"])
def test_a_gate_is_not_handed_over_to_who_may_not_decide_it_and_the_field_says_so(to: str, manager: User) -> None:
    person("outsider")
    gate = ask(person("requester", "decide_wait"), approval={"exclude_requester": True})
    page = press(browser_of(manager), "delegate", gate, to=to)
    assert page.status_code == 200
    assert page.context["form"].errors["to"]
    assert 'href="#id_to"' in page.content.decode()
    assert holder(gate) == ""
    assert not LogEntry.objects.exists()


def test_a_holder_of_the_override_permission_releases_anothers_claim_and_nobody_else_does(
    manager: User, second: User
) -> None:
    gate = claimed(ask(), second)
    [message] = told(browser_of(manager).post(button("release", gate), follow=True))
    assert "is claimed by second" in message
    assert holder(gate) == "second"
    chief = browser_of(person("chief", "override_gate"))
    assert "release" in shown(chief, gate)
    press(chief, "release", gate)
    assert holder(gate) == ""


@pytest.mark.parametrize("verb", VERBS)
def test_handling_needs_a_post_with_the_csrf_token(verb: str, manager: User, second: User) -> None:
    gate = ask()
    if verb == "release":
        claimed(gate, manager)
    before = holder(gate)
    client = browser_of(manager, enforce_csrf_checks=True)
    for method in ("get", "head", "put"):
        getattr(client, method)(button(verb, gate), {"to": "second"})
    assert client.post(button(verb, gate), {"to": "second"}).status_code == 403
    assert holder(gate) == before


@pytest.mark.parametrize("verb", VERBS)
def test_view_only_staff_see_no_button_and_cannot_forge_one(verb: str, manager: User) -> None:
    gate = claimed(ask(), manager) if verb == "release" else ask()
    before = holder(gate)
    client = browser_of(person("viewer", "view_wait", "view_execution"))
    assert shown(client, gate) == set()
    assert client.get(button(verb, gate)).status_code == 403
    assert client.post(button(verb, gate), {"to": "manager"}).status_code == 403
    assert holder(gate) == before


@pytest.mark.parametrize("verb", VERBS)
def test_a_gate_that_is_not_visible_does_not_exist(verb: str, manager: User) -> None:
    gate = ask(approval={"groups": ["board"]})
    client = browser_of(manager)
    assert client.get(button(verb, gate)).status_code == 404
    assert client.post(button(verb, gate), {"to": "manager"}).status_code == 404


@pytest.mark.parametrize("verb", VERBS)
def test_a_decided_gate_cannot_be_handled_and_says_what_happened(verb: str, manager: User, second: User) -> None:
    gate = ask()
    api.decide(run_of(gate).run_id, gate.name, user=second, approved=True)
    client = browser_of(manager)
    assert shown(client, gate) == set()
    text = client.get(button(verb, gate)).content.decode()
    assert "second approved it on" in text
    assert 'type="submit" class="default"' not in text
    [message] = told(client.post(button(verb, gate), {"to": "second"}, follow=True))
    assert "second approved it on" in message


def test_the_name_of_a_holder_stays_when_the_user_is_deleted(manager: User, second: User) -> None:
    gate = claimed(ask(), second)
    second.delete()
    text = browser_of(manager).get(detail(gate)).content.decode()
    assert "second claimed it." in text
