"""What hostile staff and requesters, careless developers and unlucky operators do to gates, and what comes of it."""

from __future__ import annotations

import asyncio
import io
import json
import os
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from django import forms
from django.contrib.auth.models import AnonymousUser, Group, Permission, User
from django.core.management import call_command
from django.db import connection, transaction
from django.db.migrations.executor import MigrationExecutor
from django.test import Client
from django.urls import reverse
from freezegun import freeze_time
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from django_finoflow import (
    Approval,
    Candidates,
    DecisionRefused,
    DefinitionError,
    WorkflowError,
    approval_link,
    cancel,
    claim_gate,
    decide,
    delegate_gate,
    mails,
    maintenance,
    retry_run,
    signal,
)
from django_finoflow import decisions as telling
from django_finoflow.audience import Audience
from django_finoflow.maintenance import give_notices
from django_finoflow.models import Candidate, Decision, Execution, GateEvent, Wait
from django_finoflow.recipients import who_can_answer
from tests.admin_site import GATES, ask, browser_of, button, detail, run_of
from tests.admin_site import person as staff
from tests.gates import DECIDE, MODELS, at_once, gate_of, person, refused
from tests.inbox_site import DECIDED, INBOX, answer, at, member, page_of, text_of
from tests.making import Workshop, row
from tests.processes import Spawned

pytestmark = pytest.mark.django_db

START = datetime(2030, 3, 31, 0, 30, tzinfo=UTC)  # half an hour before Berlin's clocks go forward
NEWEST = "0004_index_gates"


@pytest.fixture
def boss(db: None) -> User:
    """Somebody who decides gates that name nobody else."""
    return person("boss", DECIDE)


# ── who is nobody ──


@pytest.mark.parametrize("superuser", [False, True])
@pytest.mark.parametrize("kind", ["never saved", "deleted", "visitor"])
def test_a2_who_has_no_account_decides_claims_and_overrides_nothing(boss: User, kind: str, superuser: bool) -> None:
    if kind == "visitor":
        nobody: Any = AnonymousUser()
    else:
        nobody = User(username="ghost", is_superuser=superuser)
        if kind == "deleted":
            nobody.save()
            nobody.delete()
    gate = ask(approval={"users": ["ghost", "boss"]})
    which = {"run_id": run_of(gate).run_id, "name": gate.name}
    assert refused(decide, **which, user=nobody, approved=True).code == "not-eligible"
    assert refused(decide, **which, user=nobody, approved=True, reason="x", override=True).code == "not-eligible"
    assert refused(claim_gate, **which, user=nobody).code == "not-eligible"
    assert refused(delegate_gate, **which, user=boss, to=nobody).code == "not-eligible"
    assert not Wait.objects.answerable_by(nobody).exists()


def test_a_link_is_made_for_a_user_with_an_account_only(db: None) -> None:
    gate = ask(approval={"anonymous_links": True})
    for nobody in (AnonymousUser(), User(username="ghost")):
        with pytest.raises(ValueError, match="account"):
            approval_link(gate, nobody)


def test_a11_an_account_is_its_key_and_not_its_name(boss: User, make: Workshop) -> None:
    @make
    def flow(ctx: Any, input: Any) -> Any:
        ctx.wait_for_approval("first")
        return ctx.wait_for_approval("second", exclude_deciders_of=["first"], exclude_requester=True)

    asker = person("asker", DECIDE)
    run_id = flow.run(requester=asker).run_id
    decide(run_id, "first", user=boss, approved=True)
    flow.resume(run_id)
    second = gate_of(run_id, "second")
    for user in (boss, asker):
        User.objects.filter(pk=user.pk).update(username=f"{user.username}-married")
        user.refresh_from_db()
        assert refused(decide, run_id, "second", user=user, approved=True).code == "excluded"
        assert second not in Wait.objects.inbox(user)
    namesake = person("boss", DECIDE)
    assert list(Wait.objects.inbox(namesake)) == [second]
    assert decide(run_id, "second", user=namesake, approved=True).user == namesake


def test_a8_a_person_cannot_decide_as_the_deadline(boss: User) -> None:
    gate = ask(approval={"quorum": 2})
    with pytest.raises(DefinitionError, match="deadline"):
        decide(run_of(gate).run_id, gate.name, user=boss, approved=True, channel="timer")
    assert (Wait.objects.get().is_open, Decision.objects.count()) == (True, 0)


