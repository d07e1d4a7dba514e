"""``manage.py finoflow_worker``: drive due runs until told to stop."""

from __future__ import annotations

from argparse import ArgumentTypeError
from typing import Any

from django.core.management.base import BaseCommand, CommandError, CommandParser

from django_finoflow import conf, durations
from django_finoflow.drive import in_test_case
from django_finoflow.options import Options
from django_finoflow.processes import Supervisor, leave, stopped_by_signals
from django_finoflow.report import Report
from django_finoflow.worker import Worker


class Command(BaseCommand):
    """The worker's command line."""

    help = "Drive due runs until told to stop. SIGTERM lets running steps finish; a second one stops at once."

    def add_arguments(self, parser: CommandParser) -> None:
        add = parser.add_argument
        add(
            "--queue",
            action="append",
            default=[],
            metavar="NAME",
            help="take from this queue; may be repeated (default: all)",
        )
        add("--concurrency", type=count, default=4, metavar="N", help="runs each process drives at a time (default: 4)")
        add("--processes", type=count, default=1, metavar="N", help="worker processes (default: 1)")
        add("--drain", action="store_true", help="work until nothing is due, then exit")
        add(
            "--max-runs",
            type=count,
            metavar="N",
            help="end after so many drives (with --processes: each process, and it is replaced)",
        )
        add(
            "--poll-interval",
            type=time,
            metavar="S",
            help="how often to look while idle (default: the setting POLL_INTERVAL)",
        )
        add(
            "--lease",
            type=time,
            metavar="S",
            help="how long to be silent before others take over (default: the setting LEASE)",
        )
        add(
            "--grace",
            type=time,
            default=30.0,
            metavar="S",
            help="how long running steps may take when stopping (default: 30)",
        )
        add("--name", default="", help="what this worker is called in its log lines")

    def handle(self, *args: Any, **options: Any) -> None:
        chosen = Options(
            queues=(queue,) if isinstance(queue := options["queue"], str) else tuple(queue),
            concurrency=options["concurrency"],
            drain=options["drain"],
            max_runs=options["max_runs"],
            poll_interval=options["poll_interval"] or conf.get("POLL_INTERVAL"),
            lease=options["lease"] or conf.get("LEASE"),
            grace=options["grace"],
            name=options["name"],
        )
        processes, verbosity = options["processes"], options["verbosity"]
        if processes > 1 and in_test_case():
            raise CommandError(
                "--processes cannot be used inside a TestCase: other processes would not see its database."
            )
        with Report(self.stdout, verbosity):
            boss: Any = Worker(chosen) if processes == 1 else Supervisor(chosen, processes, verbosity)
            with stopped_by_signals(boss):
                boss.work()
            if isinstance(boss, Worker):
                leave(boss)


def count(text: str) -> int:
    """Return a whole number of at least 1."""
    if not text.isdecimal() or int(text) < 1:
        raise ArgumentTypeError(f"{text!r} is no whole number of at least 1")
    return int(text)


def time(text: str) -> float:
    """Return a time in seconds; it may be written as a duration, like ``1m``."""
    try:
        return durations.seconds(float(text) if text.replace(".", "", 1).isdecimal() else text)
    except ValueError as error:
        raise ArgumentTypeError(str(error)) from None
