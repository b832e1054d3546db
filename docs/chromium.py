"""Report where Chromium is, or how to get it: exit status 1 without one."""

import os
import shutil
import sys

NAMES = ("chromium", "chromium-browser", "google-chrome")


def find() -> str | None:
    names = (os.environ.get("WEIR_CHROMIUM", ""), *NAMES)
    return next((path for name in names if name and (path := shutil.which(name))), None)


if __name__ == "__main__" and find() is None:
    sys.exit("Chromium is missing: apt-get install chromium (as root), or name it in WEIR_CHROMIUM")
