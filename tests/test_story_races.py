"""Many people press the button at once, through every door (rules A1, A3, A4): one decision, and a calm answer for all.

Django's client stands for each browser. The threads of a race each have a connection of their own; the token of the
page that each had seen is as old as everybody's.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest
from django.contrib.auth.models import User
from django.test import Client

from django_finoflow import Approval, approval_link, workflow
from django_finoflow.models import Decision, Execution, Signal, Wait
from tests.admin_site import GATES, ask, run_of
from tests.gates import at_once
from tests.inbox_site import answer, at, member, page_of, seen, text_of

pytestmark = pytest.mark.django_db(transaction=True)

MANY = 20

Press = Callable[[], Any]


@workflow(id="crowded", gates={"ok": Approval(title="Pay the plumber?", quorum=2)})
def crowded(ctx: Any, input: Any) -> Any:
    """Ask for two approvals, and return the answer."""
    return ctx.wait_for_approval("ok")


def people(count: int = MANY) -> list[User]:
    """Make so many people who may decide, all of them staff, so that the admin is open to them, too."""
    return [member(f"decider-{number:02}", "decide_wait", is_staff=True) for number in range(count)]


def seat(user: User) -> Client:
    """Open a browser in which that user is logged in."""
    client = Client()
    client.force_login(user)
    return client


def by_inbox(user: User, gate: Wait, how: str, client: Client | None = None) -> Press:
    """Show the gate's page to somebody, and return what presses its button and gives the page that comes of it."""
    client = client or seat(user)
    token = seen(page_of(client, gate))
    assert token
    sent = {"do": how, "reason": "Seen.", "seen": token}
    return lambda: client.post(at(gate), sent, follow=True)


def by_link(user: User, gate: Wait, how: str) -> Press:
    """The same by a link."""
    client = seat(user)
    page = client.get(approval_link(gate, user), follow=True)
    address, sent = page.redirect_chain[-1][0], {"do": how, "reason": "Seen.", "seen": seen(page)}
    return lambda: client.post(address, sent, follow=True)


def by_admin(user: User, gate: Wait, how: str) -> Press:
    """The same in the admin."""
    client = seat(user)
    address = f"{GATES}{how}/{gate.pk}/"
    sent = {"reason": "Seen.", "seen": seen(client.get(address))}
    return lambda: client.post(address, sent, follow=True)


DOORS = {"inbox": by_inbox, "link": by_link, "admin": by_admin}


def calm(page: Any) -> bool:
    """Whether a page is one to read: no error of the server's, no bare refusal."""
    return page.status_code == 200 and "<h1" in text_of(page)


def is_decided_once(gate: Wait) -> Decision:
    """Make sure that the gate has one decision and the run one signal, and that it goes on; return the decision."""
    made = Decision.objects.get(wait=gate)
    assert Signal.objects.filter(execution=run_of(gate)).count() == 1
    assert Wait.objects.get(pk=gate.pk).outcome == "signalled"
    assert Execution.objects.get(pk=run_of(gate).pk).due_at is not None
    return made


