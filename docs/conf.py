"""Sphinx configuration. Build: ``sphinx-build -W -n -b html docs docs/_build/html``."""

import sys
from pathlib import Path

import django
from django.conf import settings

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

# The API page reads docstrings, those of models too: that needs a loaded Django, and nothing of a project's.
settings.configure(
    INSTALLED_APPS=["django.contrib.contenttypes", "django.contrib.auth", "django_finoflow"],
    DATABASES={"default": {"ENGINE": "django.db.backends.sqlite3", "NAME": ":memory:"}},
    USE_TZ=True,
)
django.setup()

import django_finoflow  # noqa: E402

project = "django_finoflow"
author = "django_finoflow contributors"
copyright = f"2026, {author}"
release = version = django_finoflow.__version__

extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx.ext.napoleon"]
myst_enable_extensions = ["colon_fence", "deflist", "fieldlist"]
myst_heading_anchors = 3
exclude_patterns = ["_build"]

autodoc_member_order = "bysource"
napoleon_use_ivar = True
napoleon_use_rtype = False
# Annotations and "Raises" name classes of Django and the standard library, which have no page here to link to.
nitpick_ignore_regex = [("py:.*", r"(?!django_finoflow\.).*")]

html_theme = "furo"
html_title = f"django_finoflow {release}"
