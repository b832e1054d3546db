from collections.abc import Callable

import pytest

from controlplane.testing_browser import Web, browser, open_page, web  # noqa: F401


@pytest.fixture
def shell(web: Web) -> Callable[[str], None]:  # noqa: F811
    """Runs a line of controlplane/evidence/tuning/tests/browser/cast.py on the server."""
    return lambda line: web.run(f"from controlplane.evidence.tuning.tests.browser import cast; cast.{line}")
