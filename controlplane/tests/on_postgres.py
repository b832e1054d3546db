"""Run pytest on PostgreSQL and the system's Redis: `python -m controlplane.tests.on_postgres [pytest's arguments]`."""

import os
import shutil
import subprocess
import sys

from controlplane.tests.postgres import INSTALL, postgres
from router.tests.ports import free_port


def main() -> int:
    if shutil.which("redis-server") is None:
        raise SystemExit(f"no Redis server is installed here: {INSTALL}")
    with postgres(free_port()) as server:
        environment = os.environ | {"WEIR_TEST_DATABASE_URL": server.url, "WEIR_SYSTEM_REDIS": "1"}
        return subprocess.run([sys.executable, "-m", "pytest", *sys.argv[1:]], env=environment).returncode


if __name__ == "__main__":
    sys.exit(main())
