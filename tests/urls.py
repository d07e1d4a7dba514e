"""Addresses of the test project: the admin and the inbox, as a host project has them."""

from django.contrib import admin
from django.contrib.auth.views import LoginView
from django.urls import include, path

urlpatterns = [
    path("admin/", admin.site.urls),
    path("approvals/", include("django_finoflow.urls")),
    path("accounts/login/", LoginView.as_view(template_name="finoflow/login.html"), name="login"),
]
