"""What a worker is told on its command line. It can be pickled, and imported before Django is set up."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Options:
    """How a worker works. Times are in seconds.

    Attributes:
        queues: which queues it takes from; none: all.
        concurrency: how many runs it drives at a time.
        drain: whether it ends when nothing is due.
        max_runs: how many drives it does before it ends; None: no end.
        poll_interval: how often it looks while idle.
        lease: how long its leases are.
        grace: how long running steps may take once it is told to stop.
        name: what it is called in its log lines.
    """

    queues: tuple[str, ...] = ()
    concurrency: int = 4
    drain: bool = False
    max_runs: int | None = None
    poll_interval: float = 1.0
    lease: float = 30.0
    grace: float = 30.0
    name: str = ""
