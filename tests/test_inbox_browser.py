"""The inbox in a real browser, on a desk and on a phone: usable by keyboard, and nothing fetched from elsewhere."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest

from django_finoflow import approval_link
from django_finoflow.models import Decision, Wait
from tests.inbox_site import INBOX, ask, ask_formally, at, member
from tests.test_browser import PATIENCE, chromium, live_server  # noqa: F401

pytestmark = [pytest.mark.browser, pytest.mark.django_db(transaction=True)]

SIZES = {"desk": {"width": 1280, "height": 800}, "phone": {"width": 390, "height": 844}}

#: Whether something of the page sticks out of the window, and the elements that do.
TOO_WIDE = """() => [...document.querySelectorAll('body *')]
    .filter(e => e.getBoundingClientRect().right > document.documentElement.clientWidth + 1 && e.offsetParent)
    .map(e => e.outerHTML.slice(0, 80))"""
#: What a person presses, and how high it is.
TARGETS = """() => [...document.querySelectorAll('button:not([disabled]), nav a, h2 a, summary, input, textarea')]
    .filter(e => e.offsetParent && e.type !== 'checkbox').map(e => [e.outerHTML.slice(0, 60), e.offsetHeight])"""
#: The contrast of every text against what is behind it, as WCAG reckons.
CONTRASTS = """() => {
  const light = c => { const [r, g, b] = c.match(/[\\d.]+/g).map(v => { v /= 255;
    return v <= .03928 ? v / 12.92 : ((v + .055) / 1.055) ** 2.4 }); return .2126 * r + .7152 * g + .0722 * b };
  const behind = e => { for (; e; e = e.parentElement) { const c = getComputedStyle(e).backgroundColor;
    if (!/, 0\\)$/.test(c) && c !== 'transparent') return c } return 'rgb(255, 255, 255)' };
  return [...document.querySelectorAll('body *')].filter(e => e.offsetParent &&
      [...e.childNodes].some(n => n.nodeType === 3 && n.data.trim())).map(e => {
    const [a, b] = [light(getComputedStyle(e).color), light(behind(e))].sort();
    return [e.outerHTML.slice(0, 60), (Math.max(a, b) + .05) / (Math.min(a, b) + .05)] }) }"""
#: Fields without a name for those who do not see them, and ids that stand twice.
UNNAMED = """() => [...document.querySelectorAll('input:not([type=hidden]), textarea, select')]
    .filter(e => !e.labels.length && !e.getAttribute('aria-label')).map(e => e.outerHTML)"""
TWICE = """() => { const ids = [...document.querySelectorAll('[id]')].map(e => e.id);
    return ids.filter((id, at) => ids.indexOf(id) !== at) }"""
DANGLING = """() => [...document.querySelectorAll('[aria-describedby], [aria-labelledby], [for]')].flatMap(e =>
    ['aria-describedby', 'aria-labelledby', 'for'].flatMap(a => (e.getAttribute(a) || '').split(' '))
    .filter(id => id && !document.getElementById(id)))"""


class Person:
    """Somebody at a browser; everything that it complains of or fetches from elsewhere is kept."""

    def __init__(self, chromium: Any, server: str, size: str):  # noqa: F811
        self.complaints: list[str] = []
        self.context = chromium.new_context(base_url=server, viewport=SIZES[size])
        self.context.set_default_timeout(PATIENCE)
        self.context.on("console", lambda message: self.complaints.append(f"{message.type}: {message.text}"))
        self.context.on("weberror", lambda error: self.complaints.append(str(error.error)))
        ours = (server, "data:")
        self.context.on("request", lambda request: request.url.startswith(ours) or self.complaints.append(request.url))
        self.page = self.context.new_page()

    def log_in(self, name: str, password: str = "secret") -> Any:
        """Log in by the page that django_finoflow brings, which the inbox leads to, and return the page."""
        self.page.goto(INBOX)
        self.page.fill("[name=username]", name)
        self.page.fill("[name=password]", password)
        self.page.press("[name=password]", "Enter")
        self.page.wait_for_selector("nav[aria-label=Approvals]")
        return self.page

    def check(self) -> None:
        """Hold the page that is open to what every page of ours must be."""
        self.page.wait_for_load_state("load")  # with its style
        assert self.page.evaluate(TOO_WIDE) == []
        assert [target for target in self.page.evaluate(TARGETS) if target[1] < 44] == []
        assert [found for found in self.page.evaluate(CONTRASTS) if found[1] < 4.5] == []
        for wrong in (UNNAMED, TWICE, DANGLING):
            assert self.page.evaluate(wrong) == []
        assert self.page.locator("main").count() == self.page.locator("h1").count() == 1
        assert self.page.locator("html").get_attribute("lang")

    def tab_to(self, selector: str) -> None:
        """Press Tab until that element has the focus, as somebody without a mouse does; the focus must be seen."""
        wanted = self.page.locator(selector).element_handle()
        for _ in range(40):
            self.page.keyboard.press("Tab")
            if wanted.evaluate("e => e === document.activeElement"):
                assert wanted.evaluate("e => getComputedStyle(e).outlineStyle") != "none"
                return
        raise AssertionError(f"Tab does not lead to {selector}")


Sit = Callable[..., Person]


@pytest.fixture
def sit(chromium: Any, live_server: Any) -> Iterator[Sit]:  # noqa: F811
    """Open a browser for somebody: ``sit("phone")``. At the end none may have complained."""
    people: list[Person] = []

    def sit(size: str = "desk") -> Person:
        people.append(Person(chromium, live_server.url, size))
        return people[-1]

    yield sit
    for person in people:
        person.context.close()
        assert person.complaints == []


@pytest.fixture
def gate() -> Wait:
    """A gate that two people may decide, with all that makes a page wide."""
    member("manager", "decide_wait")
    member("second", "decide_wait")
    shown = {"Amount": "120.00 EUR", "A very long label that goes on and on": "x" * 400, "Lines": ["one", {"two": 2}]}
    return ask(member("asker"), approval={"title": "Pay the plumber? " + "y" * 90, "show": shown}, timeout="2d")


@pytest.mark.parametrize("size", SIZES)
def test_somebody_without_admin_logs_in_finds_the_gate_and_approves_it(size: str, gate: Wait, sit: Sit) -> None:
    manager = sit(size)
    page = manager.log_in("manager")
    manager.check()
    page.click("h2 a")
    page.wait_for_selector("text=120.00 EUR")
    manager.check()
    page.fill("[name=reason]", "The pipes are fine now.")
    page.click("[value=approve]")
    page.wait_for_selector("[role=status]:has-text('You approved it.')")
    manager.check()
    page.click("text=Decided by me")
    page.wait_for_selector("h1:has-text('Decided by me')")
    manager.check()
    assert "The pipes are fine now." in page.inner_text("main")
    page.click("text=Waiting for me")
    page.wait_for_selector("text=Nothing waits for you.")
    manager.check()
    made = Decision.objects.get()
    assert (made.user_name, made.approved, made.reason) == ("manager", True, "The pipes are fine now.")


@pytest.mark.parametrize("size", SIZES)
def test_the_gates_form_tells_its_errors_in_place_and_the_summary_leads_to_the_field(size: str, sit: Sit) -> None:
    member("manager", "decide_wait")
    formal = ask_formally()
    manager = sit(size)
    page = manager.log_in("manager")
    page.goto(at(formal))
    page.fill("[name=answer-amount]", "13")
    page.fill("[name=answer-reason]", "kept")
    page.click("[value=reject]")
    page.wait_for_selector(".finoflow-errors:focus")
    assert "Not thirteen." in page.inner_text(".finoflow-errors")
    page.fill("[name=reason]", "No.")
    page.fill("[name=answer-amount]", "-1")
    page.click("[value=reject]")
    page.wait_for_selector("#id_answer-amount_error")
    manager.check()
    assert page.title().startswith("Error:")
    page.click(".finoflow-errors a")
    page.wait_for_selector("[name=answer-amount]:focus")
    assert page.input_value("[name=answer-reason]") == "kept"
    page.keyboard.press("Control+A")
    page.keyboard.type("5")
    page.click("[value=reject]")
    page.wait_for_selector("[role=status]:has-text('You rejected it.')")
    manager.check()
    assert Decision.objects.get().data["amount"] == 5


def test_a_keyboard_is_enough_and_the_enter_key_in_a_field_decides_nothing(sit: Sit) -> None:
    member("manager", "decide_wait")
    formal = ask_formally()
    manager = sit()
    page = manager.log_in("manager")
    page.keyboard.press("Tab")
    page.wait_for_selector(".finoflow-skip:focus")
    page.keyboard.press("Enter")
    page.wait_for_selector("main:focus")
    manager.tab_to("h2 a")
    page.keyboard.press("Enter")
    page.wait_for_selector("[name=answer-amount]")
    manager.tab_to("[name=answer-amount]")
    page.keyboard.type("80")
    page.keyboard.press("Enter")
    page.wait_for_timeout(300)
    assert page.input_value("[name=answer-amount]") == "80"
    assert not Decision.objects.exists()
    manager.tab_to("[name=reason]")
    page.keyboard.type("Fine.")
    manager.tab_to("[value=approve]")
    page.keyboard.press("Enter")
    page.wait_for_selector("[role=status]:has-text('You approved it.')")
    assert Decision.objects.get(wait=formal).data["amount"] == 80


def test_a1_a_double_click_decides_once_and_is_answered_calmly(gate: Wait, sit: Sit) -> None:
    page = sit().log_in("manager")
    page.goto(at(gate))
    page.dblclick("[value=approve]")
    page.wait_for_selector("[role=status]:has-text('You approved it.')")
    assert Decision.objects.count() == 1


def test_a3_a_second_tab_and_a_late_colleague_are_told_who_decided(gate: Wait, sit: Sit) -> None:
    manager, second = sit(), sit("phone")
    page, colleagues = manager.log_in("manager"), second.log_in("second")
    tab = manager.context.new_page()
    for one in (page, tab, colleagues):
        one.goto(at(gate))
        one.fill("[name=reason]", "Seen.")
    page.click("[value=approve]")
    page.wait_for_selector("[role=status]:has-text('You approved it.')")
    for late in (tab, colleagues):
        late.click("[value=reject]")
        late.wait_for_selector("text=manager approved it on")
        assert late.locator("[value=approve]").count() == 0
    second.check()
    assert Decision.objects.count() == 1


@pytest.mark.parametrize("size", SIZES)
def test_a_gate_is_claimed_handed_over_and_told_of(size: str, gate: Wait, sit: Sit) -> None:
    manager, second = sit(size), sit(size)
    page, seconds = manager.log_in("manager"), second.log_in("second")
    page.goto(at(gate))
    seconds.goto(at(gate))
    page.click("text=Claim it")
    page.wait_for_selector("text=Release it")
    seconds.click("text=Claim it")
    seconds.wait_for_selector("[role=alert]:has-text('manager')")
    second.check()
    page.click("text=Hand it over")
    page.fill("[name=to]", "second")
    page.fill("[name=note]", "You know the plumber.")
    manager.check()
    page.click("button:has-text('Hand over')")
    page.wait_for_selector(".finoflow-history:has-text('You know the plumber.')")
    manager.check()
    assert Wait.objects.get(pk=gate.pk).claimed_by_name == "second"


@pytest.mark.parametrize("size", SIZES)
def test_a_link_asks_for_the_login_leaves_the_address_and_decides_by_its_page(
    size: str,
    gate: Wait,
    sit: Sit,
    live_server: Any,  # noqa: F811
) -> None:
    manager = sit(size)
    page = manager.page
    link = approval_link(gate, type(gate.execution.requester).objects.get(username="manager"))
    page.goto(live_server.url + link)
    page.fill("[name=username]", "manager")
    page.fill("[name=password]", "secret")
    page.click("button")
    page.wait_for_selector("text=120.00 EUR")
    manager.check()
    assert link.split("/")[-2] not in page.url + page.content()
    page.click("[value=approve]")
    page.wait_for_selector("text=You approved it.")
    manager.check()
    page.goto(live_server.url + link)
    page.wait_for_selector("text=You approved it.")
    assert Decision.objects.get().channel == "link"


def test_a_link_without_a_login_works_where_the_gate_allows_it(sit: Sit, live_server: Any) -> None:  # noqa: F811
    user = member("manager", "decide_wait")
    gate = ask(approval={"title": "Pay?", "anonymous_links": True})
    phone = sit("phone")
    phone.page.goto(live_server.url + approval_link(gate, user))
    phone.check()
    phone.page.click("[value=approve]")
    phone.page.wait_for_selector("text=You approved it.")
    phone.check()
    assert Decision.objects.get().user == user
