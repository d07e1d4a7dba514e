"""The example project, run as a newcomer runs it: from a copy of its folder, as processes of their own.

``demo`` is run twice for all tests here, and what it printed is judged. Money is compared as ``Decimal``, to the cent.
"""

from __future__ import annotations

import csv
import json
import re
import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import date
from decimal import Decimal
from pathlib import Path

import pytest

from tests.example import EXAMPLE, Project, empty_database

CLAIMS = EXAMPLE / "expenses.csv"
COLUMNS = 6  # of numbers in the table of outcomes: claims, four currencies, and all in EUR


@dataclass(frozen=True)
class Demo:
    """What ``demo`` printed, the first time and the second."""

    project: Project
    first: str
    second: str


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Project]:
    folder = tmp_path_factory.mktemp("copy")
    with empty_database(folder, "example") as url:
        yield Project.copied(folder / "example_project", url)


@pytest.fixture(scope="module")
def demo(project: Project) -> Demo:
    return Demo(project, project.manage("demo"), project.manage("demo"))


def outcomes(printed: str) -> dict[str, list[Decimal]]:
    """Return the numbers of each row of the table of outcomes, by the row's name."""
    found = {}
    for line in printed.splitlines():
        words = line.replace(",", "").split()
        try:
            numbers = [Decimal(word) for word in words[-COLUMNS:]]
        except ArithmeticError:
            continue
        if len(words) > COLUMNS:
            found[" ".join(words[:-COLUMNS])] = numbers
    return found


def numbers(printed: str, *words: str) -> list[Decimal]:
    """Return the numbers in the one line of ``printed`` that has all these words."""
    [line] = [line for line in printed.splitlines() if all(word in line for word in words)]
    plain = line.replace(",", "").replace(";", " ").split()
    return [Decimal(word) for word in plain if word.replace(".", "").isdecimal()]


def test_every_row_of_the_file_is_accounted_for(demo: Demo) -> None:
    rows, started, known, refused = numbers(demo.first, "expenses.csv:")
    with CLAIMS.open(encoding="utf-8", newline="") as file:
        assert rows == len(list(csv.reader(file))) - 1
    assert rows == started + known + refused
    assert (known, refused) == (2, len(REFUSED))


def test_the_outcomes_add_up_in_claims_and_in_every_currency(demo: Demo) -> None:
    table = outcomes(demo.first)
    everything = table.pop("all")
    assert [sum(column) for column in zip(*table.values(), strict=True)] == everything
    assert everything[0] == numbers(demo.first, "expenses.csv:")[1]
    assert set(table) == {
        "paid",
        "rejected by policy",
        "rejected by manager",
        "rejected by finance",
        "rejected by deadline",
        "expired",
        "waiting for receipt",
        "waiting for manager",
        "waiting for finance",
    }


def test_the_ledger_holds_each_paid_claim_once_and_their_sum_to_the_cent(demo: Demo) -> None:
    claims, *_, eur = outcomes(demo.first)["paid"]
    assert numbers(demo.first, "payments, EUR") == [claims, eur, claims]
    ledger = demo.project.run_code("""
        from expenses.models import Payment
        for payment in Payment.objects.all():
            print(payment.claim, payment.amount_eur)
    """)
    payments = dict(line.split() for line in ledger.splitlines())
    assert len(payments) == len(ledger.splitlines()) == claims
    assert sum(map(Decimal, payments.values())) == eur


REFUSED = {
    33: 'the date "31.09.2026" cannot be read',
    47: 'the amount "-120.00" is not more than nothing',
    61: 'the amount "1,2O0.00" cannot be read',
    68: 'the currency "DKK" is none of EUR, USD, GBP, CHF',
    80: 'the employee "j.meyer" is unknown',
    98: "it has 6 cells instead of 9",
    113: 'the amount "" cannot be read',
    125: "it has no claim number",
    139: 'the category "gifts" is none of meals, entertainment, taxi, travel, hotel, equipment, training',
    151: 'the receipt "at home" is none of yes, no',
    172: 'the amount "1.234.56" cannot be read',
    187: 'the date "10/23/2026" cannot be read',
    194: "claim C-1089 was filed before with other contents",
    201: "it has 10 cells instead of 9",
}


