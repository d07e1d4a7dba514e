"""The pages for people without admin: what waits for me, what I decided, one gate, and deciding it (rules A1 to A4)."""

from __future__ import annotations

import re
from datetime import timedelta
from decimal import Decimal
from typing import Any

import pytest
from django.contrib.auth.models import User
from django.contrib.staticfiles import finders
from django.template import Context, RequestContext, Template
from django.test import Client, RequestFactory
from django.utils import timezone
from freezegun import freeze_time

from django_finoflow import api, claim_gate, decisions, delegate_gate
from django_finoflow.forms import DecisionForm, unprefixed
from django_finoflow.models import Decision, Execution, Wait
from django_finoflow.pages import PER_PAGE
from django_finoflow.querysets import WaitQuerySet
from tests.admin_site import browser_of, paperwork, queries_of
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


@pytest.fixture
def manager() -> User:
    """Somebody who decides gates that name nobody else."""
    return member("manager", "decide_wait")


@pytest.fixture
def desk(manager: User) -> Client:
    """The manager's browser."""
    return browser_of(manager)


# ── what waits for me ──


def test_the_inbox_lists_open_gates_that_are_mine_the_most_urgent_first(desk: Client) -> None:
    asker = member("asker")
    ask(approval={"title": "No hurry?"})
    ask(approval={"title": "This week?"}, timeout="5d")
    ask(asker, approval={"title": "Today?"}, timeout="1h")
    ask(approval={"title": "Not mine?", "groups": ["directors"]})
    text = text_of(desk.get(INBOX))
    assert re.findall(r'<h2><a href="[^"]+">([^<]+)</a></h2>', text) == ["Today?", "This week?", "No hurry?"]
    assert "3 gates wait for your decision." in text
    assert "asker" in text
    assert "Not mine?" not in text


def test_a_gate_i_have_answered_or_that_is_closed_is_in_my_inbox_no_more(desk: Client, manager: User) -> None:
    half, done, ended = ask(approval={"quorum": 2}), ask(), ask()
    for gate in (half, done):
        answer(desk, gate)
    api.cancel(run_of(ended).run_id)
    assert "Nothing waits for you." in text_of(desk.get(INBOX))
    assert Wait.objects.get(pk=half.pk).is_open


def test_an_overdue_gate_says_so_in_words(desk: Client) -> None:
    gate = ask(timeout="1h")
    assert "overdue" not in text_of(desk.get(INBOX))
    with freeze_time(timezone.now() + timedelta(hours=2)):
        desk.force_login(User.objects.get(username="manager"))
        assert "overdue" in text_of(page_of(desk, gate))


def test_what_i_decided_is_listed_with_what_became_of_it(desk: Client) -> None:
    first, second = ask(approval={"title": "First?", "quorum": 2}), ask(approval={"title": "Second?"})
    answer(desk, first)
    answer(desk, second, "reject", reason="Too dear.")
    text = text_of(desk.get(DECIDED))
    assert text.index("Second?") < text.index("First?")
    for told in ("rejected", "Too dear.", "manager rejected it on", "It is open: 1 of 2 approvals."):
        assert told in text
    other = browser_of(member("other", "decide_wait"))
    assert "You have decided nothing yet." in text_of(other.get(DECIDED))


def test_long_lists_come_in_pages(desk: Client) -> None:
    for n in range(PER_PAGE + 1):
        ask(approval={"title": f"Pay {n}?"})
    assert text_of(desk.get(INBOX)).count("<h2>") == PER_PAGE
    second = text_of(desk.get(INBOX, {"page": 2}))
    assert second.count("<h2>") == 1
    assert "Page 2 of 2" in second
    for odd in ("0", "99", "x", ""):
        assert desk.get(INBOX, {"page": odd}).status_code == 200


