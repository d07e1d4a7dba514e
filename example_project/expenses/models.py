"""What the company keeps: a ledger of payments, the notices it has sent, and the rows of a file that it could not take.

There is no model for a claim and its status: the run of ``expense-approval`` is both.
"""

from django.db import models


class Payment(models.Model):
    """One line of the ledger.

    The claim's number is not unique here, on purpose: that no claim is paid twice is the workflow's doing, and the demo
    shows it by counting. A ledger of yours should have the constraint as well.
    """

    claim = models.CharField(max_length=20, db_index=True)
    employee = models.CharField(max_length=150)
    amount = models.DecimalField(max_digits=12, decimal_places=2)
    currency = models.CharField(max_length=3)
    amount_eur = models.DecimalField("amount in EUR", max_digits=12, decimal_places=2)
    cost_centre = models.CharField(max_length=10, blank=True, help_text="As finance said. They see large claims only.")
    booked_on = models.DateField("booked", null=True, blank=True)
    run_id = models.CharField("run", max_length=128)
    paid_at = models.DateTimeField("paid", auto_now_add=True)

    class Meta:
        ordering = ["-paid_at", "-id"]
        permissions = [("approve_claim", "Can approve expense claims as a manager")]

    def __str__(self):
        return f"{self.claim}: EUR {self.amount_eur}"


class Notice(models.Model):
    """A mail to an employee, as the stand-in for a mail service has taken it: once for each ``key``."""

    key = models.CharField(max_length=200, unique=True)
    employee = models.CharField(max_length=150)
    text = models.TextField()
    sent_at = models.DateTimeField("sent", auto_now_add=True)

    class Meta:
        ordering = ["-sent_at", "-id"]

    def __str__(self):
        return self.text


class RefusedRow(models.Model):
    """A row of a file that no run was started for, and why. Loading the file again replaces its refused rows."""

    file = models.CharField(max_length=255)
    line = models.PositiveIntegerField()
    reason = models.CharField(max_length=255)
    cells = models.JSONField(help_text="The row as it was in the file.")

    class Meta:
        ordering = ["file", "line"]

    def __str__(self):
        return f"{self.file}, line {self.line}: {self.reason}"