def test_rows_that_are_no_claims_are_reported_with_line_and_reason_and_kept_as_they_were(demo: Demo) -> None:
    reported = [line.strip() for line in demo.first.splitlines() if line.startswith("  line ")]
    assert reported == [f"line {line}: {reason}" for line, reason in REFUSED.items()]
    kept = demo.project.run_code("""
        import json
        from expenses.models import RefusedRow
        print(json.dumps(list(RefusedRow.objects.values_list("line", "reason", "cells"))))
    """)
    with CLAIMS.open(encoding="utf-8", newline="") as file:
        rows = list(csv.reader(file))
    assert json.loads(kept) == [[line, reason, rows[line - 1]] for line, reason in REFUSED.items()]


def test_nobody_approves_their_own_claim(demo: Demo) -> None:
    assert "maria tries to approve C-1025 of maria: refused (excluded)" in demo.first
    answered_by = demo.project.run_code("""
        from django_finoflow.models import Decision
        for decision in Decision.objects.filter(wait__execution__requester__username="maria"):
            print(decision.user_name)
    """)
    assert answered_by.split() == ["jonas", "jonas", "jonas"]


def test_nobody_signs_twice_for_one_purchase_and_two_directors_sign_for_a_huge_one(demo: Demo) -> None:
    signed = demo.project.run_code("""
        from shop.outcomes import runs, signatures
        for run in runs().filter(workflow_id="purchase-approval"):
            print(run.key, run.status, *signatures(run))
    """)
    huge = {key for key, row in shop_file("purchases.csv").items() if Decimal(row["eur"]) > 10_000}
    by_key = {line.split()[0]: line.split()[1:] for line in signed.splitlines()}
    assert {key: by_key[key] for key in sorted(huge)} == {
        "P-10": ["waiting", "maria", "sofia", "helena"],
        "P-12": ["done", "maria", "sofia", "helena", "theo"],
        "P-14": ["error", "maria", "sofia"],
    }
    assert all(len(names) == len(set(names)) for _status, *names in by_key.values())
    refused = [line.strip() for line in demo.first.splitlines() if "sofia tries to answer" in line]
    assert sorted(refused) == [
        f'sofia tries to answer the gate "directors" of {key}: refused (excluded)' for key in sorted(huge)
    ]


def test_the_demo_notices_a_purchase_that_one_person_has_signed_twice(demo: Demo) -> None:
    wrong = demo.project.run_code("""
        from django.db import transaction
        from django_finoflow.models import Decision
        from shop import outcomes
        with transaction.atomic():
            Decision.objects.filter(wait__execution__key="P-12", user_name="theo").update(user_name="sofia")
            print(outcomes.disagreements())
            transaction.set_rollback(True)
    """)
    assert "P-12: bought by too few, or by one person twice" in wrong


def test_the_demo_answers_nothing_that_a_visitor_has_asked_for(demo: Demo) -> None:
    answered = demo.project.run_code("""
        from decimal import Decimal
        from django.contrib.auth.models import User
        from django.core.management import call_command
        from django_finoflow.models import Execution
        from shop import answers, workflows
        jonas = User.objects.get(username="jonas")
        keys = ["P-1", "P-123456"]
        for key in keys:
            wanted = workflows.Purchase(number=key, employee="jonas", item="a crane", eur=Decimal(12000))
            workflows.purchase_approval.start(wanted, key=key, requester=jonas)
        call_command("finoflow_worker", "--drain")
        print("answers:", answers.answer_all(print))
        for run in Execution.objects.filter(key__in=keys):
            print("open:", run.key, run.waits.open().count())
        Execution.objects.filter(key__in=keys).delete()
    """)
    assert "answers: 1\n" in answered
    assert "open: P-123456 1" in answered


def test_what_finance_has_filled_in_is_in_the_ledger(demo: Demo) -> None:
    booked = demo.project.run_code("""
        from expenses.models import Payment
        for payment in Payment.objects.all():
            print(payment.amount_eur, payment.cost_centre or "-", payment.booked_on is not None)
    """)
    lines = [line.split() for line in booked.splitlines()]
    assert {(Decimal(eur) > 500, centre, told) for eur, centre, told in lines} == {
        (True, "3000", "True"),
        (False, "-", "False"),
    }


