"""The shop's ledger. Nothing in it is ever changed or deleted: what is undone gets a second line, the other way."""

from django.db import models


class Account(models.TextChoices):
    """What a line is about: EUR in the till, EUR of this year's budget, or pieces in stock."""

    CASH = "cash"
    BUDGET = "budget"
    STOCK = "stock"


class Posting(models.Model):
    """One line. ``key`` is the idempotency key of the step that wrote it: should it be called twice, it writes once."""

    key = models.CharField(max_length=200, unique=True)
    run_id = models.CharField("run", max_length=128, db_index=True)
    account = models.CharField(max_length=10, choices=Account)
    amount = models.DecimalField(max_digits=12, decimal_places=2)
    made_at = models.DateTimeField("made", auto_now_add=True)

    class Meta:
        ordering = ["id"]

    def __str__(self):
        return f"{self.account} {self.amount:+,}"
