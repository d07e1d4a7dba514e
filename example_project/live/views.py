"""A run, live: a page, and the stream of events that it shows.

Thousands may look on: while nothing happens to a run, those who watch it hold no database connection. The stream needs
an ASGI server (``pip install uvicorn``, ``uvicorn company.asgi:application``); ``runserver`` is none.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import aclosing
from typing import Any

from asgiref.sync import sync_to_async
from django.contrib import admin
from django.contrib.auth.decorators import user_passes_test
from django.core.exceptions import PermissionDenied
from django.core.handlers.asgi import ASGIRequest
from django.db import connections
from django.http import Http404, HttpResponse, StreamingHttpResponse
from django.shortcuts import render

from django_finoflow import RunNotFound, aget_run, awatch_run, get_run, list_runs

from .sse import STILL_HERE, event, or_nothing

#: Seconds of silence after which a comment is sent.
HEARTBEAT = 15
LATEST = 50


def may_see_runs(user) -> bool:
    """Whether a user may see runs, as in the admin; who is logged in and may not gets no login page."""
    if not user.is_authenticated:
        return False
    if not (user.is_staff and user.has_perm("finoflow.view_execution")):
        raise PermissionDenied
    return True


for_those_who_may = user_passes_test(may_see_runs, login_url="admin:login")


@for_those_who_may
def index(request):
    """List the latest runs."""
    return _page(request, "live/index.html", "Runs", runs=list_runs(limit=LATEST))


@for_those_who_may
def run(request, run_id: str):
    """Show one run. What is in it comes by its script."""
    found = get_run(run_id)
    if found is None:
        raise Http404
    return _page(request, "live/run.html", str(found), run=found)


@for_those_who_may
async def events(request, run_id: str):
    """Send each state of a run as it comes, until it ends or the browser goes away."""
    if not isinstance(request, ASGIRequest):
        return HttpResponse(
            "This needs an ASGI server: pip install uvicorn, then uvicorn company.asgi:application", status=501
        )
    if await aget_run(run_id) is None:
        raise Http404
    headers = {"Cache-Control": "no-store", "X-Accel-Buffering": "no"}  # nginx would keep events back
    stream = _events(run_id, request.headers.get("Last-Event-ID", ""))
    return StreamingHttpResponse(stream, content_type="text/event-stream", headers=headers)


async def _events(run_id: str, seen: str) -> AsyncGenerator[str, None]:
    # Whoever the user is has been asked on this request's own connection, which would stay open as long as the stream.
    await sync_to_async(connections.close_all)()
    try:
        async with aclosing(or_nothing(awatch_run(run_id), HEARTBEAT)) as states:
            async for state in states:
                if state is None:
                    yield STILL_HERE
                elif (id := state.updated_at.isoformat()) != seen:
                    yield event("state", _told(state), id)
    except RunNotFound:
        pass  # it was deleted, which is an end, too
    yield event("end")


def _told(state) -> dict[str, Any]:
    """Return what the page shows of a state. Payloads are not among it."""
    return {
        "status": state.status,
        "steps": [
            {"index": step.index, "id": step.id, "kind": step.kind, "status": step.status} for step in state.steps
        ],
        "waits": [{"kind": wait.kind, "id": wait.id, "due_at": wait.due_at} for wait in state.waits],
        "updated_at": state.updated_at,
    }


def _page(request, template: str, title: str, **context):
    return render(request, template, {**admin.site.each_context(request), "title": title, **context})