def test_urgent_claims_are_reminded_of_and_escalated_once_and_the_deadline_rejects_what_is_left(demo: Demo) -> None:
    told = demo.project.run_code("""
        from django_finoflow.models import Wait
        from expenses.outcomes import notified_wrongly
        assert notified_wrongly() == []
        for gate in Wait.objects.gates().filter(name="manager").exclude(notices=0).order_by("execution__key"):
            made, run = gate.decisions.get(), gate.execution
            told = sorted(gate.events.values_list("kind", flat=True))
            print(run.key, *told, made.user_name or made.channel, run.result["outcome"])
    """)
    assert told.splitlines() == [
        "C-1034 escalated reminded timer rejected",
        "C-1073 escalated reminded timer rejected",
        "C-1119 escalated reminded helena paid",
        "C-1151 escalated reminded helena paid",
    ]
    assert "It was escalated: now it may be decided by members of directors, too." in demo.first


def test_a_claim_is_handed_over_and_stays_so_at_a_second_demo(demo: Demo) -> None:
    assert 'lukas claims C-1141 and hands it to sofia: "You know who went to Singapore."' in demo.first
    assert "lukas claims C-1141" not in demo.second
    assert "lukas handed it to sofia. You know who went to Singapore." in demo.second


def test_the_demo_ends_with_pages_and_people_that_exist(demo: Demo) -> None:
    pages = re.findall(r"^    (\w+) +http://127.0.0.1:8000(/\S+)", demo.first, re.MULTILINE)
    assert [name for name, _path in pages] == ["anna", "maria", "sofia", "helena", "theo", "admin"]
    [link] = re.findall(r"http://127.0.0.1:8000(/approvals/link/\S+)", demo.first)
    came = demo.project.run_code(
        """
        import sys
        from django.contrib.auth import authenticate
        from django.test import Client
        for name, path in zip(sys.argv[1::2], sys.argv[2::2]):
            client = Client(headers={"host": "127.0.0.1"})
            client.force_login(authenticate(username=name, password="demo"))
            page = client.get(path, follow=True)
            print(page.status_code, "delivery van" in page.content.decode())
        """,
        *(word for pair in [*pages, ("theo", link)] for word in pair),
    )
    assert came.splitlines() == ["200 False"] * 4 + ["200 True", "200 False", "200 True"]


def test_a_second_demo_starts_nothing_and_pays_nothing(demo: Demo) -> None:
    rows, _, _, refused = numbers(demo.first, "expenses.csv:")
    assert numbers(demo.second, "expenses.csv:") == [rows, 0, rows - refused, refused]
    assert numbers(demo.second, "payments, EUR")[-1] == 0
    assert numbers(demo.second, "lines in the shop's ledger")[-1] == 0
    assert outcomes(demo.second) == outcomes(demo.first)
    assert shop(demo.second) == shop(demo.first)


def test_no_run_of_the_example_is_stuck_and_none_fails_but_those_that_are_meant_to(demo: Demo) -> None:
    statuses = demo.project.run_code("""
        from django_finoflow.models import Execution
        for run in Execution.objects.all():
            print(run.workflow_id, run.status, run.rollback)
    """)
    assert set(statuses.splitlines()) == {
        "expense-approval done ",
        "expense-approval waiting ",
        "purchase-approval done ",
        "purchase-approval waiting ",
        "purchase-approval error completed",
        "customer-order done ",
        "customer-order error completed",
    }


def test_gates_are_left_open_for_the_admin(demo: Demo) -> None:
    claims, shops = outcomes(demo.first), shop(demo.first)
    for_managers, for_finance, for_directors = numbers(demo.first, "wait for a manager")
    assert for_directors == shops["purchases waiting for directors"][0] == 1
    assert for_managers == claims["waiting for manager"][0] + shops["purchases waiting for manager"][0]
    assert for_finance == claims["waiting for finance"][0] + shops["purchases waiting for finance"][0]
    assert min(claims["waiting for manager"][0], shops["purchases waiting for finance"][0]) > 0


