"""A web process with an ended experiment and a queued one."""

from typing import Any

import pytest

from controlplane.testing_browser import Web, browser, open_page, web  # noqa: F401


@pytest.fixture(scope="session")
def made(web: Web) -> Any:  # noqa: F811
    web.run("from controlplane.evidence.experiments.tests.browser import cast; cast.make()")
