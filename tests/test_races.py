"""Two processes want one thing at one moment (rules W1, S2, S5, A1, D11, D14): exactly one of them gets it."""

from __future__ import annotations

import json
import random
from collections import Counter
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from django.contrib.auth.models import User
from django.db import connection, transaction

from django_finoflow import clock, start
from django_finoflow.attempt import Abort
from django_finoflow.claiming import Claimer
from django_finoflow.driver import drive
from django_finoflow.models import Decision, Execution, Signal, Step, Wait
from tests.processes import Spawned, eventually
from tests.testapp.models import Entry

pytestmark = pytest.mark.django_db(transaction=True)

Spawn = Callable[..., Spawned]

#: What a racer process does: it acts on each run at that run's own moment, or, where that is 0, when all racers have
#: come to it; and prints what came of it.
RACER = """
    import json, os, random, sys, time
    from django_finoflow import FinoflowError, cancel, decide, signal, start
    from django_finoflow.claiming import Claimer

    flag, verb, me, moments = sys.argv[1], sys.argv[2], sys.argv[3], json.loads(sys.argv[4])
    place, places = int(sys.argv[5]), int(sys.argv[6])
    claimer = Claimer(me, [("script", 1)])

    def approve(run_id):
        from django.contrib.auth.models import User
        return decide(run_id, "ok", user=User.objects.get(username=me), approved=True).pk

    def start_and_cancel(run_id):
        start("script", [{"step": "only", "atomic": True, "seconds": 0.02}], run_id=run_id)
        time.sleep(moments[run_id])
        return cancel(run_id)

    acts = {
        "signal": lambda run_id: signal(run_id, "go", me).pk,
        "letter": lambda run_id: signal("mailbox", "letter", f"{me} {run_id}").pk,
        "approve": approve,
        "cancel": cancel,
        "claim": lambda run_id: [run.run_id for run in claimer.due(3)],
        "start with key": lambda run_id: start("script", [], key=run_id).created,
        "start and cancel": start_and_cancel,
    }
    def meet(number):
        open(f"{flag}-{number}-{place}", "w").close()
        while not all(os.path.exists(f"{flag}-{number}-{other}") for other in range(places)):
            time.sleep(0)
        time.sleep(random.uniform(0, 0.002))

    came = {}
    for number, (run_id, moment) in enumerate(moments.items()):
        if not moment:
            meet(number)
        elif verb != "start and cancel":
            time.sleep(max(0.0, moment - time.time()))
        try:
            came[run_id] = acts[verb](run_id)
        except FinoflowError as error:
            came[run_id] = type(error).__name__ + getattr(error, "code", "")
    print("came", json.dumps(came))
"""


@pytest.fixture
def race(spawn_code: Spawn, tmp_path: Path) -> Callable[..., list[dict[str, Any]]]:
    """Let racers, (verb, name) each, act on runs at given moments, or each run at once; return what came, by run."""

    def race(moments: list[str] | dict[str, float], *racers: tuple[str, str]) -> list[dict[str, Any]]:
        when = json.dumps(moments if isinstance(moments, dict) else dict.fromkeys(moments, 0))
        started = [
            spawn_code(RACER, str(tmp_path / "met"), verb, name, when, str(place), str(len(racers)))
            for place, (verb, name) in enumerate(racers)
        ]
        return [json.loads(racer.finish(90).rpartition("came ")[2]) for racer in started]

    return race


def begin(run_id: str, *orders: dict[str, Any], **options: Any) -> Execution:
    return start("script", list(orders), run_id=run_id, **options)


def work(workflow: str = "script") -> None:
    """Drive what is due, in this process."""
    while runs := Claimer("the test", [(workflow, 1)]).due():
        drive(runs[0], abort=Abort())


def parked(count: int, *orders: dict[str, Any]) -> list[str]:
    run_ids = [f"{number:03}" for number in range(count)]
    for run_id in run_ids:
        begin(run_id, *orders)
    work()
    return run_ids


def fewer(count: int) -> int:
    """On SQLite, where one writes at a time anyway, a quarter of the tries."""
    return count if connection.vendor == "postgresql" else count // 4


# -- W1 ----------------------------------------------------------------------------------------------------------------


