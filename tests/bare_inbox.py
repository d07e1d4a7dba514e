"""Addresses of a host without the admin, but with a page to log out."""

from django.contrib.auth.views import LoginView, LogoutView
from django.urls import include, path

urlpatterns = [
    path("approvals/", include("django_finoflow.urls")),
    path("accounts/login/", LoginView.as_view(template_name="finoflow/login.html"), name="login"),
    path("leave/", LogoutView.as_view(next_page="login"), name="logout"),
]
