"""What the inbox must never do, proven with ordinary users who are no staff (rules A1 to A6)."""

from __future__ import annotations

import time
from typing import Any

import pytest
from django.contrib.auth.models import User
from django.core import mail
from django.db import connection
from django.test import Client
from django.test.utils import CaptureQueriesContext

from django_finoflow import approval_link, cancel, claim_gate, decide, mails
from django_finoflow.audience import Audience
from django_finoflow.models import Candidate, Decision, Execution, Wait
from tests.admin_site import GATES, browser_of
from tests.inbox_site import (
    DECIDED,
    INBOX,
    answer,
    ask,
    ask_formally,
    at,
    formwork,
    member,
    page_of,
    run_of,
    seen,
    text_of,
)

pytestmark = pytest.mark.django_db

MARKUP = "<img src=x onerror=alert(1)>\"'&"
TEMPLATE = "{{ settings.SECRET_KEY }}{% load static %}{# x #}"
BUTTONS = ["approve", "reject", "claim", "release", "delegate"]


@pytest.fixture
def manager() -> User:
    """Somebody who decides gates that name nobody else."""
    return member("manager", "decide_wait")


@pytest.fixture
def desk(manager: User) -> Client:
    """The manager's browser."""
    return browser_of(manager)


def unchanged(gate: Wait) -> bool:
    """Whether nothing at all has happened to a gate."""
    now = Wait.objects.get(pk=gate.pk)
    return now.is_open and now.claimed_by is None and not now.decisions.exists() and not now.events.exists()


# ── who is let in ──


def test_visitors_are_sent_to_the_login_and_decide_nothing(client: Client) -> None:
    gate = ask(approval={"title": "Pay?"})
    for url in (INBOX, DECIDED, at(gate)):
        for page in (client.get(url), client.post(url, {"do": "approve", "reason": "x"})):
            assert (page.status_code, page["Location"]) == (302, f"/accounts/login/?next={url}")
            assert "no-store" in page["Cache-Control"]
    assert unchanged(gate)


def test_a6_a_gate_that_is_not_for_the_user_does_not_exist_for_them(desk: Client, manager: User) -> None:
    hidden = [
        ask(approval={"title": "Board?", "groups": ["board"]}),
        ask(manager, approval={"title": "My own?", "exclude_requester": True}),
    ]
    for gate in hidden:
        assert page_of(desk, gate).status_code == 404
        for button in BUTTONS:
            sent = {"do": button, "reason": "x", "to": "manager", "override": "on"}
            assert desk.post(at(gate), sent).status_code == 404
        assert unchanged(gate)
    assert "?</a>" not in text_of(desk.get(INBOX))
    assert desk.get("/approvals/gates/999999999/").status_code == 404


def test_a6_four_eyes_hide_a_gate_from_whoever_decided_the_one_before_it(make: Any, desk: Client) -> None:
    @make
    def flow(ctx: Any, input: Any) -> Any:
        ctx.wait_for_approval("first")
        return ctx.wait_for_approval("second", exclude_deciders_of=["first"])

    run_id = flow.run({}).run_id
    answer(desk, Wait.objects.gates().get(name="first"))
    flow.resume(run_id)
    second = Wait.objects.gates().get(name="second")
    assert page_of(desk, second).status_code == 404
    assert "Nothing waits for you." in text_of(desk.get(INBOX))
    other = browser_of(member("other", "decide_wait"))
    assert "1 gate waits" in text_of(other.get(INBOX))


def test_a2_superusers_are_bound_by_the_exclusions_unless_they_override() -> None:
    root = User.objects.create_superuser("root")
    gate, client = ask(root, approval={"exclude_requester": True}), browser_of(root)
    assert "#id_override" in text_of(answer(client, gate))
    assert unchanged(gate)
    answer(client, gate, override="on")
    assert Decision.objects.get().override


