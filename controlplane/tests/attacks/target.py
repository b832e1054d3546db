"""A running Weir as an attacker and its host see it."""

import http.client
import json
import os
import socket
from dataclasses import dataclass
from pathlib import Path

PATIENCE_S = 15.0  # limit for an answer to something malformed, longer than every time limit under test
TICKS = os.sysconf("SC_CLK_TCK")


@dataclass(frozen=True)
class Usage:
    cpu_s: float
    rss_mb: float
    files: int


def usage(pid):
    """Return the resource usage of a process and its ended children."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    pages = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
    cpu_s = sum(int(field) for field in fields[11:15]) / TICKS
    return Usage(cpu_s, pages * os.sysconf("SC_PAGE_SIZE") / 2**20, len(os.listdir(f"/proc/{pid}/fd")))


class Target:
    def __init__(self, weir):
        self.weir = weir
        self.web, self.router = weir.web_port, weir.router_port
        self.token = (weir.folder / "token").read_text().strip()
        self.pids = dict(weir.children())
        self._read = {}  # characters read of each log

    def port(self, name):
        return {"web": self.web, "router": self.router}[name]

    def pid(self, name):
        """Return the process id of the server with this name."""
        return next(pid for child, pid in self.pids.items() if child.startswith(name))

    def usage(self, name):
        return usage(self.pid(name))

    def send(self, name, raw, patience_s=PATIENCE_S):
        """Send bytes on a separate connection; return everything that arrives until the server closes it or falls
        silent."""
        with socket.create_connection(("127.0.0.1", self.port(name)), timeout=patience_s) as connection:
            connection.settimeout(patience_s)
            try:
                connection.sendall(raw)
                connection.shutdown(socket.SHUT_WR)
            except OSError:
                pass  # the server answered early and closed
            found = b""
            try:
                while piece := connection.recv(65_536):
                    found += piece
            except OSError:
                pass
        return found

    def request(self, name, method, path, body=None, **headers):
        """Return status, headers and body of a well-formed request."""
        connection = http.client.HTTPConnection("127.0.0.1", self.port(name), timeout=PATIENCE_S * 4)
        try:
            sent = {key.replace("_", "-"): value for key, value in headers.items()}
            connection.request(method, path, body, sent)
            answer = connection.getresponse()
            return answer.status, dict(answer.getheaders()), answer.read()
        finally:
            connection.close()

    def api(self, method, path, body=None):
        told = {"Authorization": f"Bearer {self.token}", "Content-Type": "application/json"}
        return self.request("web", method, f"/api/v1{path}", None if body is None else json.dumps(body), **told)

    def chat(self, **more):
        """Send a request as any client does; return its status."""
        body = {"model": "llama-3.1-8b", "messages": [{"role": "user", "content": "Hello"}], "max_tokens": 2, **more}
        return self.request(
            "router", "POST", "/v1/chat/completions", json.dumps(body), Content_Type="application/json"
        )[0]

    def troubles(self):
        """Return the problems: answers of the two servers, or processes that did not exist at the start."""
        found = {
            "web": self.request("web", "GET", "/healthz")[0],
            "router": self.request("router", "GET", "/healthz")[0],
            "chat": self.chat(),
        }
        wrong = [f"{name}: {status}" for name, status in found.items() if status != 200]
        now = self.weir.children()
        return wrong + [f"{name} was restarted" for name, pid in self.pids.items() if now.get(name) != pid]

    def tracebacks(self):
        """Return the last lines of uncaught exceptions in the logs since the last call."""
        found = []
        for path in [*self.weir.folder.glob("logs/**/*"), self.weir.output]:
            if path.is_file():
                text = path.read_text(errors="replace")
                found += [f"{path.name}: {end}" for end in uncaught(text[self._read.get(path, 0) :])]
                self._read[path] = len(text)
        return found


def uncaught(text):
    """Return the line that ends each traceback, and those of asyncio."""
    lines = iter(text.splitlines())
    for line in lines:
        if "Fatal error on transport" in line:
            yield line[:300]
        if "Traceback (most recent call last)" in line:
            yield next((end[:300] for end in lines if end and not end.startswith((" ", "|"))), line)
