"""The documentation says what is true: its examples run, its lists are complete, and the tests it names exist.

Python blocks of a page are run in order, in one namespace. A comment ``<!-- not run by the tests: why -->`` before a
block leaves it out (it must still compile).
"""

from __future__ import annotations

import ast
import gc
import inspect
import io
import os
import re
import subprocess
import sys
import unittest
from argparse import ArgumentParser
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from django.contrib.auth.models import User
from django.db.models import QuerySet
from django.dispatch import Signal

import django_finoflow
from django_finoflow import (
    Approval,
    Candidates,
    Retry,
    Workflow,
    WorkflowError,
    cancel,
    conf,
    decide,
    delegate_gate,
    events,
    exceptions,
    registry,
)
from django_finoflow.compensation import UndoContext
from django_finoflow.context import Context
from django_finoflow.graph import HandlerContext
from django_finoflow.maintenance import give_notices
from django_finoflow.management.commands.finoflow_worker import Command
from tests import databases
from tests.processes import ROOT

DOCS = ROOT / "docs"
PAGES = [ROOT / "README.md", *sorted(DOCS.glob("*.md"))]
SHAPES = [path.name for path in sorted(DOCS.glob("builder*.md"))]
EXAMPLES = ["README.md", "concepts.md", "workflows.md", "approvals.md", "payloads.md", "worker.md", "settings.md"]
EXAMPLES += ["inbox.md", "rollback.md", "async-workflows.md", "async.md", *SHAPES]

BLOCK = re.compile(
    r"(?P<skip><!-- not run[^>]*-->\n)?^```(?:\{code-block\} )?(?P<language>\w+)\n"
    r"(?::caption: (?P<caption>[^\n]*)\n\n)?(?P<text>.*?)^```$",
    re.MULTILINE | re.DOTALL,
)

#: Of the public names, those of exceptions: most have no signature of their own.
ERRORS = {name for name in django_finoflow.__all__ if name in vars(exceptions)}
#: The pages that tell of system checks.
CHECKS = ("worker.md", "settings.md", "builder.md", "approvals.md")
#: Names of the context that are the engine's, or the builder's.
INTERNAL = {"leftover", "perform", "play", "perform_together", "results", "signals"}

once = pytest.mark.only_sqlite(reason="reads files and needs no server; once is enough")


@dataclass(frozen=True)
class Block:
    """A fenced block of a page, and the line that it begins at."""

    language: str
    text: str
    caption: str
    skipped: bool
    line: int


def page(name: str) -> str:
    """Return a page's text, by its file's name."""
    [path] = [path for path in PAGES if path.name == name]
    return path.read_text(encoding="utf-8")


def blocks(name: str, language: str) -> list[Block]:
    """Return a page's blocks in one language."""
    text = page(name)
    found = [
        Block(m["language"], m["text"], m["caption"] or "", bool(m["skip"]), text.count("\n", 0, m.start("text")) + 1)
        for m in BLOCK.finditer(text)
    ]
    return [block for block in found if block.language == language]


def table(name: str, heading: str) -> list[list[str]]:
    """Return the cells of the table whose heading line begins with ``heading``, without backticks."""
    lines = page(name).splitlines()
    [first] = [at for at, line in enumerate(lines) if line.replace("`", "").startswith(f"| {heading} |")]
    rows = []
    for line in lines[first + 2 :]:
        if not line.startswith("|"):
            break
        rows.append([cell.strip().replace("`", "") for cell in line.strip("|").split("|")])
    return rows


# ── examples ──


@once
@pytest.mark.parametrize("name", [path.name for path in PAGES])
def test_every_python_example_compiles(name: str) -> None:
    for block in blocks(name, "python"):
        compile("\n" * block.line + block.text, name, "exec")


