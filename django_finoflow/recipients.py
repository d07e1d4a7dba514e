"""Who may decide a gate, as users: for those to be told of it, and for those who hand it over.

It is ``Audience`` turned round. Permissions that come from elsewhere than Django's own tables are not found this way;
nobody is told in vain, though: each is asked for by ``decisions.why_not`` again.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice
from typing import Any

from django.contrib.auth import get_backends, get_user_model
from django.contrib.auth.backends import ModelBackend
from django.db.models import Q, QuerySet

from . import conf, decisions
from .approval import Audience
from .models import Wait


def who_can_answer(gate: Wait, most: int | None = None) -> list[Any]:
    """Return the users who can answer ``gate`` now, by name; superusers only where they are named.

    Args:
        gate: the gate.
        most: as many as that at most.
    """
    return list(islice(_found(gate), most))


def named(username: str) -> Any:
    """Return the user of that name; None: there is none."""
    return people().filter(**{get_user_model().USERNAME_FIELD: username}).first()


def people() -> Any:
    """Return the manager of users, where the runs are."""
    return get_user_model()._default_manager.db_manager(conf.database())


def _found(gate: Wait) -> Iterator[Any]:
    keys: set[Any] = set()
    for audience in Audience.loads(gate.audience).parts:
        keys.update(_candidates(audience).values_list("pk", flat=True))
    for user in people().filter(pk__in=keys).order_by(get_user_model().USERNAME_FIELD):
        if decisions.why_not(gate, user) is None:
            yield user


def _candidates(audience: Audience) -> QuerySet:
    named = Q(**{f"{get_user_model().USERNAME_FIELD}__in": audience.users})
    if not hasattr(get_user_model(), "groups"):  # a user model without Django's own permissions
        return people().filter(named)
    if not (audience.groups or audience.users):
        return _holders(audience.needed_permission, include_superusers=False)
    found = people().filter(named | Q(groups__name__in=audience.groups))
    if not audience.permission or any(type(backend) is not ModelBackend for backend in get_backends()):
        return found
    return found.filter(pk__in=_holders(audience.permission).values("pk"))  # else each would be asked one by one


def _holders(permission: str, *, include_superusers: bool = True) -> QuerySet:
    return ModelBackend().with_perm(permission, include_superusers=include_superusers).using(conf.database())
