"""The staff's admin, the inbox for everybody, a page of our own to ask for something, and runs to watch live."""

from django.contrib import admin
from django.contrib.auth.views import LoginView, LogoutView
from django.urls import include, path
from django.views.generic import RedirectView

from shop.views import purchases

urlpatterns = [
    path("", RedirectView.as_view(pattern_name="purchases")),
    path("purchases/", purchases, name="purchases"),
    path("admin/", admin.site.urls),
    path("live/", include("live.urls")),
    path("approvals/", include("django_finoflow.urls")),  # ← gates for people without admin
    path("accounts/login/", LoginView.as_view(template_name="finoflow/login.html"), name="login"),
    path("accounts/logout/", LogoutView.as_view(next_page="login"), name="logout"),
]