@once
@pytest.mark.parametrize("name", [path.name for path in PAGES])
def test_every_call_in_an_example_fits_the_signature_of_what_it_calls(name: str) -> None:
    called = {f"ctx.{name}": value for name, value in inspect.getmembers(Context, inspect.isfunction)}
    called |= {name: getattr(django_finoflow, name) for name in django_finoflow.__all__ if name not in ERRORS}
    for block in blocks(name, "python"):
        for call in [node for node in ast.walk(ast.parse(block.text)) if isinstance(node, ast.Call)]:
            if (spelled := ast.unparse(call.func)) in called:
                itself = [None] if spelled.startswith("ctx.") else []
                keywords = {word.arg: None for word in call.keywords if word.arg}
                inspect.signature(called[spelled]).bind(*itself, *call.args, **keywords)
                if spelled == "ctx.wait_for_approval":
                    assert keywords.keys() - {"timeout"} <= set(inspect.signature(Approval).parameters)


@pytest.fixture
def namespace(monkeypatch: pytest.MonkeyPatch) -> Iterator[dict[str, Any]]:
    """What the blocks of a page share; the workflows that they define are forgotten at the end."""
    monkeypatch.setenv("DB_PASSWORD", "secret")
    module = ModuleType("an_example")
    module.__dict__["os"] = os  # as any settings.py has it
    monkeypatch.setitem(sys.modules, module.__name__, module)
    before = registry.known()
    yield vars(module)
    for workflow_id, version in set(registry.known()) - set(before):
        registry.unregister(workflow_id, version)


def run_blocks(name: str, namespace: dict[str, Any]) -> None:
    for block in blocks(name, "python"):
        if not block.skipped:
            exec(compile("\n" * block.line + block.text, name, "exec", dont_inherit=True), namespace)


@pytest.mark.django_db
@pytest.mark.parametrize("name", EXAMPLES)
def test_the_python_examples_run(name: str, namespace: dict[str, Any]) -> None:
    run_blocks(name, namespace)
    for value in list(namespace.values()):
        if isinstance(value, QuerySet):
            value.count()  # the database takes the question


def test_the_tests_on_the_testing_page_pass(
    namespace: dict[str, Any], django_db_setup: None, django_db_blocker: Any
) -> None:
    run_blocks("testing.md", namespace)
    cases = [value for value in namespace.values() if isinstance(value, type) and value.__module__ == "an_example"]
    suite = unittest.TestSuite(map(unittest.defaultTestLoader.loadTestsFromTestCase, cases))
    with django_db_blocker.unblock():
        result = unittest.TextTestRunner(stream=io.StringIO()).run(suite)
    assert result.wasSuccessful(), result.failures + result.errors
    assert result.testsRun == 3
    gc.collect()  # what they left open is told here, not in the next test


@once
def test_every_page_with_python_is_run_here() -> None:
    with_python = {path.name for path in PAGES if blocks(path.name, "python")}
    assert with_python == {*EXAMPLES, "quickstart.md", "testing.md"}


# ── the quickstart, as typed ──


