"""The admin as a whole: what comes from runs is text, and the host's own pages stay as they were."""

from __future__ import annotations

import re
import subprocess
import sys
from typing import Any

import pytest
from django.contrib import admin
from django.contrib.auth.models import User
from django.test import Client
from django.urls import NoReverseMatch, reverse

from django_finoflow import api
from django_finoflow.models import Execution, Wait
from tests.admin_site import GATES, RUNS, ask, browser_of, button, chosen, detail, paperwork, person, run_of
from tests.processes import ROOT

EVIL = "<script>alert('x')</script>{{ 7|add:7 }}{% now 'Y' %}"


@pytest.mark.django_db
def test_a6_markup_and_template_syntax_from_runs_stay_text_on_every_page() -> None:
    boss = person("boss", is_superuser=True)
    mean = person("mean", "decide_wait")
    User.objects.filter(pk=mean.pk).update(username=EVIL)
    mean.refresh_from_db()
    approval = {"title": EVIL, "show": {EVIL: [EVIL, {EVIL: {EVIL: [[EVIL * 9]]}}], "long": EVIL * 9}}
    gates = [
        ask(mean, key=EVIL, gate=EVIL, prepared={EVIL: EVIL}, queue=EVIL, approval={**approval, "users": [EVIL]})
        for _ in range(1)
    ]
    gates.append(ask(mean, gate=EVIL, approval={**approval, "groups": [EVIL]}))
    gates.append(ask(mean, gate=EVIL, approval=approval))
    Execution.objects.update(workflow_id=EVIL, queue=EVIL, state={EVIL: EVIL}, lease_owner=EVIL)
    run = run_of(gates[0])
    run.steps.create(
        index=7, step_id=EVIL, status="failed", error={"type": EVIL, "message": EVIL, "traceback": EVIL * 9}
    )
    Execution.objects.filter(pk=run.pk).update(error={"type": EVIL, "message": EVIL * 9, "traceback": EVIL})
    client = browser_of(boss)
    asking = client.post(
        GATES, {"action": "finoflow_reject_selected", "index": "0", "_selected_action": chosen(*gates)}
    )
    pages = [asking, client.get(button("cancel", run)), client.get(f"{RUNS}{run.pk}/history/")]
    api.decide(run.run_id, EVIL, user=mean, approved=False, reason=EVIL, data={EVIL: EVIL}, wait=gates[0])
    gone = client.post(button("approve", gates[0]), {"reason": EVIL, "seen": "x"}, follow=True)
    refused = client.post(f"{GATES}approve/", {"chosen": f"{gates[0].pk}:x", "reason": EVIL}, follow=True)
    page = client.get(button("approve", gates[1]))
    decided = client.post(button("approve", gates[1]), {"reason": EVIL, "seen": page.context["token"]}, follow=True)
    pages += [gone, refused, page, decided, client.get("/admin/"), client.get(button("approve", gates[0]))]
    pages += [client.get(url) for url in (GATES, RUNS, detail(gates[0]), detail(gates[1]), f"{RUNS}{run.pk}/change/")]
    pages += [client.get(f"{GATES}{gates[1].pk}/history/")]
    for page in pages:
        text = page.content.decode()
        assert page.status_code == 200
        assert "<script>alert" not in text
        assert "alert(&#x27;x&#x27;)" in text, page.request["PATH_INFO"]
        assert "{{ 7|add:7 }}" in text


HOST_PAGES = """
import os, re, sys
os.environ["DJANGO_SETTINGS_MODULE"] = "tests.settings"
from django.conf import settings
settings._setup()
settings.DATABASES = {"default": {"ENGINE": "django.db.backends.sqlite3", "NAME": ":memory:"}}
settings.ROOT_URLCONF = "tests.bare_site"
if sys.argv[1] == "without":
    ours = ("django_finoflow", "admin_actions", "tests.testapp")
    settings.INSTALLED_APPS = [app for app in settings.INSTALLED_APPS if app not in ours]
import django
django.setup()
from django.contrib.auth.models import Group, User
from django.core.management import call_command
from django.test import Client
call_command("migrate", verbosity=0)
user = User.objects.create_superuser("root", password="x")
group = Group.objects.create(name="host")
client = Client()
client.force_login(user)
groups = "/admin/auth/group/"
for url in (groups, f"{groups}{group.pk}/change/", f"{groups}{group.pk}/delete/", f"{groups}add/", "/admin/auth/user/"):
    page = client.get(url)
    assert page.status_code == 200
    text = page.content.decode()
    text = re.sub('name="csrfmiddlewaretoken" value="[^"]*"', "", text)
    # The menu lists our app, as it lists any, and the form of a group all permissions. The rest is compared exactly.
    text = re.sub("<nav .*?id=.nav-sidebar.*?</nav>", "", text, flags=re.S)
    print(re.sub(r"\\s*<option.*?</option>", "", text))
"""


@pytest.mark.only_sqlite(reason="brings its own database")
def test_the_hosts_other_admin_pages_are_the_same_with_and_without_us() -> None:
    def pages(how: str) -> str:
        command = [sys.executable, "-c", HOST_PAGES, how]
        done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=120)
        assert done.returncode == 0, done.stderr
        return done.stdout

    with_us, without_us = pages("with"), pages("without")
    assert "Select group to change" in with_us
    assert with_us == without_us


def test_names_of_our_pages_cannot_be_those_of_a_hosts_admin() -> None:
    names = {pattern.name for model in (Execution, Wait) for pattern in admin.site.get_model_admin(model).get_urls()}
    assert {name for name in names if name and not re.match(r"finoflow_", name)} == set()


@pytest.mark.parametrize("name", ["approve", "reject", "cancel", "retry", "finoflow_buttons"])
def test_bare_method_names_are_no_routes(name: str) -> None:
    with pytest.raises(NoReverseMatch):
        reverse(f"admin:{name}", args=[1])


@pytest.mark.django_db
def test_the_pages_work_without_the_packages_app_and_its_style_sheet(settings: Any, admin_client: Client) -> None:
    settings.INSTALLED_APPS = [app for app in settings.INSTALLED_APPS if app != "admin_actions"]
    gate = ask()
    for url in (GATES, detail(gate), button("approve", gate), RUNS, f"{RUNS}{gate.execution_id}/change/"):
        page = admin_client.get(url)
        assert page.status_code == 200
        assert "finoflow/admin.css" in page.content.decode()
        assert "admin-actions.css" not in page.content.decode()


@pytest.mark.django_db
def test_our_pages_work_on_a_second_admin_site_and_lead_back_to_it(settings: Any) -> None:
    settings.ROOT_URLCONF = "tests.second_site"
    gate = ask()
    client = browser_of(person("manager", "decide_wait", "view_wait", "view_execution", "cancel_execution"))
    for url in (GATES, detail(gate), RUNS, f"{RUNS}{gate.execution_id}/change/"):
        text = client.get(url.replace("/admin/", "/second/")).content.decode()
        assert "/second/finoflow/" in text
        assert "/admin/finoflow/" not in text
    url = button("approve", gate).replace("/admin/", "/second/")
    page = client.get(url)
    done = client.post(url, {"reason": "", "seen": page.context["token"]})
    assert done["Location"] == "/second/finoflow/wait/"
    assert paperwork.resume(run_of(gate).run_id).status == "done"
