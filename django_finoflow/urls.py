"""Addresses of the pages for people without admin: ``path("approvals/", include("django_finoflow.urls"))``."""

from django.urls import path

from . import views

app_name = "finoflow"

urlpatterns = [
    path("", views.inbox, name="inbox"),
    path("decided/", views.decided, name="decided"),
    path("gates/<int:pk>/", views.gate, name="gate"),
    # The token leaves the URL at once: "link" keeps it in the session and leads to "linked".
    path("link/gates/<int:pk>/", views.linked, name="linked"),
    path("link/<str:token>/", views.link, name="link"),
]