def test_a_double_click_asks_for_one_purchase_and_what_cannot_be_one_is_told_in_the_page(demo: Demo) -> None:
    came = demo.project.run_code("""
        import re
        from django.contrib.auth.models import User
        from django.db import transaction
        from django.test import Client
        from shop.outcomes import runs
        client = Client(headers={"host": "127.0.0.1"})
        client.force_login(User.objects.get(username="anna"))
        with transaction.atomic():
            sent = {"number": "P-123456", "item": "a bus", "eur": "12000"}
            for change in ({}, {}, {"eur": "9"}, {"number": "P-123457", "eur": "0"}):
                page = client.post("/purchases/", {**sent, **change})
                print(page.status_code, *re.findall('errorlist.*?<li>(.*?)</li>', page.content.decode()))
            print(runs().filter(requester__username="anna", key__startswith="P-12345").count())
            transaction.set_rollback(True)
    """)
    assert came.splitlines() == [
        "302",
        "302",
        "200 This form was sent already, with something else in it. Open the page anew.",
        "200 Ensure this value is greater than or equal to 1.",
        "1",
    ]


# ── purchases and orders ──


def shop(printed: str) -> dict[str, tuple[int, Decimal]]:
    """Return how many purchases and orders came to each outcome, and their sum."""
    rows = re.findall(r"^((?:purchases|orders) \D+?) +(\d+) +([\d,.]+)$", printed, re.MULTILINE)
    return {name: (int(count), Decimal(eur.replace(",", ""))) for name, count, eur in rows}


def shop_file(name: str) -> dict[str, dict[str, str]]:
    """Return the rows of one of the shop's files by their number."""
    with (EXAMPLE / name).open(encoding="utf-8", newline="") as file:
        return {row["number"]: row for row in csv.DictReader(file)}


def test_every_purchase_and_order_is_accounted_for(demo: Demo) -> None:
    told = shop(demo.first)
    for things in ("purchases", "orders"):
        rows = shop_file(f"{things}.csv").values()
        ours = [line for name, line in told.items() if name.startswith(things)]
        assert sum(count for count, _eur in ours) == len(rows)
        assert sum(eur for _count, eur in ours) == sum(Decimal(row["eur"]) for row in rows)
    assert numbers(demo.first, "purchases started") == [14, 12]


def test_only_a_large_purchase_is_put_before_finance_and_a_small_one_passes_their_gate_without_a_stop(
    demo: Demo,
) -> None:
    gates = demo.project.run_code("""
        from django_finoflow.models import Wait
        for gate in Wait.objects.filter(name="finance", execution__workflow_id="purchase-approval"):
            signal = getattr(gate, "signal", None)
            came = "never" if signal is None else "early" if signal.received_at < gate.opened_at else "later"
            print(gate.execution.key, came, *gate.decisions.values_list("user_name", flat=True))
    """)
    asked = dict.fromkeys(("P-03", "P-05", "P-07", "P-10", "P-12", "P-14"), "later sofia") | {"P-13": "never"}
    small = {key for key, row in shop_file("purchases.csv").items() if Decimal(row["eur"]) <= 1000} - {"P-11"}
    assert dict(line.split(maxsplit=1) for line in gates.splitlines()) == {**asked, **dict.fromkeys(small, "early")}


LEDGER = """
from django_finoflow.models import Execution
from shop.models import Posting
for run in Execution.objects.filter(workflow_id__in=["purchase-approval", "customer-order"]):
    lines = [(line.account, str(line.amount)) for line in Posting.objects.filter(run_id=run.run_id)]
    undone = run.steps.exclude(compensation="").order_by("compensated_at").values_list("step_id", flat=True)
    print(run.key, run.status, ";".join(f"{account} {amount}" for account, amount in lines), *undone, sep="|")
"""


def test_c1_what_failed_is_undone_in_reverse_order_and_its_ledger_nets_to_zero(demo: Demo) -> None:
    files = {**shop_file("purchases.csv"), **shop_file("orders.csv")}
    failed = []
    for line in demo.project.run_code(LEDGER).splitlines():
        key, status, ledger, *undone = line.split("|")
        sums: dict[str, Decimal] = {}
        for account, amount in (entry.split() for entry in ledger.split(";")):
            sums[account] = sums.get(account, Decimal(0)) + Decimal(amount)
        eur = Decimal(files[key]["eur"])
        if status == "error":
            failed.append(key)
            assert set(sums.values()) == {0}
            assert undone == (["charge", "reserve"] if key.startswith("O") else ["set aside"])
        elif key.startswith("O"):
            assert sums == {"stock": -Decimal(files[key]["pieces"]), "cash": eur}
        else:
            assert sums == {"budget": -eur}
    assert sorted(failed) == ["O-03", "O-07", "O-10", "P-05", "P-08", "P-14"]
    told = [line.strip() for line in demo.first.splitlines() if re.match(r"  [OP]-", line)]
    assert sorted(line.split(":")[0] for line in told) == sorted(failed)
    assert "O-03: stock -2.00, cash +99.80, cash -99.80, stock +2.00 (no carrier goes to Iceland)" in told
    assert "Each was undone in reverse order, and adds up to nothing." in demo.first


