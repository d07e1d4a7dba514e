"""What the tests of the inbox share: people without admin, a gate with a form, and what they do in their pages."""

from __future__ import annotations

from typing import Any

from django import forms
from django.contrib.auth.models import Group, Permission, User
from django.core.exceptions import ValidationError
from django.test import Client
from django.urls import reverse

from django_finoflow import Approval, workflow
from django_finoflow.models import Wait
from tests.admin_site import ask, run_of

INBOX = "/approvals/"
DECIDED = "/approvals/decided/"

__all__ = ["DECIDED", "INBOX", "answer", "ask", "ask_formally", "at", "member", "page_of", "run_of", "text_of"]


class BudgetForm(forms.Form):
    """What a decider fills in, with a field that is called as one of ours is."""

    amount = forms.DecimalField(label="Amount", min_value=0, decimal_places=2, help_text="In EUR.")
    accounts = forms.MultipleChoiceField(
        label="Accounts", choices=[("a", "Travel"), ("b", "Meals"), ("c", "Office")], required=False
    )
    reason = forms.CharField(label="Reason for the books", required=False)

    def clean(self) -> dict[str, Any]:
        if self.cleaned_data.get("amount") == 13:
            raise ValidationError("Not thirteen.")
        return self.cleaned_data


@workflow(id="formwork", gates={"budget": Approval(title="How much?", form=BudgetForm)})
def formwork(ctx: Any, input: Any) -> Any:
    """Ask for a budget, and return the answer."""
    return ctx.wait_for_approval("budget", timeout="1d")


def ask_formally() -> Wait:
    """Run ``formwork`` up to its gate, and return the gate."""
    return Wait.objects.gates().get(execution__run_id=formwork.run({"wish": 100}).run_id)


def member(name: str, *permissions: str, groups: tuple[str, ...] = (), **more: Any) -> User:
    """Make an ordinary user, who is no staff, with permissions of ours."""
    user = User.objects.create_user(name, password="secret", email=f"{name}@example.com", **more)
    user.user_permissions.set(Permission.objects.filter(content_type__app_label="finoflow", codename__in=permissions))
    user.groups.set([Group.objects.get_or_create(name=group)[0] for group in groups])
    return user


def at(gate: Wait) -> str:
    """Return the address of a gate's page."""
    return reverse("finoflow:gate", args=[gate.pk])


def page_of(client: Client, gate: Wait) -> Any:
    """Open a gate's page."""
    return client.get(at(gate))


def seen(page: Any) -> str:
    """Return the token that a page carries, as the browser would send it."""
    return page.content.decode().partition('name="seen" value="')[2].partition('"')[0]


def answer(client: Client, gate: Wait, how: str = "approve", reason: str = "Looks right.", **data: Any) -> Any:
    """Open the page of a gate, fill in its form and press a button, as a browser does."""
    page = page_of(client, gate)
    return client.post(at(gate), {"do": how, "reason": reason, "seen": seen(page), **data}, follow=True)


def text_of(page: Any) -> str:
    """Return a page's source."""
    return page.content.decode()
