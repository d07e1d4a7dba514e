"""The shop's ledger in the admin, to look at."""

from django.contrib import admin

from expenses.admin import ReadOnlyAdmin

from .models import Posting


@admin.register(Posting)
class PostingAdmin(ReadOnlyAdmin):
    list_display = ("run_id", "account", "amount", "made_at")
    list_filter = ("account",)
    search_fields = ("run_id",)