@pytest.mark.only_postgresql(reason="twenty connections write at once")
@pytest.mark.parametrize("door", [*DOORS, "all doors"])
def test_a1_twenty_people_decide_at_once_and_one_decision_is_made_and_all_are_told_whose(door: str) -> None:
    gate = ask(approval={"title": "Pay the plumber?"})
    doors = list(DOORS.values()) if door == "all doors" else [DOORS[door]]
    everybody = people()
    hows = ["approve", "reject"] * (MANY // 2)
    presses = [
        doors[number % len(doors)](user, gate, how)
        for number, (user, how) in enumerate(zip(everybody, hows, strict=True))
    ]
    pages = at_once(*presses)
    made = is_decided_once(gate)
    assert made.approved == (hows[everybody.index(made.user)] == "approve")
    assert [page.status_code for page in pages if not calm(page)] == []
    verb = "approved" if made.approved else "rejected"
    untold = [user.username for user, page in zip(everybody, pages, strict=True) if not told(page, made, user, verb)]
    assert untold == []


def told(page: Any, made: Decision, user: User, verb: str) -> bool:
    """Whether somebody is told who decided; the admin tells the one who did "You approved"."""
    source = text_of(page)
    return f"{made.user_name} {verb} it on" in source or (user == made.user and f"You {verb}" in source)


@pytest.mark.only_postgresql(reason="twenty connections write at once")
def test_a1_twenty_people_at_a_quorum_of_two_each_vote_on_what_they_have_seen() -> None:
    gate = Wait.objects.gates().get(execution__run_id=crowded.run({}).run_id)
    everybody = people()
    clients = {user: seat(user) for user in everybody}
    pages = at_once(*[by_inbox(user, gate, "approve", clients[user]) for user in everybody])
    [first] = Decision.objects.all()
    assert Wait.objects.get(pk=gate.pk).is_open
    others = [page for user, page in zip(everybody, pages, strict=True) if user != first.user]
    assert all(calm(page) and "has changed since it was shown" in text_of(page) for page in others)
    assert all("1 of 2" in text_of(page) and 'value="approve"' in text_of(page) for page in others)

    left = [user for user in everybody if user != first.user]
    pages = at_once(*[by_inbox(user, gate, "approve", clients[user]) for user in left])
    assert Decision.objects.count() == 2
    assert Signal.objects.count() == 1
    last = Decision.objects.latest("pk")
    assert [page.status_code for page in pages if not calm(page)] == []
    told = dict.fromkeys(left, f"{last.user_name} approved it on") | {last.user: "You approved it."}
    assert all(told[user] in text_of(page) for user, page in zip(left, pages, strict=True))


@pytest.mark.only_postgresql(reason="several connections write at once")
@pytest.mark.parametrize("door", DOORS)
def test_a1_both_halves_of_a_double_click_are_answered_alike(door: str) -> None:
    gate = ask(approval={"title": "Pay the plumber?"})
    [user] = people(1)
    press = DOORS[door](user, gate, "approve")
    pages = at_once(press, press, press)
    made = is_decided_once(gate)
    assert all(calm(page) for page in pages)
    assert all(told(page, made, user, "approved") or "You have approved" in text_of(page) for page in pages)


@pytest.mark.only_postgresql(reason="several connections write at once")
def test_a3_two_tabs_that_say_yes_and_no_at_once_leave_one_answer_and_both_show_it() -> None:
    gate = ask(approval={"title": "Pay the plumber?"})
    [user] = people(1)
    client = seat(user)
    pages = at_once(by_inbox(user, gate, "approve", client), by_inbox(user, gate, "reject", client))
    made = is_decided_once(gate)
    verb = "approved" if made.approved else "rejected"
    told = (f"You {verb} it.", f"decider-00 {verb} it on")  # to the tab that came first, and to the other
    assert all(calm(page) for page in pages)
    assert sorted(one in text_of(page) for page in pages for one in told) == [False, False, True, True]


@pytest.mark.parametrize("first", DOORS)
@pytest.mark.parametrize("second", DOORS)
def test_a3_a_tab_of_one_door_is_told_what_another_has_decided(first: str, second: str) -> None:
    gate = ask(approval={"title": "Pay the plumber?"})
    [user] = people(1)
    tab, late = DOORS[first](user, gate, "approve"), DOORS[second](user, gate, "reject")
    assert calm(tab())
    page = late()
    made = is_decided_once(gate)
    assert made.approved
    assert calm(page)
    assert told(page, made, user, "approved")


@pytest.mark.only_postgresql(reason="twenty connections write at once")
def test_a_claim_that_twenty_want_at_once_goes_to_one_and_the_others_are_told_to_whom() -> None:
    gate = ask(approval={"title": "Pay the plumber?"})
    clients = [seat(user) for user in people()]
    pages = at_once(*[lambda client=client: client.post(at(gate), {"do": "claim"}, follow=True) for client in clients])
    holder = Wait.objects.get(pk=gate.pk).claimed_by_name
    assert [event.user_name for event in gate.events.all()] == [holder]
    assert Counter(page.status_code for page in pages) == {200: MANY}
    assert sum("is claimed by" in text_of(page) for page in pages) == MANY - 1
    assert all(holder in text_of(page) for page in pages)
    answer(clients[0], gate)
    assert is_decided_once(gate).user_name == "decider-00"
