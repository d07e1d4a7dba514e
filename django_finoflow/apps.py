"""The app.

When Django has loaded, hand the engine to definitions and models, and import every app's ``workflows`` module.
"""

from django.apps import AppConfig
from django.utils.module_loading import autodiscover_modules
from django.utils.translation import gettext_lazy as _


class FinoflowConfig(AppConfig):
    """django_finoflow, under the label ``finoflow``."""

    name = "django_finoflow"
    label = "finoflow"
    verbose_name = _("Workflows")
    default_auto_field = "django.db.models.BigAutoField"

    def ready(self) -> None:
        from . import api, bridge, checks, mails  # noqa: F401

        bridge.install(api)
        mails.connect()
        autodiscover_modules("workflows")
