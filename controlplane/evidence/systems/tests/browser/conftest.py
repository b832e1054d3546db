"""A web process; systems need nothing else."""

from controlplane.testing_browser import browser, open_page, web  # noqa: F401
