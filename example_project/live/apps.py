"""The app's name; its pages and its script are found by it."""

from django.apps import AppConfig


class LiveConfig(AppConfig):
    """Runs, live."""

    name = "live"
