from controlplane.testing_browser import browser, open_page, web  # noqa: F401