def test_w1_many_processes_that_claim_at_once_never_get_the_same_run(race: Callable[..., Any]) -> None:
    run_ids = [f"{number:03}" for number in range(160)]
    for number, run_id in enumerate(run_ids):
        begin(run_id, queue=f"q{number % 3}", priority=number % 2)
    came = race([str(number) for number in range(60)], *[("claim", f"claimer {number}") for number in range(4)])
    taken = [run_id for one in came for claimed in one.values() for run_id in claimed]
    assert sorted(taken) == run_ids
    assert sum(any(one.values()) for one in came) >= 2  # else nothing was raced for
    assert set(Execution.objects.values_list("lease_epoch", "recoveries")) == {(1, 0)}


def test_w1_several_workers_drive_every_run_exactly_once(spawn: Spawn) -> None:
    for number in range(150):
        begin(f"{number:03}", {"step": "plain"}, {"step": "atomic", "atomic": True}, {"step": "last"})
    workers = [spawn("finoflow_worker", "--drain", "--concurrency", "4") for _ in range(3)]
    for worker in workers:
        worker.finish(90)
    assert Counter(Execution.objects.values_list("status", flat=True)) == {"done": 150}
    assert set(Counter(Entry.objects.values_list("run_id", "label")).values()) == {1}
    assert Entry.objects.count() == 450
    assert len(set(Entry.objects.values_list("amount", flat=True))) > 1
    assert set(Execution.objects.values_list("lease_epoch", "recoveries")) == {(2, 0)}  # one claim, one end


# -- Signals -----------------------------------------------------------------------------------------------------------


def test_s5_of_two_signals_at_once_for_one_wait_one_is_accepted_and_one_refused(race: Callable[..., Any]) -> None:
    run_ids = parked(fewer(80), {"wait": "go"})
    ann, ben = race(run_ids, ("signal", "ann"), ("signal", "ben"))
    for run_id in run_ids:
        winner = "ann" if isinstance(ann[run_id], int) else "ben"
        refused = ben if winner == "ann" else ann
        assert refused[run_id] == "NotWaiting"
        assert list(Signal.objects.filter(execution__run_id=run_id).values_list("payload", flat=True)) == [winner]
    work()
    assert Counter(Execution.objects.values_list("status", flat=True)) == {"done": len(run_ids)}
    assert all(run.result == [run.signals.get().payload] for run in Execution.objects.all())


def test_s2_a_signal_racing_a_deadline_has_always_exactly_one_outcome(race: Callable[..., Any], spawn: Spawn) -> None:
    seed = random.SystemRandom().randrange(10**6)
    print(f"seed {seed}")
    dice, count = random.Random(seed), fewer(200)
    run_ids = parked(count, {"wait": "go", "timeout": "1h"})
    for _ in range(2):
        spawn("finoflow_worker", "--poll-interval", "0.02").wait_for_output("worker-started")
    first = clock.now() + timedelta(seconds=4)  # by then the racer is ready
    deadlines = {run_id: first + timedelta(seconds=0.015 * number) for number, run_id in enumerate(run_ids)}
    with transaction.atomic():
        for run_id, deadline in deadlines.items():
            Wait.objects.filter(execution__run_id=run_id).update(due_at=deadline)
            Execution.objects.filter(run_id=run_id).update(due_at=deadline)
    late = {run_id: dice.uniform(-0.01, 0.04 if dice.random() < 0.7 else 0.3) for run_id in deadlines}
    moments = {run_id: deadline.timestamp() + late[run_id] for run_id, deadline in deadlines.items()}
    (came,) = race(dict(sorted(moments.items(), key=lambda item: item[1])), ("signal", "ann"))
    eventually(lambda: Execution.objects.filter(status="done").count() == count, 30)
    outcomes: Counter[str] = Counter()
    for run in Execution.objects.prefetch_related("signals", "waits"):
        accepted = isinstance(came[run.run_id], int)
        expected = ("signalled", 1, ["ann"]) if accepted else ("timed-out", 0, ["timed out"])
        (wait,) = run.waits.all()
        assert (wait.outcome, len(run.signals.all()), run.result) == expected
        assert accepted or came[run.run_id] in ("NotWaiting", "RunNotLive")
        outcomes[wait.outcome] += 1
    print(outcomes)
    assert min(outcomes["signalled"], outcomes["timed-out"]) > 0


