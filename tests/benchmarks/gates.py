"""What the pages of gates cost with 10,000 open ones, as a ratio to the same pages with none, and with a page of them.

Three people look: one who sees and decides all, one who decides some, and a superuser. Then once more with an audience
of its own for every gate, as ``users=`` with a function makes them.
"""

from __future__ import annotations

import time
from datetime import timedelta
from typing import Any

from tests.benchmarks import stage

OPEN, AUDIENCES, PAGE = 10_000, 20, 25
ROUNDS = 9

Times = dict[tuple[str, str], float]

PAGES = {
    "admin: list of gates": "/admin/finoflow/wait/",
    "admin: open ones": "/admin/finoflow/wait/?state=open",
    "admin: waiting for me": "/admin/finoflow/wait/?mine=yes",
    "admin: overview": "/admin/finoflow/wait/overview/",
    "admin: list of runs": "/admin/finoflow/execution/",
    "inbox": "/approvals/",
}


def main() -> None:
    """Time each page for each person, without gates and with many."""
    stage.set_up()
    clients = {name: _client(name, **options) for name, options in _people().items()}
    none = _measured(clients)
    _fill(PAGE * AUDIENCES, _of_groups)
    few = _measured(clients)
    _fill(OPEN, _of_groups)
    _report("", _measured(clients), none, few)
    _fill(OPEN, lambda number: f'["",[],["decider","person {number}"]]')
    _report(" (own audiences)", _measured(clients), none, few)


def _of_groups(number: int) -> str:
    return f'["",["group {number % AUDIENCES}"],[]]'


def _report(what: str, many: Times, none: Times, few: Times) -> None:
    for key, seconds in many.items():
        ratios = {"none": seconds / none[key], "one_page_each": seconds / few[key]}
        stage.row(f"{key[1]}, {key[0]}{what}", seconds * 1000, "ms", **ratios)


def _measured(clients: dict[str, Any]) -> Times:
    return {key: _seconds(client, url) for key, client, url in _looks(clients)}


def _people() -> dict[str, dict[str, Any]]:
    everything = ["view_wait", "view_execution", "decide_wait"]
    return {
        "viewer": {"permissions": everything, "groups": [f"group {n}" for n in range(AUDIENCES)]},
        "decider": {"permissions": ["decide_wait"], "groups": ["group 3"]},
        "superuser": {"is_superuser": True},
    }


def _client(name: str, permissions: Any = (), groups: Any = (), **more: Any) -> Any:
    from django.contrib.auth.models import Group, Permission, User
    from django.test import Client

    user = User.objects.create_user(name, is_staff=True, **more)
    user.user_permissions.set(Permission.objects.filter(content_type__app_label="finoflow", codename__in=permissions))
    user.groups.set([Group.objects.get_or_create(name=group)[0] for group in groups])
    client = Client()
    client.force_login(user)
    return client


def _looks(clients: dict[str, Any]) -> Any:
    for name, client in clients.items():
        for what, url in PAGES.items():
            if name != "decider" or "runs" not in what:
                yield (name, what), client, url


def _seconds(client: Any, url: str) -> float:
    """Return the best of some renderings of a page: what disturbs one only makes it slower."""
    client.get(url)
    times = []
    for _ in range(ROUNDS):
        moment = time.perf_counter()
        assert client.get(url).status_code == 200, url
        times.append(time.perf_counter() - moment)
    return min(times)


def _fill(count: int, audience: Any) -> None:
    """Replace what there is by ``count`` runs, each at an open gate."""
    from django.db import connection

    from django_finoflow import clock
    from django_finoflow.models import Execution, Wait

    Execution.objects.all().delete()
    now = clock.now()
    runs = Execution.objects.bulk_create(
        Execution(
            run_id=f"run {number}",
            workflow_id=f"bench {number % 5}",
            status="waiting",
            requester_name=f"person {number}",
            input={"amount": number},
            due_at=now + timedelta(days=number % 30),
            created_at=now - timedelta(minutes=number),
            updated_at=now,
        )
        for number in range(count)
    )
    Wait.objects.bulk_create(
        Wait(
            execution=run,
            index=0,
            kind="signal",
            name=f"approval {number % 3}",
            opened_at=now - timedelta(minutes=number),
            due_at=now + timedelta(days=number % 30 - 1),
            approval={"title": f"Pay {number}?", "show": {"Amount": number}, "exclude_requester": True, "quorum": 1},
            audience=audience(number),
        )
        for number, run in enumerate(runs)
    )
    with connection.cursor() as cursor:
        cursor.execute("ANALYZE")


if __name__ == "__main__":
    main()
