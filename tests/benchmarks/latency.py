"""How soon an idle worker begins: from ``start()`` to the first step, from ``signal()`` to the step behind the wait."""

from __future__ import annotations

import threading
import time

from tests.benchmarks import stage

TIMES = 100


def main() -> None:
    """Measure both against the least there is: a commit by one connection, seen by another that was notified."""
    stage.set_up()
    from django_finoflow import signal, workflow
    from django_finoflow.worker import Options, Worker

    seen: dict[str, float] = {}
    begun = threading.Event()

    def note(place: str) -> None:
        seen[place] = time.perf_counter()
        begun.set()

    @workflow(id="prompt")
    def prompt(ctx, number):
        ctx.step("first", lambda: note("first"))
        ctx.wait_for_signal("go")
        ctx.step("second", lambda: note("second"))

    worker = Worker(Options(concurrency=4, poll_interval=60))
    thread = threading.Thread(target=worker.work)
    thread.start()
    starts, signals = [], []
    for number in range(TIMES):
        time.sleep(0.03)
        moment = time.perf_counter()
        run = prompt.start(number)
        starts.append(_gap(begun, moment, seen, "first"))
        while run.snapshot().waiting_on is None:
            time.sleep(0.005)
        time.sleep(0.03)
        moment = time.perf_counter()
        signal(run.run_id, "go")
        signals.append(_gap(begun, moment, seen, "second"))
    worker.stop()
    thread.join()
    least = stage.middle([_notified() for _ in range(TIMES)])
    stage.row("a notification between two connections, p50", least * 1000, "ms")
    stage.row("start to first step, p50", stage.middle(starts) * 1000, "ms", least=stage.middle(starts) / least)
    stage.row("signal to resumed step, p50", stage.middle(signals) * 1000, "ms", least=stage.middle(signals) / least)


def _gap(begun: threading.Event, moment: float, seen: dict[str, float], place: str) -> float:
    begun.wait(30)
    begun.clear()
    return seen[place] - moment


def _notified() -> float:
    import psycopg

    with psycopg.connect(stage.uri(), autocommit=True) as ear, psycopg.connect(stage.uri(), autocommit=True) as mouth:
        ear.execute("LISTEN benchmark")
        moment = time.perf_counter()
        mouth.execute("NOTIFY benchmark")
        next(ear.notifies(timeout=10))
        return time.perf_counter() - moment


if __name__ == "__main__":
    main()
