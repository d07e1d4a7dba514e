"""A list of runs, a page for each, and what the page listens to."""

from django.urls import path

from . import views

app_name = "live"

urlpatterns = [
    path("", views.index, name="index"),
    path("<str:run_id>/", views.run, name="run"),
    path("<str:run_id>/events", views.events, name="events"),
]
