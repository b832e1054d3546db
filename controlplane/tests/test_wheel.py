"""The wheels: their content, and Weir and its router started from them without the clone."""

import re
import subprocess
import sys
import sysconfig
import zipfile

import pytest

from controlplane.doors.cli.command import PIPELINES
from controlplane.doors.cli.weir.main import parser
from controlplane.tests.real_up import CODE, FLEET, new_folder, running
from router.contract.installation import VERSION

FOLDERS = ("templates", "static", "examples")
DOCS = "controlplane/docs/"


@pytest.fixture(scope="module")
def wheels(tmp_path_factory):
    folder = tmp_path_factory.mktemp("wheels")
    subprocess.run([sys.executable, CODE / "deploy/wheel.py", folder], check=True, timeout=200)
    return {path.name.partition("-")[0]: path for path in folder.glob("*.whl")}


def installed(wheel, folder):
    """A virtual environment with the wheel and access to this one's packages; returns its folder of programs."""
    subprocess.run([sys.executable, "-m", "venv", folder], check=True, timeout=200)
    install = [folder / "bin/python", "-m", "pip", "install", "--quiet", "--no-deps", "--no-index", wheel]
    subprocess.run(install, check=True, timeout=200)
    (path,) = folder.glob("lib/*/site-packages")
    (path / "beside.pth").write_text(sysconfig.get_path("purelib"))
    return folder / "bin"


def product(top):
    """Return the paths in the clone of the files that an installation needs."""
    paths = (path.relative_to(CODE) for path in (CODE / top).rglob("*") if path.is_file())
    return {
        str(path)
        for path in paths
        if not {"tests", "__pycache__", ".compiled"} & set(path.parts) and not re.match(r"testing|\.gitkeep", path.name)
    }


def test_the_command_knows_every_command_of_pipelines():
    (commands,) = (action.choices for action in parser()._actions if isinstance(action.choices, dict))
    assert {name.partition(" ")[0] for name in commands} == PIPELINES


@pytest.mark.deploy
def test_the_wheel_contains_every_file_that_runs_and_no_tests(wheels):
    names = {name for name in zipfile.ZipFile(wheels["weir"]).namelist() if ".dist-info/" not in name}
    packages = product("controlplane") | product("fleet") | product("router")
    wanted = packages | {f"controlplane/{path}" for folder in FOLDERS for path in product(folder)}
    assert {name for name in names if not name.startswith(DOCS)} == wanted
    assert f"{DOCS}settings.md" in names


@pytest.mark.deploy
def test_an_installed_wheel_shows_the_page_and_starts_engines(wheels, tmp_path):
    programs = installed(wheels["weir"], tmp_path / "environment")
    (tmp_path / "fleet.yaml").write_text(FLEET)
    command = [programs / "weir"]
    with running("--fleet", str(tmp_path / "fleet.yaml"), folder=new_folder(), command=command) as weir:
        weir.wait_for("2/2 instances of pool demo are ready", patience_s=200)
        assert (weir.get("/login"), weir.get("/static/css/weir.css")) == (200, 200)


@pytest.mark.deploy
def test_the_wheel_of_the_router_needs_no_django(wheels, tmp_path):
    with zipfile.ZipFile(wheels["weir_router"]) as wheel:
        wheel.extractall(tmp_path)
    code = "import sys, router.process; from router.contract.installation import VERSION; print(VERSION, *sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, timeout=100)
    version, *modules = done.stdout.split()
    assert version == VERSION
    assert not {"django", "celery", "controlplane", "fleet"} & set(modules)
    (metadata,) = (path.read_text() for path in tmp_path.glob("*.dist-info/METADATA"))
    needs = set(re.findall(r"^Requires-Dist: ([\w-]+)", metadata, re.M))
    assert {"httptools", "redis", "tokenizers"} <= needs
    assert not {"django", "celery", "channels"} & needs
