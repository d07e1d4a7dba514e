"""Who works at the company of the demo, and what each group may do. Everybody's password is ``demo``."""

from __future__ import annotations

from django.contrib.auth.hashers import make_password
from django.contrib.auth.models import Group, Permission, User

PASSWORD = "demo"

STAFF = {
    "managers": ["maria", "jonas"],
    "finance": ["sofia", "lukas"],
    "directors": ["sofia", "helena", "theo"],
    "employees": ["anna", "ben", "chiara", "emre", "freya", "goran", "hana", "ivo", "julia", "kofi"],
}
PERMISSIONS = {
    "managers": ["expenses.approve_claim", "finoflow.view_wait"],
    "finance": [
        "expenses.view_notice",
        "expenses.view_payment",
        "expenses.view_refusedrow",
        "finoflow.view_execution",
        "finoflow.view_wait",
    ],
    "directors": [],
    "employees": [],
}
#: Who may log in to the admin. The others have the inbox, which asks for no more than an account.
IN_THE_ADMIN = ("managers", "finance")


def create_people() -> None:
    """Create the groups, their members and a superuser called admin, as far as they are missing."""
    password = make_password(PASSWORD)
    User.objects.get_or_create(
        username="admin", defaults={"is_staff": True, "is_superuser": True, "password": password}
    )
    for name, usernames in STAFF.items():
        group, _ = Group.objects.get_or_create(name=name)
        group.permissions.set(map(_permission, PERMISSIONS[name]))
        for username in usernames:
            defaults = {"is_staff": name in IN_THE_ADMIN, "password": password}
            user, _ = User.objects.get_or_create(username=username, defaults=defaults)
            user.groups.add(group)


def _permission(name: str) -> Permission:
    app, codename = name.split(".")
    return Permission.objects.get(content_type__app_label=app, codename=codename)