def test_s5_letters_from_two_processes_are_all_received_each_senders_in_order(
    race: Callable[..., Any], spawn: Spawn
) -> None:
    start("mailbox", 60, run_id="mailbox")
    worker = spawn("finoflow_worker", "--poll-interval", "0.02")
    worker.wait_for_output("worker-started")
    numbers = [f"{number:02}" for number in range(30)]
    race(numbers, ("letter", "ann"), ("letter", "ben"))
    eventually(lambda: Execution.objects.get().status == "done", 30)
    letters = Execution.objects.get().result
    for sender in ("ann", "ben"):
        assert [letter for letter in letters if letter.startswith(sender)] == [
            f"{sender} {number}" for number in numbers
        ]
    assert sorted(Signal.objects.values_list("sequence", flat=True)) == list(range(60))
    worker.terminate()
    worker.finish()


# -- Decisions ---------------------------------------------------------------------------------------------------------


def test_a1_of_two_deciders_at_once_one_decides_and_one_is_told_that_it_is_over(race: Callable[..., Any]) -> None:
    for name in ("ann", "ben"):
        User.objects.create_superuser(name)
    run_ids = parked(fewer(60), {"gate": "ok"})
    ann, ben = race(run_ids, ("approve", "ann"), ("approve", "ben"))
    for run_id in run_ids:
        won, refused = (ann, ben) if isinstance(ann[run_id], int) else (ben, ann)
        assert refused[run_id] == "DecisionRefusednot-open"
        decision = Decision.objects.get(wait__execution__run_id=run_id)
        assert decision.pk == won[run_id]
        assert Signal.objects.get(execution__run_id=run_id).payload["by"] == decision.user_name
    work()
    assert all(run.result == [run.signals.get().payload["by"]] for run in Execution.objects.all())


def test_d14_a_decision_racing_a_cancel_is_either_recorded_whole_or_refused(race: Callable[..., Any]) -> None:
    User.objects.create_superuser("ann")
    run_ids = parked(fewer(60), {"gate": "ok"})
    decided, cancelled = race(run_ids, ("approve", "ann"), ("cancel", ""))
    for run_id in run_ids:
        accepted = isinstance(decided[run_id], int)
        assert cancelled[run_id] is True
        assert accepted or decided[run_id] == "DecisionRefusednot-open"
        gate = Wait.objects.get(execution__run_id=run_id)
        assert gate.outcome == ("signalled" if accepted else "cancelled")
        assert gate.decisions.count() == Signal.objects.filter(execution__run_id=run_id).count() == int(accepted)
    assert Counter(Execution.objects.values_list("status", flat=True)) == {"cancelled": len(run_ids)}
    work()
    assert Counter(Execution.objects.values_list("status", flat=True)) == {"cancelled": len(run_ids)}


def test_d14_a_cancel_racing_a_steps_end_wins_or_loses_whole(race: Callable[..., Any], spawn: Spawn) -> None:
    seed = random.SystemRandom().randrange(10**6)
    print(f"seed {seed}")
    dice = random.Random(seed)
    worker = spawn("finoflow_worker", "--poll-interval", "0.01")
    worker.wait_for_output("worker-started")
    delays = {f"{number:03}": dice.uniform(0, 0.06) for number in range(fewer(80))}
    (cancelled,) = race(delays, ("start and cancel", "ann"))
    eventually(lambda: not Execution.objects.filter(status="running").exists())
    worker.terminate()
    worker.finish()
    for run in Execution.objects.all():
        assert run.status == ("cancelled" if cancelled[run.run_id] else "done")
        steps = Step.objects.filter(execution=run).count()
        assert Entry.objects.filter(run_id=run.run_id).count() == steps
        assert (steps, run.result is not None) == (1, True) if run.status == "done" else run.result is None
        assert (run.lease_until, run.due_at) == (None, None)


# -- Starts ------------------------------------------------------------------------------------------------------------


def test_d11_of_two_starts_with_one_key_at_once_one_makes_the_run(race: Callable[..., Any]) -> None:
    keys = [f"key {number}" for number in range(fewer(60))]
    came = race(keys, ("start with key", "ann"), ("start with key", "ben"))
    assert all(sorted([came[0][key], came[1][key]]) == [False, True] for key in keys)
    assert sorted(Execution.objects.values_list("key", flat=True)) == sorted(keys)


def test_races_are_run_at_about_the_same_moment(race: Callable[..., Any]) -> None:
    """Else the tests above prove nothing: each of two racers must win now and then."""
    run_ids = parked(40, {"wait": "go"})
    ann, _ = race(run_ids, ("signal", "ann"), ("signal", "ben"))
    assert 0 < sum(isinstance(what, int) for what in ann.values()) < 40