class Reader:
    """Somebody who types what a page says, in a folder of their own."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        clean = {name: value for name, value in os.environ.items() if not name.startswith(("DJANGO_", "FINOFLOW_"))}
        path = os.pathsep.join([str(Path(sys.executable).parent), clean.get("PATH", "")])
        self.env = {**clean, "PATH": path, "PYTHONPATH": str(ROOT), "PYTHONWARNINGS": "error"}

    def follow(self, blocks: list[Block]) -> None:
        """Do what each block says: write the file of its caption, or type its commands and compare what they print."""
        for block in blocks:
            if block.language == "python":
                self.write(block)
            else:
                self.type_all(block.text)

    def write(self, block: Block) -> None:
        path, at_the_end, _ = block.caption.partition(" (at the end)")
        with (self.folder / path).open("a" if at_the_end else "w", encoding="utf-8") as file:
            file.write("\n" + block.text)

    def type_all(self, text: str) -> None:
        """Type what follows each prompt, until its quotes are closed; the lines after it are what is to be printed."""
        for entry in re.split(r"^\$ ", text, flags=re.MULTILINE)[1:]:
            lines = entry.splitlines(keepends=True)
            typed = next(n for n in range(1, len(lines) + 1) if "".join(lines[:n]).count('"') % 2 == 0)
            command, expected = "".join(lines[:typed]), "".join(lines[typed:]).rstrip("\n")
            printed = self.type(command)
            if expected:
                pattern = ".*".join(map(re.escape, expected.split("...")))
                assert re.fullmatch(pattern + "\n", printed), f"{command}\nprinted\n{printed}"

    def type(self, command: str) -> str:
        if command.startswith("cd "):
            self.folder /= command.removeprefix("cd ").strip()
            return ""
        done = subprocess.run(
            ["sh", "-c", command], cwd=self.folder, env=self.env, capture_output=True, text=True, timeout=120
        )
        assert done.returncode == 0, f"{command}\n{done.stdout}{done.stderr}"
        return done.stdout


def quickstart() -> tuple[list[Block], list[Block]]:
    """Return what the quickstart has its reader do: before the approval, and from there on."""
    everything = sorted([*blocks("quickstart.md", "python"), *blocks("quickstart.md", "console")], key=lambda b: b.line)
    assert len(everything) == page("quickstart.md").count("```{code-block}")
    assert sum(block.skipped for block in everything) == 2
    approval = page("quickstart.md").splitlines().index("## An approval")
    done = [block for block in everything if not block.skipped]
    return [b for b in done if b.line < approval], [b for b in done if b.line > approval]


@once
def test_the_quickstart_works_as_typed(tmp_path: Path) -> None:
    reader = Reader(tmp_path)
    for part in quickstart():
        reader.follow(part)


@pytest.fixture
def empty_postgresql() -> Iterator[dict[str, Any]]:
    """The entry of ``DATABASES`` for an empty database on the tests' server."""
    import psycopg

    server, name = os.environ["FINOFLOW_TEST_POSTGRES"], f"test_finoflow_docs_{os.getpid()}"
    with psycopg.connect(server, autocommit=True) as connection:
        connection.execute(f"CREATE DATABASE {name}")
        yield {**databases.configuration(), "NAME": name, "TEST": {}}
        connection.execute(f"DROP DATABASE {name} WITH (FORCE)")


@pytest.mark.only_postgresql(reason="it is the database one moves to")
def test_a_parked_run_moves_from_sqlite_to_postgresql_as_the_readme_says(
    tmp_path: Path, empty_postgresql: dict[str, Any]
) -> None:
    reader = Reader(tmp_path)
    before, after = quickstart()
    reader.follow(before)
    [move] = [block for block in blocks("README.md", "sh") if "dumpdata" in block.text]
    dump, install, change, migrate, load = move.text.splitlines()
    assert install.startswith("pip install")
    assert change.startswith("#")
    reader.type(dump)
    with (reader.folder / "office" / "settings.py").open("a", encoding="utf-8") as file:
        file.write(f"DATABASES['default'] = {empty_postgresql!r}\n")
    reader.type(migrate)
    reader.type(load)
    reader.follow(after)


# ── lists ──


@once
def test_every_setting_is_told_with_its_default() -> None:
    told = {name: ast.literal_eval(default) for name, default, _ in table("settings.md", "key")}
    assert told == conf.DEFAULTS


@once
def test_every_option_of_the_worker_is_told() -> None:
    parser = ArgumentParser(add_help=False)
    Command().add_arguments(parser)
    told = [option.split()[0] for option, *_ in table("worker.md", "option")]
    assert told == [action.option_strings[0] for action in parser._actions]


@once
def test_every_name_of_the_context_is_told() -> None:
    names = [name for name in vars(Context) if not name.startswith("_") and name not in INTERNAL]
    assert [name for name in [*names, "input"] if not re.search(rf"`ctx\.{name}\b", page("workflows.md"))] == []


def named_in_docstring(owner: type) -> set[str]:
    """Return the attributes that a class's docstring lists."""
    return set(re.findall(r"^ {4}(\w+):", inspect.getdoc(owner) or "", re.MULTILINE))


@once
def test_every_name_of_a_handlers_context_is_told() -> None:
    told = {name for names, _ in table("builder.md", "name") for name in re.findall(r"ctx\.(\w+)", names)}
    assert told == named_in_docstring(HandlerContext)
    public = {name for name in vars(HandlerContext) if not name.startswith("_")}
    assert public <= told


