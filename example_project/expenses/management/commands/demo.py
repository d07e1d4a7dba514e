"""``manage.py demo``: two months of expense claims, and some purchases and orders, from files to ledgers, in seconds.

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
from shop import answers as shop_answers
from shop import loading as shop_loading
from shop import outcomes as shop_outcomes
from shop.models import Posting

CLAIMS, PURCHASES, ORDERS = (settings.BASE_DIR / f"{name}.csv" for name in ("expenses", "purchases", "orders"))
SOON = timedelta(minutes=1)

GOODBYE = """\
{managers} claims and purchases wait for a manager and {finance} for finance. To answer, start the site and a worker:

    {manage} runserver
    {manage} finoflow_worker

and log in at http://127.0.0.1:8000/ as maria or jonas (managers), sofia or lukas (finance) or admin.
To see runs live at http://127.0.0.1:8000/live/, start the site with an ASGI server instead of runserver:

    {python} -m uvicorn --app-dir {folder} company.asgi:application

Everybody's password is "{password}". Run the demo again: it starts nothing and pays nothing a second time."""


class Command(BaseCommand):
    """The demo. Running it again starts nothing and pays nothing a second time."""

    help = "Load the example's claims, drive them with the worker, answer for people, and show what became of them."

    def handle(self, **options):
        call_command("migrate", verbosity=0)
        people.create_people()
        before, _ = outcomes.ledger()
        posted = Posting.objects.count()

        self.heading(f"The files, on {connection.vendor}")
        call_command("load_claims", CLAIMS, stdout=self.stdout)
        purchases, orders = shop_loading.load_purchases(PURCHASES), shop_loading.load_orders(ORDERS)
        self.stdout.write(f"purchases.csv: {purchases} purchases started; orders.csv: {orders} orders started")

        self.heading("The people")
        for group, usernames in people.STAFF.items():
            self.stdout.write(f"{group}: {', '.join(usernames)}")
        self.stdout.write(answers.POLICY + shop_answers.POLICY)
        self.drive_and_answer()
        self.wait_out_deadlines()

        self.heading("What became of the claims")
        lines = outcomes.tally()
        self.stdout.write(outcomes.table(lines))
        if trouble := lines.keys() & {RunStatus.ERROR, RunStatus.STUCK}:
            raise CommandError(f"Some runs are {' or '.join(trouble)}: look at them in the admin.")
        self.heading("The ledger")
        self.check_ledger(lines["paid"], before)
        self.heading("What became of the purchases and orders")
        self.show_shop(posted)
        self.heading("Your turn")
        self.say_goodbye()

    def heading(self, text):
        self.stdout.write(self.style.MIGRATE_HEADING(f"\n{text}"))

    def drive_and_answer(self):
        """Let the worker and the people take turns until nobody has anything to do."""
        while True:
            self.run_worker()
            answered = answers.answer_all(say=lambda text: self.stdout.write(f"  {text}")) + shop_answers.answer_all()
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

    def show_shop(self, before):
        """Show what was bought and sold, and that what failed was undone in the right order and has left nothing."""
        self.stdout.write(shop_outcomes.table())
        self.stdout.write("\nThe ledger of what was undone:")
        for run in shop_outcomes.undone():
            self.stdout.write(f"  {shop_outcomes.story(run)}")
        if wrong := shop_outcomes.disagreements():
            raise CommandError(f"The shop's ledger is wrong! {'; '.join(wrong)}")
        self.stdout.write(self.style.SUCCESS("Each was undone in reverse order, and adds up to nothing."))
        lines = Posting.objects.count()
        self.stdout.write(f"{lines} lines in the shop's ledger; {lines - before} of them are new")

    def say_goodbye(self):
        """Say how to go on in the admin."""
        gates = Wait.objects.gates().open()
        self.stdout.write(
            GOODBYE.format(
                managers=gates.filter(name="manager").count(),
                finance=gates.filter(name="finance").count(),
                manage=f"{sys.orig_argv[0]} {sys.argv[0]}",  # as it was typed
                python=sys.orig_argv[0],
                folder=Path(sys.argv[0]).parent,
                password=people.PASSWORD,
            )
        )
