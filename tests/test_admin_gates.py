"""Gates in the admin: who sees them, and the ways to answer them (rules A1 to A6)."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from django.contrib.admin.models import CHANGE, LogEntry
from django.contrib.auth.models import User
from django.core.management import call_command
from django.test import Client

from django_finoflow import api
from django_finoflow.models import Decision, Wait
from tests.admin_site import (
    GATES,
    RUNS,
    ask,
    browser_of,
    button,
    chosen,
    detail,
    paperwork,
    person,
    queries_of,
    run_of,
    seen,
)

pytestmark = pytest.mark.django_db

LISTS = [GATES, RUNS]


def messages(page: Any) -> list[str]:
    """Return what a page tells at its top."""
    return [str(message) for message in page.context["messages"]]


def answer(client: Client, gate: Wait, how: str = "approve", reason: str = "Looks right.", **data: str) -> Any:
    """Open the decision page and send its form, as a browser does."""
    page = client.get(button(how, gate))
    return client.post(button(how, gate), {"reason": reason, "seen": seen(page), **data}, follow=True)


def tick(client: Client, how: str, gates: list[Wait], **data: Any) -> Any:
    """Choose gates in the list and press Go."""
    sent = {"action": f"finoflow_{how}_selected", "_selected_action": chosen(*gates), "index": "0", **data}
    return client.post(GATES, sent, follow=True)


@pytest.fixture
def manager() -> User:
    """Somebody who decides gates that name nobody else, and sees no run."""
    return person("manager", "decide_wait")


@pytest.fixture
def viewer() -> User:
    """Somebody who sees everything and decides nothing."""
    return person("viewer", "view_wait", "view_execution")


# ── who sees what ──


def test_a6_staff_without_permissions_see_no_gate_no_run_and_no_payload(client: Client) -> None:
    gate = ask(secret="payload")
    client.force_login(person("nobody"))
    assert "finoflow" not in client.get("/admin/").content.decode()
    for url in (*LISTS, detail(gate), f"{RUNS}{gate.execution_id}/change/", f"{detail(gate)[:-7]}history/"):
        page = client.get(url, follow=True)
        assert b"payload" not in page.content
        assert page.status_code == 403 or page.redirect_chain


def test_a6_who_may_decide_a_gate_sees_it_and_nothing_more(manager: User) -> None:
    theirs = ask(key="k-1", secret="confidential", approval={"title": "Theirs?", "show": {"Amount": "12 EUR"}})
    others = ask(approval={"title": "For others?", "groups": ["board"]})
    client = browser_of(manager)
    home = client.get("/admin/").content.decode()
    assert GATES in home
    assert RUNS not in home
    listed = client.get(GATES).content.decode()
    assert "Theirs?" in listed
    assert "For others?" not in listed
    page = client.get(detail(theirs)).content.decode()
    assert "12 EUR" in page
    for text in (listed, page, client.get(button("approve", theirs)).content.decode()):
        assert RUNS not in text
        assert "confidential" not in text
        assert run_of(theirs).run_id not in text
        assert "k-1" not in text
    assert client.get(detail(others)).status_code == 302
    assert client.get(button("approve", others)).status_code == 404
    assert client.get(f"{RUNS}{theirs.execution_id}/change/").status_code == 403


def test_a6_search_and_query_strings_do_not_tell_deciders_of_a_runs_data(manager: User) -> None:
    ask(key="key-7", amount=100, approval={"show": {}})
    client = browser_of(manager)
    assert "1 gate" in client.get(GATES, {"q": "paperwork"}).content.decode()
    assert "0 gates" in client.get(GATES, {"q": "key-7"}).content.decode()
    client.raise_request_exception = False
    assert client.get(GATES, {"execution__input__amount": "100"}).status_code == 400


def test_a6_members_of_a_named_group_see_the_gate_in_their_menu(client: Client) -> None:
    ask(approval={"title": "Board?", "groups": ["board"]})
    client.force_login(person("member", groups=("board",)))
    assert GATES in client.get("/admin/").content.decode()
    assert "Board?" in client.get(GATES).content.decode()


def test_a6_who_asked_does_not_see_a_gate_that_excludes_them_without_view_wait(manager: User) -> None:
    gate = ask(requester=manager, approval={"title": "My own?", "exclude_requester": True})
    client = browser_of(manager)
    assert "My own?" not in client.get(GATES).content.decode()
    assert client.get(button("approve", gate)).status_code == 404


def test_a2_a_deleted_requester_excludes_nobody_and_keeps_their_name(manager: User) -> None:
    gone = person("gone", "decide_wait")
    gate = ask(requester=gone, approval={"exclude_requester": True})
    gone.delete()
    client = browser_of(manager)
    assert "gone" in client.get(GATES).content.decode()
    answer(client, gate)
    assert run_of(gate).waits.get().outcome == "signalled"


@pytest.mark.parametrize("kind", ["add/", "{pk}/delete/"])
def test_a6_nobody_adds_or_deletes_a_gate_superusers_included(kind: str, admin_client: Client) -> None:
    assert admin_client.get(GATES + kind.format(pk=ask().pk)).status_code == 403


def test_a6_nobody_changes_a_gate_superusers_included(admin_client: Client) -> None:
    gate = ask()
    page = admin_client.get(detail(gate)).content.decode()
    assert 'name="_save"' not in page
    assert admin_client.post(detail(gate), {"name": "other", "_save": "Save"}).status_code == 403
    assert Wait.objects.get(pk=gate.pk).name == "approval"


# ── the list ──


def test_the_list_shows_open_gates_first_those_that_wait_longest_on_top(admin_client: Client, admin_user: User) -> None:
    decided, _older, _newer = (ask(approval={"title": title}) for title in ("decided?", "older?", "newer?"))
    api.decide(run_of(decided).run_id, "approval", user=admin_user, approved=True)
    page = admin_client.get(GATES)
    assert [gate.title for gate in page.context["cl"].result_list] == ["older?", "newer?", "decided?"]
    assert "admin approved it on" in page.content.decode()


def test_the_filters_find_open_overdue_decided_ended_and_ones_own(admin_client: Client, admin_user: User) -> None:
    gates = {name: ask(gate=name, timeout="1h") for name in ("waits", "late", "decided", "ended")}
    Wait.objects.filter(pk=gates["late"].pk).update(due_at=datetime(2020, 1, 1, tzinfo=UTC))
    api.decide(run_of(gates["decided"]).run_id, "decided", user=admin_user, approved=True)
    api.cancel(run_of(gates["ended"]).run_id)
    ask(gate="excluded", requester=admin_user, approval={"exclude_requester": True})

    def found(**query: str) -> set[str]:
        return {gate.name for gate in admin_client.get(GATES, query).context["cl"].result_list}

    assert found(state="open") == {"waits", "late", "excluded"}
    assert found(state="overdue") == {"late"}
    assert found(state="decided") == {"decided"}
    assert found(state="ended") == {"ended"}
    assert found(mine="yes") == {"waits"}
    assert found(workflow="paperwork") == {*gates, "excluded"}
    assert found(workflow="other") == set()
    assert found(q="late") == {"late"}
    assert "overdue" in admin_client.get(GATES, {"q": "late"}).content.decode().partition("<tbody>")[2]


def test_the_list_comes_in_pages_of_twenty(admin_client: Client) -> None:
    for _ in range(21):
        ask()
    assert len(admin_client.get(GATES).context["cl"].result_list) == 20
    assert len(admin_client.get(f"{GATES}?p=2").context["cl"].result_list) == 1


def test_the_list_finds_gates_by_their_title(admin_client: Client) -> None:
    ask(approval={"title": "Pay the plumber?"})
    ask(approval={"title": "Hire a cook?"})
    page = admin_client.get(GATES, {"q": "plumber"})
    assert [gate.title for gate in page.context["cl"].result_list] == ["Pay the plumber?"]


@pytest.mark.parametrize("permissions", [("decide_wait",), ("view_wait", "view_execution", "decide_wait")])
def test_the_list_asks_the_database_equally_often_however_many_gates(permissions: tuple[str, ...]) -> None:
    client = browser_of(person("someone", *permissions))
    other = person("other", "decide_wait")

    def more() -> None:
        api.decide(run_of(ask()).run_id, "approval", user=other, approved=True)
        ask(requester=other, approval={"exclude_requester": True, "exclude_deciders_of": ["first"], "quorum": 2})

    more()
    few = queries_of(client, GATES)
    for _ in range(4):
        more()
    assert queries_of(client, GATES) == few


# ── one gate, by its buttons ──


def test_buttons_lead_to_a_page_that_shows_what_is_decided(manager: User) -> None:
    gate = ask(requester=person("ann"), approval={"title": "Pay?", "show": {"Amount": "12 EUR"}}, timeout="1h")
    client = browser_of(manager)
    for page in (client.get(GATES), client.get(detail(gate))):
        assert button("approve", gate) in page.content.decode()
        assert button("reject", gate) in page.content.decode()
    page = client.get(button("approve", gate)).content.decode()
    for text in ("Pay?", "12 EUR", "ann", "paperwork", "csrfmiddlewaretoken"):
        assert text in page


@pytest.mark.parametrize("how", ["approve", "reject"])
def test_a1_the_pages_post_decides_and_says_so(how: str, manager: User) -> None:
    gate = ask()
    page = answer(browser_of(manager), gate, how)
    assert page.redirect_chain[-1][0] == GATES
    assert messages(page) == [f"You {how}{'d' if how == 'approve' else 'ed'} “approval”."]
    decision = Decision.objects.get()
    assert (decision.user, decision.approved, decision.reason) == (manager, how == "approve", "Looks right.")
    assert (decision.channel, decision.wait) == ("admin", gate)
    result = paperwork.resume(run_of(gate).run_id).result
    assert (result["approved"], result["by"]) == (how == "approve", "manager")


def test_a_decision_is_in_the_admins_log(manager: User) -> None:
    gate = ask(approval={"title": "Pay?"})
    answer(browser_of(manager), gate, reason="Fine.")
    entry = LogEntry.objects.get()
    assert (entry.user, entry.action_flag, entry.object_id, entry.object_repr) == (
        manager,
        CHANGE,
        str(gate.pk),
        "Pay?",
    )
    assert entry.get_change_message() == "Approved. Fine."
    assert "Approved. Fine." in browser_of(manager).get(f"{GATES}{gate.pk}/history/").content.decode()


def test_after_deciding_the_list_is_filtered_as_it_was(manager: User) -> None:
    gate = ask()
    client = browser_of(manager)
    listed = client.get(GATES, {"state": "open"})
    [link] = [part for part in listed.content.decode().split('"') if part.startswith(button("approve", gate))]
    link = link.replace("&amp;", "&")
    page = client.post(link, {"reason": "", "seen": seen(client.get(link))}, follow=True)
    assert page.redirect_chain[-1][0] == f"{GATES}?state=open"


@pytest.mark.parametrize("method", ["get", "head", "options", "put", "patch", "delete"])
@pytest.mark.parametrize("how", ["approve", "reject"])
def test_a4_nothing_but_a_post_decides(method: str, how: str, manager: User) -> None:
    gate = ask()
    client = browser_of(manager)
    getattr(client, method)(button(how, gate), {"reason": "x", "seen": seen(client.get(button(how, gate)))})
    getattr(client, method)(f"{GATES}{how}/", {"chosen": str(gate.pk)})
    assert not Decision.objects.exists()
    assert run_of(gate).waits.get().is_open


def test_a4_a_post_without_the_csrf_token_is_refused(manager: User) -> None:
    gate = ask()
    client = browser_of(manager, enforce_csrf_checks=True)
    page = client.get(button("approve", gate))
    data = {"reason": "x", "seen": seen(page)}
    assert client.post(button("approve", gate), data).status_code == 403
    assert client.post(f"{GATES}approve/", {"reason": "x", "chosen": f"{gate.pk}:{seen(page)}"}).status_code == 403
    assert not Decision.objects.exists()
    data["csrfmiddlewaretoken"] = str(page.context["csrf_token"])
    assert client.post(button("approve", gate), data).status_code == 302
    assert Decision.objects.get().approved


def test_a4_a_gate_that_changed_since_it_was_shown_is_shown_again_and_not_decided(manager: User) -> None:
    gate = ask(approval={"title": "Pay?", "show": {"Amount": "10 EUR"}})
    client = browser_of(manager)
    old = seen(client.get(button("approve", gate)))
    Wait.objects.filter(pk=gate.pk).update(approval={**gate.approval, "show": {"Amount": "9999 EUR"}})
    page = client.post(button("approve", gate), {"reason": "Typed already.", "seen": old})
    assert page.status_code == 200
    assert messages(page) == ["The gate has changed since it was shown. Look again and decide."]
    assert "9999 EUR" in page.content.decode()
    assert "Typed already." in page.content.decode()
    assert not Decision.objects.exists()
    client.post(button("approve", gate), {"reason": "", "seen": seen(page)})
    assert Decision.objects.get().approved


@pytest.mark.parametrize("token", ["", "made up"])
def test_a4_a_post_without_a_true_token_decides_nothing(token: str, manager: User) -> None:
    gate = ask()
    browser_of(manager).post(button("approve", gate), {"reason": "x", "seen": token} if token else {"reason": "x"})
    assert not Decision.objects.exists()


@pytest.mark.parametrize("reason", ["", "   \n"])
def test_a1_a_missing_reason_is_asked_for_at_its_field(reason: str, manager: User) -> None:
    gate = ask()
    page = answer(browser_of(manager), gate, "reject", reason)
    assert page.status_code == 200
    assert page.context["form"].errors["reason"]
    assert "errorlist" in page.content.decode()
    assert not Decision.objects.exists()
    assert answer(browser_of(manager), gate, "approve", reason).redirect_chain


def test_a1_a_reason_that_cannot_be_stored_is_an_error_at_its_field(manager: User, settings: Any) -> None:
    gate = ask()
    client = browser_of(manager)
    settings.FINOFLOW = {"MAX_PAYLOAD_BYTES": 1000}
    for reason in ("x" * 2000, "nul \0", "x" * 5000):
        page = answer(client, gate, "reject", reason)
        assert page.context["form"].errors["reason"]
    assert not Decision.objects.exists()


@pytest.mark.parametrize("how", ["approve", "reject"])
def test_a3_who_comes_late_is_told_who_decided_and_when(how: str, manager: User) -> None:
    gate = ask(approval={"title": "Pay?"})
    late = browser_of(person("late", "decide_wait"))
    page = late.get(button(how, gate))
    answer(browser_of(manager), gate)
    told = late.post(button(how, gate), {"reason": "x", "seen": seen(page)}, follow=True)
    assert told.status_code == 200
    assert "manager approved it on" in messages(told)[0]
    page = late.get(button(how, gate))
    assert "manager approved it on" in page.content.decode()
    assert 'name="seen"' not in page.content.decode()
    assert Decision.objects.count() == 1


def test_a3_a_passed_deadline_takes_no_answer(manager: User) -> None:
    gate = ask(timeout="1h")
    client = browser_of(manager)
    page = client.get(button("approve", gate))
    Wait.objects.filter(pk=gate.pk).update(due_at=datetime.now(UTC) - timedelta(seconds=1))
    told = client.post(button("approve", gate), {"reason": "", "seen": seen(page)}, follow=True)
    assert "its deadline passed on" in messages(told)[0]
    assert button("approve", gate) not in told.content.decode()
    assert not Decision.objects.exists()


def test_a7_a_cancelled_runs_gate_says_what_happened(manager: User) -> None:
    gate = ask()
    client = browser_of(manager)
    page = client.get(button("approve", gate))
    api.cancel(run_of(gate).run_id)
    told = client.post(button("approve", gate), {"reason": "", "seen": seen(page)}, follow=True)
    assert "Its run ended on" in messages(told)[0]
    assert not Decision.objects.exists()


def test_a1_a_double_click_decides_once_and_is_told_the_same_twice(manager: User) -> None:
    gate = ask()
    client = browser_of(manager)
    data = {"reason": "Once.", "seen": seen(client.get(button("approve", gate)))}
    told = [messages(client.post(button("approve", gate), data, follow=True)) for _ in range(2)]
    assert told[0] == told[1] == ["You approved “approval”."]
    assert Decision.objects.count() == LogEntry.objects.count() == 1


def test_a_gate_that_is_gone_is_not_found(manager: User) -> None:
    gate = ask()
    client = browser_of(manager)
    page = client.get(button("approve", gate))
    api.delete_run(run_of(gate).run_id, force=True)
    assert client.post(button("approve", gate), {"reason": "", "seen": seen(page)}).status_code == 404


# ── whoever may not ──


def test_a6_a_viewer_sees_no_button_and_no_action(viewer: User) -> None:
    gate = ask()
    client = browser_of(viewer)
    for page in (client.get(GATES), client.get(detail(gate))):
        assert page.status_code == 200
        assert "approve" not in page.content.decode().lower()


@pytest.mark.parametrize("how", ["approve", "reject"])
def test_a2_a_viewer_cannot_decide_by_button_by_bulk_or_by_a_forged_post(how: str, viewer: User, manager: User) -> None:
    gate = ask()
    client = browser_of(viewer)
    token = seen(browser_of(manager).get(button(how, gate)))
    assert client.get(button(how, gate)).status_code == 403
    assert client.post(button(how, gate), {"reason": "x", "seen": token}).status_code == 403
    assert client.post(button(how, gate), {"reason": "", "seen": token}).status_code == 403
    tick(client, how, [gate])
    tick(client, how, [gate], select_across="1")
    assert client.post(f"{GATES}{how}/", {"reason": "x", "chosen": f"{gate.pk}:{token}"}).status_code == 403
    sent = {"CHANGE_FORM-action": f"finoflow_{how}_selected", "action": f"finoflow_{how}_selected"}
    client.post(detail(gate), {**sent, "_selected_action": str(gate.pk), "index": "0"})
    assert not Decision.objects.exists()
    assert run_of(gate).waits.get().is_open


def test_a2_the_requester_of_a_gate_that_excludes_them_is_refused_superusers_included(admin_user: User) -> None:
    gate = ask(requester=admin_user, approval={"exclude_requester": True})
    client = browser_of(admin_user)
    assert client.get(detail(gate)).status_code == 200
    assert button("approve", gate) not in client.get(GATES).content.decode()
    refused = client.post(button("approve", gate), {"reason": "x", "seen": seen(client.get(button("approve", gate)))})
    assert refused.context["form"].errors["override"] == ["You asked for this, so somebody else must decide."]
    assert not Decision.objects.exists()


def test_a2_the_requester_of_a_gate_that_excludes_them_may_see_and_not_decide_it() -> None:
    requester = person("ann", "view_wait", "decide_wait")
    gate = ask(requester=requester, approval={"exclude_requester": True})
    client = browser_of(requester)
    assert client.get(detail(gate)).status_code == 200
    assert button("approve", gate) not in client.get(GATES).content.decode()
    assert client.get(button("approve", gate)).status_code == 403
    assert client.post(button("approve", gate), {"reason": "x", "seen": "x", "override": "on"}).status_code == 403
    assert not Decision.objects.exists()


def test_a2_who_lost_the_right_between_page_and_post_is_refused(manager: User) -> None:
    gate = ask()
    client = browser_of(manager)
    token = seen(client.get(button("approve", gate)))
    manager.user_permissions.clear()
    assert client.post(button("approve", gate), {"reason": "x", "seen": token}).status_code == 404
    assert not Decision.objects.exists()


def test_users_who_are_not_staff_are_sent_to_the_login(client: Client) -> None:
    gate = ask()
    user = person("outside", "decide_wait", "view_wait")
    User.objects.filter(pk=user.pk).update(is_staff=False)
    client.force_login(user)
    for url in (button("approve", gate), f"{GATES}approve/"):
        assert client.post(url, {"reason": "x"}).status_code == 302
    assert not Decision.objects.exists()


# ── several at once ──


def bulk(client: Client, page: Any, how: str, reason: str = "") -> Any:
    """Send the form of the page that asks about several gates."""
    return client.post(page.context["action"], {"chosen": page.context["chosen"], "reason": reason}, follow=True)


def test_a5_bulk_leads_to_a_page_that_lists_the_gates_and_asks_for_a_reason(manager: User) -> None:
    gates = [ask(approval={"title": f"Pay {n}?", "show": {"Amount": f"{n} EUR"}}) for n in (1, 2, 3)]
    client = browser_of(manager)
    page = tick(client, "reject", gates[:2])
    assert not Decision.objects.exists()
    text = page.content.decode()
    assert "Pay 1?" in text
    assert "2 EUR" in text
    assert "Pay 3?" not in text
    again = bulk(client, page, "reject")
    assert again.context["form"].errors["reason"]
    assert not Decision.objects.exists()
    told = bulk(client, again, "reject", "Too late.")
    assert messages(told) == ["2 gates were rejected."]
    assert {decision.wait_id for decision in Decision.objects.all()} == {gate.pk for gate in gates[:2]}
    assert {(d.approved, d.reason, d.channel) for d in Decision.objects.all()} == {(False, "Too late.", "admin")}
    assert LogEntry.objects.count() == 2


def test_a5_one_gate_chosen_in_bulk_leads_to_its_own_page(manager: User) -> None:
    gate = ask()
    page = tick(browser_of(manager), "approve", [gate])
    assert page.redirect_chain[-1][0].startswith(button("approve", gate))


def test_a5_bulk_applies_the_rules_to_each_and_reports_each_refusal(admin_user: User) -> None:
    fine, own, decided, late, changed = gates = [
        ask(gate="fine"),
        ask(gate="own", requester=admin_user, approval={"exclude_requester": True}),
        ask(gate="decided"),
        ask(gate="late", timeout="1h"),
        ask(gate="changed"),
    ]
    client = browser_of(admin_user)
    page = tick(client, "approve", gates)
    api.decide(run_of(decided).run_id, "decided", user=person("quick", "decide_wait"), approved=False, reason="No.")
    Wait.objects.filter(pk=late.pk).update(due_at=datetime(2020, 1, 1, tzinfo=UTC))
    Wait.objects.filter(pk=changed.pk).update(approval={**changed.approval, "show": {"Amount": "more"}})
    told = messages(bulk(client, page, "approve"))
    assert told[0] == "1 gate was approved."
    assert len(told) == 5
    for part in ("somebody else", "quick rejected it on", "deadline passed", "has changed"):
        assert any(part in message for message in told), part
    assert [d.wait for d in Decision.objects.filter(user=admin_user)] == [fine]
    assert run_of(own).waits.get().is_open


def test_a5_select_all_across_pages_takes_what_the_user_sees_and_the_filter_shows(manager: User) -> None:
    theirs = [ask(approval={"title": f"Pay {n}?"}) for n in range(3)]
    others = ask(approval={"title": "Board?", "groups": ["board"]})
    api.decide(run_of(theirs[2]).run_id, "approval", user=manager, approved=True)
    client = browser_of(manager)
    sent = {"action": "finoflow_approve_selected", "_selected_action": chosen(theirs[0]), "select_across": "1"}
    page = client.post(f"{GATES}?state=open", {**sent, "index": "0"})
    assert [gate.pk for gate, *_ in page.context["gates"]] == [gate.pk for gate in theirs[:2]]
    told = bulk(client, page, "approve")
    assert told.redirect_chain[-1][0] == f"{GATES}?state=open"
    assert Decision.objects.count() == 3
    assert run_of(others).waits.get().is_open


def test_a5_a_forged_bulk_post_reaches_no_gate_that_the_user_does_not_see(manager: User) -> None:
    ask()
    others = ask(approval={"groups": ["board"]})
    for entry in (f"{others.pk}:x", f"{others.pk}", "x:y", "9" * 40, "²", ""):
        browser_of(manager).post(f"{GATES}approve/", {"reason": "x", "chosen": entry})
    assert not Decision.objects.exists()


def test_a5_many_refusals_are_told_in_a_page_that_can_be_read(manager: User) -> None:
    gates = [ask(approval={"users": ["manager"]}) for _ in range(30)]
    client = browser_of(manager)
    page = tick(client, "approve", gates)
    Wait.objects.update(due_at=datetime(2020, 1, 1, tzinfo=UTC))
    told = messages(bulk(client, page, "approve"))
    assert len(told) == 26
    assert told[-1] == "5 more were refused."


def test_on_django_6_1_the_actions_are_on_the_change_form_and_lead_to_the_same_page(manager: User) -> None:
    from django.contrib import admin

    gate = ask()
    client = browser_of(manager)
    form = client.get(detail(gate)).content.decode()
    if not hasattr(admin, "ActionLocation"):
        assert "finoflow_approve_selected" not in form
        return
    assert "finoflow_approve_selected" in form
    sent = {"CHANGE_FORM-action": "finoflow_approve_selected", "_selected_action": str(gate.pk)}
    page = client.post(detail(gate), sent, follow=True)
    assert page.redirect_chain[-1][0].startswith(button("approve", gate))
    assert not Decision.objects.exists()
    api.decide(run_of(gate).run_id, "approval", user=manager, approved=True)
    assert "finoflow_approve_selected" not in client.get(detail(gate)).content.decode()


# ── names ──


def test_a_deciders_name_stays_when_the_user_is_deleted(manager: User, admin_client: Client) -> None:
    gate = ask()
    answer(browser_of(manager), gate)
    manager.delete()
    assert "manager" in admin_client.get(detail(gate)).content.decode()
    assert "manager approved it on" in admin_client.get(GATES).content.decode()


def test_the_detail_page_tells_who_may_decide(admin_client: Client) -> None:
    gate = ask(
        approval={"permission": "auth.view_user", "groups": ["board"], "users": ["kim"], "exclude_requester": False}
    )
    page = admin_client.get(detail(gate)).content.decode()
    assert "members of board or kim, with the permission auth.view_user" in page


def test_migrations_are_complete_and_checks_find_nothing_wrong_with_the_admin() -> None:
    call_command("makemigrations", check=True, dry_run=True, verbosity=0)
    call_command("check", fail_level="ERROR")
