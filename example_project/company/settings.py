"""Settings of the example: an ordinary Django project. What django_finoflow needs is marked."""

import os
from pathlib import Path

from company import databases

BASE_DIR = Path(__file__).resolve().parent.parent

# For a demonstration on your own machine, not for the internet.
SECRET_KEY = "the example's key is no secret"
DEBUG = True
ALLOWED_HOSTS = ["localhost", "127.0.0.1", "[::1]"]

INSTALLED_APPS = [
    "expenses",
    "shop",
    "live",
    "django_finoflow",  # ← the runs, the gates and the worker
    "django.contrib.admin",
    "django.contrib.auth",
    "django.contrib.contenttypes",
    "django.contrib.messages",
    "django.contrib.sessions",
    "django.contrib.staticfiles",
    "admin_actions",  # ← the admin's row buttons; after django.contrib.admin
]

# A file beside manage.py, or what EXAMPLE_DATABASE_URL says: postgresql://user:password@host:port/name
DATABASES = {
    "default": databases.from_url(os.environ.get("EXAMPLE_DATABASE_URL") or f"sqlite:///{BASE_DIR / 'example.sqlite3'}")
}
DEFAULT_AUTO_FIELD = "django.db.models.BigAutoField"

MIDDLEWARE = [
    "django.middleware.security.SecurityMiddleware",
    "django.contrib.sessions.middleware.SessionMiddleware",
    "django.middleware.common.CommonMiddleware",
    "django.middleware.csrf.CsrfViewMiddleware",
    "django.contrib.auth.middleware.AuthenticationMiddleware",
    "django.contrib.messages.middleware.MessageMiddleware",
    "django.middleware.clickjacking.XFrameOptionsMiddleware",
]

TEMPLATES = [
    {
        "BACKEND": "django.template.backends.django.DjangoTemplates",
        "DIRS": [BASE_DIR / "templates"],  # with a finoflow/base.html: the look of our own pages
        "APP_DIRS": True,
        "OPTIONS": {
            "context_processors": [
                "django.template.context_processors.request",
                "django.contrib.auth.context_processors.auth",
                "django.contrib.messages.context_processors.messages",
            ],
        },
    },
]

ROOT_URLCONF = "company.urls"
LOGIN_REDIRECT_URL = "finoflow:inbox"
STATIC_URL = "static/"
STATICFILES_DIRS = [BASE_DIR / "static"]
FINOFLOW = {"BASE_URL": "http://127.0.0.1:8000"}  # ← for links in mails
TIME_ZONE = "Europe/Berlin"
USE_TZ = True
