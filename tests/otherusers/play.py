"""One approval from beginning to end, by pages and mails, as a process of its own; it says what came of it."""

from __future__ import annotations

import json

import django

django.setup()

from django.contrib.auth import get_user_model  # noqa: E402
from django.core import mail  # noqa: E402
from django.core.management import call_command  # noqa: E402
from django.test import Client  # noqa: E402

from django_finoflow import DecisionRefused, claim_gate, decide, decisions, workflow  # noqa: E402
from django_finoflow.models import Decision, Wait  # noqa: E402

call_command("check", fail_level="WARNING")
call_command("migrate", run_syncdb=True, verbosity=0)
mail.outbox = []  # type: ignore[attr-defined]


@workflow(id="asking")
def asking(ctx, input):
    """Ask one of two, of whom one is the requester; then whoever holds the permission."""
    ask = {"users": ["ann@example.com", "ben@example.com"], "exclude_requester": True}
    ctx.wait_for_approval("first", **ask)
    return ctx.wait_for_approval("second")


def code(user, name, **options):
    """Return the code with which a decision is refused."""
    try:
        return decide(run_id, name, user=user, approved=True, **options).channel
    except DecisionRefused as refusal:
        return refusal.code


ann, ben = (get_user_model().objects.create(email=f"{name}@example.com") for name in ("ann", "ben"))
run_id = asking.run(requester=ben).run_id
told = {"mails": [message.to for message in mail.outbox]}  # type: ignore[attr-defined]
told["inboxes"] = [Wait.objects.inbox(user).count() for user in (ann, ben)]
told["refused"] = [code(ben, "first"), code(ann, "first", reason="x", override=True)]
claim_gate(run_id, "first", user=ann)
client, gate = Client(), Wait.objects.get()
client.force_login(ann)
pages = ["/approvals/", "/approvals/decided/", f"/approvals/gates/{gate.pk}/"]
told["pages"] = [client.get(page).status_code for page in pages]
client.post(pages[-1], {"do": "approve", "seen": decisions.token(gate)})
told["decided"] = [made.user_name for made in Decision.objects.filter(user=ann)]
asking.resume(run_id)
told["second"] = [code(ann, "second"), Wait.objects.inbox(ann).count()]
print(json.dumps(told))
