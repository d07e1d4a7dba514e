"""The one way up: definitions and models offer verbs (``run.cancel()``, ``flow.start()``) that the engine performs.

Imports only go down, so they do not import it; the app hands the engine over when Django has loaded (see ``apps``).
"""

from __future__ import annotations

from typing import Any

from django.core.exceptions import ImproperlyConfigured

_engine: Any = None


def install(engine: Any) -> None:
    """Let ``engine()`` return ``engine``."""
    global _engine
    _engine = engine


def engine() -> Any:
    """Return the engine's ``api`` module.

    Raises:
        ImproperlyConfigured: Django has not loaded this app.
    """
    if _engine is None:
        raise ImproperlyConfigured(
            "django_finoflow is not loaded: add 'django_finoflow' to INSTALLED_APPS; "
            "outside manage.py call django.setup() first."
        )
    return _engine
