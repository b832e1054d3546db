"""A web process with a pool of simulated engines, and a fresh policy for each test."""

import itertools
from collections.abc import Callable

import pytest

from controlplane.testing_browser import Web, browser, open_page, web  # noqa: F401

NAMES = (f"foreseen-{number}" for number in itertools.count(1))


@pytest.fixture
def shell(web: Web) -> Callable[[str], None]:  # noqa: F811
    """Runs a line of controlplane/evidence/previews/tests/browser/cast.py on the server."""
    return lambda line: web.run(f"from controlplane.evidence.previews.tests.browser import cast; cast.{line}")


@pytest.fixture
def policy(shell: Callable[[str], None]) -> str:
    """A policy whose open draft has a change."""
    name = next(NAMES)
    shell(f"drafted({name!r})")
    return name
