"""System checks: what is wrong with the settings, and what an SQLite file should have."""

from __future__ import annotations

import sqlite3
from pathlib import Path
from typing import Any

import pytest
from django.core.checks import Error, Warning
from django.db import connection

from django_finoflow import checks

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


def test_djangos_own_command_runs_the_checks(settings: Any) -> None:
    from django.core.checks import run_checks

    settings.FINOFLOW = {"LEASE": "soon"}
    assert "finoflow.E001" in found(run_checks(tags=["finoflow"]))