@pytest.mark.parametrize("name", ["a\nb", "__a", " ", "x" * 201])
def test_a11_a_name_that_no_gate_can_have_is_not_one_whose_deciders_are_excluded(name: str) -> None:
    with pytest.raises(DefinitionError, match="exclude_deciders_of"):
        Approval(exclude_deciders_of=["first", name])


def test_a10_a_renamed_voter_has_no_second_vote_and_a_namesake_has_a_first(boss: User) -> None:
    gate = ask(approval={"quorum": 3})
    run_id = run_of(gate).run_id
    claim_gate(run_id, gate.name, user=boss)
    decide(run_id, gate.name, user=boss, approved=True)
    User.objects.filter(pk=boss.pk).update(username="married")
    boss.refresh_from_db()
    assert refused(decide, run_id, gate.name, user=boss, approved=True).code == "already-answered"
    assert list(Wait.objects.inbox(boss)) == []
    namesake = person("boss", DECIDE)
    assert list(Wait.objects.inbox(namesake)) == [gate]
    decide(run_id, gate.name, user=namesake, approved=True)
    assert telling.votes(gate_of(run_id)) == (2, 3)


def test_a8_a_deadline_decides_as_nobody_whoever_asked_and_excludes_nobody_from_the_next_gate(
    boss: User, make: Workshop
) -> None:
    @make
    def flow(ctx: Any, input: Any) -> Any:
        ctx.wait_for_approval("first", timeout="1h", on_timeout="approve", quorum=2, exclude_requester=True)
        return ctx.wait_for_approval("second", exclude_deciders_of=["first"])

    with freeze_time(START):
        run_id = flow.run(requester=boss).run_id
    with freeze_time(START + timedelta(hours=1)):
        flow.resume(run_id)
    made = Decision.objects.get()
    assert (made.user, made.user_name, made.channel, made.approved) == (None, "", "timer", True)
    assert list(Wait.objects.inbox(boss)) == [gate_of(run_id, "second")]
    decide(run_id, "second", user=boss, approved=True)


def test_a6_who_has_decided_a_gate_sees_it_afterwards_whatever_they_have_lost(boss: User) -> None:
    gate, client = ask(approval={"quorum": 2}), browser_of(boss)
    answer(client, gate)
    boss.user_permissions.clear()
    assert page_of(client, gate).status_code == 200
    assert "<form" not in text_of(page_of(client, gate))
    assert page_of(client, ask()).status_code == 404


def test_no_mail_goes_to_somebody_who_was_deactivated_since_a_gate_was_handed_to_them(
    boss: User, settings: Any, mailoutbox: list[Any]
) -> None:
    settings.FINOFLOW = {"MAIL": True, "BASE_URL": "https://example.com"}
    gate, heir = ask(), member("heir", "decide_wait")
    delegate_gate(run_of(gate).run_id, gate.name, user=boss, to=heir)
    mails.delegated(wait=gate.pk)
    User.objects.filter(pk=heir.pk).update(is_active=False)
    mails.delegated(wait=gate.pk)
    assert [message.to for message in mailoutbox] == [["heir@example.com"]]


# ── what is asked ──


@pytest.mark.parametrize("title", ["", "   ", "\r\n\t", "\u200b\u2060", "\u202e\u2003"])
def test_a_title_of_which_nothing_can_be_seen_is_the_gates_name(boss: User, title: str) -> None:
    gate = ask(gate="payment", approval={"title": title})
    assert gate.title == "payment"
    assert ">payment</a>" in text_of(browser_of(boss).get(INBOX))


@pytest.mark.parametrize("name", ["x" * 150, "%s %(who)s {0}", "\u202eevil\u200f", "<i>&amp;{{ 7 }}", "a\u2028b"])
def test_names_and_titles_of_every_kind_leave_the_pages_and_the_decision_whole(boss: User, name: str) -> None:
    User.objects.filter(pk=boss.pk).update(username=name)
    title = name * 80
    gate = ask(boss, approval={"title": title, "show": {name: title}, "users": [name], "quorum": 2})
    client = browser_of(User.objects.get(pk=boss.pk))
    claim_gate(run_of(gate).run_id, gate.name, user=User.objects.get(pk=boss.pk))
    pages = [client.get(INBOX), page_of(client, gate), answer(client, gate, reason=title[:4000]), client.get(DECIDED)]
    assert [page.status_code for page in pages] == [200] * 4
    assert not any("<i>&amp;{" in text_of(page) for page in pages)
    made = Decision.objects.get()
    assert (made.user_name, made.reason) == (name, title[:4000].strip())
    assert name in telling.history_of(Wait.objects.get())[-1].text