@once
def test_every_name_of_a_compensators_context_is_told() -> None:
    names = {*named_in_docstring(UndoContext), *(name for name in vars(UndoContext) if not name.startswith("_"))}
    assert names
    assert [name for name in sorted(names) if not re.search(rf"`(ctx\.)?{name}`", page("rollback.md"))] == []


@once
def test_every_method_that_adds_to_a_builder_is_told_with_the_page_that_shows_it() -> None:
    told = {
        method: re.findall(r"\((builder[\w-]*\.md)\)", where)
        for methods, _, where in table("workflows.md", "method")
        for method in re.findall(r"\.(\w+)\(", methods)
    }
    adding = {name for name, value in inspect.getmembers(Workflow, inspect.isfunction) if returns_itself(value)}
    assert set(told) == adding
    for method, [shown] in told.items():
        assert f".{method}(" in page(shown)


def returns_itself(method: Any) -> bool:
    """Whether a method can be chained."""
    return not method.__name__.startswith("_") and method.__annotations__.get("return") == "Self"


@once
def test_every_argument_of_an_approval_is_told() -> None:
    told = [name for name, *_ in table("approvals.md", "argument")]
    assert told == list(inspect.signature(Approval).parameters)


@once
def test_every_argument_of_a_workflow_is_told() -> None:
    told = [name for row in table("workflows.md", "argument") for name in row[0].split(", ")]
    assert sorted(told) == sorted(inspect.signature(django_finoflow.workflow).parameters)


@once
def test_every_code_of_a_refused_decision_is_told() -> None:
    sources = [path.read_text(encoding="utf-8") for path in (ROOT / "django_finoflow").glob("*.py")]
    codes = {
        node.args[1].value
        for source in sources
        for node in ast.walk(ast.parse(source))
        if isinstance(node, ast.Call) and ast.unparse(node.func) == "DecisionRefused"
        if isinstance(node.args[1], ast.Constant)
    }
    assert {code for code, _ in table("approvals.md", "code")} == codes
    assert (
        set(re.findall(r"``([a-z]+(?:-[a-z]+)*)``", inspect.getdoc(exceptions.DecisionRefused) or ""))
        - {
            "code",
            "errors",
        }
        == codes
    )


@once
def test_every_django_signal_is_told() -> None:
    names = [name for name, value in vars(events).items() if isinstance(value, Signal)]
    assert [name for name in names if f"`{name}`" not in page("worker.md")] == []


@contextmanager
def listening() -> Iterator[dict[str, set[str]]]:
    """Give what each Django signal that is sent meanwhile carries, by the signal's name."""
    carried: dict[str, set[str]] = {}
    named = {name: value for name, value in vars(events).items() if isinstance(value, Signal)}

    def receiver(name: str) -> Any:
        return lambda sender, **facts: carried.setdefault(name, set(facts) - {"signal"})

    receivers = {name: receiver(name) for name in named}
    for name, event in named.items():
        event.connect(receivers[name], weak=False)
    yield carried
    for name, event in named.items():
        event.disconnect(receivers[name])


@pytest.mark.django_db
def test_every_django_signal_carries_what_is_told(make: Any, django_capture_on_commit_callbacks: Any) -> None:
    @make
    def eventful(ctx: Any, what: str) -> None:
        ctx.step("well", lambda: None, compensate=lambda undo: 1 / (what != "hopeless"))
        if what == "wait":
            ctx.wait_for_approval("gate", remind=[0], escalate=(0, Candidates(users=["ann"])))
        elif what == "late":
            ctx.wait_for_signal("never", timeout=0)
        else:
            ctx.step("badly", lambda: 1 / 0, retry=Retry(2, initial=0))

    with listening() as carried, django_capture_on_commit_callbacks(execute=True):
        for what in ("late", "fail"):
            with pytest.raises(WorkflowError):
                eventful.run(what)
        assert eventful.run("hopeless").status == "stuck"
        decided, cancelled, mismatched = (eventful.run("wait").run_id for _ in range(3))
        give_notices()
        boss = User.objects.create_superuser("boss")
        delegate_gate(decided, "gate", user=boss, to=User.objects.create_user("ann"))
        decide(decided, "gate", user=boss, approved=True)
        eventful.resume(decided)
        cancel(cancelled)
        make.redeploy(eventful, lambda ctx, what: None).resume(mismatched)
    rows = table("worker.md", "Django signal")
    told = {name: {"run_id", *re.findall(r"\w+", re.sub(r"\(.*\)", "", facts))} for name, facts in rows}
    assert carried == told


