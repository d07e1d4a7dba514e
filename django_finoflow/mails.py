"""Mails to those who may decide a gate, off unless ``FINOFLOW["MAIL"]`` is True: its title and a link, nothing else.

They are sent after the commit, in the process that opened or handed over the gate (mostly a worker). What goes wrong is
logged, and changes nothing for the run or for other mails.
"""

from __future__ import annotations

import logging
from typing import Any

from django.conf import settings
from django.core import mail
from django.core.mail import EmailMessage
from django.template.loader import render_to_string
from django.utils import translation
from django.utils.text import Truncator

from . import conf, events
from .links import approval_link
from .models import Wait
from .recipients import people, who_can_answer

LONGEST_TITLE = 150

logger = logging.getLogger("django_finoflow.mails")


def connect() -> None:
    """Listen to what happens to gates. Whether to send is asked each time."""
    for event, receiver in (
        (events.gate_opened, opened),
        (events.gate_reminded, reminded),
        (events.gate_escalated, escalated),
        (events.gate_delegated, delegated),
    ):
        event.connect(receiver, dispatch_uid=f"django_finoflow.mails.{receiver.__name__}")


def opened(*, wait: int, **facts: Any) -> None:
    """A gate has opened: tell all who can answer it."""
    _tell("opened", wait)


def reminded(*, wait: int, **facts: Any) -> None:
    """It still waits: remind all who can answer it."""
    _tell("reminded", wait)


def escalated(*, wait: int, **facts: Any) -> None:
    """More people were asked: tell all who can answer it now."""
    _tell("escalated", wait)


def delegated(*, wait: int, **facts: Any) -> None:
    """It was handed to somebody: tell them."""
    _tell("delegated", wait)


def _tell(kind: str, pk: int) -> None:
    if not conf.get("MAIL"):
        return
    try:
        gate = Wait.objects.select_related("execution").prefetch_related("decisions").get(pk=pk)
        users = _holder(gate) if kind == "delegated" else who_can_answer(gate)
        _send(kind, gate, [user for user in users if _address(user)])
    except Exception:
        logger.exception("No mail was sent for gate %s (%s).", pk, kind)


def _holder(gate: Wait) -> list[Any]:
    return [user for user in people().filter(pk=gate.claimed_by_id) if user.is_active]


def _send(kind: str, gate: Wait, users: list[Any]) -> None:
    if not users:
        return
    with _connection() as connection, translation.override(settings.LANGUAGE_CODE):
        for user in users:
            try:
                connection.send_messages([_mail(kind, gate, user)])
            except Exception:
                logger.exception("No mail was sent to user %s for gate %s (%s).", user.pk, gate.pk, kind)


def _connection() -> Any:
    # Django 6.1 has several mailers, and warns of the function that had one.
    return mail.mailers.default if hasattr(mail, "mailers") else mail.get_connection()


def _mail(kind: str, gate: Wait, user: Any) -> EmailMessage:
    # One line, whatever a title holds: a second one in a subject would be a header, and in the text a forgery.
    title = Truncator(" ".join(gate.title.split())).chars(LONGEST_TITLE)
    context = {"kind": kind, "title": title, "link": approval_link(gate, user)}
    subject = " ".join(render_to_string("finoflow/mail/subject.txt", context).split())
    body = render_to_string("finoflow/mail/body.txt", context).strip() + "\n"
    return EmailMessage(subject, body, to=[_address(user)])


def _address(user: Any) -> str:
    return str(getattr(user, user.get_email_field_name(), "") or "")