# ── forms ──


class Uploading(forms.Form):
    """Asks for a file."""

    receipt = forms.FileField(required=False)


class Needing(forms.Form):
    """Cannot be made without knowing somebody."""

    def __init__(self, user: Any, *args: Any, **kwargs: Any):
        super().__init__(*args, **kwargs)


class Obliging(forms.Form):
    """Takes more than it needs, in front."""

    note = forms.CharField()

    def __init__(self, user: Any = None, *args: Any, **kwargs: Any):
        super().__init__(*args, **kwargs)


class Hiding(forms.Form):
    """Has hidden fields."""

    stage = forms.CharField(widget=forms.HiddenInput, initial="two", label="The hidden stage")
    note = forms.CharField(required=False)


class Raising(forms.Form):
    """Is broken."""

    def clean(self) -> dict[str, Any]:
        raise LookupError("broken form")


@pytest.mark.parametrize(("form", "why"), [(Uploading, "receipt"), (Needing, "'user'")])
def test_a9_a_form_that_no_page_could_fill_in_is_refused_when_it_is_declared(form: type, why: str) -> None:
    with pytest.raises(DefinitionError, match=why):
        Approval(form=form)


def asking_with(make: Workshop, form: type[forms.Form]) -> Wait:
    """Return an open gate that is answered with ``form``."""

    @make(gates={"gate": Approval(form=form)})
    def flow(ctx: Any, input: Any) -> Any:
        return ctx.wait_for_approval("gate")

    return gate_of(flow.run().run_id)


def test_a9_a_form_is_filled_in_by_the_names_of_its_arguments(make: Workshop, boss: User) -> None:
    gate = asking_with(make, Obliging)
    assert "This field is required." in text_of(answer(browser_of(boss), gate))
    answer(browser_of(boss), gate, **{"answer-note": "x"})
    assert Decision.objects.get().data == {"note": "x"}


@pytest.mark.parametrize("where", ["inbox", "admin"])
def test_a9_hidden_fields_of_a_form_are_sent_and_not_shown(make: Workshop, where: str) -> None:
    gate, client = asking_with(make, Hiding), browser_of(staff("staff", "decide_wait"))
    address = at(gate) if where == "inbox" else button("approve", gate)
    page = text_of(client.get(address))
    assert page.count('type="hidden" name="answer-stage" value="two"') == 1
    assert "The hidden stage" not in page
    seen = {"seen": telling.token(gate), "do": "approve"}
    assert "The hidden stage" in text_of(client.post(address, seen))
    assert Wait.objects.get().is_open
    client.post(address, {**seen, "answer-stage": "two"})
    assert Decision.objects.get().data == {"note": "", "stage": "two"}


def test_a9_a_form_that_raises_changes_nothing(make: Workshop, boss: User) -> None:
    gate = asking_with(make, Raising)
    before = [list(model.objects.values()) for model in MODELS]
    with pytest.raises(LookupError):
        decide(run_of(gate).run_id, "gate", user=boss, approved=True, data={})
    with pytest.raises(LookupError):
        answer(browser_of(boss), gate)
    assert [list(model.objects.values()) for model in MODELS] == before


# ── runs that fail, give up, and are tried again ──


def racing(make: Workshop, broken: list[bool], paid: list[str]) -> Any:
    """Return a workflow that takes the first of two answers, gives the other gate up, pays, and then may fail."""

    @make
    async def flow(ctx: Any, input: Any) -> Any:
        async def ask(name: str) -> None:
            await ctx.wait_for_approval(name)
            await ctx.step(f"pay {name}", lambda: paid.append(name))

        asked = [asyncio.create_task(ask(name)) for name in ("one", "other")]
        _done, late = await asyncio.wait(asked, return_when=asyncio.FIRST_COMPLETED)
        for task in late:
            task.cancel()
        await asyncio.gather(*late, return_exceptions=True)
        await ctx.step("book", lambda: 1 / 0 if broken else None)
        return await ctx.wait_for_approval("last")

    return flow


