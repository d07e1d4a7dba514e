"""The newer pages of the admin in a real browser, on a desk and on a phone, in light and in dark."""

from __future__ import annotations

from typing import Any

import pytest

from django_finoflow import Workflow, registry
from django_finoflow.models import Decision, Execution, Wait
from tests.admin_site import GATES, RUNS, ask, ask_budget, paperwork, person, run_of
from tests.test_browser import chromium, desk, live_server  # noqa: F401

pytestmark = [pytest.mark.browser, pytest.mark.django_db(transaction=True)]

OVERVIEW = f"{GATES}overview/"
SIZES = {"desk": {"width": 1280, "height": 900}, "phone": {"width": 390, "height": 844}}

#: How far the page sticks out of the window; tables scroll by themselves.
TOO_WIDE = "document.documentElement.scrollWidth - document.documentElement.clientWidth"
#: Texts of ours that are hard to read against what is behind them, as WCAG reckons.
PALE = """() => {
  const light = c => { const [r, g, b] = c.match(/[\\d.]+/g).map(v => { v /= 255;
    return v <= .03928 ? v / 12.92 : ((v + .055) / 1.055) ** 2.4 }); return .2126 * r + .7152 * g + .0722 * b };
  const behind = e => { for (; e; e = e.parentElement) { const c = getComputedStyle(e).backgroundColor;
    if (!/, 0\\)$/.test(c) && c !== 'transparent') return c } return 'rgb(255, 255, 255)' };
  const ours = ['overview', 'standstill', 'picture', 'plan', 'question'].map(c => `.finoflow-${c} *`).join();
  return [...document.querySelectorAll(ours)].filter(e => e.offsetParent && !e.closest('.finoflow-box-skipped') &&
      [...e.childNodes].some(n => n.nodeType === 3 && n.data.trim())).map(e => {
    const [a, b] = [light(getComputedStyle(e).color), light(behind(e))];
    return [e.outerHTML.slice(0, 70), (Math.max(a, b) + .05) / (Math.min(a, b) + .05)] }).filter(p => p[1] < 4.5) }"""
UNNAMED = """() => [...document.querySelectorAll('#content input, #content textarea')]
    .filter(e => !['hidden', 'submit'].includes(e.type) && !e.labels.length && !e.getAttribute('aria-label'))
    .map(e => e.outerHTML)"""
TWICE = """() => { const ids = [...document.querySelectorAll('[id]')].map(e => e.id);
    return ids.filter((id, at) => ids.indexOf(id) !== at) }"""
#: Bars, lines and marks that are drawn outside of the column of the timeline.
OUTSIDE = """() => [...document.querySelectorAll('.finoflow-bars li')].flatMap(li => {
    const box = li.querySelector('svg').getBoundingClientRect();
    return [...li.querySelectorAll('svg > rect')].map(r => r.getBoundingClientRect())
      .filter(r => r.left < box.left - 1 || r.right > box.right + 1 || r.width < 1).map(r => [r.left, r.right]) })"""


@pytest.fixture(params=list(SIZES))
def size(request: Any) -> dict[str, int]:
    """The size of a window."""
    return SIZES[request.param]


@pytest.fixture
def boss(desk: Any, size: dict[str, int]) -> Any:  # noqa: F811
    """The browser page of somebody who may do everything."""
    person("boss", is_superuser=True)
    page = desk("boss").page
    page.set_viewport_size(size)
    return page


def look(page: Any, url: str) -> None:
    """Open a page of ours, in light and in dark, and find nothing wrong with how it is built."""
    for scheme in ("light", "dark"):
        page.emulate_media(color_scheme=scheme)
        page.goto(url)
        assert page.evaluate(TOO_WIDE) <= 0, url
        assert page.evaluate(PALE) == [], scheme
        assert page.evaluate(UNNAMED) == []
        assert page.evaluate(TWICE) == []


