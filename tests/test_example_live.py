"""The example's live pages, on a real ASGI server: events as they happen, and nothing left when the browser goes."""

from __future__ import annotations

import asyncio
import http.client
import json
import os
import re
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import CHROMIUM
from tests.example import EXAMPLE, Project, empty_database
from tests.processes import Spawned, eventually

pytestmark = pytest.mark.processes


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Project]:
    """A copy of the example with an empty database."""
    with empty_database(tmp_path_factory.mktemp("database"), "live") as url:
        yield Project.copied(tmp_path_factory.mktemp("copy") / "example_project", url)


SET_UP = """
from django.core.management import call_command
from expenses import people
call_command("migrate", verbosity=0)
people.create_people()
"""

#: Prints the session of a user who has logged in.
LOG_IN = """
import sys
from django.contrib.auth.models import User
from django.test import Client
client = Client()
client.force_login(User.objects.get(username=sys.argv[1]))
print(client.cookies["sessionid"].value)
"""

#: Starts a claim of somebody and lets a worker drive it to the gate of the managers.
CLAIM = """
import sys
from datetime import date
from decimal import Decimal
from django.contrib.auth.models import User
from django.core.management import call_command
from expenses.claims import Claim
from expenses.workflows import expense_approval
claim = Claim(sys.argv[1], date(2026, 9, 1), "anna", Decimal("12.50"), "EUR", "meals", True, "Lunch")
requester = User.objects.get(username="anna")
expense_approval.start(claim, run_id=sys.argv[1], requester=requester)
call_command("finoflow_worker", "--drain", verbosity=0)
"""

APPROVE = """
import sys
from django.contrib.auth.models import User
from django.core.management import call_command
from django_finoflow import decide
decide(sys.argv[1], "manager", user=User.objects.get(username="maria"), approved=True)
call_command("finoflow_worker", "--drain", verbosity=0)
"""


@dataclass(frozen=True)
class Site:
    """The example on an ASGI server, with its people."""

    project: Project
    port: int
    cookies: dict[str, str]

    def get(self, path: str, user: str = "", **headers: str) -> tuple[Any, Any]:
        """Send a request; return the connection, to be closed, and the answer, which may go on."""
        browser = http.client.HTTPConnection("127.0.0.1", self.port, timeout=30)
        if user:
            headers["Cookie"] = f"sessionid={self.cookies[user]}"
        browser.request("GET", path, headers=headers)
        return browser, browser.getresponse()

    def status(self, path: str, user: str = "") -> int:
        browser, answer = self.get(path, user)
        with closing(browser):
            return int(answer.status)

    def connections(self) -> int:
        """Return how many connections there are to the example's database."""
        import psycopg

        with psycopg.connect(self.project.env["EXAMPLE_DATABASE_URL"]) as connection:
            sql = "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND pid <> pg_backend_pid()"
            return int(connection.execute(sql).fetchone()[0])


