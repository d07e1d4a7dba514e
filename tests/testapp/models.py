"""Rows of the host project: what steps write, so that a test can count their effects."""

from django.db import models


class Entry(models.Model):
    """A line of a ledger. Nothing in it is unique: an effect that happened twice is seen twice."""

    run_id = models.CharField(max_length=200)
    label = models.CharField(max_length=200)
    amount = models.IntegerField(default=0)
    created_at = models.DateTimeField(auto_now_add=True)

    class Meta:
        ordering = ("id",)
        verbose_name_plural = "entries"

    def __str__(self) -> str:
        return f"{self.run_id} {self.label} {self.amount}"


class Slot(models.Model):
    """Something that only one can have: a second of the same label is an ``IntegrityError``."""

    label = models.CharField(max_length=200, unique=True)

    def __str__(self) -> str:
        return self.label
