"""The example in a real browser, as the people of its company: on a desk and on a phone, with a worker at work.

With ``FINOFLOW_SCREENSHOTS=1`` the company has seen the whole demo before, and the pictures in ``docs/images`` are
made anew.
"""

from __future__ import annotations

import os
import socket
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import pytest

from tests.example import Project, empty_database
from tests.processes import ROOT, Spawned, eventually
from tests.test_browser import chromium  # noqa: F401
from tests.test_inbox_browser import SIZES, Person

pytestmark = [pytest.mark.browser, pytest.mark.processes]

SCREENSHOTS = bool(os.environ.get("FINOFLOW_SCREENSHOTS"))
IMAGES = ROOT / "docs" / "images"
LARGEST = 150_000  # bytes
LOOKS = 6  # seconds of pauses between the looks at a page; the pages take ten times as long
#: The rectangle around some parts of a page.
FRAME = """parts => { const boxes = [...document.querySelectorAll(parts)].map(part => part.getBoundingClientRect());
  const x = Math.min(...boxes.map(b => b.left)), y = Math.min(...boxes.map(b => b.top));
  return { x, y: y + scrollY, width: Math.max(...boxes.map(b => b.right)) - x,
           height: Math.max(...boxes.map(b => b.bottom)) - y } }"""


@dataclass(frozen=True)
class Company:
    """The example with its site and a worker."""

    project: Project
    site: str

    def tell(self, code: str, *arguments: str) -> list[str]:
        """Run Python in the project, and return the lines that it printed."""
        return self.project.run_code(code, *arguments).splitlines()


def free_port() -> int:
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return int(found.getsockname()[1])


def answers(port: int) -> bool:
    with suppress(OSError), socket.create_connection(("127.0.0.1", port), 1):
        return True
    return False


@pytest.fixture(scope="module")
def company(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Company]:
    """The company at work."""
    folder, port = tmp_path_factory.mktemp("company"), free_port()
    with empty_database(folder, "story") as url:
        project = Project.copied(folder / "example_project", url)
        if SCREENSHOTS:
            project.manage("demo")
        else:
            project.manage("migrate", "--verbosity=0")
            project.run_code("from expenses.people import create_people; create_people()")
        running: list[Spawned] = []
        try:
            running.append(project.spawn("runserver", f"127.0.0.1:{port}", "--noreload"))
            running.append(project.spawn("finoflow_worker", "--poll-interval", "0.2"))
            eventually(lambda: answers(port), 60)
            yield Company(project, f"http://127.0.0.1:{port}")
        finally:
            for process in running:
                process.destroy()


Seat = Callable[..., Any]


@pytest.fixture(params=list(SIZES))
def size(request: Any) -> str:
    """``desk`` or ``phone``."""
    return str(request.param)


@pytest.fixture
def seat(chromium: Any, company: Company, size: str) -> Iterator[Seat]:  # noqa: F811
    """Log somebody in, in a browser of their own, and return that; at the end none may have complained.

    A complaint is whatever the browser's console says, and each request to another host.
    """
    people: list[Person] = []

    def seat(name: str) -> Person:
        people.append(Person(chromium, company.site, size))
        people[-1].log_in(name, "demo")
        return people[-1]

    yield seat
    for person in people:
        person.context.close()
        assert person.complaints == []


def picture(page: Any, name: str, *, whole: bool = False, parts: str = "") -> None:
    """Take a picture for the docs, if that is asked for: of the window, the whole page, or some parts that it has."""
    if not SCREENSHOTS:
        return
    IMAGES.mkdir(exist_ok=True)
    path = IMAGES / f"{name}.png"
    page.evaluate("document.activeElement.blur()")
    page.screenshot(
        path=path, full_page=whole or bool(parts), **({"clip": page.evaluate(FRAME, parts)} if parts else {})
    )
    assert path.stat().st_size < LARGEST


def ask_for(person: Person, item: str, eur: int) -> None:
    """Ask for a purchase on the company's own page."""
    page = person.page
    page.goto("/purchases/")
    person.check()
    page.fill("[name=item]", item)
    page.fill("[name=eur]", str(eur))
    page.click("button:has-text('Ask for it')")
    page.wait_for_selector(f"h3:has-text('{item}')")


