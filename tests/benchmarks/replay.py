"""What it costs to resume a long run: the queries that load its checkpoints, and the time to replay one."""

from __future__ import annotations

import time

from tests.benchmarks import stage


def main() -> None:
    """Resume runs of 10 and of 1,000 checkpoints."""
    stage.set_up()
    from django.db import connection
    from django.test.utils import CaptureQueriesContext

    from django_finoflow import workflow

    @workflow(id="long")
    def long(ctx, steps):
        for index in range(steps):
            ctx.step("step", lambda index=index: {"index": index})
        ctx.wait_for_signal("go")

    times = {}
    for steps in (10, 1000):
        run = long.run(steps)
        with CaptureQueriesContext(connection) as queries:
            moment = time.perf_counter()
            long.resume(run.run_id)
            times[steps] = time.perf_counter() - moment
        selects = sum(query["sql"].startswith("SELECT") for query in queries)
        stage.row(f"resume with {steps} checkpoints", times[steps] * 1000, "ms", queries=len(queries), selects=selects)
    stage.row("a checkpoint, replayed", (times[1000] - times[10]) / 990 * 1000, "ms")


if __name__ == "__main__":
    main()
