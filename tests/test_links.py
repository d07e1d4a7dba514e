"""Links to one gate for one person: signed, bound, expiring, and never deciding by being opened (rules A3 and A4)."""

from __future__ import annotations

from datetime import timedelta
from typing import Any
from urllib.parse import quote, urlsplit

import pytest
from django.contrib.auth.models import User
from django.core import signing
from django.test import Client, RequestFactory
from django.urls import reverse
from django.utils import timezone
from freezegun import freeze_time

from django_finoflow import api, approval_link, claim_gate, decide
from django_finoflow.models import Decision, Wait
from tests.admin_site import browser_of
from tests.inbox_site import ask, ask_formally, at, member, run_of, seen, text_of

pytestmark = pytest.mark.django_db

OPEN = {"anonymous_links": True, "title": "Pay the plumber?", "show": {"Amount": "120.00 EUR"}}
CLOSED = {**OPEN, "anonymous_links": False}


@pytest.fixture
def manager() -> User:
    """Somebody who decides gates that name nobody else."""
    return member("manager", "decide_wait")


def linked(gate: Wait) -> str:
    """Return the address of a link's page, without its token."""
    return reverse("finoflow:linked", args=[gate.pk])


def follow(client: Client, link: str) -> Any:
    """Open a link as a browser does, and return the last page."""
    return client.get(link, follow=True)


def press(client: Client, gate: Wait, how: str = "approve", page: Any = None, **data: str) -> Any:
    """Press a button of the page that a link led to."""
    token = "" if page is None else seen(page)
    return client.post(linked(gate), {"do": how, "reason": "Fine.", "seen": token, **data}, follow=True)


# ── making them ──


def test_a_link_is_absolute_with_a_request_or_the_setting_and_else_a_path(manager: User, settings: Any) -> None:
    gate = ask()
    assert approval_link(gate, manager).startswith("/approvals/link/")
    request = RequestFactory().get("/", secure=True, headers={"host": "site.example"})
    assert approval_link(gate, manager, request=request).startswith("https://site.example/approvals/link/")
    settings.FINOFLOW = {"BASE_URL": "https://other.example"}
    assert approval_link(gate, manager).startswith("https://other.example/approvals/link/")
    assert approval_link(gate, manager, request=request).startswith("https://site.example/")


def test_a_link_tells_nothing_of_the_gate_but_its_number(manager: User) -> None:
    token = approval_link(ask(approval=CLOSED), manager).split("/")[-2]
    plain = signing.b64_decode(token.split(":")[0].lstrip(".").encode()).decode(errors="replace")
    for secret in ("plumber", "120", "manager"):
        assert secret not in token + plain


# ── opening and deciding ──


def test_a_link_asks_for_a_login_and_its_token_leaves_the_address_first(client: Client, manager: User) -> None:
    gate = ask(approval=CLOSED)
    first = client.get(approval_link(gate, manager))
    assert (first.status_code, first["Location"]) == (302, linked(gate))
    assert first["Referrer-Policy"] == "no-referrer"
    second = client.get(linked(gate))
    assert second["Location"] == f"/accounts/login/?next={quote(linked(gate))}"
    assert "no-store" in second["Cache-Control"]
    sent = {"username": "manager", "password": "secret", "next": linked(gate)}
    page = client.post("/accounts/login/", sent, follow=True)
    assert page.redirect_chain == [(linked(gate), 302)]
    assert "120.00 EUR" in text_of(page)


def test_a_links_page_decides_by_its_post_in_the_name_of_its_user(manager: User) -> None:
    gate, client = ask(approval=CLOSED), browser_of(manager)
    page = follow(client, approval_link(gate, manager))
    assert not Decision.objects.exists()
    assert "You approved it." in text_of(press(client, gate, page=page))
    again = text_of(follow(client, approval_link(gate, manager)))
    assert again.count("You approved it.") == 1
    assert "takes no answer" not in again
    made = Decision.objects.get()
    assert (made.user, made.approved, made.reason, made.channel) == (manager, True, "Fine.", "link")


def test_a_gate_that_says_so_is_decided_by_link_without_a_login(client: Client, manager: User) -> None:
    gate = ask(approval=OPEN)
    page = follow(client, approval_link(gate, manager))
    assert "120.00 EUR" in text_of(page)
    assert "You approved it." in text_of(press(client, gate, page=page))
    assert Decision.objects.get().user == manager
    assert "_auth_user_id" not in client.session
    assert client.get("/approvals/").status_code == client.get(at(gate)).status_code == 302


