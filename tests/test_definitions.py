"""Workflows and activities are descriptions: what they refuse, how they register, that they need no loaded Django."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest
from django.db import connection

from django_finoflow import Approval, DefinitionError, Retry, UnknownWorkflow, activity, registry, start, workflow
from django_finoflow.models import Execution
from tests.processes import ROOT

NO_NAMES = ["", "  ", "__x", "a\tb", "x" * 201, None, 7]


def body(ctx, input):
    """Do nothing."""


def python(source: str, **env: str) -> str:
    """Run Python source in a process without Django's settings and return its output."""
    clean = {name: value for name, value in os.environ.items() if not name.startswith(("DJANGO_", "FINOFLOW_"))}
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", source],
        cwd=ROOT,
        env={**clean, **env},
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


# -- importability (design §3) -----------------------------------------------------------------------------------------


def test_the_package_and_definitions_need_no_loaded_django():
    said = python(
        """
import django_finoflow as f
from django_finoflow import Approval, Retry, activity, workflow, current_step, RunState, RunResult, NonRetryable
from django.apps import apps
from django.conf import settings

@activity(id="create-ticket", retry=Retry(3, initial="1s"))
def create_ticket(input, ctx):
    return {"id": "ticket:" + input["title"]}

@workflow(id="route-ticket", gates={"ok": Approval(title="OK?", groups=["staff"])})
def route_ticket(ctx, input):
    return ctx.call(create_ticket, input)

class Ctx:
    def call(self, activity, input):
        return activity(input, self)

print(route_ticket(Ctx(), {"title": "x"}), apps.ready, settings.configured, "pydantic" in __import__("sys").modules)
"""
    )
    assert said == "{'id': 'ticket:x'} False False False"


def test_what_needs_django_says_so_without_it():
    said = python(
        """
from django_finoflow import workflow
from django.core.exceptions import ImproperlyConfigured

@workflow(id="w")
def w(ctx, input): ...

try:
    w.start()
except ImproperlyConfigured as error:
    print(error)
"""
    )
    assert "INSTALLED_APPS" in said
    assert "django.setup()" in said


def test_every_public_name_is_there_once_django_has_loaded_and_no_sooner_asked_for_than_given():
    said = python(
        """
import django; django.setup()
import django_finoflow
print(all(getattr(django_finoflow, name) for name in django_finoflow.__all__), len(django_finoflow.__all__) > 40)
""",
        DJANGO_SETTINGS_MODULE="tests.settings",
    )
    assert said == "True True"


def test_the_app_may_be_imported_by_another_apps_models():
    said = python(
        """
import sys, types
from django.conf import settings
models = types.ModuleType("early.models")
early = types.ModuleType("early"); early.__path__ = []; early.__file__ = "early/__init__.py"
sys.modules["early"] = early
import importlib.abc, importlib.machinery
class Finder(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    def find_spec(self, name, path=None, target=None):
        return importlib.machinery.ModuleSpec(name, self) if name == "early.models" else None
    def exec_module(self, module):
        exec("from django_finoflow import workflow, start, signal, get_run", module.__dict__)
sys.meta_path.insert(0, Finder())
settings.configure(
    INSTALLED_APPS=["early", "django.contrib.contenttypes", "django.contrib.auth", "django_finoflow"],
    DATABASES={"default": {"ENGINE": "django.db.backends.sqlite3", "NAME": ":memory:"}},
)
early.__spec__ = importlib.machinery.ModuleSpec("early", None)
from django.apps import AppConfig
early_apps = type("EarlyConfig", (AppConfig,), {"name": "early", "path": "/tmp"})
early.apps = types.ModuleType("early.apps"); early.apps.EarlyConfig = early_apps; early_apps.__module__ = "early.apps"
sys.modules["early.apps"] = early.apps
settings.INSTALLED_APPS[0] = "early.apps.EarlyConfig"
import django; django.setup()
print(sys.modules["early.models"].start.__module__)
"""
    )
    assert said == "django_finoflow.api"


# -- the registry ------------------------------------------------------------------------------------------------------


def test_a_workflow_registers_itself_when_it_is_made(make):
    flow = make(body, id="here")
    assert ("here", 1) in registry.known()
    assert registry.get("here") is flow
    assert flow in registry.all_definitions()


def test_a_second_of_the_same_id_and_version_is_refused_and_another_version_is_not(make):
    first = make(body, id="here")
    with pytest.raises(DefinitionError, match='"here" version 1 is defined twice'):
        make(body, id="here")
    second = make(body, id="here", version=2)
    assert (registry.get("here"), registry.get("here", 1)) == (second, first)


def test_what_was_refused_was_not_registered():
    with pytest.raises(DefinitionError):
        workflow(id="never", gates={"ok": "not an Approval"})(body)
    assert ("never", 1) not in registry.known()


