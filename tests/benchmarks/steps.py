"""Steps per second: 200 runs of 5 steps that do nothing, in one worker process, against a bare loop and two peers."""

from __future__ import annotations

import importlib.util
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

from tests.benchmarks import stage

RUNS, STEPS = 200, 5


def ours(concurrency: int, builder: bool = False) -> float:
    """Start the runs, then let a draining worker do them; only its work counts, as the peers' does."""
    from django_finoflow import Workflow, registry, workflow
    from django_finoflow.models import Execution
    from django_finoflow.worker import Options, Worker

    registry.unregister("bench")
    if builder:
        bench = Workflow("bench")
        for index in range(STEPS):
            bench.step(f"s{index}", lambda ctx, index=index: index)
    else:

        @workflow(id="bench")
        def bench(ctx, number):
            for index in range(STEPS):
                ctx.step(f"s{index}", lambda index=index: index)

    for number in range(RUNS):
        bench.start(number)

    def work() -> int:
        Worker(Options(concurrency=concurrency, drain=True)).work()
        return RUNS * STEPS

    rate = stage.per_second(work)
    assert not Execution.objects.exclude(status="done").exists()
    return rate


def bare_loop() -> float:
    """The limit: one small row inserted per commit, by nothing but psycopg."""
    import psycopg

    with psycopg.connect(stage.uri(), autocommit=True) as connection:
        columns = "id bigserial PRIMARY KEY, run bigint, step int, result jsonb"
        connection.execute(f"CREATE TABLE IF NOT EXISTS bare ({columns})")

        def work() -> int:
            for number in range(RUNS * STEPS):
                place = (number // STEPS, number % STEPS, "1")
                connection.execute("INSERT INTO bare (run, step, result) VALUES (%s, %s, %s)", place)
            return RUNS * STEPS

        return stage.per_second(work)


def sqlite_loop() -> float:
    """The limit on SQLite: one small row inserted per commit through Django's cursor."""
    from django.db import connection

    with connection.cursor() as cursor:
        cursor.execute("CREATE TABLE IF NOT EXISTS bare (id integer PRIMARY KEY, run bigint, step int, result text)")

        def work() -> int:
            for number in range(RUNS * STEPS):
                place = (number // STEPS, number % STEPS, "1")
                cursor.execute("INSERT INTO bare (run, step, result) VALUES (%s, %s, %s)", place)
            return RUNS * STEPS

        return stage.per_second(work)


def dbos() -> dict[str, float]:
    """DBOS: workflows enqueued and done by its own threads, and called directly one after another."""
    from dbos import DBOS

    DBOS(config={"name": "bench", "system_database_url": stage.uri(), "log_level": "ERROR", "run_admin_server": False})

    @DBOS.step()
    def step(index: int) -> int:
        return index

    @DBOS.workflow()
    def flow(number: int) -> int:
        for index in range(STEPS):
            step(index)
        return number

    def directly() -> int:
        for number in range(RUNS):
            flow(number)
        return RUNS * STEPS

    def by_threads() -> int:
        for handle in [DBOS.start_workflow(flow, number) for number in range(RUNS)]:
            handle.get_result()
        return RUNS * STEPS

    DBOS.launch()
    try:
        flow(0)
        rates: dict[str, Callable[[], int]] = {"dbos, one at a time": directly, "dbos, its threads": by_threads}
        return {name: stage.best(lambda work=work: stage.per_second(work)) for name, work in rates.items()}
    finally:
        DBOS.destroy()


def absurd() -> dict[str, float]:
    """Absurd: tasks spawned first, then worked in batches of ten by one thread, and by four."""
    import threading

    from absurd_sdk import Absurd

    # Its schema comes with absurdctl, which is a program of its own.
    subprocess.run(
        [str(Path(sys.executable).with_name("absurdctl")), "init", "-d", stage.uri()],
        check=True,
        stdout=subprocess.DEVNULL,
    )

    def client() -> Absurd:
        made = Absurd(stage.uri(), queue_name="default")

        @made.register_task(name="flow")
        def flow(params, ctx):
            for index in range(STEPS):
                ctx.step(f"s{index}", lambda index=index: index)
            return 1

        return made

    def work(threads: int) -> float:
        spawner = client()
        for number in range(RUNS):
            spawner.spawn("flow", {"number": number})

        def drain() -> None:
            mine = client()
            while tasks := mine.claim_tasks(batch_size=10):
                for claimed in tasks:
                    mine._execute_task(claimed, 120)

        def all_of_it() -> int:
            workers = [threading.Thread(target=drain) for _ in range(threads)]
            for worker in workers:
                worker.start()
            for worker in workers:
                worker.join()
            return RUNS * STEPS

        return stage.per_second(all_of_it)

    client().create_queue("default")
    return {f"absurd, {n} thread{'s' * (n > 1)}": stage.best(lambda n=n: work(n)) for n in (1, 4)}


def main() -> None:
    """Measure everyone, the limit before and after us: the better of the two is what we are held against."""
    from django.db import connection

    stage.set_up()
    print(f"{RUNS} runs of {STEPS} steps, {connection.vendor}")
    loop = bare_loop if connection.vendor == "postgresql" else sqlite_loop
    limit = stage.best(loop)
    rates = {f"django_finoflow, concurrency {n}": stage.best(lambda n=n: ours(n)) for n in (1, 4)}
    built = stage.best(lambda: ours(1, builder=True))
    limit = max(limit, stage.best(loop))
    stage.row("bare loop of inserts", limit, "steps/s")
    for name, rate in rates.items():
        stage.row(name, rate, "steps/s", bare_loop=rate / limit)
    stage.row("a builder workflow, concurrency 1", built, "steps/s", a_function=built / next(iter(rates.values())))
    peers: dict[str, float] = {}
    for package, measure in {"dbos": dbos, "absurd_sdk": absurd}.items():
        if connection.vendor == "postgresql" and importlib.util.find_spec(package):
            peers |= measure()
        else:
            print(f"{package}: not measured (not installed, or not PostgreSQL)")
    for name, rate in peers.items():
        stage.row(name, rate, "steps/s", **{f"slower_than_ours_at_{n[-1]}": ours / rate for n, ours in rates.items()})


if __name__ == "__main__":
    main()