def test_a3_a_gate_that_its_branch_gave_up_says_so_and_not_that_its_run_ended(make: Workshop, boss: User) -> None:
    flow = racing(make, [], [])
    run_id = flow.run().run_id
    decide(run_id, "one", user=boss, approved=True)
    flow.resume(run_id)
    gate = gate_of(run_id, "other")
    assert "given up" in telling.story(gate)
    assert "goes on" in str(refused(decide, run_id, "other", user=boss, approved=True))
    with freeze_time("2035-01-01"):
        cancel(run_id)
    assert "Its run ended on Jan. 1, 2035" in telling.story(gate_of(run_id, "other"))


def test_d16_a_gate_that_was_given_up_before_the_failure_is_not_asked_again_by_a_retry(
    make: Workshop, boss: User
) -> None:
    broken, paid = [True], list[str]()
    flow = racing(make, broken, paid)
    run_id = flow.run().run_id
    decide(run_id, "one", user=boss, approved=True)
    with pytest.raises(WorkflowError):
        flow.resume(run_id)
    retry_run(run_id)
    broken.clear()
    assert list(Wait.objects.inbox(boss)) == []
    assert refused(decide, run_id, "other", user=boss, approved=True).code == "not-open"
    flow.resume(run_id)
    decide(run_id, "last", user=boss, approved=True)
    assert flow.resume(run_id).status == "done"
    assert paid == ["one"]


def test_d16_a_gate_that_fell_with_the_failure_opens_again_with_votes_and_notices_and_without_claim(
    make: Workshop, boss: User
) -> None:
    broken, other = [True], person("other", DECIDE)
    told = {"remind": ["1h"], "escalate": ("2h", Candidates(users=["zed"]))}

    @make
    async def flow(ctx: Any, input: Any) -> Any:
        async def fail() -> None:
            await ctx.wait_for_signal("go")
            await ctx.step("fail", lambda: 1 / 0 if broken else None)

        async with asyncio.TaskGroup() as group:
            asked = group.create_task(ctx.wait_for_approval("gate", timeout="5h", quorum=2, **told))
            group.create_task(fail())
        return asked.result()["by"]

    with freeze_time(START, real_asyncio=True) as clock:
        run_id = flow.run().run_id
        decide(run_id, "gate", user=boss, approved=True)
        claim_gate(run_id, "gate", user=other)
        signal(run_id, "go")
        clock.tick(timedelta(minutes=10))
        with pytest.raises(WorkflowError):
            flow.resume(run_id)
        clock.tick(timedelta(hours=3))
        assert give_notices() == 0
        broken.clear()
        retry_run(run_id)
        gate = gate_of(run_id, "gate")
        assert (gate.is_open, gate.claimed_by, telling.votes(gate)) == (True, None, (1, 2))
        assert refused(decide, run_id, "gate", user=boss, approved=True).code == "already-answered"
        assert give_notices() == 1
        assert give_notices() == 0
        kinds = list(GateEvent.objects.order_by("pk").values_list("kind", flat=True))
        assert kinds == ["claimed", "escalated", "reminded"]
        decide(run_id, "gate", user=other, approved=True)
        assert flow.resume(run_id).result == "other"


def test_d16_a_gate_that_was_given_up_because_of_the_failure_is_asked_again_by_a_retry(
    make: Workshop, boss: User
) -> None:
    broken = [True]

    @make
    async def flow(ctx: Any, input: Any) -> Any:
        async with asyncio.TaskGroup() as group:
            asked = group.create_task(ctx.wait_for_approval("gate"))
            group.create_task(ctx.step("fail", lambda: 1 / 0 if broken else None))
        return asked.result()["approved"]

    with pytest.raises(WorkflowError):
        flow.run(run_id="falls")
    gate, run = gate_of("falls"), row("falls")
    assert gate.closed_at < run.finished_at
    retry_run("falls")
    broken.clear()
    decide("falls", "gate", user=boss, approved=True)
    assert flow.resume("falls").result is True


