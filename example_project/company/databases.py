"""``DATABASES`` from one URL, so that the example runs on SQLite and PostgreSQL unchanged."""

from __future__ import annotations

from typing import Any
from urllib.parse import parse_qsl, unquote, urlsplit

# Write transactions take the write lock when they begin, and readers do not block the writer. With Django's defaults
# a web process and a worker on one file would now and then meet as "database is locked".
SQLITE_OPTIONS = {
    "transaction_mode": "IMMEDIATE",
    "init_command": "PRAGMA journal_mode=WAL; PRAGMA synchronous=NORMAL;",
}


def from_url(url: str) -> dict[str, Any]:
    """Return the entry of ``DATABASES`` for ``sqlite:///path`` or ``postgresql://user:password@host:port/name``.

    Raises:
        ValueError: the URL is of another kind.
    """
    parts = urlsplit(url)
    name = unquote(parts.path.removeprefix("/"))
    if parts.scheme == "sqlite":
        return {"ENGINE": "django.db.backends.sqlite3", "NAME": name, "OPTIONS": SQLITE_OPTIONS}
    if parts.scheme not in ("postgresql", "postgres"):
        raise ValueError(f"{url!r} is neither sqlite:///path nor postgresql://user:password@host:port/name.")
    return {
        "ENGINE": "django.db.backends.postgresql",
        "NAME": name,
        "USER": unquote(parts.username or ""),
        "PASSWORD": unquote(parts.password or ""),
        "HOST": unquote(parts.hostname or ""),
        "PORT": parts.port or "",
        "OPTIONS": dict(parse_qsl(parts.query)),
    }
