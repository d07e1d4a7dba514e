"""Links to one gate for one person, for mails and chats: signed, bound, and good for a while.

A link's token holds the gate, the token of its state, and the user, signed with the project's ``SECRET_KEY``; nothing
is stored. ``Ticket.read`` refuses what was tampered with or is too old; what became of the gate since is for the page
to tell (rules A3 and A4).
"""

from __future__ import annotations

from typing import Any, NamedTuple
from urllib.parse import urljoin

from django.core import signing
from django.http import HttpRequest
from django.urls import reverse

from . import conf, decisions
from .audience import check_user
from .models import Wait
from .recipients import people

SALT = "django_finoflow.links"
TOO_LONG = 1000  # characters; ours have about 200


def approval_link(gate: Wait, user: Any, *, request: HttpRequest | None = None) -> str:
    """Return a link by which ``user`` can answer ``gate`` as it is now, and nobody else can.

    It leads to a page; nothing is decided until that page's form is sent. It needs a login as that user, unless the
    gate says ``anonymous_links=True``. When the gate changes (a vote, a claim, new candidates) the link is out of date,
    and it dies with the gate and after ``FINOFLOW["LINK_MAX_AGE"]``.

    Args:
        gate: the gate.
        user: who is to answer; whether they may is asked when they do.
        request: makes the link absolute; without one, ``FINOFLOW["BASE_URL"]`` does. With neither it is a path.

    Raises:
        ValueError: the user has no account: an anonymous one, say.
        TypeError: it is no user at all.
    """
    check_user("approval_link(user)", user)
    if user.pk is None:
        raise ValueError(f"A link is for a user with an account, not for {user!r}.")
    token = signing.dumps([gate.pk, decisions.token(gate), str(user.pk)], salt=SALT)
    path = reverse("finoflow:link", args=[token])
    return request.build_absolute_uri(path) if request is not None else urljoin(conf.get("BASE_URL"), path)


class LinkRefused(Exception):
    """A link's token is none of ours, or is too old. ``expired`` says which."""

    def __init__(self, expired: bool):
        super().__init__(expired)
        self.expired = expired


class Ticket(NamedTuple):
    """What a link's token says: which gate, in which state, and who may use it."""

    gate_id: int
    seen: str
    user_id: str

    @classmethod
    def read(cls, token: str) -> Ticket:
        """Return what ``token`` says.

        Raises:
            LinkRefused: it was not made here, was changed, or is too old.
        """
        if len(token) > TOO_LONG:
            raise LinkRefused(expired=False)
        try:
            return cls(*signing.loads(token, salt=SALT, max_age=conf.get("LINK_MAX_AGE")))
        except signing.SignatureExpired as error:
            raise LinkRefused(expired=True) from error
        except signing.BadSignature as error:
            raise LinkRefused(expired=False) from error

    def is_for(self, user: Any) -> bool:
        """Whether the link was made for that user."""
        return str(user.pk) == self.user_id

    def holder(self) -> Any:
        """Return the user it was made for; None if they are gone."""
        return people().filter(pk=self.user_id).first()
