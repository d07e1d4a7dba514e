"""Async workflows against sync ones of the same run: steps per second, ten slow steps at once, and runs that wait."""

from __future__ import annotations

import asyncio
import gc
import os
import threading
import time
from collections.abc import Callable
from typing import Any

from tests.benchmarks import stage

RUNS, STEPS = 200, 5
SLOW, PAUSE = 10, 0.1
PARKED = 1000


def rate(flow: Any) -> float:
    """Return how many steps a worker with one slot does in a second."""
    for number in range(RUNS):
        flow.start(number)

    def work() -> int:
        drain(1)
        return RUNS * STEPS

    return stage.per_second(work)


def drain(concurrency: int) -> None:
    """Let a worker do all that is due."""
    from django_finoflow.worker import Options, Worker

    Worker(Options(concurrency=concurrency, drain=True)).work()


def took(flow: Any) -> float:
    """Return how many seconds the quickest of three runs took."""

    def once() -> float:
        began = time.perf_counter()
        assert flow.run().status == "done"
        return time.perf_counter() - began

    return min(once() for _ in range(3))


def held() -> tuple[int, int, float]:
    """Return how many threads, connections and MiB of memory this process holds."""
    from django.db import connection

    gc.collect()
    with open("/proc/self/statm", encoding="ascii") as file:
        memory = int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE") / 2**20
    connections = 1
    if connection.vendor == "postgresql":
        with connection.cursor() as cursor:
            cursor.execute("SELECT count(*) FROM pg_stat_activity WHERE datname = current_database()")
            connections = cursor.fetchone()[0]
    return threading.active_count(), connections, memory


def main() -> None:
    """Measure all three."""
    stage.set_up()
    from django.db import connection

    from django_finoflow import workflow
    from django_finoflow.models import Execution

    def steps(ctx: Any, fn: Callable[[int], Any]) -> list[Any]:
        return [ctx.step(f"s{index}", lambda index=index: fn(index)) for index in range(STEPS)]

    async def later(index: int) -> int:
        return index

    @workflow(id="sync")
    def sync(ctx: Any, number: int) -> None:
        steps(ctx, lambda index: index)

    @workflow(id="async-sync-bodies")
    async def sync_bodies(ctx: Any, number: int) -> None:
        for index in range(STEPS):
            await ctx.step(f"s{index}", lambda index=index: index)

    @workflow(id="async")
    async def async_bodies(ctx: Any, number: int) -> None:
        async def body() -> int:
            return 1

        for index in range(STEPS):
            await ctx.step(f"s{index}", body)

    print(f"{RUNS} runs of {STEPS} steps, concurrency 1, {connection.vendor}")
    rates = {flow: stage.best(lambda flow=flow: rate(flow)) for flow in (sync, sync_bodies, async_bodies)}
    base = max(rates[sync], stage.best(lambda: rate(sync)))
    stage.row("a sync workflow", base, "steps/s")
    stage.row("an async one with sync step bodies", rates[sync_bodies], "steps/s", sync=rates[sync_bodies] / base)
    stage.row("an async one with async step bodies", rates[async_bodies], "steps/s", sync=rates[async_bodies] / base)

    @workflow(id="one-by-one")
    def one_by_one(ctx: Any, input: Any) -> None:
        for number in range(SLOW):
            ctx.step(f"slow-{number}", lambda: time.sleep(PAUSE))

    @workflow(id="parallel")
    def parallel(ctx: Any, input: Any) -> None:
        ctx.parallel({f"slow-{number}": lambda: time.sleep(PAUSE) for number in range(SLOW)})

    @workflow(id="gathered")
    async def gathered(ctx: Any, input: Any) -> None:
        async def slow() -> None:
            await asyncio.sleep(PAUSE)

        await asyncio.gather(*(ctx.step(f"slow-{number}", slow) for number in range(SLOW)))

    print(f"\n{SLOW} steps of {PAUSE * 1000:.0f} ms")
    whole = took(one_by_one)
    stage.row("one by one", whole * 1000, "ms")
    stage.row("ctx.parallel in a sync body", took(parallel) * 1000, "ms", one_by_one=took(parallel) / whole)
    stage.row("asyncio.gather of async steps", took(gathered) * 1000, "ms", one_by_one=took(gathered) / whole)

    @workflow(id="parked")
    async def parked(ctx: Any, input: Any) -> None:
        await ctx.step("before", lambda: 1)
        await asyncio.gather(ctx.wait_for_signal("a"), ctx.wait_for_signal("b"))

    drive_parked(parked, 100)  # what a first drive loads once
    before = held()
    drive_parked(parked, PARKED)
    after = held()
    waiting = Execution.objects.filter(workflow_id="parked", status="waiting").count()
    print(f"\n{waiting} runs parked on two signals each, in one process: before → after driving {PARKED} of them")
    for what, old, new in zip(("threads", "connections", "MiB resident"), before, after, strict=True):
        print(f"{what:<46}{old:10.1f} → {new:.1f}")


def drive_parked(flow: Any, count: int) -> None:
    """Start runs and drive each until it waits."""
    for number in range(count):
        flow.start(number)
    drain(4)


if __name__ == "__main__":
    main()
