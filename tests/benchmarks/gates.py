"""What the pages of gates cost with 10,000 open ones, as a ratio to the same pages with none.

Three people look: one who sees and decides all, one who decides some, and a superuser. Then once more with an audience
of its own for every gate, as ``users=`` with a function makes them.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from typing import Any

from tests.benchmarks import stage

OPEN, AUDIENCES, ROUNDS = 10_000, 20, 12

PAGES = {
    "admin: list of gates": "/admin/finoflow/wait/",
    "admin: open ones": "/admin/finoflow/wait/?state=open",
    "admin: waiting for me": "/admin/finoflow/wait/?mine=yes",
    "admin: overview": "/admin/finoflow/wait/overview/",
    "admin: list of runs": "/admin/finoflow/execution/",
    "inbox": "/approvals/",
}


def main() -> None:
    """Time each page for each person, with many gates and without any in turn."""
    stage.set_up()
    clients = {name: _client(name, **options) for name, options in _people().items()}
    _fill(OPEN, lambda number: f'["",["group {number % AUDIENCES}"],[]]')
    _report(clients, "")
    _fill(OPEN, lambda number: f'["",[],["decider","person {number}"]]')
    _report(clients, " (own audiences)")


def _report(clients: dict[str, Any], what: str) -> None:
    for (name, page), client, url in _looks(clients):
        many, none = _seconds(client, url)
        stage.row(f"{page}, {name}{what}", many * 1000, "ms", none=many / none)


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


def _seconds(client: Any, url: str) -> tuple[float, float]:
    """Return the best times of a page, as it is and without gates: taken in turn, as a machine's pace changes."""
    many, none = [], []
    for _ in range(ROUNDS):
        many += [_look(client, url), _look(client, url)]
        with _without_gates():
            none += [_look(client, url), _look(client, url)]
    return min(many), min(none)


def _look(client: Any, url: str) -> float:
    moment = time.perf_counter()
    assert client.get(url).status_code == 200, url
    return time.perf_counter() - moment


@contextmanager
def _without_gates() -> Iterator[None]:
    from django.db import connection, transaction

    with transaction.atomic(), connection.cursor() as cursor:
        if connection.vendor == "postgresql":  # what is deleted there is passed over at each look
            cursor.execute("TRUNCATE finoflow_execution, finoflow_candidate CASCADE")
        else:
            for table in ("finoflow_wait", "finoflow_execution", "finoflow_candidate"):
                cursor.execute(f"DELETE FROM {table}")
        yield
        transaction.set_rollback(True)


def _fill(count: int, audience: Any) -> None:
    """Replace what there is by ``count`` runs, each at an open gate."""
    from django.db import connection, transaction

    from django_finoflow import clock
    from django_finoflow.audience import Audience
    from django_finoflow.models import Candidate, Execution, Wait

    Execution.objects.all().delete()
    with transaction.atomic():
        texts = {audience(number) for number in range(count)}
        digests = {text: Candidate.objects.index(Audience.loads(text)) for text in texts}
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
            audience_digest=digests[audience(number)],
        )
        for number, run in enumerate(runs)
    )
    with connection.cursor() as cursor:
        cursor.execute("ANALYZE")


if __name__ == "__main__":
    main()
