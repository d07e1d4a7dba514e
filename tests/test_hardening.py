"""What a reviewer broke: hostile bodies, odd user models, changed schemas, arguments that no database takes."""

from __future__ import annotations

import threading
from dataclasses import make_dataclass
from types import SimpleNamespace

import pytest
from django.contrib.auth.models import User
from django.core.exceptions import ImproperlyConfigured
from django.core.management import CommandError, call_command
from django.db import connection, transaction

from django_finoflow import (
    Approval,
    CheckpointRefused,
    GateRejected,
    RunNotFound,
    WorkflowError,
    cancel,
    checks,
    decide,
    get_run,
    list_runs,
    registry,
    signal,
    start,
    workflow,
)
from django_finoflow.approval import Audience
from django_finoflow.exceptions import DecisionRefused, DefinitionError
from django_finoflow.options import Options
from django_finoflow.worker import Worker, check_pool
from tests.testapp.models import Entry

pytestmark = pytest.mark.django_db


def status(run_id):
    return get_run(run_id).status


@pytest.mark.django_db(transaction=True)
def test_w6_a_body_that_raises_keyboard_interrupt_ends_its_run_and_no_worker(make):
    @make
    def interrupted(ctx, input):
        raise KeyboardInterrupt

    @make
    def good(ctx, input):
        return ctx.step("good", lambda: 1)

    interrupted.start(run_id="bad", priority=5)
    good.start(run_id="good")
    Worker(Options(concurrency=1, drain=True)).work()
    assert (status("bad"), status("good")) == ("error", "done")


@pytest.mark.django_db(transaction=True)
def test_d5_a_step_that_leaves_a_transaction_open_fails_once_and_says_why(make):
    calls = []

    def leak():
        calls.append(1)
        transaction.atomic().__enter__()
        Entry.objects.create(run_id="r", label="lost")

    @make
    def flow(ctx, input):
        ctx.step("leak", leak, retry=5)

    with pytest.raises(WorkflowError, match="left a transaction open"):
        flow.run(run_id="r")
    assert (len(calls), status("r"), Entry.objects.count()) == (1, "error", 0)


@pytest.mark.django_db(transaction=True)
def test_d5_a_body_that_leaves_a_transaction_open_fails_and_is_never_taken_for_done(make):
    @make
    def flow(ctx, input):
        ctx.step("fine", lambda: 1)
        transaction.atomic().__enter__()

    with pytest.raises(WorkflowError, match="left a transaction open"):
        flow.run(run_id="r")
    assert status("r") == "error"


def test_t8_several_processes_are_refused_inside_a_test_case():
    with pytest.raises(CommandError, match="TestCase"):
        call_command("finoflow_worker", "--drain", "--processes", "2")


@pytest.mark.parametrize(("pool", "refused"), [(True, True), ({"max_size": 6}, True), ({"max_size": 7}, False)])
def test_w8_a_worker_refuses_a_connection_pool_that_would_cost_it_its_leases(monkeypatch, pool, refused):
    monkeypatch.setitem(connection.settings_dict, "OPTIONS", {"pool": pool})
    if refused:
        with pytest.raises(ImproperlyConfigured, match="needs 7"):
            check_pool(4)
    else:
        check_pool(4)


def test_a2_users_that_are_looked_up_and_not_found_do_not_open_a_gate_to_others(make):
    @make
    def flow(ctx, input):
        ctx.wait_for_approval("ok", permission="auth.add_user", users=lambda ctx: [])

    with pytest.raises(WorkflowError) as caught:
        flow.run(run_id="r")
    assert isinstance(caught.value.__cause__, DefinitionError)


def test_a_gate_that_fails_on_a_rejection_takes_a_bare_false_for_one(make):
    @make
    def flow(ctx, input):
        ctx.wait_for_approval("ok", on_reject="fail")
        return "PAID"

    flow.run(run_id="r")
    signal("r", "ok", False)
    with pytest.raises(WorkflowError) as caught:
        flow.resume("r")
    assert isinstance(caught.value.__cause__, GateRejected)


def test_a2_a_user_model_without_groups_and_superusers_can_be_asked():
    user = SimpleNamespace(pk=7, is_active=True, has_perm=lambda name: name == "finoflow.decide_wait")
    user.get_username = lambda: 1001
    assert Audience().admits(user)
    assert Audience(users=("1001",)).admits(user)
    assert not Audience(groups=("finance",)).admits(user)


def test_d10_a_run_whose_input_its_schema_refuses_since_a_deployment_is_stuck_and_can_be_healed():
    def deploy(*fields):
        registry.unregister("hardening")
        claim = make_dataclass("Claim", fields)
        return workflow(id="hardening", input_schema=claim)(lambda ctx, claim: ctx.wait_for_signal("go"))

    try:
        deploy(("amount", int)).run({"amount": 3}, run_id="r")
        signal("r", "go", "gone")
        assert deploy(("amount", int), ("currency", str)).resume("r").status == "stuck"
        assert get_run("r").stuck_reason == "replay-mismatch"
        assert "currency" in get_run("r").error["message"]
        assert deploy(("amount", int)).resume("r").result == "gone"
    finally:
        registry.unregister("hardening")


@pytest.mark.django_db(transaction=True)
def test_d14_an_atomic_step_cannot_cancel_its_own_run_and_take_that_back(make):
    @make
    def flow(ctx, input):
        ctx.step("cancel", lambda: cancel(ctx.run_id), atomic=True)

    with pytest.raises(WorkflowError) as caught:
        flow.run(run_id="r")
    assert isinstance(caught.value.__cause__, CheckpointRefused)
    assert status("r") == "error"


def test_d8_state_that_a_foreign_thread_changes_is_refused_and_not_lost(make):
    refused = []

    def change(ctx):
        try:
            ctx.state.set("k", 1)
        except CheckpointRefused as error:
            refused.append(error)

    @make
    def flow(ctx, input):
        thread = threading.Thread(target=change, args=(ctx,))
        thread.start()
        thread.join()

    flow.run(run_id="r")
    assert len(refused) == 1


@pytest.mark.parametrize("run_id", ["a\0b", "\ud800", "", "x" * 300])
def test_an_id_that_no_run_can_have_is_simply_not_found(run_id):
    assert get_run(run_id) is None
    with pytest.raises(RunNotFound):
        signal(run_id, "go")
    with pytest.raises(RunNotFound):
        cancel(run_id)
    with pytest.raises(RunNotFound):
        decide(run_id, "go", user=User(username="ann"), approved=True)


def test_other_arguments_that_no_database_takes_are_refused_by_name(make):
    @make
    def flow(ctx, input):
        ctx.wait_for_signal("go")

    flow.run(run_id="r")
    with pytest.raises(DefinitionError, match="sender"):
        signal("r", "go", sender="x" * 300)
    with pytest.raises(DecisionRefused) as caught:
        decide("r", "a\0", user=User(username="ann"), approved=True)
    assert caught.value.code == "not-a-gate"
    with pytest.raises(ValueError, match="offset"):
        list_runs(offset=10**30)
    assert list_runs("a\0") == []


def test_start_takes_the_workflow_by_the_name_of_its_argument(make):
    @make
    def flow(ctx, input):
        return input

    assert start(workflow_id=flow.id, input=1).input == 1


def test_approval_refuses_an_exclusion_that_is_no_bool():
    with pytest.raises(DefinitionError, match="exclude_requester"):
        Approval(exclude_requester="no")


def test_a_project_without_time_zones_is_told_so(settings):
    settings.USE_TZ = False
    assert [message.id for message in checks.check_time_zones(None)] == ["finoflow.E003"]
