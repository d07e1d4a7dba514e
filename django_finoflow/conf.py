"""Settings, read once from ``FINOFLOW = {...}``, and again when ``override_settings`` changes it.

| name | default | meaning |
| --- | --- | --- |
| ``DATABASE`` | ``"default"`` | alias of the database that holds the runs |
| ``LEASE`` | ``"30s"`` | how long a worker may be silent before others take its runs |
| ``POLL_INTERVAL`` | ``"1s"`` | how often an idle worker looks, where nothing wakes it |
| ``MAX_RECOVERIES`` | ``10`` | crashes in one place before a run is stuck |
| ``MAX_PAYLOAD_BYTES`` | ``1048576`` | the largest stored value, as encoded JSON |
| ``BASE_URL`` | ``""`` | address of the site, such as ``"https://example.com"``, for links made without a request |
| ``LINK_MAX_AGE`` | ``"7d"`` | how long a link of ``approval_link`` works |
| ``MAIL`` | ``False`` | whether those who may decide a gate are told by mail |
"""

from __future__ import annotations

import re
from functools import cache
from typing import Any

from django.conf import settings
from django.core.exceptions import ImproperlyConfigured
from django.core.signals import setting_changed
from django.dispatch import receiver

from .durations import seconds

DEFAULTS: dict[str, Any] = {
    "DATABASE": "default",
    "LEASE": "30s",
    "POLL_INTERVAL": "1s",
    "MAX_RECOVERIES": 10,
    "MAX_PAYLOAD_BYTES": 1_048_576,
    "BASE_URL": "",
    "LINK_MAX_AGE": "7d",
    "MAIL": False,
}
DURATIONS = ("LEASE", "POLL_INTERVAL", "LINK_MAX_AGE")


@cache
def get(name: str) -> Any:
    """Return the setting ``name``; durations come in seconds."""
    value = getattr(settings, "FINOFLOW", {}).get(name, DEFAULTS[name])
    return seconds(value) if name in DURATIONS else value


@receiver(setting_changed)
def forget(*, setting: str, **kwargs: Any) -> None:
    """Read the settings again."""
    if setting in ("FINOFLOW", "DATABASES"):
        get.cache_clear()
        database.cache_clear()


def problems() -> list[str]:
    """Return what is wrong with ``settings.FINOFLOW``, a sentence each."""
    given = getattr(settings, "FINOFLOW", {})
    if not isinstance(given, dict):
        return ["FINOFLOW is not a dict."]
    found = [
        f"FINOFLOW has no setting {name!r}; it knows {', '.join(DEFAULTS)}." for name in given if name not in DEFAULTS
    ]
    for name in DEFAULTS.keys() & given.keys():
        found += _problems_with(name, given[name])
    if given.get("MAIL") is True and not given.get("BASE_URL"):
        found.append("FINOFLOW['MAIL'] is on, so FINOFLOW['BASE_URL'] must say where the links in mails lead.")
    return found


def _problems_with(name: str, value: Any) -> list[str]:
    if name == "DATABASE":
        return (
            []
            if value in settings.DATABASES
            else [f"FINOFLOW['DATABASE'] is {value!r}, which DATABASES does not name."]
        )
    if name == "BASE_URL":
        return [] if value == "" or _is_address(value) else [f"FINOFLOW['BASE_URL'] is {value!r}, not an address."]
    if name == "MAIL":
        return [] if isinstance(value, bool) else [f"FINOFLOW['MAIL'] is {value!r}, neither True nor False."]
    if name in DURATIONS:
        try:
            return [] if seconds(value) > 0 else [f"FINOFLOW[{name!r}] must be more than nothing."]
        except ValueError as error:
            return [f"FINOFLOW[{name!r}]: {error}"]
    whole = isinstance(value, int) and not isinstance(value, bool) and value >= 0
    return [] if whole else [f"FINOFLOW[{name!r}] is {value!r}, not a whole number."]


def _is_address(value: Any) -> bool:
    """Whether it is the address of a site, without a path: paths come from the URL configuration."""
    return isinstance(value, str) and re.fullmatch(r"https?://[^\s/?#]+/?", value) is not None


@cache
def database() -> str:
    """Return the alias of the database that holds the runs.

    Raises:
        ImproperlyConfigured: ``DATABASES`` has no such alias.
    """
    alias = get("DATABASE")
    if alias not in settings.DATABASES:
        raise ImproperlyConfigured(f"FINOFLOW['DATABASE'] is {alias!r}, which DATABASES does not name.")
    return alias