def test_the_demo_notices_a_line_too_many_in_the_shops_ledger(demo: Demo) -> None:
    wrong = demo.project.run_code("""
        from django.db import transaction
        from shop import outcomes
        from shop.models import Posting
        with transaction.atomic():
            Posting.objects.create(key="x", run_id=outcomes.undone().last().run_id, account="cash", amount=1)
            print(outcomes.disagreements())
            transaction.set_rollback(True)
    """)
    assert "cash +1.00" in wrong
    assert "in the till" in wrong


def test_the_example_follows_what_the_system_checks_recommend(demo: Demo) -> None:
    demo.project.manage("check", "--fail-level", "WARNING")
    demo.project.manage("makemigrations", "--check", "--dry-run")


NEW_STEP = '    ctx.step("reserve", lambda: f"budget for {claim.category}")\n'

APPROVE_ONE = """
from django.contrib.auth.models import User
from django_finoflow import decide
from django_finoflow.models import Wait
gate = Wait.objects.gates().open().filter(name="manager", execution__workflow_id="expense-approval").first()
run_id = gate.execution.run_id
decide(run_id, "manager", user=User.objects.get(username="jonas"), approved=True, wait=gate)
print(run_id)
"""

SHOW_RUN = """
import sys
from django_finoflow import get_run
from expenses.models import Payment
run = get_run(sys.argv[1])
print(run.status, run.result["outcome"], Payment.objects.filter(run_id=run.run_id).count())
print(*(step.id for step in run.snapshot().steps))
"""


def test_a_step_added_after_a_parked_gate_is_run_when_the_approval_comes(demo: Demo, tmp_path: Path) -> None:
    deployed = Project(tmp_path / "example_project", demo.project.env)
    shutil.copytree(demo.project.folder, deployed.folder, ignore=shutil.ignore_patterns("__pycache__"))
    workflows = deployed.folder / "expenses" / "workflows.py"
    before_pay, pay = workflows.read_text().split("    # Atomic:")
    workflows.write_text(f"{before_pay}{NEW_STEP}    # Atomic:{pay}")

    run_id = deployed.run_code(APPROVE_ONE).strip()
    deployed.manage("finoflow_worker", "--drain")

    ended, steps = deployed.run_code(SHOW_RUN, run_id).splitlines()
    assert ended == "done paid 1"
    assert steps.split() == ["convert", "check", "manager", "reserve", "pay", "notify"]


@pytest.mark.parametrize(
    ("typed", "amount"),
    [
        ("7", "7.00"),
        ("12.5", "12.50"),
        ("12,50", "12.50"),
        ("1234.56", "1234.56"),
        ("1,234.56", "1234.56"),
        ("1.234,56", "1234.56"),
        ("1'234.56", "1234.56"),
        ("1 234,56", "1234.56"),
        ("1.234", "1234.00"),
        ("1,234,567", "1234567.00"),
    ],
)
def test_an_amount_is_one_value_however_it_is_typed(monkeypatch: pytest.MonkeyPatch, typed: str, amount: str) -> None:
    monkeypatch.syspath_prepend(EXAMPLE)
    from expenses.claims import parse

    claim = parse(["C-1", "14.09.2026", " Anna ", typed, "eur", "Meals", "No", "Café", ""])
    assert str(claim.amount) == amount
    assert (claim.spent_on, claim.employee, claim.currency) == (date(2026, 9, 14), "anna", "EUR")


@pytest.mark.parametrize("typed", ["", "0", "-5", "1.234.56", "1,23,456", "12,345.678", "1e3", "12 EUR", "NaN"])
def test_an_amount_that_leaves_doubt_is_refused(monkeypatch: pytest.MonkeyPatch, typed: str) -> None:
    monkeypatch.syspath_prepend(EXAMPLE)
    from expenses.claims import BadRow, parse

    with pytest.raises(BadRow, match=f'the amount "{typed}"'):
        parse(["C-1", "14.09.2026", "anna", typed, "EUR", "meals", "no", "Café", ""])
