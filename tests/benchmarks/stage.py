"""What every benchmark needs: Django on a new, empty database that is dropped at the end, and a way to print a row."""

from __future__ import annotations

import atexit
import os
import time
from collections.abc import Callable
from statistics import median
from urllib.parse import urlsplit, urlunsplit

import django

os.environ.setdefault("DJANGO_SETTINGS_MODULE", "tests.settings")
django.setup()

from django.db import connection, connections  # noqa: E402


def set_up() -> None:
    """Make a database for this process and migrate it; it is dropped when the process ends."""
    name = connection.creation.create_test_db(verbosity=0, serialize=False)
    os.environ["FINOFLOW_TEST_NAME"] = name
    atexit.register(_drop)


def _drop() -> None:
    connections.close_all()
    name = connection.settings_dict["NAME"]
    if connection.vendor == "postgresql":  # a peer may have left a connection open
        with connection._nodb_cursor() as cursor:
            cursor.execute("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = %s", [name])
    connection.creation.destroy_test_db(name, verbosity=0)


def uri() -> str:
    """Return the ``postgresql://`` URL of the benchmark's database, for those who bring their own connection."""
    server = urlsplit(os.environ["FINOFLOW_TEST_POSTGRES"])
    return urlunsplit(server._replace(path=f"/{connection.settings_dict['NAME']}"))


def per_second(work: Callable[[], int]) -> float:
    """Do ``work`` and return how many of what it counts were done in a second."""
    began = time.perf_counter()
    count = work()
    return count / (time.perf_counter() - began)


def best(measure: Callable[[], float], rounds: int = 3) -> float:
    """Return the best of some rounds: what disturbs a round only makes it slower."""
    return max(measure() for _ in range(rounds))


def middle(values: list[float]) -> float:
    """Return the median."""
    return median(values)


def row(what: str, rate: float, unit: str, **ratios: float) -> None:
    """Print one figure, and its ratios to others of the same run."""
    compared = "".join(f"   {ratio:5.2f} × {name.replace('_', ' ')}" for name, ratio in ratios.items())
    print(f"{what:<46}{rate:10.1f} {unit:<8}{compared}", flush=True)
