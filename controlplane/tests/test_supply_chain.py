"""The project's licence, version, changelog and bill of materials."""

import importlib.util
import re

import pytest
from django.conf import settings

from router.contract.installation import VERSION

ROOT = settings.BASE_DIR
# None of them puts conditions on Weir's own code: the copyleft ones are separate packages, used unchanged.
PERMITTED = {
    "0BSD",
    "Apache-2.0",
    "BSD-2-Clause",
    "BSD-3-Clause",
    "ISC",
    "LGPL-3.0-only",
    "MIT",
    "MIT-0",
    "MPL-2.0",
    "PSF-2.0",
}
ELSEWHERE = {"async-timeout", "colorama", "httpx2-jsfetch", "tzdata"}  # for other platforms or older Pythons


@pytest.fixture(scope="module")
def sbom():
    spec = importlib.util.spec_from_file_location("sbom", ROOT / "deploy" / "sbom.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_each_package_that_runs_weir_has_a_permitted_licence(sbom):
    packages = list(sbom.packages((ROOT / "requirements.txt").read_text()))
    unknown = {package.name for package in packages if not package.licence}
    assert unknown <= ELSEWHERE
    ids = {name: set(re.split(r"[\s()]+(?:AND|OR)?[\s()]*", name)) - {""} for name in {p.licence for p in packages}}
    assert {name for name, parts in ids.items() if not parts <= PERMITTED} == set()


def test_the_bill_of_materials_lists_each_locked_package_with_its_hashes(sbom):
    bill = sbom.bill()
    locked = re.findall(r"^([\w.-]+)==([\w.]+)", (ROOT / "requirements.txt").read_text(), re.MULTILINE)
    assert [(part["name"], part["version"]) for part in bill["components"]] == locked
    assert all(part["externalReferences"][0]["hashes"] for part in bill["components"])
    assert bill["metadata"]["component"]["version"] == VERSION
    assert sbom.bill()["serialNumber"] == bill["serialNumber"]


def test_the_licence_that_the_project_names_is_there():
    assert 'license = "Apache-2.0"' in (ROOT / "pyproject.toml").read_text()
    text = (ROOT / "LICENSE").read_text()
    assert "Apache License" in text
    assert "END OF TERMS AND CONDITIONS" in text


def test_the_changelog_has_the_current_version_and_unreleased_changes():
    headings = re.findall(r"^## (.+)$", (ROOT / "CHANGELOG.md").read_text(), re.MULTILINE)
    assert headings[0] == "Unreleased"
    assert headings[1].split(" ")[0] == VERSION
