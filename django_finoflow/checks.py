"""System checks: what would go wrong later, said at start.

Errors: ``finoflow.E001`` a setting in ``FINOFLOW`` cannot be; ``finoflow.E002`` a builder workflow cannot work;
``finoflow.E003`` ``USE_TZ`` is off; ``finoflow.E004`` the database is not supported. Warnings: on SQLite files
``finoflow.W001`` (transactions that do not take the write lock at once) and ``finoflow.W002`` (no write-ahead log),
which make a web process and a worker wait for each other until "database is locked"; ``finoflow.W003`` the order of two
apps changes the host's own admin pages; ``finoflow.W004`` something in a workflow's declaration is odd;
``finoflow.W005`` a declared gate asks for a permission that no model has, or for more approvals than it names people;
``finoflow.W006`` the inbox has an address, and the project lacks what its pages need.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from django.apps import apps
from django.conf import settings
from django.core import checks
from django.db import connections
from django.template import engines
from django.template.backends.django import DjangoTemplates
from django.urls import NoReverseMatch, reverse
from django.utils.module_loading import import_string

from . import conf, registry
from .approval import Approval, Candidates
from .claiming import DIALECTS
from .exceptions import DefinitionError

SNIPPET = (
    'DATABASES["%(alias)s"]["OPTIONS"] = {"transaction_mode": "IMMEDIATE", '
    '"init_command": "PRAGMA journal_mode=WAL; PRAGMA synchronous=NORMAL;"}'
)

MIDDLEWARE = (
    "django.contrib.sessions.middleware.SessionMiddleware",
    "django.contrib.auth.middleware.AuthenticationMiddleware",
)
REQUEST = "django.template.context_processors.request"

WAL_COMMAND = re.compile(r"journal_mode\s*[=(]\s*['\"]?wal\b", re.IGNORECASE)


@checks.register("finoflow")
def check_settings(app_configs: Sequence[Any] | None, **kwargs: Any) -> list[checks.CheckMessage]:
    """Report what ``conf`` finds wrong."""
    return [checks.Error(problem, id="finoflow.E001") for problem in conf.problems()]


@checks.register("finoflow")
def check_sqlite(app_configs: Sequence[Any] | None, **kwargs: Any) -> list[checks.CheckMessage]:
    """Recommend the options that let a web process and a worker share an SQLite file. Opens no connection."""
    if conf.problems():
        return []
    alias = conf.database()
    connection = connections[alias]
    if connection.vendor != "sqlite" or _in_memory(str(connection.settings_dict["NAME"])):
        return []
    options = connection.settings_dict.get("OPTIONS") or {}
    hint = SNIPPET % {"alias": alias}
    found: list[checks.CheckMessage] = []
    if str(options.get("transaction_mode") or "").upper() not in ("IMMEDIATE", "EXCLUSIVE"):
        text = f'The SQLite database {alias!r} does not begin transactions with the write lock: "database is locked".'
        found.append(checks.Warning(text, hint=hint, id="finoflow.W001"))
    if not WAL_COMMAND.search(str(options.get("init_command") or "")) and not _is_wal(connection.settings_dict["NAME"]):
        text = (
            f"The SQLite database {alias!r} has no write-ahead log: those who read and those who write stop each other."
        )
        found.append(checks.Warning(text, hint=hint, id="finoflow.W002"))
    return found


@checks.register("finoflow")
def check_time_zones(app_configs: Sequence[Any] | None, **kwargs: Any) -> list[checks.CheckMessage]:
    """Refuse naive times: a deadline of another zone or season would be off by hours."""
    if settings.USE_TZ:
        return []
    return [
        checks.Error("django_finoflow needs USE_TZ = True: deadlines are moments, not wall times.", id="finoflow.E003")
    ]


@checks.register("finoflow")
def check_database(app_configs: Sequence[Any] | None, **kwargs: Any) -> list[checks.CheckMessage]:
    """Refuse databases that runs cannot be kept in yet."""
    if conf.problems() or connections[conf.database()].vendor in DIALECTS:
        return []
    text = f"Runs cannot be kept in {connections[conf.database()].display_name} yet; use {' or '.join(DIALECTS)}."
    return [checks.Error(text, id="finoflow.E004")]


@checks.register("finoflow")
def check_workflows(app_configs: Sequence[Any] | None, **kwargs: Any) -> list[checks.CheckMessage]:
    """Seal every builder workflow, and report what is wrong or odd with it."""
    found: list[checks.CheckMessage] = []
    for definition in registry.all_definitions():
        try:
            definition.seal()
        except DefinitionError as error:
            found.append(checks.Error(str(error), id="finoflow.E002"))
        found += [checks.Warning(text, id="finoflow.W004") for text in definition.warnings()]
    return found


@checks.register("finoflow")
def check_gates(app_configs: Sequence[Any] | None, **kwargs: Any) -> list[checks.CheckMessage]:
    """Warn of declared gates that nobody, or not enough people, could answer. Asks no database."""
    known = _permissions()
    return [
        checks.Warning(f'workflow "{definition.id}": gate "{name}" {problem}', id="finoflow.W005")
        for definition in registry.all_definitions()
        for name, approval in definition.gates.items()
        for problem in (*_unknown_permissions(approval, known), *_too_many(approval))
    ]


def _permissions() -> set[str]:
    """Return the permissions that the installed apps' models have: Django's own for each, and those of its Meta."""
    found = set()
    for options in (model._meta for model in apps.get_models()):
        names = [f"{action}_{options.model_name}" for action in options.default_permissions]
        found |= {
            f"{options.app_label}.{name}" for name in (*names, *(codename for codename, _ in options.permissions))
        }
    return found


def _unknown_permissions(approval: Approval, known: set[str]) -> list[str]:
    if not apps.is_installed("django.contrib.auth"):
        return []
    asked = [approval.permission, *(them.permission for _delay, them in approval.escalations)]
    text = 'asks for the permission "%s", which no model of an installed app has: superusers alone would have it.'
    return [text % one for one in asked if one is not None and one not in known]


def _too_many(approval: Approval) -> list[str]:
    """Say so if the quorum is above the number of those who are named, where nobody else could vote."""
    named: set[str] = set()
    asked: list[Approval | Candidates] = [approval, *(them for _delay, them in approval.escalations)]
    for one in asked:
        if one.groups or not one.users or callable(one.users):
            return []
        named |= set(one.users)
    if callable(approval.quorum) or approval.quorum <= len(named):
        return []
    return [f"asks for {approval.quorum} approvals, but names {len(named)} who may give them."]


@checks.register("finoflow")
def check_app_order(app_configs: Sequence[Any] | None, **kwargs: Any) -> list[checks.CheckMessage]:
    """Warn of ``admin_actions`` before the admin. It need not be listed at all."""
    names = [config.name for config in apps.get_app_configs()]
    if "admin_actions" not in names or "django.contrib.admin" not in names:
        return []
    if names.index("admin_actions") > names.index("django.contrib.admin"):
        return []
    return [
        checks.Warning(
            "admin_actions comes before django.contrib.admin: its templates replace two of Django's for every model.",
            hint='In INSTALLED_APPS put "admin_actions" behind "django.contrib.admin", or take it out: finoflow needs '
            "only the package.",
            id="finoflow.W003",
        )
    ]


@checks.register("finoflow")
def check_inbox(app_configs: Sequence[Any] | None, **kwargs: Any) -> list[checks.CheckMessage]:
    """Warn of an inbox that cannot work, where the project has one."""
    if not getattr(settings, "ROOT_URLCONF", None):  # a project of workers alone
        return []
    try:
        reverse("finoflow:inbox")
    except NoReverseMatch:
        return []
    lacking = [f'"{path}" in MIDDLEWARE' for path in MIDDLEWARE if not _has(import_string(path))]
    found = [engine for engine in engines.all() if isinstance(engine, DjangoTemplates)]
    if not any(REQUEST in engine.engine.context_processors for engine in found):
        lacking.append(f'"{REQUEST}" among the context processors in TEMPLATES')
    text = "The pages of the inbox need %s."
    return [checks.Warning(text % what, id="finoflow.W006") for what in lacking]


def _has(wanted: type) -> bool:
    """Whether the project has that middleware, or one that builds on it. One that a worker lacks stops no worker."""
    for path in settings.MIDDLEWARE:
        with suppress(ImportError):
            found = import_string(path)
            if isinstance(found, type) and issubclass(found, wanted):
                return True
    return False


def _in_memory(name: str) -> bool:
    return name == "" or ":memory:" in name or "mode=memory" in name


def _is_wal(name: str | Path) -> bool:
    """Whether the file says that it has a write-ahead log: that mode is kept in it, in two bytes of its header."""
    try:
        with open(str(name).removeprefix("file:").partition("?")[0], "rb") as file:
            return file.read(20)[18:20] == b"\x02\x02"
    except OSError:
        return False