def test_a_links_page_shows_the_gates_form_and_its_errors_in_place(manager: User) -> None:
    gate, client = ask_formally(), browser_of(manager)
    page = follow(client, approval_link(gate, manager))
    assert 'name="answer-amount"' in text_of(page)
    assert "#id_answer-amount" in text_of(press(client, gate, page=page))
    assert "#id_reason" in text_of(press(client, gate, "reject", page, reason="", **{"answer-amount": "1"}))
    press(client, gate, page=page, **{"answer-amount": "7"})
    assert Decision.objects.get().data["amount"] == 7


def test_links_to_several_gates_live_side_by_side_in_one_browser(client: Client, manager: User) -> None:
    gates = [ask(approval={**OPEN, "title": f"Pay {n}?"}) for n in (1, 2)]
    pages = [follow(client, approval_link(gate, manager)) for gate in gates]
    assert "Pay 1?" in text_of(pages[0])
    for gate, page in zip(gates, pages, strict=True):
        press(client, gate, page=page)
    assert Decision.objects.count() == 2


def test_a_session_keeps_the_latest_ten_links(client: Client, manager: User) -> None:
    gates = [ask(approval=OPEN) for _ in range(12)]
    for gate in gates:
        client.get(approval_link(gate, manager))
    kept = [client.get(linked(gate)).status_code for gate in gates]
    assert kept == [403] * 2 + [200] * 10


@pytest.mark.parametrize("method", ["get", "head", "options", "put", "patch", "delete"])
def test_a4_nothing_but_the_post_of_its_page_decides_by_a_link(method: str, client: Client, manager: User) -> None:
    gate = ask(approval=OPEN)
    link = approval_link(gate, manager)
    page = follow(client, link)
    data = {"do": "approve", "reason": "x", "seen": seen(page)}
    for url in (link, linked(gate)):
        getattr(client, method)(url, data)
    client.post(link, data)
    assert not Decision.objects.exists()


def test_a4_a_post_by_link_without_the_csrf_token_is_refused(manager: User) -> None:
    gate = ask(approval=OPEN)
    client = Client(enforce_csrf_checks=True)
    page = follow(client, approval_link(gate, manager))
    data = {"do": "approve", "reason": "x", "seen": seen(page)}
    assert client.post(linked(gate), data).status_code == 403
    assert not Decision.objects.exists()
    client.post(linked(gate), {**data, "csrfmiddlewaretoken": str(page.context["csrf_token"])})
    assert Decision.objects.exists()


def test_a4_a_post_by_link_needs_the_token_of_what_was_shown(client: Client, manager: User) -> None:
    gate = ask(approval=OPEN)
    follow(client, approval_link(gate, manager))
    press(client, gate)
    assert not Decision.objects.exists()


# ── what a link is not good for ──


@pytest.mark.parametrize("approval", [OPEN, CLOSED])
def test_another_users_link_is_refused(approval: dict[str, Any], manager: User) -> None:
    gate = ask(approval=approval)
    other = browser_of(member("other", "decide_wait"))
    page = follow(other, approval_link(gate, manager))
    assert page.status_code == press(other, gate).status_code == 403
    assert "plumber" not in text_of(page)
    assert not Decision.objects.exists()


@pytest.mark.parametrize("gone", ["inactive", "deleted", "not asked"])
def test_a_link_of_somebody_who_may_not_decide_any_more_is_refused(gone: str, client: Client, manager: User) -> None:
    gate = ask(approval=OPEN)
    page = follow(client, approval_link(gate, manager))
    if gone == "inactive":
        User.objects.update(is_active=False)
    elif gone == "deleted":
        manager.delete()
    else:
        manager.user_permissions.clear()
    assert press(client, gate, page=page).status_code == 403
    assert not Decision.objects.exists()


def test_another_gates_link_opens_that_gate_only(client: Client, manager: User) -> None:
    gate, other = ask(approval=OPEN), ask(approval=OPEN)
    page = follow(client, approval_link(gate, manager))
    assert client.get(linked(other)).status_code == 403
    assert client.post(linked(other), {"do": "approve", "reason": "x", "seen": seen(page)}).status_code == 403
    session = client.session
    session["finoflow_links"] = {str(other.pk): session["finoflow_links"][str(gate.pk)]}
    session.save()
    press(client, other, page=page)
    assert [made.wait for made in Decision.objects.all()] in ([], [gate])


