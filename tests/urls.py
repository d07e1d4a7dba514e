"""Addresses of the test project: the admin and the inbox, as a host project has them."""

from django.contrib import admin
from django.contrib.auth.views import LoginView
from django.templatetags.static import static
from django.urls import include, path
from django.views.generic import RedirectView

urlpatterns = [
    path("admin/", admin.site.urls),
    path("approvals/", include("django_finoflow.urls")),
    path("accounts/login/", LoginView.as_view(template_name="finoflow/login.html"), name="login"),
    path("favicon.ico", RedirectView.as_view(url=static("finoflow/icon.svg"))),  # for the admin, which names no icon
]
