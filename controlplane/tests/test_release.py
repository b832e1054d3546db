"""Cutting a release: what is written, and what is refused."""

import importlib.util
import shutil
from datetime import date

import pytest
import yaml
from django.conf import settings

from router.contract.installation import VERSION

ROOT = settings.BASE_DIR
TODAY = date(2027, 1, 2)


@pytest.fixture(scope="module")
def release():
    spec = importlib.util.spec_from_file_location("release", ROOT / "deploy" / "release.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture
def checkout(tmp_path):
    """The files that a release changes, with an entry under *Unreleased*."""
    for name in ("pyproject.toml", "deploy/helm/weir/Chart.yaml", "CHANGELOG.md"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(ROOT / name, tmp_path / name)
    changelog = (tmp_path / "CHANGELOG.md").read_text()
    (tmp_path / "CHANGELOG.md").write_text(changelog.replace("## Unreleased\n", "## Unreleased\n\n* A change.\n", 1))
    return tmp_path


def texts(root):
    return {path.name: path.read_text() for path in root.rglob("*") if path.is_file()}


def test_a_release_writes_its_version_to_every_file_and_closes_the_changelog(release, checkout):
    release.cut(checkout, "9.0.0", TODAY)
    written = texts(checkout)
    assert '\nversion = "9.0.0"\n' in written["pyproject.toml"]
    chart = yaml.safe_load(written["Chart.yaml"])
    assert (chart["version"], chart["appVersion"]) == ("9.0.0", "9.0.0")
    assert "## Unreleased\n\n## 9.0.0 (2027-01-02)\n\n* A change.\n" in written["CHANGELOG.md"]
    assert VERSION not in written["Chart.yaml"]


@pytest.mark.parametrize(
    ("version", "said"), [(VERSION, "is not above"), ("0.0.1", "is not above"), ("v9", "not of the form 1.2.3")]
)
def test_a_version_not_above_the_current_one_changes_nothing(release, checkout, version, said):
    before = texts(checkout)
    with pytest.raises(SystemExit, match=said):
        release.cut(checkout, version, TODAY)
    assert texts(checkout) == before


def test_a_release_without_changes_is_refused(release, checkout):
    release.cut(checkout, "9.0.0", TODAY)
    with pytest.raises(SystemExit, match="nothing stands under Unreleased"):
        release.cut(checkout, "9.1.0", TODAY)


def test_the_chart_has_the_version_of_the_project():
    chart = yaml.safe_load((ROOT / "deploy/helm/weir/Chart.yaml").read_text())
    assert (chart["version"], chart["appVersion"]) == (VERSION, VERSION)
