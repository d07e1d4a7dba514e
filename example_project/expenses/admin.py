"""The company's own rows in the admin, to look at. Runs and gates have django_finoflow's pages."""

from django.contrib import admin

from .models import Notice, Payment, RefusedRow


class ReadOnlyAdmin(admin.ModelAdmin):
    """Shows rows that only code writes."""

    def has_add_permission(self, request):
        return False

    def has_change_permission(self, request, obj=None):
        return False

    def has_delete_permission(self, request, obj=None):
        return False


@admin.register(Payment)
class PaymentAdmin(ReadOnlyAdmin):
    list_display = ("claim", "employee", "amount", "currency", "amount_eur", "cost_centre", "booked_on", "paid_at")
    list_filter = ("currency", "cost_centre", "employee")
    search_fields = ("claim", "run_id")


@admin.register(Notice)
class NoticeAdmin(ReadOnlyAdmin):
    list_display = ("text", "employee", "sent_at")
    list_filter = ("employee",)


@admin.register(RefusedRow)
class RefusedRowAdmin(ReadOnlyAdmin):
    list_display = ("line", "reason", "cells", "file")