@pytest.fixture(scope="module")
def site(project: Project, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    project.run_code(SET_UP)
    cookies = {name: project.run_code(LOG_IN, name).strip() for name in ("sofia", "ben")}
    with serve(project, tmp_path_factory.mktemp("server") / "log") as port:
        yield Site(project, port, cookies)


@contextmanager
def serve(project: Project, log: Path) -> Iterator[int]:
    """Serve the example with uvicorn, and give its port."""
    arguments = ["-m", "uvicorn", "--app-dir", str(project.folder), "--port", "0", "company.asgi:application"]
    server = Spawned(arguments, {**project.env, "PYTHONWARNINGS": "default"}, log)
    try:
        printed = server.wait_for_output("Uvicorn running on")
        yield int(re.search(r"Uvicorn running on http://127.0.0.1:(\d+)", printed)[1])
        for trouble in ("Exception in ASGI", "Internal Server Error", "Warning", "event="):
            assert trouble not in server.output
    finally:
        server.destroy()


def next_event(answer: Any) -> dict[str, Any]:
    """Read one event of a stream, and return its fields; its data are decoded."""
    fields: dict[str, Any] = {}
    while line := answer.readline().decode().rstrip("\n"):
        name, _, value = line.partition(": ")
        fields[name] = json.loads(value) if name == "data" else value
    return fields


# -- who may -----------------------------------------------------------------------------------------------------------


def test_the_live_pages_are_for_those_who_may_see_runs_in_the_admin(site: Site) -> None:
    site.project.run_code(CLAIM, "seen")
    for path in ("/live/", "/live/seen/", "/live/seen/events"):
        assert site.status(path) == 302
        assert site.status(path, "ben") == 403
        assert site.status(path, "sofia") == 200
    assert site.status("/live/nowhere/", "sofia") == 404
    assert site.status("/live/nowhere/events", "sofia") == 404


def test_a_server_that_cannot_stream_says_so(site: Site) -> None:
    site.project.run_code(CLAIM, "dull")
    told = site.project.run_code("""
        import logging
        from django.contrib.auth.models import User
        from django.test import Client
        logging.disable()
        client = Client(headers={"host": "localhost"})
        client.force_login(User.objects.get(username="sofia"))
        answer = client.get("/live/dull/events")
        print(answer.status_code, answer.text)
    """)
    assert told.startswith("501 This needs an ASGI server")


# -- events ------------------------------------------------------------------------------------------------------------


def test_a_run_is_shown_live_until_its_end(site: Site) -> None:
    site.project.run_code(CLAIM, "live")
    browser, answer = site.get("/live/live/events", "sofia")
    with closing(browser):
        assert answer.headers["Content-Type"] == "text/event-stream"
        assert answer.headers["Cache-Control"] == "no-store"
        first = next_event(answer)
        assert (first["event"], first["data"]["status"]) == ("state", "waiting")
        assert [wait["id"] for wait in first["data"]["waits"]] == ["manager"]
        site.project.run_code(APPROVE, "live")
        seen = [first]
        while seen[-1]["event"] != "end":
            seen.append(next_event(answer))
        assert answer.read() == b""
    last = seen[-2]["data"]
    assert last["status"] == "done"
    assert [step["id"] for step in last["steps"]] == ["convert", "check", "manager", "pay", "notify"]
    ids = [event["id"] for event in seen[:-1]]
    assert len(set(ids)) == len(ids) > 1


def test_a_browser_that_connects_again_is_not_sent_what_it_has_seen(site: Site) -> None:
    site.project.run_code(CLAIM, "again")
    browser, answer = site.get("/live/again/events", "sofia")
    with closing(browser):
        first = next_event(answer)
    browser, answer = site.get("/live/again/events", "sofia", **{"Last-Event-ID": first["id"]})
    with closing(browser):
        site.project.run_code(APPROVE, "again")
        assert next_event(answer)["id"] != first["id"]


@pytest.mark.only_postgresql(reason="connections are counted by the server")
def test_streams_hold_one_connection_together_and_leave_none_when_their_browsers_go_away(site: Site) -> None:
    run_ids = [f"many {number}" for number in range(5)]
    for run_id in run_ids:
        site.project.run_code(CLAIM, run_id)
    eventually(lambda: site.connections() == 0)
    open_streams = [site.get(f"/live/{run_id.replace(' ', '%20')}/events", "sofia") for run_id in run_ids * 5]
    for _browser, answer in open_streams:
        assert next_event(answer)["data"]["status"] == "waiting"
    eventually(lambda: site.connections() == 1)
    for browser, answer in open_streams[:10]:  # in the middle of it
        answer.close()
        browser.close()
    site.project.run_code(APPROVE, run_ids[0])
    for browser, answer in open_streams[10:]:
        if answer is open_streams[10][1]:
            assert next_event(answer)["event"] == "state"
        answer.close()
        browser.close()
    eventually(lambda: site.connections() == 0)


# -- the stream's parts ------------------------------------------------------------------------------------------------


@pytest.fixture
def sse(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.syspath_prepend(EXAMPLE)
    from live import sse

    return sse


class Source:
    """Items that come when a test lets them, and whether they were closed."""

    def __init__(self) -> None:
        self.come: asyncio.Queue[Any] = asyncio.Queue()
        self.closed = False

    async def items(self) -> AsyncIterator[Any]:
        try:
            while (item := await self.come.get()) is not None:
                yield item
        finally:
            self.closed = True


@pytest.mark.only_sqlite(reason="needs no database")
def test_a_quiet_stream_says_now_and_then_that_it_is_still_there(sse: Any) -> None:
    async def listen() -> list[Any]:
        source = Source()
        stream = sse.or_nothing(source.items(), 0.05)
        seen = [await anext(stream), await anext(stream)]
        source.come.put_nowait("news")
        seen.append(await anext(stream))
        source.come.put_nowait(None)
        seen += [item async for item in stream]
        assert source.closed
        return seen

    assert asyncio.run(listen()) == [None, None, "news"]
    assert sse.STILL_HERE.startswith(":")
    assert sse.STILL_HERE.endswith("\n\n")


@pytest.mark.only_sqlite(reason="needs no database")
@pytest.mark.parametrize("how", ["closed", "cancelled"])
def test_a_stream_that_ends_early_ends_what_it_waits_for(sse: Any, how: str) -> None:
    async def listen() -> bool:
        source = Source()
        stream = sse.or_nothing(source.items(), 0.05)
        assert await anext(stream) is None
        if how == "closed":
            await stream.aclose()
        else:
            task = asyncio.ensure_future(anext(stream))
            await asyncio.sleep(0)
            task.cancel()
            await asyncio.wait([task])
        return source.closed

    assert asyncio.run(listen())


@pytest.mark.only_sqlite(reason="needs no database")
def test_an_event_is_one_block_of_lines_whatever_its_data(sse: Any) -> None:
    assert sse.event("state", {"id": "two\nlines"}, "7") == 'id: 7\nevent: state\ndata: {"id": "two\\nlines"}\n\n'


# -- in a browser ------------------------------------------------------------------------------------------------------


@pytest.fixture
def page(site: Site) -> Iterator[Any]:
    """A page of a browser in which sofia has logged in, and which has nothing to complain of."""
    from playwright.sync_api import sync_playwright

    complaints: list[str] = []
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(
            executable_path=CHROMIUM, args=["--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage"]
        )
        url = f"http://127.0.0.1:{site.port}"
        context = browser.new_context(base_url=url)
        context.add_cookies([{"name": "sessionid", "value": site.cookies["sofia"], "url": url}])
        page = context.new_page()
        page.set_default_timeout(30_000)
        page.on("console", lambda message: complaints.append(message.text) if message.type != "log" else None)
        page.on("pageerror", lambda error: complaints.append(str(error)))
        page.on("request", lambda request: None if request.url.startswith(url) else complaints.append(request.url))
        yield page
        browser.close()
    assert complaints == []


@pytest.mark.browser
def test_the_page_follows_a_run_without_being_loaded_again(site: Site, page: Any) -> None:
    site.project.run_code(CLAIM, "watched")
    page.goto("/live/watched/")
    page.wait_for_selector("#rows tr:has-text('manager'):has-text('waits until')")
    # In a process that is not waited for: this thread serves the browser's events meanwhile.
    code = "import django; django.setup()\n" + APPROVE
    command = [sys.executable, "-c", code, "watched"]
    approval = subprocess.Popen(command, cwd=site.project.folder, env={**os.environ, **site.project.env})
    page.wait_for_selector("#status:has-text('done')")
    assert approval.wait(60) == 0
    steps = page.locator("#rows tr td:nth-child(2)").all_inner_texts()
    assert steps == ["convert", "check", "manager", "pay", "notify"]
    assert page.inner_text("#trouble") == ""
