"""The app's name; its ``workflows`` module is found by it."""

from django.apps import AppConfig


class ExpensesConfig(AppConfig):
    """Expense claims."""

    name = "expenses"
    verbose_name = "Expenses"
