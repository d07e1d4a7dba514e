"""``manage.py demo``: two months of expense claims, from the finance team's file to the ledger, in some seconds.

Each piece is the real thing: the file, the worker in a process of its own, the people's decisions. Only the clicks in
the admin are calls.
"""

import subprocess
import sys
import time
from datetime import timedelta
from pathlib import Path

from django.conf import settings
from django.core.management import call_command
from django.core.management.base import BaseCommand, CommandError
from django.db import connection
from django.utils import timezone

from django_finoflow.models import Wait
from django_finoflow.statuses import RunStatus
from expenses import answers, outcomes, people

FILE = settings.BASE_DIR / "expenses.csv"
SOON = timedelta(minutes=1)

GOODBYE = """\
{managers} claims wait for a manager and {finance} for finance. To answer them, start the site and a worker:

    {manage} runserver
    {manage} finoflow_worker

and log in at http://127.0.0.1:8000/ as maria or jonas (managers), sofia or lukas (finance) or admin.
Everybody's password is "{password}". Run the demo again: it starts nothing and pays nothing a second time."""


class Command(BaseCommand):
    """The demo. Running it again starts nothing and pays nothing a second time."""

    help = "Load the example's claims, drive them with the worker, answer for people, and show what became of them."

    def handle(self, **options):
        call_command("migrate", verbosity=0)
        people.create_people()
        before, _ = outcomes.ledger()

        self.heading(f"The file, on {connection.vendor}")
        call_command("load_claims", FILE, stdout=self.stdout)

        self.heading("The people")
        for group, usernames in people.STAFF.items():
            self.stdout.write(f"{group}: {', '.join(usernames)}")
        self.stdout.write(answers.POLICY)
        self.drive_and_answer()
        self.wait_out_deadlines()

        self.heading("What became of the claims")
        lines = outcomes.tally()
        self.stdout.write(outcomes.table(lines))
        if trouble := lines.keys() & {RunStatus.ERROR, RunStatus.STUCK}:
            raise CommandError(f"Some runs are {' or '.join(trouble)}: look at them in the admin.")
        self.heading("The ledger")
        self.check_ledger(lines["paid"], before)
        self.heading("Your turn")
        self.say_goodbye(lines)

    def heading(self, text):
        self.stdout.write(self.style.MIGRATE_HEADING(f"\n{text}"))

    def drive_and_answer(self):
        """Let the worker and the people take turns until nobody has anything to do."""
        while True:
            self.run_worker()
            answered = answers.answer_all(say=lambda text: self.stdout.write(f"  {text}"))
            if not answered:
                return
            self.stdout.write(f"people gave {answered} answers")

    def wait_out_deadlines(self):
        """Wait until the deadlines that are near have passed, and let the worker see to them."""
        near = Wait.objects.open().filter(due_at__lt=timezone.now() + SOON)
        deadlines = list(near.order_by("due_at").values_list("due_at", flat=True))
        if deadlines:
            seconds = max(0.0, (deadlines[-1] - timezone.now()).total_seconds())
            self.stdout.write(f"{len(deadlines)} claims had no answer; their deadlines are over in {seconds:.1f} s")
            time.sleep(seconds)
            self.run_worker()

    def run_worker(self):
        """Run ``manage.py finoflow_worker --drain`` as a process of its own."""
        manage = Path(settings.BASE_DIR, "manage.py")
        began = time.monotonic()
        subprocess.run([sys.executable, manage, "finoflow_worker", "--drain", "--verbosity=0"], check=True)
        self.stdout.write(f"finoflow_worker --drain: {time.monotonic() - began:.1f} s")

    def check_ledger(self, paid, before):
        """Show that what was paid is what was approved, to the cent, and each claim once."""
        payments, eur = outcomes.ledger()
        self.stdout.write(f"{payments} payments, EUR {eur:,}; {payments - before} of them are new")
        self.stdout.write(f"{paid.claims} claims ended as paid, EUR {paid.eur:,}")
        if (payments, eur) != (paid.claims, paid.eur) or outcomes.paid_twice():
            raise CommandError("The ledger and the claims do not agree!")
        self.stdout.write(self.style.SUCCESS("They agree, and no claim was paid twice."))
        sent, again = outcomes.notices()
        self.stdout.write(
            f"{sent} employees' notices were sent; the mail service took {again} of them at a second try."
        )

    def say_goodbye(self, lines):
        """Say how to go on in the admin."""
        manage = f"{sys.orig_argv[0]} {sys.argv[0]}"  # as it was typed
        self.stdout.write(
            GOODBYE.format(
                managers=lines["waiting for manager"].claims,
                finance=lines["waiting for finance"].claims,
                manage=manage,
                password=people.PASSWORD,
            )
        )
