"""Addresses of a host with two admin sites, both with our pages."""

from django.contrib import admin
from django.urls import path

from django_finoflow.admin import GateAdmin, RunAdmin
from django_finoflow.models import Execution, Wait

second = admin.AdminSite(name="second")
second.register(Execution, RunAdmin)
second.register(Wait, GateAdmin)

urlpatterns = [path("admin/", admin.site.urls), path("second/", second.urls)]
