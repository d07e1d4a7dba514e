"""The wheel as a user gets it: what is in it, and that it works outside the checkout.

Nothing is fetched: the wheel is installed alone, into an environment that borrows the dependencies of the one at hand.
"""

from __future__ import annotations

import fnmatch
import os
import subprocess
import sys
import sysconfig
import zipfile
from pathlib import Path

import pytest

from tests.processes import ROOT

pytestmark = pytest.mark.only_sqlite(reason="needs no server; once is enough")

SETTINGS = """
SECRET_KEY = "x"
DATABASES = {"default": {"ENGINE": "django.db.backends.sqlite3", "NAME": ":memory:"}}
DEFAULT_AUTO_FIELD = "django.db.models.BigAutoField"
INSTALLED_APPS = [
    "django.contrib.contenttypes",
    "django.contrib.auth",
    "django_finoflow",
]
"""


def run(*command: str | Path, cwd: Path, **env: str) -> str:
    """Run a command without the checkout on its path and return its output; fail with it if it fails."""
    clean = {name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "DJANGO_SETTINGS_MODULE")}
    done = subprocess.run(command, cwd=cwd, env={**clean, **env}, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("wheel")
    run(sys.executable, "-m", "hatchling", "build", "--target", "wheel", "--directory", folder, cwd=ROOT)
    [wheel] = folder.glob("*.whl")
    return wheel


@pytest.fixture(scope="module")
def python(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The interpreter of an environment in which the wheel is installed, and the settings that go with it."""
    folder = tmp_path_factory.mktemp("environment")
    run(sys.executable, "-m", "venv", "--without-pip", folder, cwd=folder)
    python = folder / "bin" / "python"
    [packages] = folder.glob("lib/python3*/site-packages")
    (packages / "outside_settings.py").write_text(SETTINGS)
    run(sys.executable, "-m", "pip", "--python", python, "install", "--no-deps", "--no-index", wheel, cwd=folder)
    # Only now: pip would take a django-finoflow that it can see there for this one, and install nothing.
    (packages / "borrowed.pth").write_text(sysconfig.get_path("purelib"))
    return python


@pytest.mark.parametrize(
    "pattern",
    [
        "django_finoflow/py.typed",
        "django_finoflow/migrations/0001_*.py",
        "django_finoflow/management/commands/finoflow_worker.py",
        "django_finoflow/templates/*.html",
        "django_finoflow-*.dist-info/licenses/LICENSE",
    ],
)
def test_the_wheel_holds(wheel: Path, pattern: str) -> None:
    assert fnmatch.filter(zipfile.ZipFile(wheel).namelist(), pattern)


def test_the_wheel_holds_every_file_of_the_package_and_nothing_else(wheel: Path) -> None:
    tracked = {path.relative_to(ROOT).as_posix() for path in (ROOT / "django_finoflow").rglob("*") if path.is_file()}
    expected = {name for name in tracked if "__pycache__" not in name}
    packed = {name for name in zipfile.ZipFile(wheel).namelist() if ".dist-info/" not in name}
    assert packed == expected


def test_the_installed_wheel_is_imported_from_outside_the_checkout(python: Path, tmp_path: Path) -> None:
    place = run(python, "-c", "import django_finoflow; print(django_finoflow.__file__)", cwd=tmp_path)
    assert Path(place.strip()).is_relative_to(python.parent.parent)


def test_the_installed_wheel_brings_the_worker_command(python: Path, tmp_path: Path) -> None:
    arguments = ("-m", "django", "finoflow_worker", "--help")
    assert "--drain" in run(python, *arguments, cwd=tmp_path, DJANGO_SETTINGS_MODULE="outside_settings")


def test_the_installed_wheel_migrates(python: Path, tmp_path: Path) -> None:
    output = run(python, "-m", "django", "migrate", cwd=tmp_path, DJANGO_SETTINGS_MODULE="outside_settings")
    assert "Applying finoflow.0001_initial... OK" in output
