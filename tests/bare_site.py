"""Addresses of a host that has the admin and nothing of ours."""

from django.contrib import admin
from django.urls import path

urlpatterns = [path("admin/", admin.site.urls)]