def test_a13_a_run_that_gets_stuck_at_the_last_moment_gets_no_notice(
    make: Workshop, monkeypatch: pytest.MonkeyPatch
) -> None:
    @make
    def flow(ctx: Any, input: Any) -> Any:
        return ctx.wait_for_approval("gate", remind=["1h"])

    with freeze_time(START):
        gate = gate_of(flow.run().run_id)
    give = maintenance._give

    def stuck_first(*place: int) -> bool:
        Execution.objects.update(status="stuck")
        return give(*place)

    monkeypatch.setattr(maintenance, "_give", stuck_first)
    with freeze_time(START + timedelta(hours=2)):
        assert give_notices() == 0
        assert not gate.events.exists()
        monkeypatch.undo()
        Execution.objects.update(status="waiting")
        assert give_notices() == 1


def test_a1_gates_of_one_name_in_branches_are_answered_by_their_pages_and_links_each_by_itself(
    make: Workshop, client: Client
) -> None:
    @make
    async def flow(ctx: Any, input: Any) -> Any:
        asked = [ctx.wait_for_approval("gate", title=f"Question {n}", anonymous_links=True) for n in range(3)]
        return [made["approved"] for made in await asyncio.gather(*asked)]

    user = member("desk", "decide_wait")
    run_id = flow.run().run_id
    first, second, third = row(run_id).waits.order_by("branch")
    assert refused(decide, run_id, "gate", user=user, approved=True).code == "ambiguous"
    answer(browser_of(user), second, "reject")
    address = client.get(approval_link(third, user))["Location"]
    assert "Question 2" in text_of(client.get(address))
    client.post(address, {"do": "approve", "seen": telling.token(third)})
    assert list(Wait.objects.inbox(user)) == [first]
    answer(browser_of(user), first)
    assert flow.resume(run_id).result == [True, False, True]


# ── rows from elsewhere ──


@pytest.mark.parametrize("format", ["json", "jsonl", "xml"])
def test_p5_gates_go_through_dumpdata_and_loaddata_whole(
    make: Workshop, boss: User, format: str, tmp_path: Any
) -> None:
    other = person("other", DECIDE)

    @make
    def flow(ctx: Any, input: Any) -> Any:
        ctx.wait_for_approval("first")
        ask = {
            "remind": ["1h"],
            "escalate": ("2h", Candidates(users=["zed"])),
            "exclude_deciders_of": ["zero", "first"],
        }
        return ctx.wait_for_approval("gate", timeout="5h", quorum=2, **ask)

    def rows() -> list[list[dict[str, Any]]]:
        return [list(model.objects.order_by("pk").values()) for model in MODELS]

    with freeze_time(START):
        run_id = flow.run().run_id
        decide(run_id, "first", user=boss, approved=True)
        flow.resume(run_id)
        delegate_gate(run_id, "gate", user=other, to=person("third", DECIDE), note="Yours.")
        decide(run_id, "gate", user=other, approved=True, data={"at": START})
        before = rows()
        path = str(tmp_path / f"gates.{format}")
        call_command("dumpdata", "finoflow", format=format, output=path, stdout=io.StringIO())
        Execution.objects.all().delete()
        call_command("loaddata", path, verbosity=0)
    after = rows()
    for table in (before, after):
        for line in (line for rows_of in table for line in rows_of if "excludes" in line):
            line["excludes"] = line["excludes"].strip()  # XML keeps no blanks around a text
    assert after == before
    assert list(Wait.objects.inbox(boss)) == []
    assert [gate.is_excluded for gate in Wait.objects.open().marked_for(boss)] == [True]  # type: ignore[attr-defined]
    with freeze_time(START + timedelta(hours=3)):
        assert give_notices() == 1
    assert gate_of(run_id, "gate").audience == '["",[],[],[["",[],["zed"]]]]'


