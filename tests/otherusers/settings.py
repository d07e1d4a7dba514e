"""A project without the admin and without messages, in a database in memory."""

import os

import django

from tests.settings import *  # noqa: F403
from tests.settings import INSTALLED_APPS, MIDDLEWARE

AUTH_USER_MODEL = f"otherusers.{os.environ['OTHER_USERS']}"
ROOT_URLCONF = "tests.otherusers.urls"
DATABASES = {"default": {"ENGINE": "django.db.backends.sqlite3", "NAME": ":memory:"}}
IN_MEMORY = "django.core.mail.backends.locmem.EmailBackend"
if django.VERSION >= (6, 1):
    MAILERS = {"default": {"BACKEND": IN_MEMORY}}
else:
    EMAIL_BACKEND = IN_MEMORY
FINOFLOW = {"MAIL": True, "BASE_URL": "https://example.com"}
LEFT_OUT = ("admin", "messages", "testapp")
INSTALLED_APPS = [app for app in INSTALLED_APPS if not any(word in app for word in LEFT_OUT)] + ["tests.otherusers"]
MIDDLEWARE = [name for name in MIDDLEWARE if "messages" not in name]
TEMPLATES = [
    {
        "BACKEND": "django.template.backends.django.DjangoTemplates",
        "APP_DIRS": True,
        "OPTIONS": {"context_processors": ["django.template.context_processors.request"]},
    }
]
