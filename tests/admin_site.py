"""What the tests of the admin share: a workflow with gates, and staff of every kind."""

from __future__ import annotations

from typing import Any

from django import forms
from django.contrib.auth.models import Group, Permission, User
from django.db import connection
from django.test import Client
from django.test.utils import CaptureQueriesContext
from django.urls import reverse

from django_finoflow import Approval, workflow
from django_finoflow.models import Execution, Wait

GATES = "/admin/finoflow/wait/"
RUNS = "/admin/finoflow/execution/"


@workflow(id="paperwork")
def paperwork(ctx: Any, input: dict[str, Any]) -> Any:
    """Ask as the input says, after one step, and return the answer."""
    undo = {None: None, "well": lambda _: None, "badly": lambda _: 1 / 0}[input.get("undo")]
    ctx.step("prepare", lambda: input.get("prepared"), compensate=undo)
    if input.get("fails"):
        ctx.step("break", lambda: int("broken"))
    if "sleep" in input:
        ctx.sleep("nap", input["sleep"])
    return ctx.wait_for_approval(
        input.get("gate", "approval"), timeout=input.get("timeout"), **(input.get("approval") or {})
    )


class BudgetForm(forms.Form):
    """What an answer to the gate of ``budgeting`` fills in."""

    centre = forms.CharField(label="Cost centre", max_length=20, help_text="As on the invoice.")
    urgent = forms.BooleanField(required=False)

    def clean_centre(self) -> str:
        centre: str = self.cleaned_data["centre"]
        if centre == "closed":
            raise forms.ValidationError("That one is closed.")
        return centre.upper()


class RemarkForm(forms.Form):
    """A form of which nothing must be filled in."""

    remark = forms.CharField(required=False)


@workflow(id="budgeting", gates={"budget": Approval(form=BudgetForm), "remark": Approval(form=RemarkForm)})
def budgeting(ctx: Any, input: dict[str, Any]) -> Any:
    """Ask with a form, as the input says."""
    return ctx.wait_for_approval(input.get("gate", "budget"), **(input.get("approval") or {}))


def ask_budget(requester: User | None = None, **input: Any) -> Wait:
    """Run ``budgeting`` up to its gate, and return the gate."""
    result = budgeting.run(input, requester=requester)
    return Wait.objects.gates().get(execution__run_id=result.run_id)


def person(name: str, *permissions: str, groups: tuple[str, ...] = (), **more: Any) -> User:
    """Make a staff user with permissions of ours, such as ``view_wait``."""
    user = User.objects.create_user(name, password="secret", is_staff=True, **more)
    user.user_permissions.set(Permission.objects.filter(content_type__app_label="finoflow", codename__in=permissions))
    user.groups.set([Group.objects.get_or_create(name=group)[0] for group in groups])
    return user


def browser_of(user: User, **options: Any) -> Client:
    """Return a test client in which the user is logged in."""
    client = Client(**options)
    client.force_login(user)
    return client


def ask(requester: User | None = None, key: str | None = None, **input: Any) -> Wait:
    """Run ``paperwork`` up to its gate, and return the gate."""
    result = paperwork.run(input, requester=requester, key=key)
    return Wait.objects.gates().get(execution__run_id=result.run_id)


def run_of(gate: Wait) -> Execution:
    """Return the run of a gate, as its row stands."""
    return Execution.objects.get(pk=gate.execution_id)


def button(name: str, row: Any) -> str:
    """Return the address of the page that a button of ours leads to: ``button("approve", gate)``."""
    return reverse(f"admin:finoflow_{name}", args=[row.pk])


def detail(gate: Wait) -> str:
    """Return the address of a gate's page."""
    return f"{GATES}{gate.pk}/change/"


def seen(page: Any) -> str:
    """Return the token that a decision page carries."""
    return page.context["token"]


def chosen(*rows: Any) -> list[str]:
    """Return what a list sends for ticked rows."""
    return [str(row.pk) for row in rows]


def queries_of(client: Client, url: str) -> int:
    """Return how many queries a page takes."""
    with CaptureQueriesContext(connection) as captured:
        assert client.get(url).status_code == 200
    return len(captured)