def stands(person: Person, item: str, how: str) -> None:
    """See on the company's page, now or soon, how a purchase stands: the worker has to come by."""

    def seen() -> bool:
        person.page.goto("/purchases/")
        return person.page.locator(f"li:has-text('{item}') p:has-text('{how}')").count() == 1

    eventually(seen, LOOKS)
    person.check()


def find(person: Person, item: str) -> None:
    """Find the gate of a purchase in the inbox, now or soon, and open it."""

    def found() -> bool:
        person.page.goto("/approvals/")
        return person.page.locator(f"h2 a:has-text('{item}')").count() == 1

    eventually(found, LOOKS)
    person.check()
    person.page.click(f"h2 a:has-text('{item}')")
    person.page.wait_for_selector("h1:has-text('Buy')")
    person.check()


def approve(person: Person, expected: str) -> None:
    """Press *Approve*, and be told so."""
    person.page.click("[value=approve]")
    person.page.wait_for_selector(f"main:has-text('{expected}')")
    person.check()


def test_a_purchase_goes_from_its_requester_by_the_managers_form_to_a_quorum_of_directors(
    company: Company, seat: Seat, size: str
) -> None:
    item = {"desk": "an electric bus", "phone": "a fleet of cargo bikes"}[size]
    jonas, maria, sofia, helena, theo = (seat(name) for name in ("jonas", "maria", "sofia", "helena", "theo"))
    ask_for(jonas, item, 18_900)
    stands(jonas, item, "waiting for manager")

    # A manager who has asked for it sees the gate, and may not answer it.
    jonas.page.click(f"li:has-text('{item}') a:has-text('Look at the gate')")
    jonas.page.wait_for_selector("[role=status]:has-text('You asked for this, so somebody else must decide.')")
    jonas.check()
    assert jonas.page.locator("[value=approve], [value=claim]").count() == 0
    assert forged(jonas).status == 403

    find(maria, item)
    maria.page.click("text=Claim it")
    maria.page.wait_for_selector("text=Release it")
    maria.check()
    maria.page.select_option("[name=answer-cost_centre]", "2000")
    maria.page.fill("[name=reason]", "The old one is beyond repair.")
    if size == "desk":
        picture(maria.page, "gate", whole=True)
    maria.page.fill("[name=answer-booked_on]", "2999-01-01")
    maria.page.click("[value=approve]")
    maria.page.wait_for_selector(".finoflow-errors:has-text('That day is yet to come.')")
    maria.check()
    maria.page.fill("[name=answer-booked_on]", "2026-09-30")
    approve(maria, "You approved it.")

    find(sofia, item)
    approve(sofia, "You approved it.")
    find(helena, item)
    approve(helena, "1 of 2")
    assert "Your approval is recorded: 1 of 2; one more is needed." in helena.page.inner_text("main")
    find(theo, item)
    if size == "phone":
        picture(theo.page, "gate-phone", whole=True)
    approve(theo, "You approved it.")
    stands(jonas, item, "bought")

    [bought] = company.tell(RESULT, item)
    assert bought == f"{item}, for cost centre 2000, signed by maria, sofia, theo"
    assert company.tell(DECISIONS, item) == [
        "manager maria True 2026-09-30 2000",
        "finance sofia True",
        "directors helena True",
        "directors theo True",
    ]


def forged(person: Person) -> Any:
    """Approve the gate of the page that is open without its button, and return what the site answers."""
    [token] = [cookie["value"] for cookie in person.context.cookies() if cookie["name"] == "csrftoken"]
    form = {"csrfmiddlewaretoken": token, "do": "approve", "reason": "It is mine.", "answer-cost_centre": "2000"}
    return person.context.request.post(person.page.url, form={**form, "answer-booked_on": "2026-09-30"})


RESULT = """
    import sys
    from django_finoflow.models import Execution
    print(Execution.objects.get(workflow_id="purchase-approval", input__item=sys.argv[1]).result)
"""
DECISIONS = """
    import sys
    from django_finoflow.models import Decision
    for made in Decision.objects.filter(wait__execution__input__item=sys.argv[1]).order_by("decided_at"):
        print(made.wait.name, made.user_name, made.approved, *(made.data or {}).values())
"""
LEDGER = """
    import sys
    from django_finoflow.models import Execution
    from shop.models import Posting
    run = Execution.objects.get(input__item=sys.argv[1])
    print(run.status, run.rollback, *(line.amount for line in Posting.objects.filter(run_id=run.run_id)))
"""


