"""Debian's Prometheus, on loopback, with a folder of the test."""

import json
import shutil
import subprocess
import urllib.request
from pathlib import Path
from typing import Any

from router.tests.ports import free_port

INSTALL = "apt-get install prometheus"


class DebiansPrometheus:
    def __init__(self, folder: Path) -> None:
        """Use `folder`, which holds prometheus.yml and the files that it names."""
        program = shutil.which("prometheus")
        assert program is not None, INSTALL
        address = f"127.0.0.1:{free_port()}"
        self.url = f"http://{address}"
        words = ["--config.file", str(folder / "prometheus.yml"), "--storage.tsdb.path", str(folder / "data")]
        self._command = [program, *words, f"--web.listen-address={address}", "--log.level=error"]
        self.start()

    def start(self) -> None:
        self._process = subprocess.Popen(self._command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)

    def stop(self) -> None:
        self._process.kill()
        self._process.wait()

    def get(self, path: str) -> Any:
        """Return `data` of an answer; None while Prometheus does not answer."""
        try:
            with urllib.request.urlopen(f"{self.url}/api/v1/{path}", timeout=10) as answer:
                return json.load(answer)["data"]
        except OSError:
            return None