@pytest.mark.django_db(transaction=True)
def test_gates_that_are_there_when_they_come_to_be_indexed_are_found_by_those_they_ask() -> None:
    def migrated(name: str) -> Any:
        executor = MigrationExecutor(connection)
        executor.migrate([("finoflow", name)])
        return executor.loader.project_state([("finoflow", name)]).apps

    wide = '["auth.add_user",["board"],["ann"],[["",[],["zed"]],["",[],[]]]]'
    texts = ['["",[],[]]', wide, '["",["desk"],[]]', '["",[],[]]']
    odd = [json.dumps(["", ["x" * 300], ["a\0b", "ann"]], separators=(",", ":")), ""]
    try:
        old, now = migrated("0002_approvals"), datetime.now(UTC)
        run = old.get_model("finoflow", "Execution").objects.create(run_id="old", created_at=now, updated_at=now)
        for index, text in enumerate([*texts, *odd]):
            old.get_model("finoflow", "Wait").objects.create(
                execution=run, index=index, kind="signal", name="gate", opened_at=now, audience=text, approval={"a": 1}
            )
    finally:
        migrated(NEWEST)
    for text in texts:
        found = Candidate.objects.filter(digest=Wait.objects.filter(audience=text)[0].audience_digest)
        rows = sorted(found.values_list("permission", "group_name", "user_name"))
        found.delete()
        again = Candidate.objects.filter(digest=Candidate.objects.index(Audience.loads(text)))
        assert rows == sorted(again.values_list("permission", "group_name", "user_name"))
    oddly = Candidate.objects.filter(digest=Wait.objects.get(audience=odd[0]).audience_digest)
    assert [candidate.user_name for candidate in oddly] == ["ann"]


@pytest.mark.django_db(transaction=True)
def test_a_gate_that_was_open_before_the_later_migrations_is_asked_decided_and_shown_as_ever() -> None:
    def migrated(name: str) -> Any:
        executor = MigrationExecutor(connection)
        executor.migrate([("finoflow", name)])
        return executor.loader.project_state([("finoflow", name)]).apps

    try:
        old = migrated("0001_initial")
        now = datetime.now(UTC)
        run = old.get_model("finoflow", "Execution").objects.create(
            run_id="old", workflow_id="gone", status="waiting", created_at=now, updated_at=now
        )
        snapshot = {"title": "Old?", "show": {"a": 1}, "exclude_requester": True, "require_reason": "reject"}
        old.get_model("finoflow", "Wait").objects.create(
            execution=run, index=0, kind="signal", name="gate", opened_at=now,
            approval={**snapshot, "on_reject": "continue"}, audience='["",[],[]]',
        )  # fmt: skip
    finally:
        migrated(NEWEST)
    user = staff("desk", "decide_wait", "view_wait")
    client, gate = browser_of(user), Wait.objects.get()
    assert list(Wait.objects.inbox(user)) == [gate]
    assert give_notices() == 0
    assert "Old?" in text_of(client.get(GATES))
    for address in (INBOX, at(gate), detail(gate), button("approve", gate), button("claim", gate)):
        assert client.get(address).status_code == 200
    claim_gate("old", "gate", user=user)
    answer(client, gate)
    assert (Decision.objects.get().approved, Wait.objects.get().outcome) == (True, "signalled")


def test_a_run_that_cannot_be_read_keeps_nobody_from_what_they_decided(boss: User) -> None:
    gate = ask()
    decide(run_of(gate).run_id, gate.name, user=boss, approved=True)
    with connection.cursor() as cursor:
        cursor.execute("UPDATE finoflow_execution SET input = %s, state = %s", ['{"$": "unheard of"}'] * 2)
    assert "approved" in text_of(browser_of(boss).get(DECIDED))


# ── other users, other projects ──


@pytest.mark.processes
@pytest.mark.parametrize("kind", ["Bare", "Simple", "Full"])
def test_a2_users_of_every_kind_decide_in_a_project_without_admin_and_messages(kind: str, tmp_path: Any) -> None:
    env = {**os.environ, "DJANGO_SETTINGS_MODULE": "tests.otherusers.settings", "OTHER_USERS": kind}
    told = json.loads(Spawned(["-m", "tests.otherusers.play"], env, tmp_path / "log").finish().splitlines()[-1])
    assert told == {
        "mails": [["ann@example.com"]],
        "inboxes": [1, 0],
        "refused": ["excluded", "not-eligible"],
        "pages": [200, 200, 200],
        "decided": ["ann@example.com"],
        "second": ["not-eligible", 0],
    }


# ── the admin, forged ──