def test_a6_who_may_only_look_sees_the_gate_without_a_button_and_cannot_forge_one() -> None:
    gate = ask(approval={"title": "Pay?"})
    client = browser_of(member("viewer", "view_wait"))
    page = page_of(client, gate)
    assert "Pay?" in text_of(page)
    assert "<form" not in text_of(page)
    member("second", "decide_wait")
    from django_finoflow.decisions import token

    for button in BUTTONS:
        sent = {"do": button, "reason": "x", "seen": token(gate), "to": "second", "override": "on"}
        if button == "release":
            claim_gate(run_of(gate).run_id, gate.name, user=User.objects.get(username="second"))
            assert "Release it" not in text_of(page_of(client, gate))
            client.post(at(gate), sent)
            assert Wait.objects.get(pk=gate.pk).claimed_by_name == "second"
            Wait.objects.update(claimed_by=None, claimed_by_name="", claimed_at=None)
            gate.events.all().delete()
        else:
            assert client.post(at(gate), sent).status_code == 403
    assert unchanged(gate)
    assert "Nothing waits for you." in text_of(client.get(INBOX))


def test_an_override_without_the_permission_is_none(desk: Client) -> None:
    gate = ask(approval={"quorum": 2})
    assert "override" not in text_of(page_of(desk, gate))
    answer(desk, gate, override="on")
    assert not Decision.objects.get().override
    assert Wait.objects.get(pk=gate.pk).is_open


def test_a_right_that_was_taken_away_between_showing_and_deciding_is_gone(desk: Client, manager: User) -> None:
    gate = ask()
    token = seen(page_of(desk, gate))
    manager.user_permissions.clear()
    assert desk.post(at(gate), {"do": "approve", "reason": "x", "seen": token}).status_code == 404
    User.objects.filter(pk=manager.pk).update(is_active=False)
    assert desk.get(INBOX).status_code == 302
    assert unchanged(gate)


# ── how ──


@pytest.mark.parametrize("method", ["get", "head", "options", "put", "patch", "delete"])
@pytest.mark.parametrize("button", BUTTONS)
def test_a4_nothing_but_a_post_does_anything(method: str, button: str, desk: Client) -> None:
    member("second", "decide_wait")
    gate = ask()
    data = {"do": button, "reason": "x", "to": "second", "seen": seen(page_of(desk, gate))}
    for url in (at(gate), INBOX, DECIDED):
        getattr(desk, method)(url, data)
        getattr(desk, method)(f"{url}?do={button}&reason=x&to=second&seen={data['seen']}")
    desk.post(f"{at(gate)}?do={button}", {"reason": "x", "seen": data["seen"]})
    assert unchanged(gate)


@pytest.mark.parametrize("button", BUTTONS)
def test_a4_a_post_without_the_csrf_token_is_refused(button: str, manager: User, settings: Any) -> None:
    settings.MIDDLEWARE = [name for name in settings.MIDDLEWARE if "Csrf" not in name]  # we do not rely on the host
    member("second", "decide_wait")
    gate = ask()
    desk = browser_of(manager, enforce_csrf_checks=True)
    page = page_of(desk, gate)
    sent = {"do": button, "reason": "x", "seen": seen(page), "to": "second"}
    assert desk.post(at(gate), sent).status_code == 403
    assert unchanged(gate)


def test_pages_are_kept_in_no_cache_and_framed_by_nobody(desk: Client, settings: Any) -> None:
    settings.MIDDLEWARE = [
        name for name in settings.MIDDLEWARE if "security" not in name and "clickjacking" not in name
    ]
    gate = ask()
    for page in (desk.get(INBOX), desk.get(DECIDED), page_of(desk, gate)):
        assert "no-store" in page["Cache-Control"]
        assert "private" in page["Cache-Control"]
        assert page["X-Frame-Options"] == "DENY"
        assert page["Referrer-Policy"] == "same-origin"


# ── what is shown ──


def marked(text: str) -> str:
    return f"{text} {MARKUP} {TEMPLATE}"


