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
from django.contrib.auth.models import User
from django.core.management import call_command
from django.core.management.base import BaseCommand, CommandError
from django.db import connection
from django.utils import timezone

from django_finoflow import approval_link
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
{managers} claims and purchases wait for a manager, {finance} for finance, {directors} for directors. To answer, start
the site and a worker, each in a terminal of its own:

    {manage} runserver
    {manage} finoflow_worker

Everybody's password is "{password}". Log in, answer, log out, and be the next:

    anna    {site}/purchases/   asks for a laptop or a bus, and sees what becomes of it
    maria   {site}/approvals/   the managers' inbox; for purchases she fills in where they are booked
    sofia   {site}/approvals/   finance: purchases over EUR 1,000 and claims over EUR 500
    helena  {site}/approvals/   a director: purchases over EUR 10,000 need two of them
    theo    {site}/approvals/   another; the van needs his signature, and no second one of sofia's
    admin   {site}/admin/       sees all: Workflows → Gates and their overview, and Runs with their timelines

jonas is a manager, too, and lukas in finance. Nobody answers what they have asked for: try it as jonas.
{link}To see runs live at {site}/live/, start the site with an ASGI server instead of runserver:

    {python} -m pip install -q uvicorn
    {python} -m uvicorn --app-dir {folder} company.asgi:application

Run the demo again: it starts nothing and pays nothing a second time."""


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
        self.run_worker()
        self.wait_for_escalations()
        self.answer_and_drive()
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
        self.heading("What happened at some gates")
        self.show_gates()
        self.heading("Your turn")
        self.say_goodbye()

    def heading(self, text):
        self.stdout.write(self.style.MIGRATE_HEADING(f"\n{text}"))

    def say(self, text):
        self.stdout.write(f"  {text}")

    def wait_for_escalations(self):
        """Wait until the directors are asked about the urgent claims, too, and let the worker see to it."""
        if moments := answers.escalations():
            self.sleep_until(
                max(moments), f"{len(moments)} urgent claims have no answer; the directors are asked, too,"
            )
            self.run_worker()

    def answer_and_drive(self):
        """Let the people and the worker take turns until nobody has anything to do."""
        while answered := answers.answer_all(self.say) + shop_answers.answer_all(self.say):
            self.stdout.write(f"people gave {answered} answers")
            self.run_worker()
        answers.hand_over("C-1141", "lukas", "sofia", "You know who went to Singapore.", self.say)

    def wait_out_deadlines(self):
        """Wait until the deadlines that are near have passed, and let the worker see to them."""
        near = Wait.objects.open().filter(due_at__lt=timezone.now() + SOON)
        deadlines = list(near.order_by("due_at").values_list("due_at", flat=True))
        if deadlines:
            self.sleep_until(deadlines[-1], f"{len(deadlines)} claims had no answer; their deadlines are over")
            self.run_worker()

    def sleep_until(self, moment, why):
        seconds = max(0.0, (moment - timezone.now()).total_seconds())
        self.stdout.write(f"{why} in {seconds:.1f} s")
        time.sleep(seconds)

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
            raise CommandError(f"The shop is wrong! {'; '.join(wrong)}")
        self.stdout.write(self.style.SUCCESS("Each was undone in reverse order, and adds up to nothing."))
        lines = Posting.objects.count()
        self.stdout.write(f"{lines} lines in the shop's ledger; {lines - before} of them are new")

    def show_gates(self):
        """Show a reminder and an escalation, and a quorum, as the pages of these gates tell them."""
        for number, name in (("C-1119", "manager"), ("C-1141", "finance"), ("P-12", "directors")):
            self.stdout.write(f"{number}, {name}:")
            for sentence in outcomes.told(number, name):
                self.say(sentence)
        if wrong := outcomes.notified_wrongly():
            raise CommandError(f"Not reminded of and escalated once each: {', '.join(wrong)}")
        self.stdout.write(
            self.style.SUCCESS("Of each urgent claim the managers were reminded once, and the directors asked once.")
        )

    def say_goodbye(self):
        """Say how to go on in the browser, and as whom."""
        gates = Wait.objects.gates().open()
        self.stdout.write(
            GOODBYE.format(
                managers=gates.filter(name="manager").count(),
                finance=gates.filter(name="finance").count(),
                directors=gates.filter(name="directors").count(),
                site=settings.FINOFLOW["BASE_URL"],
                link=self.link(gates.filter(execution__key="P-10").first()),
                manage=f"{sys.orig_argv[0]} {sys.argv[0]}",  # as it was typed
                python=sys.orig_argv[0],
                folder=Path(sys.argv[0]).parent,
                password=people.PASSWORD,
            )
        )

    def link(self, gate):
        """Return what a mail about a gate would bring to a director, while it is open."""
        if gate is None:
            return ""
        link = approval_link(gate, User.objects.get(username="theo"))
        return f"A mail would bring theo this link, for the van alone:\n{link}\n"
