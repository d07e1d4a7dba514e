"""Addresses of a host that has the inbox and no admin."""

from django.urls import include, path

urlpatterns = [path("approvals/", include("django_finoflow.urls"))]
