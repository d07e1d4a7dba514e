"""``manage.py load_claims FILE``: start a run for each claim in a file of the finance team."""

from pathlib import Path

from django.core.management.base import BaseCommand, CommandError

from expenses.loading import load


class Command(BaseCommand):
    """Loads a file; loading it again starts nothing twice."""

    help = (
        "Start an approval for each claim in a CSV file. Rows that are no claims are listed, and kept as refused rows."
    )

    def add_arguments(self, parser):
        parser.add_argument("file", type=Path)

    def handle(self, *, file, **options):
        try:
            loaded = load(file)
        except (OSError, ValueError) as error:
            raise CommandError(str(error)) from error
        refused = len(loaded.refused)
        self.stdout.write(
            f"{file.name}: {loaded.rows} rows = {loaded.started} claims started + {loaded.known} already known"
            f" + {refused} refused"
        )
        for row in loaded.refused:
            self.stdout.write(f"  line {row.line}: {row.reason}")