def test_a_rejection_rolls_the_saga_back_and_a_late_click_is_told_who_decided_and_when(
    company: Company, seat: Seat, size: str
) -> None:
    item = {"desk": "a gold-plated kettle", "phone": "a golden teapot"}[size]
    anna, maria, jonas = seat("anna"), seat("maria"), seat("jonas")
    ask_for(anna, item, 640)
    find(maria, item)
    find(jonas, item)
    if size == "phone":
        maria.page.goto("/approvals/")
        picture(maria.page, "inbox-phone")
        find(maria, item)
    maria.page.click("[value=reject]")
    maria.page.wait_for_selector(".finoflow-errors:has-text('Give a reason.')")
    maria.check()
    maria.page.fill("[name=reason]", "Water does not care.")
    maria.page.click("[value=reject]")
    maria.page.wait_for_selector("[role=status]:has-text('You rejected it.')")

    jonas.page.click("[value=approve]")
    jonas.page.wait_for_selector("[role=alert]:has-text('maria rejected it on')")
    jonas.check()
    assert jonas.page.locator("[value=approve]").count() == 0

    stands(anna, item, 'Gate "manager" was rejected by maria: Water does not care.')
    assert "rejected, undone" in anna.page.inner_text(f"li:has-text('{item}')")
    assert company.tell(LEDGER, item) == ["error completed -640.00 640.00"]
    assert [line.split()[:3] for line in company.tell(DECISIONS, item)] == [["manager", "maria", "False"]]


SIGNED = """
    import sys, time
    from decimal import Decimal
    from django.contrib.auth.models import User
    from django.utils import timezone
    from django_finoflow import decide
    from django_finoflow.models import Wait
    from shop.workflows import Purchase, purchase_approval

    item, *signers = sys.argv[1:]
    asked = User.objects.get(username="freya")
    run = purchase_approval.start(Purchase(item[:20], "freya", item, Decimal(24_500)), requester=asked)
    for name in signers:
        user = User.objects.get(username=name)
        for _ in range(600):
            gate = Wait.objects.inbox(user).filter(execution=run).first()
            if gate is not None:
                break
            time.sleep(0.05)
        booking = {"cost_centre": "3000", "booked_on": timezone.localdate()} if gate.name == "manager" else None
        decide(run.run_id, gate.name, user=user, approved=True, data=booking, wait=gate)
    print(run.pk)
"""


def test_the_admin_tells_what_waits_for_whom_and_draws_the_run(company: Company, seat: Seat, size: str) -> None:
    machine, drill = f"a milling machine ({size})", f"a drill ({size})"
    anna = seat("anna")
    ask_for(anna, drill, 1_200)
    [run] = company.tell(SIGNED, machine, "maria", "sofia", "helena")
    stands(anna, drill, "waiting for manager")
    page = seat("sofia").page  # finance, who may look at everything
    page.goto("/admin/finoflow/wait/overview/")
    told = page.inner_text(".finoflow-overview")
    assert "members of directors" in told
    assert "members of managers" in told
    if size == "desk":
        picture(page, "overview", parts="#content")

    page.goto(f"/admin/finoflow/execution/{run}/change/")
    page.wait_for_selector("#finoflow-timeline")
    told = page.inner_text("#content")
    assert "directors" in told
    assert "sofia" in told
    if size == "desk":
        picture(page, "run", parts=".finoflow-picture, .finoflow-plan")

    page = seat("admin").page
    page.goto("/admin/finoflow/wait/?q=purchase-approval")
    page.click(f"a:has-text('{drill}')")
    page.click(".object-tools a:has-text('Approve')")
    page.wait_for_selector("[name=answer-cost_centre]")
    if size == "desk":
        picture(page, "admin-decision", parts="#content")
    page.select_option("[name=answer-cost_centre]", "1000")
    page.click("input[type=submit][value=Approve]")
    page.wait_for_selector(".messagelist:has-text('You approved')")
    stands(anna, drill, "waiting for finance")