def test_a6_forged_actions_keys_and_parameters_reach_nothing() -> None:
    client = browser_of(staff("desk", "decide_wait"))
    mine, hidden = ask(approval={"title": "Mine?"}), ask(approval={"title": "Hidden?", "groups": ["board"]})
    before = [list(model.objects.values()) for model in MODELS]
    keys = [str(mine.pk), str(hidden.pk)]
    for action in ("delete_selected", "finoflow_approve_many", "finoflow_override", "decide_many", "__class__"):
        client.post(GATES, {"action": action, "index": "0", "select_across": "1", "_selected_action": keys})
    for name in ("approve", "reject", "claim", "release", "delegate"):
        sent = {"reason": "x", "seen": telling.token(hidden), "override": "on", "to": "desk"}
        assert client.post(button(name, hidden), sent).status_code == 404
    for query in ("?_to_field=audience", "?execution__requester__password__startswith=a", "?decisions__reason=x"):
        assert client.get(GATES + query).status_code == 400
    for query in ("?_popup=1", "?all=", "?audience=%5B%22%22%2C%5B%22board%22%5D%2C%5B%5D%5D", "?mine=yes", "?p=-1"):
        assert "Hidden?" not in text_of(client.get(GATES + query))
    for chosen in ("9" * 30, f"{hidden.pk}:{telling.token(hidden)}", "-1:x", "x", f"{mine.pk}:{telling.token(hidden)}"):
        sent = {"chosen": chosen, "reason": "x"}
        assert client.post(reverse("admin:finoflow_approve_many"), sent).status_code == 302
    assert client.get(detail(mine) + "?_to_field=audience").status_code == 400
    assert client.get("/approvals/gates/99999999999999999999999999/").status_code == 404
    assert [list(model.objects.values()) for model in MODELS] == before


# ── the inbox shows exactly what decide() would accept ──

NAMES, BOARDS = ("ann", "ben", "cat"), ("board", "desk")
NAMED = {
    "permission": st.sampled_from([None, DECIDE, "auth.add_user"]),
    "groups": st.sets(st.sampled_from(BOARDS)).map(sorted),
    "users": st.sets(st.sampled_from(NAMES), max_size=2).map(sorted),
}
QUESTIONS = st.fixed_dictionaries(
    {
        **NAMED,
        "exclude_requester": st.booleans(),
        "exclude_deciders_of": st.sets(st.sampled_from(["zero", "first"])).map(sorted),
        "quorum": st.integers(1, 2),
        "escalated": st.none() | st.fixed_dictionaries(NAMED),
        "decided_by": st.sampled_from([None, *NAMES]),
        "first_by": st.sampled_from([None, *NAMES]),
        "late": st.booleans(),
        "status": st.sampled_from(["waiting", "running", "stuck"]),
    }
)
PEOPLE = st.fixed_dictionaries(
    {
        "permissions": st.sets(st.sampled_from(["decide_wait", "add_user"])),
        "groups": st.sets(st.sampled_from(BOARDS)),
        "is_superuser": st.sampled_from([False, False, True]),
        "is_active": st.sampled_from([True, True, False]),
    }
)


def people(drawn: list[dict[str, Any]]) -> list[User]:
    """Make the three users as they were drawn; everybody but the superusers starts anew."""
    found = []
    for name, facts in zip(NAMES, drawn, strict=True):
        flags = {flag: facts[flag] for flag in ("is_superuser", "is_active")}
        user = User.objects.update_or_create(username=name, defaults=flags)[0]
        user.user_permissions.set(Permission.objects.filter(codename__in=facts["permissions"]))
        user.groups.set([Group.objects.get_or_create(name=group)[0] for group in facts["groups"]])
        found.append(User.objects.get(pk=user.pk))
    return found


def posed(question: dict[str, Any], users: list[User]) -> Wait:
    """Put a gate there as it was drawn, with a first one before it, and votes."""
    by_name = {user.username: user for user in users}
    extra = {name: question.pop(name) for name in ("escalated", "decided_by", "first_by", "late", "status")}
    asked = Approval(**question).ask("gate", _Asking())
    if extra["escalated"]:
        wide = asked.audience.widened(Candidates(**extra["escalated"]).found("gate", _Asking()))
        asked = asked._replace(audience=wide)
    now = datetime.now(UTC)
    run = Execution.objects.create(
        run_id=f"run-{Execution.objects.count()}", workflow_id="drawn", created_at=now, updated_at=now,
        status=extra["status"], requester=by_name["ann"],
    )  # fmt: skip
    due_at = now - timedelta(hours=1) if extra["late"] else None
    place = {"execution": run, "kind": "signal", "opened_at": now}
    first = Wait.objects.create(**place, index=0, name="first", outcome="signalled", approval={}, audience="[]")
    gate = Wait.objects.create(**place, index=1, name="gate", due_at=due_at, **asked.row(now, None))
    gate.audience_digest = Candidate.objects.index(asked.audience)
    gate.save()
    for wait, by in ((first, extra["first_by"]), (gate, extra["decided_by"])):
        if by:
            Decision.objects.create(wait=wait, user=by_name[by], user_name=by, approved=True, decided_at=now)
    return gate


