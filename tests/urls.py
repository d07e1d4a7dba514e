"""Addresses of the test project: the admin, as a host project has it."""

from django.contrib import admin
from django.urls import path

urlpatterns = [path("admin/", admin.site.urls)]