def test_a_gate_that_is_deleted_while_the_inbox_is_read_is_left_out(
    desk: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    gate = ask()
    monkeypatch.setattr(WaitQuerySet, "top", lambda self: [gate.pk + 1, gate.pk])
    assert text_of(desk.get(INBOX)).count("<h2>") == 1


def test_of_very_many_gates_the_most_urgent_are_listed_and_counted(
    desk: Client, manager: User, monkeypatch: pytest.MonkeyPatch
) -> None:
    for hours in (4, 1, 3, 2):
        ask(approval={"title": f"Within {hours}?"}, timeout=f"{hours}h")
    assert "4 gates wait for your decision." in text_of(desk.get(INBOX))
    for module in ("querysets", "views"):
        monkeypatch.setattr(f"django_finoflow.{module}.MOST_LISTED", 3)
    page = text_of(desk.get(INBOX))
    assert "3 gates or more wait for your decision; here are the most urgent." in page
    assert re.findall(r"Within \d", page) == ["Within 1", "Within 2", "Within 3"]
    assert rendered("{% finoflow_open_gates %}", manager) == "3"


@pytest.mark.parametrize("url", [INBOX, DECIDED])
def test_lists_ask_the_database_equally_often_however_many_gates(url: str, desk: Client) -> None:
    def more() -> None:
        answer(desk, ask())
        ask(approval={"groups": ["directors"], "quorum": 2})
        ask(approval={"quorum": 2}, timeout="1h")

    more()
    few = queries_of(desk, url)
    for _ in range(4):
        more()
    assert queries_of(desk, url) == few


# ── one gate ──


def test_a_gates_page_tells_what_is_asked_by_whom_until_when_and_who_may_decide(desk: Client) -> None:
    gate = ask(
        member("asker"),
        approval={"title": "Pay the plumber?", "show": {"Amount": Decimal("1234.5"), "Urgent": True}, "quorum": 2},
        timeout="1d",
    )
    text = text_of(page_of(desk, gate))
    for told in ("Pay the plumber?", "1234.5", "Yes", "asker", "paperwork", "0 of 2", decisions.candidates_text(gate)):
        assert told in text
    answer(browser_of(member("second", "decide_wait")), gate)
    text = text_of(page_of(desk, gate))
    assert "1 of 2" in text
    assert "second" in text.partition("finoflow-history")[2]


def test_a_decided_gates_page_tells_who_decided_and_has_no_form(desk: Client) -> None:
    gate = ask()
    page = answer(desk, gate)
    assert page.redirect_chain == [(at(gate), 302)]
    text = text_of(page)
    assert text.count("You approved it.") == 1
    assert "takes no answer" not in text
    assert "manager approved it on" in text_of(page_of(browser_of(member("viewer", "view_wait")), gate))
    assert "<form" not in text


@pytest.mark.parametrize(("how", "approved"), [("approve", True), ("reject", False)])
def test_a1_the_buttons_decide_through_the_one_way(how: str, approved: bool, desk: Client, manager: User) -> None:
    gate = ask()
    answer(desk, gate, how, reason=" Looks right. ")
    made = Decision.objects.get()
    assert (made.user, made.approved, made.reason, made.channel) == (manager, approved, "Looks right.", "inbox")
    assert paperwork.resume(run_of(gate).run_id).result["approved"] is approved


def test_a_missing_reason_is_told_at_its_field_and_in_a_summary_that_leads_there(desk: Client) -> None:
    gate = ask()
    text = text_of(answer(desk, gate, "reject", reason="  "))
    assert '<a href="#id_reason">Reason: Give a reason.</a>' in text
    assert 'id="id_reason_error"' in text
    assert re.search(
        r'<textarea name="reason"[^>]*aria-invalid="true"[^>]*aria-describedby="[^"]*id_reason_error', text
    )
    assert "<title>Error:" in text
    assert not Decision.objects.exists()


def test_an_unknown_button_decides_nothing(desk: Client) -> None:
    gate = ask()
    for pressed in ("", "maybe", "Approve"):
        assert answer(desk, gate, pressed).status_code == 400
    assert not Decision.objects.exists()


# ── the gate's own form ──


def test_a_gates_form_is_shown_beside_ours_and_its_cleaned_data_is_the_answer(desk: Client) -> None:
    gate = ask_formally()
    text = text_of(page_of(desk, gate))
    for told in ('name="answer-amount"', "In EUR.", 'name="answer-reason"', 'name="reason"'):
        assert told in text
    sent = {"answer-amount": "80.50", "answer-accounts": ["a", "c"], "answer-reason": "Q3"}
    answer(desk, gate, reason="Fine.", **sent)
    data = {"amount": Decimal("80.50"), "accounts": ["a", "c"], "reason": "Q3"}
    assert Decision.objects.get().data == data
    assert formwork.resume(run_of(gate).run_id).result["data"] == data


def test_what_a_gates_form_refuses_is_told_at_the_field_and_what_was_typed_stays(desk: Client) -> None:
    gate = ask_formally()
    text = text_of(answer(desk, gate, reason="Because.", **{"answer-amount": "-1", "answer-reason": "kept"}))
    assert '<a href="#id_answer-amount">Amount: ' in text
    assert 'id="id_answer-amount_error"' in text
    assert 'value="kept"' in text
    assert "Because.</textarea>" in text
    assert "Not thirteen." in text_of(answer(desk, gate, **{"answer-amount": "13"}))
    assert not Decision.objects.exists()


def test_a_gates_form_is_asked_for_a_rejection_too(desk: Client) -> None:
    gate = ask_formally()
    assert "answer-amount_error" in text_of(answer(desk, gate, "reject"))
    answer(desk, gate, "reject", **{"answer-amount": "0"})
    assert Decision.objects.get().approved is False


def test_a_gate_whose_form_is_not_known_here_is_shown_and_cannot_be_decided(desk: Client) -> None:
    gate = ask_formally()
    Execution.objects.update(workflow_id="of another site")
    text = text_of(answer(desk, gate))
    assert "which this site does not know" in text
    assert "How much?" in text
    assert 'value="approve"' not in text
    assert not Decision.objects.exists()


@pytest.mark.parametrize("sent", [{"answer-amount": "5", "answer-accounts": "a", "reason": "x"}, {"reason": "x"}])
def test_the_form_takes_a_plain_mapping_as_well_as_what_a_browser_sent(sent: dict[str, str], manager: User) -> None:
    gate = ask_formally()
    form = DecisionForm(gate, manager, {**sent, "seen": decisions.token(gate)}, approved=True, channel="bulk")
    made = form.decide()
    if "answer-amount" in sent:
        assert made is not None
        assert (made.data["accounts"], made.channel) == (["a"], "bulk")
    else:
        assert made is None
        assert form.refusal is None
        assert form.complaints[0][1].startswith("Amount: ")


def test_fields_of_the_gates_form_keep_all_their_values_and_lose_our_prefix() -> None:
    sent = RequestFactory().post("/", {"answer-a": ["1", "2"], "answer-answer-b": "3", "reason": "x"}).POST
    assert dict(unprefixed(sent).lists()) == {"a": ["1", "2"], "answer-b": ["3"]}


def test_what_was_filled_in_is_told_in_the_words_of_the_form_and_raw_where_it_is_not_known(desk: Client) -> None:
    gate = ask_formally()
    answer(desk, gate, **{"answer-amount": "80", "answer-accounts": ["a", "c"], "answer-reason": "<b>bold</b>"})
    for text in (text_of(page_of(desk, gate)), text_of(desk.get(DECIDED))):
        for told in ("<dt>Amount</dt>", '<li><span class="finoflow-text">Travel</span></li>', "Office"):
            assert told in text
        assert "<dt>Reason for the books</dt>" in text
        assert "&lt;b&gt;bold" in text
        assert "<b>bold" not in text
        assert "<dt>amount</dt>" not in text
    Execution.objects.update(version=99)
    text = text_of(page_of(desk, gate))
    assert "<dt>amount</dt>" in text
    assert "<b>bold" not in text


def test_the_help_of_the_reason_is_for_both_buttons_whichever_was_pressed_last(desk: Client) -> None:
    gate = ask()
    assert "Needed to reject." in text_of(page_of(desk, gate))
    for how in ("reject", "approve"):
        page = desk.post(at(gate), {"do": how, "reason": "x" * 5000, "seen": seen(page_of(desk, gate))})
        assert "Needed to reject." in text_of(page)
    assert "Needed to reject." in text_of(answer(desk, gate, "reject", reason=" "))


def test_a_vote_of_several_is_told_as_recorded_and_how_many_more_are_needed(desk: Client) -> None:
    text = text_of(answer(desk, ask(approval={"quorum": 2})))
    assert "Your approval is recorded: 1 of 2; one more is needed." in text
    assert "already" not in text
    assert "Your approval is recorded: 1 of 3; 2 more are needed." in text_of(answer(desk, ask(approval={"quorum": 3})))


def test_a_vote_of_a_gate_that_another_has_decided_is_told_with_what_became_of_it(desk: Client) -> None:
    gate = ask(approval={"quorum": 2})
    answer(desk, gate)
    answer(browser_of(member("second", "decide_wait")), gate, "reject", reason="No.")
    assert "You approved it. second rejected it on" in text_of(page_of(desk, gate))


@pytest.mark.parametrize("url", [INBOX, DECIDED, "gate"])
def test_dates_of_a_page_are_all_of_the_hosts_one_format(url: str, desk: Client, settings: Any) -> None:
    settings.USE_THOUSAND_SEPARATOR = False  # with it, Django forgets the formats that it remembers
    settings.FORMAT_MODULE_PATH = "tests.formats"
    gate = ask(approval={"title": "Pay?", "quorum": 2, "show": {"When": timezone.now()}}, timeout="5d")
    if url != INBOX:
        answer(desk, gate)
    other = member("other", "decide_wait")
    claim_gate(run_of(gate).run_id, "approval", user=other, wait=gate)
    text = re.sub(r'datetime="[^"]*"', "", text_of(desk.get(at(gate) if url == "gate" else url)))
    year = timezone.now().year
    assert f"DATED {year}" in text
    assert len(re.findall(r"DATED", text)) == len(re.findall(rf"\b(?:{year}|{year + 1})\b", text))


def test_a_sentence_that_ends_in_a_moment_has_one_full_stop(desk: Client) -> None:
    with freeze_time("2030-03-01 16:00:00"):
        desk.force_login(User.objects.get(username="manager"))
        gate = ask()
        claim_gate(run_of(gate).run_id, "approval", user=member("other", "decide_wait"), wait=gate)
        refusal = text_of(desk.post(at(gate), {"do": "claim"}))
        answered = text_of(answer(desk, gate))
    assert "since March 1, 2030, 5 p.m.<" in refusal
    assert "It was recorded on March 1, 2030, 5 p.m.<" in answered
    assert "p.m.." not in refusal + answered


# ── claim, release, hand over ──


def test_claiming_releasing_and_handing_over_are_confirmed_once_without_djangos_messages(
    desk: Client, settings: Any
) -> None:
    settings.INSTALLED_APPS = [app for app in settings.INSTALLED_APPS if "messages" not in app and "admin" not in app]
    settings.MIDDLEWARE = [one for one in settings.MIDDLEWARE if "messages" not in one]
    settings.ROOT_URLCONF = "tests.bare_inbox"
    gate, other = ask(), ask()
    member("second", "decide_wait")
    for button, told in (("claim", "You have claimed it."), ("release", "You have released it.")):
        assert told in text_of(press(desk, gate, button))
        assert told not in text_of(page_of(desk, gate))
    assert "You have handed it over to second." in text_of(press(desk, gate, "delegate", to="second"))
    desk.post(at(gate), {"do": "claim"})  # refused: nothing is confirmed
    assert "You have" not in text_of(page_of(desk, other))


def test_nobody_hands_a_gate_over_to_themselves(desk: Client, manager: User) -> None:
    gate = ask()
    assert "That is you. To work on it yourself, claim it." in text_of(press(desk, gate, "delegate", to="manager"))
    assert (gate.events.count(), Wait.objects.get().claimed_by) == (0, None)


def test_claiming_comes_before_what_is_filled_in_which_it_would_discard(desk: Client) -> None:
    text = text_of(page_of(desk, ask_formally()))
    assert text.index('value="claim"') < text.index('value="delegate"') < text.index('name="answer-')


def press(client: Client, gate: Wait, button: str, **data: str) -> Any:
    """Press one of the buttons below the form."""
    return client.post(at(gate), {"do": button, **data}, follow=True)


def test_claiming_and_releasing_are_told_on_the_page_and_in_the_lists(desk: Client) -> None:
    gate = ask()
    text = text_of(press(desk, gate, "claim"))
    assert "Release it" in text
    assert "Claim it" not in text
    other = browser_of(member("other", "decide_wait"))
    for page in (other.get(INBOX), page_of(other, gate)):
        assert "Claimed by" in text_of(page)
        assert "manager" in text_of(page)
    text = text_of(press(desk, gate, "release"))
    assert "Claim it" in text
    assert Wait.objects.get(pk=gate.pk).claimed_by is None


def test_a_second_claim_is_refused_by_name(desk: Client) -> None:
    gate = ask()
    other = browser_of(member("other", "decide_wait"))
    assert "Claim it" in text_of(page_of(other, gate))
    press(desk, gate, "claim")
    text = text_of(press(other, gate, "claim"))
    assert "manager" in text.partition('role="alert"')[2].partition("</p>")[0]
    assert "Claim it" not in text
    assert Wait.objects.get(pk=gate.pk).claimed_by_name == "manager"


def test_a_gate_is_handed_to_another_who_may_decide_it(desk: Client) -> None:
    gate = ask()
    member("second", "decide_wait")
    member("outsider")
    text = text_of(page_of(desk, gate))
    assert 'list="finoflow-people"' in text
    assert '<option value="second">' in text
    assert '<option value="outsider">' not in text
    press(desk, gate, "delegate", to="second", note="I am away.")
    gate = Wait.objects.get(pk=gate.pk)
    assert gate.claimed_by_name == "second"
    event = gate.events.get()
    assert (event.user_name, event.to_name, event.note) == ("manager", "second", "I am away.")


@pytest.mark.parametrize(
    ("name", "told"),
    [
        ("outsider", "Nobody of that name may decide it."),
        ("no-such-account", "Nobody of that name may decide it."),
        ("asker", "asker is excluded from deciding"),
        ("", "This field is required."),
    ],
)
def test_a_gate_is_handed_to_nobody_who_may_not_decide_it_and_the_page_tells_no_accounts(
    name: str, told: str, desk: Client
) -> None:
    gate = ask(member("asker", "decide_wait"), approval={"exclude_requester": True})
    member("outsider")
    text = text_of(press(desk, gate, "delegate", to=name))
    assert f'<a href="#id_to">Hand it over to: {told}' in text
    assert Wait.objects.get(pk=gate.pk).claimed_by is None


# ── changes and clicks that come late ──


def test_a4_a_gate_that_changed_since_it_was_shown_is_shown_again_with_what_was_typed(desk: Client) -> None:
    gate = ask(approval={"quorum": 2})
    page = page_of(desk, gate)
    answer(browser_of(member("quick", "decide_wait")), gate, reason="Quick.")
    again = desk.post(at(gate), {"do": "approve", "reason": "My words.", "seen": seen(page)})
    text = text_of(again)
    assert "has changed since it was shown" in text.partition('role="alert"')[2]
    assert "My words.</textarea>" in text
    assert "1 of 2" in text
    assert Decision.objects.get().user_name == "quick"
    assert seen(again) != seen(page)
    desk.post(at(gate), {"do": "approve", "reason": "My words.", "seen": seen(again)})
    assert Decision.objects.count() == 2


@pytest.mark.parametrize("change", ["claim", "delegate"])
def test_a4_a_claim_changes_a_gate_for_those_who_saw_it_before(change: str, desk: Client) -> None:
    gate, second = ask(), member("second", "decide_wait")
    page = page_of(desk, gate)
    if change == "claim":
        claim_gate(run_of(gate).run_id, gate.name, user=second)
    else:
        third = member("third", "decide_wait")
        delegate_gate(run_of(gate).run_id, gate.name, user=second, to=third)
    desk.post(at(gate), {"do": "approve", "reason": "", "seen": seen(page)})
    assert not Decision.objects.exists()


@pytest.mark.parametrize("token", [None, "", "x", "0" * 64])
def test_a4_a_post_without_the_token_of_what_was_shown_decides_nothing(token: str | None, desk: Client) -> None:
    gate = ask()
    page = desk.post(at(gate), {"do": "approve", "reason": "x"} | ({} if token is None else {"seen": token}))
    assert "has changed since it was shown" in text_of(page)
    assert not Decision.objects.exists()


def test_a3_a_late_click_is_told_who_decided_and_when(desk: Client) -> None:
    gate = ask()
    page = page_of(desk, gate)
    answer(browser_of(member("quick", "decide_wait")), gate)
    late = desk.post(at(gate), {"do": "reject", "reason": "No.", "seen": seen(page)})
    assert late.status_code == 200
    assert "quick approved it on" in text_of(late)
    assert Decision.objects.get().user_name == "quick"


def test_a1_the_second_half_of_a_double_click_sees_what_the_first_did(desk: Client) -> None:
    gate = ask(approval={"quorum": 2})
    sent = {"do": "approve", "reason": "", "seen": seen(page_of(desk, gate))}
    pages = [desk.post(at(gate), sent, follow=True) for _ in range(2)]
    assert [page.redirect_chain for page in pages] == [[(at(gate), 302)]] * 2
    assert Decision.objects.count() == 1


def test_a3_a_gate_of_a_run_that_was_deleted_meanwhile_is_gone(desk: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    gate = ask()
    token = seen(page_of(desk, gate))
    real = decisions.form_for

    def form_for(gate: Wait) -> Any:
        api.delete_run(run_of(gate).run_id, force=True)
        return real(gate)

    monkeypatch.setattr(decisions, "form_for", form_for)
    assert desk.post(at(gate), {"do": "approve", "seen": token}).status_code == 404


# ── override ──


def test_who_holds_the_permission_may_override_with_a_reason_and_it_is_recorded() -> None:
    boss = member("boss", "override_gate")
    gate = ask(boss, approval={"exclude_requester": True, "groups": ["directors"], "require_reason": "never"})
    client = browser_of(boss)
    text = text_of(page_of(client, gate))
    assert re.search(r'<input type="checkbox" name="override"[^>]*> <label for="id_override">', text)
    assert "It decides at once, whatever the quorum and whoever else is asked" in text
    assert "#id_override" in text_of(answer(client, gate))
    assert "#id_reason" in text_of(answer(client, gate, reason="", override="on"))
    assert not Decision.objects.exists()
    answer(client, gate, reason="Nobody is left.", override="on")
    made = Decision.objects.get()
    assert (made.user, made.override, made.reason) == (boss, True, "Nobody is left.")


def test_who_may_decide_otherwise_is_offered_no_override() -> None:
    boss = member("boss", "override_gate", "decide_wait")
    gate = ask(approval={"quorum": 2})
    client = browser_of(boss)
    assert 'name="override"' not in text_of(page_of(client, gate))
    assert "1 of 2" in text_of(answer(client, gate, override="on"))
    assert not Decision.objects.get().override


# ── the count, and a host's own base ──


def test_our_own_frame_names_an_icon_that_is_served_so_that_no_browser_asks_for_another(desk: Client) -> None:
    for text in (text_of(desk.get(INBOX)), text_of(page_of(desk, ask()))):
        [icon] = re.findall(r'<link rel="icon" href="/static/([^"]+)"', text)
        assert finders.find(icon)


def test_our_own_frame_offers_to_log_out_where_the_host_has_an_address_for_it(desk: Client, settings: Any) -> None:
    assert "Log out" not in text_of(desk.get(INBOX))
    settings.ROOT_URLCONF = "tests.bare_inbox"
    text = text_of(desk.get(INBOX))
    assert '<form method="post" action="/leave/" class="finoflow-log-out">' in text
    assert "csrfmiddlewaretoken" in text.partition("finoflow-log-out")[2]
    assert "Log out" not in text_of(Client().get("/accounts/login/"))


def rendered(source: str, user: Any) -> str:
    request = RequestFactory().get("/")
    request.user = user
    return Template("{% load finoflow %}" + source).render(RequestContext(request))


def test_the_tag_counts_the_open_gates_of_whoever_looks_once_for_each_request(
    manager: User, django_assert_max_num_queries: Any
) -> None:
    ask()
    ask(approval={"groups": ["directors"]})
    assert rendered("{% finoflow_open_gates as waiting %}{{ waiting }}", manager) == "1"
    fresh = User.objects.get(pk=manager.pk)
    with django_assert_max_num_queries(8):
        assert rendered("{% finoflow_open_gates %}{% finoflow_open_gates %}{% finoflow_open_gates %}", fresh) == "111"


def test_the_tag_counts_nothing_for_visitors_and_outside_of_requests() -> None:
    from django.contrib.auth.models import AnonymousUser

    ask()
    assert rendered("{% finoflow_open_gates %}", AnonymousUser()) == "0"
    assert Template("{% load finoflow %}{% finoflow_open_gates %}").render(Context()) == "0"


def test_a_host_project_replaces_the_frame_of_the_pages(desk: Client, settings: Any, tmp_path: Any) -> None:
    (tmp_path / "finoflow").mkdir()
    frame = "<title>{% block title %}{% endblock %}</title>{% block head %}{% endblock %}"
    frame += "ours {% block content %}{% endblock %}"
    (tmp_path / "finoflow" / "base.html").write_text(frame)
    settings.TEMPLATES = [{**settings.TEMPLATES[0], "DIRS": [tmp_path]}]
    gate = ask(approval={"title": "Pay?"})
    for page in (desk.get(INBOX), page_of(desk, gate)):
        text = text_of(page)
        assert text.lstrip().startswith("<title>")
        assert "ours" in text
        assert "Pay?" in text
        assert "inbox.css" in text
