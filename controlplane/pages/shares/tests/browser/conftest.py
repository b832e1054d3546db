from controlplane.live.dashboard.tests.browser.conftest import running  # noqa: F401
from controlplane.testing_browser import browser, open_page, web  # noqa: F401