class _Asking:
    """What ``Approval.ask`` needs of a context."""

    has_requester, run_id, stored_input = True, "drawn", None


@settings(max_examples=60, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck))
@given(drawn=st.lists(PEOPLE, min_size=3, max_size=3), questions=st.lists(QUESTIONS, min_size=1, max_size=4))
def test_a2_an_inbox_has_exactly_what_decide_accepts_whoever_looks_at_whichever_gate(
    drawn: list[dict[str, Any]], questions: list[dict[str, Any]]
) -> None:
    Execution.objects.all().delete()
    users = people(drawn)
    gates = [posed(dict(question), users) for question in questions]
    for user in users:
        accepted = {gate for gate in gates if accepts(gate, user)}
        assert set(Wait.objects.inbox(user)) == accepted
        assert {gate for gate in gates if telling.why_not(gate, user) is None} == accepted
        marked = Wait.objects.filter(pk__in=[gate.pk for gate in gates]).marked_for(user)
        assert {gate for gate in marked if telling.why_not(gate, user) is None} == accepted
        asked = set(Wait.objects.filter(name="gate").answerable_by(user))
        assert asked == {gate for gate in gates if telling.is_asked(gate, user)}
        if not user.is_superuser:
            assert accepted == {gate for gate in gates if user in who_can_answer(gate)}


def accepts(gate: Wait, user: User) -> bool:
    """Whether ``decide`` takes an answer, which is not kept."""
    try:
        with transaction.atomic():
            decide(gate.execution.run_id, "gate", user=user, approved=True, wait=gate)
            transaction.set_rollback(True)
    except DecisionRefused:
        return False
    return True


# ── at the same moment ──


@pytest.mark.django_db(transaction=True)
@pytest.mark.only_postgresql(reason="SQLite has one writer")
@pytest.mark.parametrize("other", ["signal", "cancel", "notices"])
def test_a1_a_decision_and_whatever_comes_at_the_same_moment_leave_one_outcome(make: Workshop, other: str) -> None:
    @make
    def flow(ctx: Any, input: Any) -> Any:
        return ctx.wait_for_approval("gate", escalate=("0s", Candidates(users=["zed"])))

    user = person("boss", is_superuser=True)
    for _ in range(5):
        run_id = flow.run().run_id
        acts = {
            "signal": lambda run_id=run_id: signal(run_id, "gate", "from code"),
            "cancel": lambda run_id=run_id: cancel(run_id),
            "notices": give_notices,
        }
        came = at_once(lambda run_id=run_id: decide(run_id, "gate", user=user, approved=True), acts[other])
        gate = gate_of(run_id)
        decided = Decision.objects.filter(wait=gate).count()
        assert decided == (not isinstance(came[0], Exception))
        if other == "signal":
            assert (gate.outcome, row(run_id).signals.count()) == ("signalled", 1)
            assert decided == isinstance(came[1], Exception)
        elif other == "cancel":
            assert gate.outcome == ("signalled" if decided else "cancelled")
            assert row(run_id).status == "cancelled"
        else:
            assert (decided, gate.outcome) == (1, "signalled")
            assert gate.events.count() <= 1


@pytest.mark.django_db
def test_code_from_before_the_new_columns_can_still_insert_waits_and_decisions() -> None:
    """In a rolling deployment the migration runs first, and old workers go on for a while."""
    new = {"override", "excludes", "claimed_by_name", "notices", "audience_digest"}
    fields = [field for model in (Wait, Decision) for field in model._meta.concrete_fields if field.name in new]
    assert {field.name for field in fields} == new
    assert [field.name for field in fields if not field.has_db_default()] == []
