"""The admin in a real browser: a manager decides a gate, once, and nothing is fetched from elsewhere."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from django.contrib.admin.models import LogEntry

from django_finoflow.models import Decision, Execution, Wait
from tests.admin_site import GATES, RUNS, ask, paperwork, person, run_of
from tests.conftest import CHROMIUM

pytestmark = [pytest.mark.browser, pytest.mark.django_db(transaction=True)]

# What a test asks of the browser must not wait for ever on a busy machine, nor fail on one.
PATIENCE = 30_000


@pytest.fixture(scope="session")
def live_server(django_db_setup: None, live_server: Any) -> Any:
    """The server, started when the test database is there: before, it would take it for one in memory."""
    return live_server


@pytest.fixture(scope="module")
def chromium() -> Iterator[Any]:
    """A browser without a window. Playwright leaves its event loop in this thread, which Django must not mind."""
    from playwright.sync_api import sync_playwright

    with pytest.MonkeyPatch.context() as patch, sync_playwright() as playwright:
        patch.setenv("DJANGO_ALLOW_ASYNC_UNSAFE", "true")
        browser = playwright.chromium.launch(
            executable_path=CHROMIUM, args=["--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage"]
        )
        yield browser
        browser.close()


class Desk:
    """One person at a browser; everything it complains of or fetches from elsewhere is kept."""

    def __init__(self, chromium: Any, server: str, username: str):
        self._server = server
        self.complaints: list[str] = []
        self.page = chromium.new_context(base_url=server).new_page()
        self.page.set_default_timeout(PATIENCE)
        self.page.on("console", lambda message: self._complain(message.type, message.text))
        self.page.on("pageerror", lambda error: self._complain("error", str(error)))
        self.page.on("request", lambda request: self._check(request.url))
        self.page.goto("/admin/")
        self.page.fill("[name=username]", username)
        self.page.fill("[name=password]", "secret")
        self.page.click("[type=submit]")
        self.page.wait_for_selector("#user-tools")

    def _complain(self, kind: str, text: str) -> None:
        if kind in ("error", "warning"):
            self.complaints.append(text)

    def _check(self, url: str) -> None:
        if not url.startswith((self._server, "data:")):
            self.complaints.append(f"fetched {url}")

    def told(self) -> str:
        """Return what the page tells at its top."""
        self.page.wait_for_selector(".messagelist")
        return self.page.inner_text(".messagelist")


@pytest.fixture
def desk(chromium: Any, live_server: Any) -> Iterator[Any]:
    """Seat people: ``desk("manager")``. At the end nobody's browser may have complained."""
    desks: list[Desk] = []

    def sit(username: str) -> Desk:
        desks.append(Desk(chromium, live_server.url, username))
        return desks[-1]

    yield sit
    for one in desks:
        one.page.context.close()
        assert one.complaints == []


@pytest.fixture
def gate() -> Wait:
    """A gate that two people may decide."""
    person("manager", "decide_wait", "view_wait", "view_execution")
    person("second", "decide_wait")
    return ask(person("ann"), approval={"title": "Pay the plumber?", "show": {"Amount": "120.00 EUR"}})


def test_a4_a_manager_presses_approve_sees_what_it_is_about_gives_a_reason_and_decides(gate: Wait, desk: Any) -> None:
    manager = desk("manager")
    manager.page.click("text=Gates")
    manager.page.click("a.finoflow-button:has-text('Approve')")
    manager.page.wait_for_selector("textarea[name=reason]")
    assert "120.00 EUR" in manager.page.inner_text("#content")
    assert not Decision.objects.exists()
    manager.page.fill("textarea[name=reason]", "The pipes are fine now.")
    manager.page.click("input[type=submit][value=Approve]")
    assert "You approved “Pay the plumber?”." in manager.told()
    assert manager.page.url.endswith(GATES)
    decision = Decision.objects.get()
    assert (decision.user_name, decision.approved, decision.reason) == ("manager", True, "The pipes are fine now.")


def test_a1_a_double_click_decides_once(gate: Wait, desk: Any) -> None:
    manager = desk("manager")
    manager.page.goto(f"{GATES}approve/{gate.pk}/")
    manager.page.dblclick("input[type=submit][value=Approve]")
    assert "You approved" in manager.told()
    assert Decision.objects.count() == LogEntry.objects.count() == 1


def test_a3_a_late_second_person_is_told_who_decided(gate: Wait, desk: Any) -> None:
    manager, second = desk("manager"), desk("second")
    for one in (manager, second):
        one.page.goto(f"{GATES}reject/{gate.pk}/")
        one.page.fill("textarea[name=reason]", "Too dear.")
    manager.page.click("input[type=submit][value=Reject]")
    assert "You rejected" in manager.told()
    second.page.click("input[type=submit][value=Reject]")
    assert "manager rejected it on" in second.told()
    assert Decision.objects.get().user_name == "manager"


def test_a5_gates_ticked_in_the_list_are_decided_on_one_page(gate: Wait, desk: Any) -> None:
    ask(approval={"title": "Pay the cook?"})
    manager = desk("manager")
    manager.page.goto(GATES)
    manager.page.check("#action-toggle")
    manager.page.select_option("select[name=action]", "finoflow_approve_selected")
    manager.page.click("button[name=index]")
    manager.page.wait_for_selector("textarea[name=reason]")
    assert "Pay the cook?" in manager.page.inner_text("#content")
    manager.page.click("input[type=submit][value='Approve 2 of 2']")
    assert "2 gates were approved." in manager.told()


def test_an_operator_reads_the_page_of_a_run(gate: Wait, desk: Any) -> None:
    manager = desk("manager")
    manager.page.goto(RUNS)
    manager.page.click(f"text={run_of(gate).run_id}")
    manager.page.wait_for_selector("#finoflow-timeline")
    timeline = manager.page.inner_text("#finoflow-timeline")
    assert "prepare" in timeline
    assert "approval" in timeline
    manager.page.click("#finoflow-timeline a")
    manager.page.wait_for_selector("text=Pay the plumber?")


def test_c3_an_operator_sees_why_an_unwinding_is_stuck_and_abandons_it(desk: Any) -> None:
    person("operator", "view_execution", "retry_execution")
    paperwork.run({"fails": True, "undo": "badly"})
    operator = desk("operator")
    operator.page.goto(RUNS)
    operator.page.click(".field-run_id a")
    operator.page.wait_for_selector("#finoflow-timeline")
    assert "division by zero" in operator.page.inner_text("#finoflow-timeline .finoflow-undo")
    operator.page.click("a.finoflow_abandon")
    operator.page.click("input[type=submit][value='Yes, abandon']")
    assert "1 unwinding was abandoned." in operator.told()
    assert Execution.objects.get().rollback == "stuck"