@once
def test_every_line_that_a_worker_logs_is_told() -> None:
    sources = "".join(path.read_text(encoding="utf-8") for path in (ROOT / "django_finoflow").glob("*.py"))
    own = {"on-checkpoint-failed", "after-commit-error"}  # logged wherever a run is driven, of the user's own hooks
    watching = {"watch-failed", "watch-ended"}  # logged wherever one is watched
    assert [event for event in sorted(watching) if f"`event={event}`" not in page("async.md")] == []
    logged = set(re.findall(r'"event=([a-z-]+)', sources)) - own - watching
    assert [event for event in sorted(logged) if f"`{event}`" not in page("worker.md")] == []


@once
def test_every_system_check_is_told() -> None:
    ids = set(re.findall(r'id="(finoflow\.\w+)"', (ROOT / "django_finoflow" / "checks.py").read_text(encoding="utf-8")))
    assert ids
    assert [id for id in sorted(ids) if not any(f"`{id}`" in page(name) for name in CHECKS)] == []


@once
def test_every_public_name_is_in_the_api_reference() -> None:
    documented = set(re.findall(r":: django_finoflow\.(\w+)\b(?!\.)", page("api.md")))
    assert set(django_finoflow.__all__) - documented == set()


@once
def test_every_link_of_the_readme_leads_somewhere() -> None:
    links = re.findall(r"\]\(([^)#]+)\)", page("README.md"))
    assert links
    assert [link for link in links if not (ROOT / link).is_file()] == []


@once
def test_every_picture_is_there_is_shown_and_is_small() -> None:
    shown = {
        (path.parent / found).resolve()
        for path in PAGES
        for found in re.findall(r"(?:src=\"|\{image\} )([^\s\"]+)", path.read_text(encoding="utf-8"))
    }
    made = set((DOCS / "images").iterdir())
    assert shown == made
    assert [path.name for path in made if path.stat().st_size >= 150_000] == []


@once
def test_the_readme_is_short() -> None:
    assert page("README.md").count("\n") <= 150


# ── guarantees ──

TESTS = {
    name
    for path in (ROOT / "tests").glob("test_*.py")
    for name in re.findall(r"^ *(?:async )?def (test_\w+)", path.read_text(encoding="utf-8"), re.MULTILINE)
}
RULES = [
    *[f"D{n}" for n in range(1, 17)],
    *[f"T{n}" for n in range(1, 9)],
    *[f"S{n}" for n in range(1, 8)],
    *[f"B{n}" for n in range(1, 4)],
    *[f"C{n}" for n in range(1, 7)],
    *[f"W{n}" for n in range(1, 11)],
    *[f"P{n}" for n in range(1, 6)],
    *[f"A{n}" for n in range(1, 14)],
]


@once
def test_every_rule_has_its_line_in_the_guarantees() -> None:
    assert sorted(rule for rule, *_ in guarantees()) == sorted(RULES)


@once
@pytest.mark.parametrize("rule", RULES)
def test_every_rule_names_a_test_of_its_own_that_exists(rule: str) -> None:
    [(_, said, test)] = [line for line in guarantees() if line[0] == rule]
    assert said
    assert test.startswith(f"test_{rule.lower()}_")
    assert test in TESTS


@once
def test_every_test_that_a_page_names_exists() -> None:
    named = {name for path in PAGES for name in re.findall(r"`(test_\w+)`", path.read_text(encoding="utf-8"))}
    assert named - TESTS == set()


def guarantees() -> list[list[str]]:
    """Return rule, words and test of every line of the guarantees."""
    lines = [line for line in page("guarantees.md").splitlines() if re.match(r"\| [A-Z]\d+ \|", line)]
    return [[cell.strip().replace("`", "") for cell in line.strip("|").split("|")] for line in lines]
