"""Configuration of the test app."""

from django.apps import AppConfig


class TestAppConfig(AppConfig):
    """Label ``testapp``, so that its tables are short."""

    name = "tests.testapp"
    label = "testapp"
