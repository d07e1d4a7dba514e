"""Mails to those who may decide: off by default, title and link and never the payload, and without consequences."""

from __future__ import annotations

import logging
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest
from django.contrib.auth.models import User
from django.core import mail
from django.db import connection
from django.test import Client
from django.test.utils import CaptureQueriesContext
from django.utils import timezone
from freezegun import freeze_time

from django_finoflow import (
    Candidates,
    approval_link,
    cancel,
    claim_gate,
    conf,
    decide,
    delegate_gate,
    mails,
    maintenance,
)
from django_finoflow.models import Decision, Wait
from django_finoflow.recipients import who_can_answer
from tests.inbox_site import ask, member, run_of, text_of

pytestmark = pytest.mark.django_db

ON = {"MAIL": True, "BASE_URL": "https://site.example"}


@pytest.fixture
def manager() -> User:
    """Somebody who decides gates that name nobody else."""
    return member("manager", "decide_wait")


@pytest.fixture
def tell(settings: Any, django_capture_on_commit_callbacks: Any) -> Callable[..., Any]:
    """Turn mails on; then do something, and what its commit tells."""
    settings.FINOFLOW = ON

    def tell(action: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        with django_capture_on_commit_callbacks(execute=True):
            return action(*args, **kwargs)

    return tell


def sent_to() -> list[str]:
    """Return who was written to, in order, and forget the mails."""
    found = [to for message in mail.outbox for to in message.to]
    mail.outbox.clear()
    return found


# ── when, and to whom ──


@pytest.mark.parametrize(
    "wrong",
    [
        {"MAIL": True},
        {"MAIL": True, "BASE_URL": ""},
        {"MAIL": "yes", "BASE_URL": "https://site.example"},
        {"BASE_URL": "site.example"},
        {"BASE_URL": "https://site.example/path"},
        {"BASE_URL": "javascript:alert(1)"},
        {"BASE_URL": None},
        {"LINK_MAX_AGE": "soon"},
        {"LINK_MAX_AGE": 0},
    ],
)
def test_settings_of_links_and_mails_that_cannot_be_are_told_at_start(wrong: dict[str, Any], settings: Any) -> None:
    settings.FINOFLOW = ON | {"LINK_MAX_AGE": "2d"}
    assert conf.problems() == []
    settings.FINOFLOW = wrong
    assert len(conf.problems()) == 1


def test_mails_are_off_unless_the_setting_says_otherwise(
    manager: User, django_capture_on_commit_callbacks: Any
) -> None:
    with django_capture_on_commit_callbacks(execute=True):
        ask()
    assert mail.outbox == []


def test_who_can_answer_a_gate_is_told_when_it_opens_and_nobody_else(tell: Any, manager: User) -> None:
    member("second", "decide_wait")
    member("outsider")
    member("away", "decide_wait", is_active=False)
    User.objects.create_superuser("root", "root@example.com")
    User.objects.filter(pk=member("silent", "decide_wait").pk).update(email="")
    tell(ask, approval={"title": "Pay?"})
    assert all(len(message.to) == 1 and not message.cc and not message.bcc for message in mail.outbox)
    assert sent_to() == ["manager@example.com", "second@example.com"]


def test_members_who_lack_the_permission_cost_no_query_each() -> None:
    gate = ask(approval={"groups": ["finance"], "permission": "finoflow.view_wait"})
    kim = member("kim", "view_wait", groups=("finance",))

    def look() -> int:
        with CaptureQueriesContext(connection) as captured:
            assert who_can_answer(Wait.objects.get(pk=gate.pk), most=5) == [kim]
        return len(captured)

    few = look()
    for number in range(9):
        member(f"ann-{number}", groups=("finance",))
    assert look() == few


def test_who_can_answer_is_found_by_groups_names_and_permissions(manager: User) -> None:
    both = member("both", "view_wait", groups=("finance",))
    finance, kim = member("finance", groups=("finance",)), member("kim")
    User.objects.create_superuser("root", "root@example.com")
    assert who_can_answer(ask(approval={"groups": ["finance"], "users": ["kim"]})) == [both, finance, kim]
    assert who_can_answer(ask(approval={"groups": ["finance"], "permission": "finoflow.view_wait"})) == [both]
    assert who_can_answer(ask(approval={"users": ["root", "nobody"]})) == [User.objects.get(username="root")]
    assert who_can_answer(ask()) == [manager]
    assert who_can_answer(ask(both, approval={"groups": ["finance"], "exclude_requester": True})) == [finance]
    assert who_can_answer(ask(approval={"groups": ["finance"]}), most=1) == [both]


def test_reminders_go_to_those_who_have_not_answered(tell: Any, manager: User) -> None:
    second = member("second", "decide_wait")
    gate = tell(ask, approval={"title": "Pay?", "quorum": 2, "remind": ("4h",)})
    decide(run_of(gate).run_id, gate.name, user=second, approved=True)
    mail.outbox.clear()
    with freeze_time(timezone.now() + timedelta(hours=5)):
        tell(maintenance.give_notices)
    assert mail.outbox[0].subject == "Reminder: Pay?"
    assert sent_to() == ["manager@example.com"]


def test_an_escalation_is_told_to_those_who_were_added_as_well(tell: Any, make: Any, manager: User) -> None:
    @make
    def flow(ctx: Any, input: Any) -> Any:
        return ctx.wait_for_approval("ok", title="Pay?", escalate=("4h", Candidates(groups=["directors"])))

    member("director", groups=("directors",))
    tell(flow.run, {})
    assert sent_to() == ["manager@example.com"]
    with freeze_time(timezone.now() + timedelta(hours=5)):
        tell(maintenance.give_notices)
    assert mail.outbox[0].subject == "Still unanswered: Pay?"
    assert sent_to() == ["director@example.com", "manager@example.com"]


def test_only_who_a_gate_was_handed_to_is_told_of_it(tell: Any, manager: User) -> None:
    second = member("second", "decide_wait")
    gate = tell(ask, approval={"title": "Pay?"})
    mail.outbox.clear()
    tell(claim_gate, run_of(gate).run_id, gate.name, user=manager)
    assert mail.outbox == []
    tell(delegate_gate, run_of(gate).run_id, gate.name, user=manager, to=second, note="a secret note")
    [message] = mail.outbox
    assert (message.subject, message.to) == ("Handed over to you: Pay?", ["second@example.com"])
    assert "secret" not in message.body


# ── what is in them ──


def test_a_mail_has_the_title_and_a_link_for_that_person_and_never_the_payload(tell: Any, manager: User) -> None:
    gate = tell(
        ask,
        member("asker"),
        key="the-key",
        secret="from the input",
        approval={"title": "Pay the plumber?", "show": {"Amount": "120.00 EUR"}},
    )
    [message] = mail.outbox
    assert message.subject == "Your decision is needed: Pay the plumber?"
    assert "Pay the plumber?" in message.body
    for secret in ("120.00", "from the input", "the-key", "asker", run_of(gate).run_id):
        assert secret not in str(message.message())
    [link] = [line for line in message.body.splitlines() if line.startswith("https://")]
    assert link.startswith("https://site.example/approvals/link/")
    client = Client()
    client.force_login(manager)
    page = client.get(link.removeprefix("https://site.example"), follow=True)
    assert "120.00 EUR" in text_of(page)
    assert not Decision.objects.exists()


@pytest.mark.parametrize(
    "title", ["Pay?\r\nBcc: all@example.com", "Pay?\nBcc: all@example.com\n\nhttps://evil.example"]
)
def test_a_title_cannot_add_headers_nor_lines(title: str, tell: Any, manager: User) -> None:
    tell(ask, approval={"title": title})
    [message] = mail.outbox
    assert message.recipients() == ["manager@example.com"]
    assert message.message()["Bcc"] is None
    assert message.subject.startswith("Your decision is needed: Pay? Bcc: all@example.com")
    assert [line for line in message.body.splitlines() if line.startswith("Bcc")] == []
    assert [line for line in message.body.splitlines() if line.startswith("https://evil")] == []


def test_markup_and_template_syntax_in_a_title_stay_plain_text(tell: Any, manager: User) -> None:
    title = "<b>Tom & Jerry</b> {{ settings.SECRET_KEY }} {% now 'Y' %}"
    tell(ask, approval={"title": title})
    [message] = mail.outbox
    assert message.subject == f"Your decision is needed: {title}"
    assert message.body.startswith(f"{title}\n")
    assert message.content_subtype == "plain"
    assert not message.message().is_multipart()


def test_a_very_long_title_is_cut(tell: Any, manager: User) -> None:
    tell(ask, approval={"title": "x" * 5000})
    [message] = mail.outbox
    assert len(message.subject) < 200


# ── without consequences ──


def no_server() -> Any:
    """Fail as a mail server does that is away."""
    raise ConnectionError("no mail server")


def test_a_mail_server_that_is_away_changes_nothing_and_is_logged(
    tell: Any, manager: User, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(mails, "_connection", no_server)
    with caplog.at_level(logging.ERROR, "django_finoflow.mails"):
        gate = tell(ask)
    assert "No mail was sent for gate" in caplog.text
    assert Wait.objects.get(pk=gate.pk).is_open
    assert decide(run_of(gate).run_id, gate.name, user=manager, approved=True).pk


def test_one_address_that_fails_keeps_nobody_else_from_their_mail(
    tell: Any, manager: User, caplog: pytest.LogCaptureFixture
) -> None:
    User.objects.filter(pk=member("bad", "decide_wait").pk).update(email="bad\nBcc: x@example.com")
    tell(ask)
    assert sent_to() == ["manager@example.com"]
    assert "No mail was sent to user" in caplog.text


def test_nobody_is_told_of_a_gate_that_has_closed_or_gone_before_the_mail(
    tell: Any, manager: User, caplog: pytest.LogCaptureFixture
) -> None:
    gate = ask()
    cancel(run_of(gate).run_id)
    mails.opened(wait=gate.pk)
    assert mail.outbox == []
    mails.opened(wait=0)
    assert mail.outbox == []
    assert "No mail was sent for gate 0" in caplog.text


def test_a_mails_link_is_out_of_date_when_somebody_claims_the_gate_and_says_so(tell: Any, manager: User) -> None:
    gate = tell(ask)
    link = approval_link(gate, manager)
    claim_gate(run_of(gate).run_id, gate.name, user=manager)
    client = Client()
    client.force_login(manager)
    page = client.get(link.removeprefix("https://site.example"), follow=True)
    assert page.status_code == 410
    assert f"/approvals/gates/{gate.pk}/" in text_of(page)
