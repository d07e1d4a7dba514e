"""The app's name; its ``workflows`` module is found by it."""

from django.apps import AppConfig


class ShopConfig(AppConfig):
    """Purchases and orders."""

    name = "shop"
    verbose_name = "Shop"