def test_the_overview_fits_and_reads_well_and_its_links_lead_on(boss: Any) -> None:
    ask(person("ann"), approval={"title": "Pay the plumber?", "groups": ["finance"]}, timeout="1d")
    ask(approval={"title": "Hire a cook?"})
    Wait.objects.filter(pk=ask(timeout="1d").pk).update(due_at="2020-01-01T00:00Z")
    paperwork.run({"fails": True, "undo": "badly"})
    look(boss, OVERVIEW)
    boss.click("text=run is stuck")
    boss.wait_for_selector("text=compensation failed")
    boss.goto(OVERVIEW)
    boss.click("a:has-text('Hire a cook?')")
    boss.wait_for_selector("text=Who may decide")


def test_both_buttons_of_a_gate_are_in_sight_in_the_list_and_large_enough_to_touch(boss: Any) -> None:
    ask(person("ann"), approval={"title": "Pay the plumber for what he did in the cellar, and in the attic?"})
    boss.goto(GATES)
    assert boss.evaluate(TOO_WIDE) <= 0
    boxes = [boss.locator(f"#result_list a.finoflow-button:has-text('{text}')").bounding_box() for text in ANSWERS]
    for box in boxes:
        assert box["x"] >= 0
        assert box["x"] + box["width"] <= boss.viewport_size["width"]
        assert box["height"] >= 24  # WCAG 2.2, 2.5.8


ANSWERS = ("Approve", "Reject")


def test_the_page_of_a_builders_run_draws_its_timeline_and_marks_its_place(boss: Any) -> None:
    made = (
        Workflow("graphed")
        .step("submit", lambda ctx: 1)
        .parallel(lambda group: group.step("mail", lambda ctx: 1).step("file", lambda ctx: 1))
        .wait_for("approval", timeout="90d")
        .step("process", lambda ctx: 1)
    )
    try:
        run = Execution.objects.get(run_id=made.run().run_id)
        look(boss, f"{RUNS}{run.pk}/change/")
        assert boss.evaluate(OUTSIDE) == []
        assert boss.locator(".finoflow-bars li").count() == 4
        assert "the run is here" in boss.inner_text(".finoflow-box-here")
        assert "approval" in boss.inner_text(".finoflow-box-here")
    finally:
        registry.unregister(made.id)


def test_a_gate_is_answered_with_its_own_form_and_errors_are_shown_in_place(boss: Any) -> None:
    gate = ask_budget(approval={"title": "Which budget?"})
    look(boss, f"{GATES}approve/{gate.pk}/")
    boss.fill("textarea[name=reason]", "Typed already.")
    boss.click("input[type=submit][value=Approve]")
    boss.click(".errornote a")
    assert boss.evaluate("document.activeElement.name") == "answer-centre"
    assert "This field is required." in boss.inner_text(".form-row.errors")
    assert boss.input_value("textarea[name=reason]") == "Typed already."
    look(boss, f"{GATES}approve/{gate.pk}/")
    boss.fill("[name=answer-centre]", "it-7")
    boss.keyboard.press("Enter")
    boss.wait_for_selector("text=You approved “Which budget?”.")
    assert Decision.objects.get().data == {"centre": "IT-7", "urgent": False}


def test_a_gate_is_claimed_handed_over_and_its_history_tells_so(boss: Any) -> None:
    person("second", "decide_wait")
    gate = ask(approval={"title": "Pay the plumber?"})
    boss.goto(f"{GATES}{gate.pk}/change/")
    boss.click(".object-tools a:has-text('Claim')")
    boss.click("input[type=submit][value='Yes, claim it']")
    boss.wait_for_selector("text=You claimed “Pay the plumber?”.")
    look(boss, f"{GATES}delegate/{gate.pk}/")
    boss.fill("[name=to]", "second")
    boss.click("input[type=submit][value='Hand it over']")
    boss.wait_for_selector("text=boss handed it to second.")
    assert Wait.objects.get().claimed_by_name == "second"


def test_a_stuck_run_shows_what_to_do(boss: Any) -> None:
    run = run_of(ask())
    pair = {"branch": "", "position": 1, "recorded": ("step", "charge"), "asked": ("step", "charge card")}
    Execution.objects.filter(pk=run.pk).update(
        status="stuck", stuck_reason="replay-mismatch", error={"message": "m", "mismatch": pair}, due_at=None
    )
    look(boss, f"{RUNS}{run.pk}/change/")
    assert "charge card" in boss.inner_text(".finoflow-pair")