def test_unregister_forgets_one_version_or_all(make):
    make(body, id="here")
    make(body, id="here", version=2)
    registry.unregister("here", 2)
    assert registry.get("here").version == 1
    registry.unregister("here")
    with pytest.raises(UnknownWorkflow):
        registry.get("here")
    registry.unregister("here")


def test_a_version_that_is_not_here_is_named(make):
    make(body, id="here")
    with pytest.raises(UnknownWorkflow, match='"here" version 5 is not registered'):
        registry.get("here", 5)


# -- what is refused ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", NO_NAMES, ids=lambda name: repr(name)[:12])
def test_names_that_cannot_be_are_refused_at_definition(name):
    with pytest.raises(DefinitionError, match="workflow"):
        workflow(id=name)(body)
    with pytest.raises(DefinitionError, match="activity"):
        activity(id=name)(body)
    with pytest.raises(DefinitionError, match="queue"):
        workflow(id="never", queue=name)(body)


@pytest.mark.django_db
@pytest.mark.parametrize("name", NO_NAMES, ids=lambda name: repr(name)[:12])
def test_and_those_of_steps_and_sleeps_when_the_call_is_made(make, name):
    @make
    def flow(ctx, input):
        with pytest.raises(DefinitionError, match="step"):
            ctx.step(name, lambda: None)
        with pytest.raises(DefinitionError, match="sleep"):
            ctx.sleep(name, 0)

    assert flow.run().state.steps == ()


@pytest.mark.parametrize("wrong", [0, -1, True, "1", 1.0, None, 2**31], ids=repr)
def test_a_version_is_a_whole_number_from_one(wrong):
    with pytest.raises(DefinitionError, match="version"):
        workflow(id="never", version=wrong)(body)


@pytest.mark.parametrize("wrong", [True, "1", 1.0, None, 2**31], ids=repr)
def test_a_priority_is_a_whole_number(wrong):
    with pytest.raises(DefinitionError, match="priority"):
        workflow(id="never", priority=wrong)(body)


async def stream(ctx, input):
    yield


def generate(ctx, input):
    yield


@pytest.mark.parametrize(
    "wrong", [stream, generate, "text", None], ids=lambda wrong: getattr(wrong, "__name__", repr(wrong))
)
def test_what_is_no_function_is_refused(wrong):
    with pytest.raises(DefinitionError, match='workflow "never"'):
        workflow(id="never")(wrong)
    with pytest.raises(DefinitionError, match='activity "never"'):
        activity(id="never")(wrong)
    assert ("never", 1) not in registry.known()


@pytest.mark.parametrize("where", ["input_schema", "output_schema"])
def test_what_is_no_schema_is_refused(where):
    for define in (workflow, activity):
        with pytest.raises(DefinitionError, match=where):
            define(id="never", **{where: 5})(body)


def test_options_are_keywords_only_and_misspelt_ones_are_refused():
    with pytest.raises(TypeError):
        workflow("never")
    with pytest.raises(TypeError, match="quue"):
        workflow(id="never", quue="slow")
    with pytest.raises(TypeError):
        activity(id="never", timeout=5)


@pytest.mark.parametrize(
    "wrong", [{"permission": "no_dot"}, {"permission": "a.b.c"}, {"show": 5}, {"on_reject": "x"}], ids=str
)
def test_an_approval_says_what_is_wrong_with_it(wrong):
    with pytest.raises(DefinitionError, match=next(iter(wrong))):
        Approval(**wrong)


def test_an_approval_cannot_be_changed_afterwards():
    with pytest.raises(AttributeError):
        Approval().permission = "x.y"


# -- what they are -----------------------------------------------------------------------------------------------------


def test_a_workflow_may_be_called_as_the_function_it_is(make):
    flow = make(lambda ctx, input: [ctx, input], id="flow")
    assert flow("a context", 5) == ["a context", 5]
    act = activity(id="act", retry=Retry(2))(lambda input, ctx: [input, ctx])
    assert act(5, "a context") == [5, "a context"]


def test_definitions_keep_the_name_and_docstring_of_their_function(make):
    flow, act = make(body, id="flow"), activity(id="act")(body)
    for definition in (flow, act):
        assert (definition.__name__, definition.__doc__) == ("body", "Do nothing.")
    assert (repr(flow), repr(act)) == ("<Workflow flow version 1>", "<Activity act>")


@pytest.mark.django_db
def test_the_id_is_what_rows_hold_and_never_the_functions_name(make):
    flow = make(body, id="route-ticket")
    assert flow.start().workflow_id == "route-ticket"
    start("route-ticket")
    assert set(Execution.objects.values_list("workflow_id", flat=True)) == {"route-ticket"}


@pytest.mark.django_db
def test_making_definitions_touches_no_database(make, django_assert_num_queries):
    with django_assert_num_queries(0, connection=connection):
        make(body, gates={"ok": Approval(users=["ann"])})
        activity(id="act")(body)
