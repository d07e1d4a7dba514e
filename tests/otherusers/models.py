"""Three kinds of users. ``OTHER_USERS`` in the environment says which of them the project takes."""

from __future__ import annotations

import uuid
from typing import Any

from django.contrib.auth.base_user import AbstractBaseUser, BaseUserManager
from django.contrib.auth.models import PermissionsMixin
from django.db import models


class Someone(AbstractBaseUser):
    """What all have: a mail address for a name, and a key that is no number."""

    id = models.UUIDField(primary_key=True, default=uuid.uuid4)
    email = models.EmailField(unique=True)
    USERNAME_FIELD = EMAIL_FIELD = "email"
    objects: Any = BaseUserManager()

    class Meta:
        abstract = True


class Bare(Someone):
    """Has no permissions and no groups, and is active because the class says so."""


class Simple(Someone):
    """Says itself what it may, and has no groups."""

    is_active = models.BooleanField(default=True)
    is_chief = models.BooleanField(default=False)

    def has_perm(self, permission: str) -> bool:
        """Return whether it may do that."""
        return self.is_chief


class Full(Someone, PermissionsMixin):
    """Has Django's permissions and groups."""

    is_active = models.BooleanField(default=True)