def test_a_tampered_link_is_refused(client: Client, manager: User) -> None:
    gate = ask(approval=OPEN)
    link = approval_link(gate, manager)
    start, token = link.rsplit("/", 2)[:2]
    data, stamp, signature = token.split(":")
    forged = signing.dumps([gate.pk, "x", str(manager.pk)], salt="another purpose")
    for wrong in (
        f"{data}:{stamp}:{signature[:-1]}{'A' if signature[-1] != 'A' else 'B'}",
        f"{data}:{stamp}",
        f"{data}x:{stamp}:{signature}",
        forged,
        "x" * 5000,
        "%00",
    ):
        page = follow(client, f"{start}/{wrong}/")
        assert page.status_code == 403
        assert "plumber" not in text_of(page)
        assert client.get(linked(gate)).status_code == 403


@pytest.mark.parametrize("opened_before", [True, False])
def test_a_link_works_for_as_long_as_the_setting_says(opened_before: bool, settings: Any, manager: User) -> None:
    settings.FINOFLOW = {"LINK_MAX_AGE": "2h"}
    gate, client = ask(approval=OPEN), Client()
    link = approval_link(gate, manager)
    page = follow(client, link) if opened_before else None
    with freeze_time(timezone.now() + timedelta(hours=1.9)):
        assert follow(Client(), link).status_code == 200
    with freeze_time(timezone.now() + timedelta(hours=2.1)):
        if not opened_before:
            page = follow(client, link)
            assert page.status_code == 410
            assert "too old" in text_of(page)
        press(client, gate, page=page)
    assert not Decision.objects.exists()


@pytest.mark.parametrize("change", ["vote", "claim", "escalation"])
def test_an_older_link_is_refused_when_the_gate_has_changed_since(change: str, client: Client, manager: User) -> None:
    gate = ask(approval={**OPEN, "quorum": 2})
    link = approval_link(gate, manager)
    page = follow(client, link)
    quick = member("quick", "decide_wait")
    if change == "vote":
        decide(run_of(gate).run_id, gate.name, user=quick, approved=True)
    elif change == "claim":
        claim_gate(run_of(gate).run_id, gate.name, user=quick)
    else:
        Wait.objects.filter(pk=gate.pk).update(audience='["",[],[],[["",["directors"],[]]]]')
    for later in (press(client, gate, page=page), follow(Client(), link)):
        assert later.status_code == 410
        assert "has changed since the link was made" in text_of(later)
    assert not Decision.objects.filter(user=manager).exists()
    press(client, gate, page=follow(client, approval_link(Wait.objects.get(pk=gate.pk), manager)))
    assert Decision.objects.filter(user=manager).exists()


def test_a_decided_gates_links_die_and_say_who_decided_and_when(client: Client, manager: User) -> None:
    gate = ask(approval=OPEN)
    link = approval_link(gate, manager)
    page = follow(client, link)
    decide(run_of(gate).run_id, gate.name, user=member("quick", "decide_wait"), approved=False, reason="No.")
    for later in (follow(Client(), link), press(client, gate, page=page)):
        assert later.status_code == 200
        assert "quick rejected it on" in text_of(later)
        assert "<form" not in text_of(later)
    assert Decision.objects.count() == 1


def test_a_double_click_on_a_links_page_decides_once_and_says_so_twice(client: Client, manager: User) -> None:
    gate = ask(approval={**OPEN, "quorum": 2})
    page = follow(client, approval_link(gate, manager))
    for _ in range(2):
        told = text_of(press(client, gate, page=page))
        assert "Your approval is recorded: 1 of 2; one more is needed." in told
        assert "You have answered" not in told
    assert Decision.objects.count() == 1


def test_a_link_of_a_run_that_was_deleted_says_so(client: Client, manager: User) -> None:
    gate = ask(approval=OPEN)
    link = approval_link(gate, manager)
    api.delete_run(run_of(gate).run_id, force=True)
    assert follow(client, link).status_code == 410


def test_a_link_offers_no_override_and_takes_none(client: Client) -> None:
    boss = member("boss", "override_gate", "decide_wait")
    gate = ask(approval={**OPEN, "quorum": 2})
    page = follow(client, approval_link(gate, boss))
    assert "override" not in text_of(page)
    press(client, gate, page=page, override="on")
    assert not Decision.objects.get().override
    assert Wait.objects.get(pk=gate.pk).is_open


def test_pages_of_links_are_kept_nowhere_and_framed_by_nobody(client: Client, manager: User) -> None:
    gate = ask(approval=OPEN)
    link = approval_link(gate, manager)
    for page in (client.get(link), client.get(linked(gate)), client.get("/approvals/link/x/")):
        assert "no-store" in page["Cache-Control"]
        assert page["X-Frame-Options"] == "DENY"
        assert page["Referrer-Policy"] in ("no-referrer", "same-origin")
    text = text_of(client.get(linked(gate)))
    assert link not in text
    assert not urlsplit(link).netloc
    assert "//" not in text.replace("<!DOCTYPE html>", "")