def test_a6_markup_and_template_syntax_are_plain_text_on_every_page(make: Any) -> None:
    people = [member(f"{name}<b>", "decide_wait") for name in ("asker", "boss", "second")]
    asker, boss, second = people
    shown = {marked("label"): marked("value"), "list": [marked("item"), {marked("key"): None}], "bytes": b"<b>"}
    gate = ask(asker, key=marked("run"), gate="pay<b>", approval={"title": marked("title"), "show": shown, "quorum": 2})
    claim_gate(run_of(gate).run_id, gate.name, user=boss)
    client = browser_of(boss)
    link = approval_link(Wait.objects.get(pk=gate.pk), boss)
    pages = [client.get(INBOX), page_of(client, gate), client.get(link, follow=True)]
    pages.append(client.post(at(gate), {"do": "delegate", "to": "second<b>", "note": marked("note")}, follow=True))
    pages.append(client.post(at(gate), {"do": "delegate", "to": marked("nobody"), "note": ""}, follow=True))
    pages.append(answer(client, gate, "reject", reason=""))
    pages.append(answer(client, gate, reason=marked("reason")))
    other = browser_of(second)
    pages += [page_of(other, gate), other.post(at(gate), {"do": "approve", "reason": marked("x"), "seen": "old"})]
    pages += [answer(other, gate, reason=marked("late")), client.get(DECIDED), client.get(link, follow=True)]
    for page in pages:
        assert page.status_code in (200, 410)
        text = text_of(page)
        assert "<img" not in text
        assert "<b>" not in text
        assert "no secret" not in text
    for text in map(text_of, pages[:3]):
        assert "title &lt;img src=x onerror=alert(1)&gt;&quot;&#x27;&amp; {{ settings.SECRET_KEY }}" in text
    assert "late &lt;img" in text_of(pages[-3])


def test_a6_markup_in_the_gates_form_and_its_errors_is_plain_text(desk: Client) -> None:
    gate = ask_formally()
    typed = {"answer-amount": marked("1"), "answer-reason": marked("books"), "answer-accounts": marked("account")}
    text = text_of(answer(desk, gate, reason=marked("why"), **typed))
    assert "<img" not in text
    for kept in ("1 &lt;img", "books &lt;img", "why &lt;img", "account &lt;img"):
        assert kept in text
    text = text_of(answer(desk, gate, **{"answer-amount": "1", "answer-reason": marked("books")}))
    assert "<img" not in text
    assert "books &lt;img" in text
    assert formwork.resume(run_of(gate).run_id).result["data"]["reason"] == marked("books")


def test_a6_markup_in_a_mail_is_no_markup(desk: Client, settings: Any) -> None:
    settings.FINOFLOW = {"MAIL": True, "BASE_URL": "https://site.example"}
    gate = ask(approval={"title": marked("title")})
    mails.opened(wait=gate.pk)
    [message] = mail.outbox
    assert message.message().get_content_type() == "text/plain"
    assert marked("title") in message.body


def test_a6_who_decides_sees_nothing_of_the_run_but_what_the_gate_shows(desk: Client) -> None:
    gate = ask(key="k-1", secret="confidential", approval={"title": "Pay?", "show": {"Amount": "12 EUR"}})
    answer(browser_of(member("quick", "decide_wait")), gate)
    for page in (desk.get(INBOX), page_of(desk, gate), desk.get(DECIDED)):
        for secret in ("confidential", "k-1", run_of(gate).run_id):
            assert secret not in text_of(page)


def test_a_deleted_users_name_stays_on_what_they_did(desk: Client) -> None:
    asker, second = member("asker"), member("second", "decide_wait")
    gate = ask(asker)
    claim_gate(run_of(gate).run_id, gate.name, user=second)
    answer(browser_of(second), gate)
    for user in (asker, second):
        user.delete()
    desk.force_login(member("viewer", "view_wait"))
    text = text_of(page_of(desk, gate))
    for told in ("second approved it on", "second claimed it", "asker"):
        assert told in text


