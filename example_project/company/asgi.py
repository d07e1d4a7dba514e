"""The site for an ASGI server, which the live pages need: ``uvicorn company.asgi:application``."""

import os

from django.contrib.staticfiles.handlers import ASGIStaticFilesHandler
from django.core.asgi import get_asgi_application

os.environ.setdefault("DJANGO_SETTINGS_MODULE", "company.settings")

# With the static files, as runserver serves them: for a demonstration.
application = ASGIStaticFilesHandler(get_asgi_application())
