"""System checks: what is wrong with the settings, and what an SQLite file should have."""

from __future__ import annotations

import sqlite3
from pathlib import Path
from typing import Any

import pytest
from django.contrib.sessions.middleware import SessionMiddleware
from django.core.checks import Error, Warning
from django.db import connection

from django_finoflow import Approval, Candidates, Workflow, checks, registry, workflow

BOTH = {"transaction_mode": "IMMEDIATE", "init_command": "PRAGMA journal_mode=WAL; PRAGMA synchronous=NORMAL;"}
sqlite_only = pytest.mark.only_sqlite(reason="the checks look at SQLite's settings")


def found(messages: list[Any]) -> list[str | None]:
    """Return the ids of messages."""
    return [message.id for message in messages]


@pytest.fixture
def database(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Pretend for a while that the database has that name and those options."""

    def pretend(name: str | Path, **options: Any) -> list[Any]:
        monkeypatch.setitem(connection.settings_dict, "NAME", name)
        monkeypatch.setitem(connection.settings_dict, "OPTIONS", options)
        return checks.check_sqlite(None)

    return pretend


def test_a_setting_that_cannot_be_is_an_error(settings: Any) -> None:
    assert checks.check_settings(None) == []
    settings.FINOFLOW = {"LEASE": "soon", "LEESE": "30s"}
    messages = checks.check_settings(None)
    assert found(messages) == ["finoflow.E001"] * 2
    assert all(isinstance(message, Error) for message in messages)
    assert any("LEESE" in message.msg for message in messages)


@pytest.mark.parametrize("wrong", [{"DATABASE": "elsewhere"}, "no dict"])
def test_wrong_settings_stop_no_other_check(wrong: Any, settings: Any) -> None:
    settings.FINOFLOW = wrong
    assert found(checks.check_settings(None)) == ["finoflow.E001"]
    assert checks.check_sqlite(None) == []


@sqlite_only
def test_an_sqlite_file_without_the_two_options_is_warned_of_with_the_fix(database: Any, tmp_path: Path) -> None:
    messages = database(tmp_path / "db.sqlite3")
    assert found(messages) == ["finoflow.W001", "finoflow.W002"]
    for message in messages:
        assert isinstance(message, Warning)
        place, _equals, options = message.hint.partition(" = ")
        assert place == 'DATABASES["default"]["OPTIONS"]'
        assert eval(options) == BOTH


@sqlite_only
@pytest.mark.parametrize(
    ("options", "warned"),
    [
        (BOTH, []),
        ({"transaction_mode": "EXCLUSIVE", "init_command": "pragma journal_mode = 'wal'"}, []),
        ({"transaction_mode": "immediate"}, ["finoflow.W002"]),
        ({"transaction_mode": "DEFERRED", "init_command": BOTH["init_command"]}, ["finoflow.W001"]),
        ({"transaction_mode": None, "init_command": "PRAGMA journal_mode=DELETE"}, ["finoflow.W001", "finoflow.W002"]),
    ],
)
def test_what_the_options_say_counts(options: dict, warned: list[str], database: Any, tmp_path: Path) -> None:
    assert found(database(str(tmp_path / "db.sqlite3"), **options)) == warned


@sqlite_only
def test_a_file_that_has_a_write_ahead_log_already_needs_no_command(database: Any, tmp_path: Path) -> None:
    file = tmp_path / "db.sqlite3"
    for mode, warned in (("delete", ["finoflow.W002"]), ("wal", [])):
        with sqlite3.connect(file) as raw:
            raw.execute(f"PRAGMA journal_mode={mode}")
            raw.execute(f"CREATE TABLE made_in_{mode} (id)")
        raw.close()
        assert found(database(file, transaction_mode="IMMEDIATE")) == warned
        assert found(database(f"file:{file}?mode=rw", transaction_mode="IMMEDIATE", uri=True)) == warned


@sqlite_only
@pytest.mark.parametrize("name", [":memory:", "file:x?mode=memory&cache=shared", ""])
def test_a_database_in_memory_is_not_warned_of(name: str, database: Any) -> None:
    assert database(name) == []


@pytest.mark.only_postgresql(reason="another vendor")
def test_other_databases_are_not_warned_of() -> None:
    assert checks.check_sqlite(None) == []


def test_admin_actions_before_the_admin_is_warned_of(settings: Any) -> None:
    assert checks.check_app_order(None) == []
    apps = [app for app in settings.INSTALLED_APPS if app != "admin_actions"]
    settings.INSTALLED_APPS = ["admin_actions", *apps]
    messages = checks.check_app_order(None)
    assert found(messages) == ["finoflow.W003"]
    assert "behind" in messages[0].hint
    settings.INSTALLED_APPS = apps
    assert checks.check_app_order(None) == []


@pytest.fixture
def declared() -> Any:
    """Declare a gate, of a function workflow and of a builder's, and return what the checks say of each."""

    def declare(**approval: Any) -> list[str]:
        @workflow(id="checked", gates={"pay": Approval(**approval)})
        def checked(ctx: Any, input: Any) -> None:
            """Not run."""

        Workflow("checked-builder").wait_for("pay", approval=Approval(**approval))
        try:
            messages = checks.check_gates(None)
        finally:
            registry.unregister("checked")
            registry.unregister("checked-builder")
        ours = [message for message in messages if 'workflow "checked' in message.msg]
        assert {message.id for message in ours} <= {"finoflow.W005"}
        assert len([message for message in ours if '"checked"' in message.msg]) * 2 == len(ours)
        return [message.msg.partition('gate "pay" ')[2] for message in ours]

    return declare


@pytest.mark.parametrize("permission", ["auth.change_user", "finoflow.decide_wait", "finoflow.override_gate", None])
def test_a_permission_that_a_model_has_is_not_warned_of(permission: str | None, declared: Any) -> None:
    assert declared(permission=permission) == []


@pytest.mark.parametrize("permission", ["auth.approve_user", "nowhere.change_user", "finoflow.change_users"])
def test_a_gates_permission_that_no_model_has_is_warned_of(permission: str, declared: Any) -> None:
    for problem in (
        *declared(permission=permission),
        *declared(escalate=("1h", Candidates(permission=permission))),
    ):
        assert problem.startswith(f'asks for the permission "{permission}", which no model')
    assert len(declared(permission=permission)) == 2


@pytest.mark.parametrize(
    ("approval", "warned"),
    [
        ({"users": ["a", "b"], "quorum": 3}, True),
        ({"users": ["a", "a"], "quorum": 2}, True),
        ({"users": ["a"], "quorum": 2, "escalate": ("1h", Candidates(users=["a"]))}, True),
        ({"users": ["a"], "quorum": 2, "escalate": ("1h", Candidates(users=["b"]))}, False),
        ({"users": ["a"], "quorum": 2, "escalate": ("1h", Candidates(groups=["g"]))}, False),
        ({"users": ["a", "b"], "quorum": 2}, False),
        ({"users": ["a"], "groups": ["g"], "quorum": 2}, False),
        ({"users": lambda ctx: ["a"], "quorum": 2}, False),
        ({"users": ["a"], "quorum": lambda ctx: 2}, False),
        ({"quorum": 9}, False),
    ],
)
def test_a_quorum_above_the_number_of_those_who_are_named_is_warned_of(
    approval: dict[str, Any], warned: bool, declared: Any
) -> None:
    assert [text.startswith(f"asks for {approval['quorum']} approvals") for text in declared(**approval)] == (
        [True, True] if warned else []
    )


def test_the_checks_of_gates_ask_no_database(django_assert_num_queries: Any, declared: Any, db: None) -> None:
    with django_assert_num_queries(0):
        declared(permission="auth.change_user", users=["a"], quorum=2)


def test_an_inbox_whose_pages_lack_something_is_warned_of(settings: Any) -> None:
    assert checks.check_inbox(None) == []
    settings.MIDDLEWARE = [path for path in settings.MIDDLEWARE if "Session" not in path and "Authen" not in path]
    [engine] = settings.TEMPLATES
    settings.TEMPLATES = [{**engine, "OPTIONS": {"context_processors": []}}]
    messages = checks.check_inbox(None)
    assert found(messages) == ["finoflow.W006"] * 3
    for message, lacking in zip(messages, ("SessionMiddleware", "AuthenticationMiddleware", "request"), strict=True):
        assert lacking in message.msg
    settings.ROOT_URLCONF = "tests.bare_site"
    assert checks.check_inbox(None) == []
    del settings.ROOT_URLCONF
    assert checks.check_inbox(None) == []


def test_middleware_that_is_a_function_or_is_not_here_stops_no_check(settings: Any) -> None:
    settings.MIDDLEWARE = ["not.here", "tests.test_checks.found", *settings.MIDDLEWARE]
    assert checks.check_inbox(None) == []
    settings.MIDDLEWARE = ["not.here", "tests.test_checks.found"]
    assert found(checks.check_inbox(None)) == ["finoflow.W006"] * 2


def test_middleware_of_ones_own_that_builds_on_djangos_counts(settings: Any) -> None:
    own = {"Session": "tests.test_checks.OwnSessions"}
    settings.MIDDLEWARE = [next((own[key] for key in own if key in path), path) for path in settings.MIDDLEWARE]
    assert checks.check_inbox(None) == []


class OwnSessions(SessionMiddleware):
    """Sessions as a project may have changed them."""


def test_djangos_own_command_runs_the_checks(settings: Any) -> None:
    from django.core.checks import run_checks

    settings.FINOFLOW = {"LEASE": "soon"}
    assert "finoflow.E001" in found(run_checks(tags=["finoflow"]))