def test_a3_a_gate_whose_run_ended_is_told_calmly_and_takes_nothing(desk: Client) -> None:
    gate = ask()
    token = seen(page_of(desk, gate))
    cancel(run_of(gate).run_id)
    for button in ("approve", "claim", "release"):
        page = desk.post(at(gate), {"do": button, "reason": "x", "seen": token})
        assert page.status_code == 200
        assert "Its run ended on" in text_of(page)
        assert "<form" not in text_of(page)
    assert not Decision.objects.exists()


def test_no_page_has_a_script_an_inline_style_or_anything_from_elsewhere(desk: Client) -> None:
    gate = ask_formally()
    answer(browser_of(member("quick", "decide_wait")), ask())
    pages = [
        desk.get(INBOX),
        desk.get(DECIDED),
        page_of(desk, gate),
        answer(desk, gate),
        Client().get("/accounts/login/"),
    ]
    for page in pages:
        text = text_of(page)
        for never in ("<script", "<style", " style=", "javascript:", "http://", "https://", ' src="//', " onclick"):
            assert never not in text


# ── ten thousand open gates ──


def fill(gate: Wait, numbers: range) -> None:
    """Copy a gate and its run, for five audiences in turn, of which two have the manager in them."""
    texts = [gate.audience, *(f'["",["group {n}"],[]]' for n in range(3)), '["",[],["manager"]]']
    asked = [{"audience": text, "audience_digest": Candidate.objects.index(Audience.loads(text))} for text in texts]
    runs = Execution.objects.bulk_create([copy(gate.execution, run_id=f"copy-{n}", key=None) for n in numbers], 500)
    copies = [copy(gate, execution=run, **asked[n % 5]) for n, run in zip(numbers, runs, strict=True)]
    Wait.objects.bulk_create(copies, 500)


def copy(row: Any, **changed: Any) -> Any:
    """Return an unsaved copy of a row."""
    plain = {field.name: getattr(row, field.name) for field in row._meta.concrete_fields if not field.primary_key}
    return type(row)(**{**plain, **changed})


def measured(client: Client, url: str) -> tuple[int, float, float]:
    """Return how many queries a page takes, and the best of seven in seconds: of the wall clock, of this thread's work.

    Ratios are taken of the latter, which other tests on the machine do not stretch.
    """
    client.get(url)
    with CaptureQueriesContext(connection) as captured:
        assert client.get(url).status_code == 200
    queries, seconds, work = len(captured), [], []
    for _ in range(7):
        began = time.perf_counter(), time.thread_time()
        client.get(url)
        seconds.append(time.perf_counter() - began[0])
        work.append(time.thread_time() - began[1])
    return queries, min(seconds), min(work)


def test_ten_thousand_open_gates_cost_no_query_more_and_under_300_ms(manager: User) -> None:
    User.objects.filter(pk=manager.pk).update(is_staff=True)
    desk = browser_of(manager)
    gate = ask(approval={"title": "Pay?"}, timeout="3d")
    fill(gate, range(100))
    urls = [INBOX, f"{INBOX}?page=2", at(gate), DECIDED, GATES, f"{GATES}?mine=yes"]
    few = {url: measured(desk, url) for url in urls}
    fill(gate, range(100, 10_000))
    if connection.vendor == "postgresql":
        with connection.cursor() as cursor:
            cursor.execute("ANALYZE finoflow_wait, finoflow_execution")
    many = {url: measured(desk, url) for url in [*urls, f"{INBOX}?page=13"]}
    assert "250 gates or more wait" in text_of(desk.get(INBOX))
    for url in urls:
        assert many[url][0] == few[url][0] > 0, url
    for url in urls[:4]:
        assert many[url][2] < 3 * few[url][2], (url, few[url], many[url])
    assert max(seconds for _queries, seconds, _work in many.values()) < 0.3


def test_decide_is_what_the_pages_call(desk: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    from django_finoflow import api

    asked: list[dict[str, Any]] = []
    monkeypatch.setattr(api, "decide", lambda *args, **kwargs: asked.append(kwargs) or decide(*args, **kwargs))
    gate = ask()
    answer(desk, gate)
    [call] = asked
    assert call["wait"].pk == gate.pk
    assert call["seen"]
