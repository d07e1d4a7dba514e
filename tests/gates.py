"""People who decide gates, and what comes of it when several try at once: shared by the tests of approvals."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import pytest
from django.contrib.auth import get_user_model
from django.contrib.auth.models import Group, Permission
from django.db import connection

from django_finoflow import DecisionRefused, FinoflowError
from django_finoflow.models import Decision, Execution, GateEvent, Signal, Wait
from tests.making import row

DECIDE, OVERRIDE = "finoflow.decide_wait", "finoflow.override_gate"
MODELS = (Execution, Wait, Signal, Decision, GateEvent)


def person(name: str, *permissions: str, groups: tuple[str, ...] = (), **fields: Any) -> Any:
    """Make a user with these permissions and groups."""
    user = get_user_model().objects.create_user(name, **fields)
    for permission in permissions:
        label, codename = permission.split(".")
        user.user_permissions.add(Permission.objects.get(content_type__app_label=label, codename=codename))
    for group in groups:
        user.groups.add(Group.objects.get_or_create(name=group)[0])
    return user


def deciders(count: int) -> list[Any]:
    """Make so many users who hold the general permission."""
    return [person(f"decider-{number}", DECIDE) for number in range(count)]


def refused(act: Callable[..., Any], *arguments: Any, **keywords: Any) -> DecisionRefused:
    """Return the refusal that ``act`` meets, having made sure that nothing was written."""
    before = [list(model.objects.values()) for model in MODELS]
    with pytest.raises(DecisionRefused) as caught:
        act(*arguments, **keywords)
    assert [list(model.objects.values()) for model in MODELS] == before
    assert str(caught.value)
    return caught.value


def gate_of(run_id: str, name: str | None = None) -> Wait:
    """Return the run's gate as its row is now: that of a name, or the only one."""
    return row(run_id).waits.get(**({"name": name} if name else {}))


def at_once(*acts: Callable[[], Any]) -> list[Any]:
    """Do all at one moment, each in a thread on its own connection; return what each returned, or raised of ours."""
    came: list[Any] = [None] * len(acts)
    line = threading.Barrier(len(acts))

    def do(number: int, act: Callable[[], Any]) -> None:
        try:
            connection.ensure_connection()
            line.wait(30)
            came[number] = act()
        except FinoflowError as refusal:
            came[number] = refusal
        except BaseException as error:
            came[number] = error
        finally:
            connection.close()

    threads = [threading.Thread(target=do, args=pair) for pair in enumerate(acts)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    odd = [one for one in came if isinstance(one, BaseException) and not isinstance(one, FinoflowError)]
    assert odd == []
    return came
