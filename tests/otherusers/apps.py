"""Configuration of the app."""

from django.apps import AppConfig


class OtherUsersConfig(AppConfig):
    """Label ``otherusers``."""

    name = "tests.otherusers"
    label = "otherusers"
