"""Say where Chromium is, or how to get it: exit status 1 without one."""

import shutil
import sys

NAMES = ("chromium", "chromium-browser", "google-chrome")


def find() -> str | None:
    return next((path for name in NAMES if (path := shutil.which(name))), None)


if __name__ == "__main__" and find() is None:
    sys.exit("Chromium is missing, so nothing can be shown in a browser: apt-get install chromium (as root)")
