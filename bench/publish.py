"""The time until a published policy takes effect: two routers under load, N publishes over REST.

For each publish and router: from the publish call's answer until the first request was sent whose answer has the new
version in `x-weir-policy` (0 if that request was sent before the answer). Starts its own Weir.

    .venv/bin/python bench/publish.py [--publishes 50]
"""

import argparse
import http.client
import json
import sys
import threading
import time
from dataclasses import dataclass, field
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent.parent))

from controlplane.tests.real_up import free_ports, running

ROUTERS = 2
PROBES = 3  # connections per router, each sending its next request as soon as it has an answer
BODY = json.dumps({"model": "llama-3.1-8b", "prompt": "weir " * 20, "max_tokens": 1})
JSON = {"content-type": "application/json"}


@dataclass
class Probe:
    """One connection that sends requests repeatedly, and records which version answered."""

    port: int
    seen: list[tuple[float, int]] = field(default_factory=list)  # (sent at, monotonic s; version)

    def run(self, stop: threading.Event) -> None:
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=10)
        while not stop.is_set():
            sent = time.monotonic()
            connection.request("POST", "/v1/completions", BODY, JSON)
            answer = connection.getresponse()
            answer.read()
            self.seen.append((sent, int(answer.headers.get("x-weir-policy") or 0)))


class Api:
    def __init__(self, port: int, token: str) -> None:
        self.connection = http.client.HTTPConnection("127.0.0.1", port, timeout=10)
        self.headers = JSON | {"authorization": f"Bearer {token}"}

    def call(self, method: str, path: str, body: dict, **headers: str) -> tuple[dict, str]:
        self.connection.request(method, f"/api/v1{path}", json.dumps(body), self.headers | headers)
        answer = self.connection.getresponse()
        text = answer.read()
        if answer.status >= 300:
            raise SystemExit(f"{method} {path}: {answer.status} {text.decode()}")
        return json.loads(text), answer.headers.get("etag", "")


def publish(api: Api, threshold: int) -> tuple[float, float, dict]:
    """Return (call sent at, answered at, the answer)."""
    _, etag = api.call("POST", "/policies/default/draft", {})
    change = {"overrides": {"classes.heavy_new_tokens": threshold}}
    _, etag = api.call("PATCH", "/policies/default/draft", change, **{"if-match": etag})
    sent = time.monotonic()
    made, _ = api.call("POST", "/policies/default/draft/publish", {"reason": "measuring how fast it routes"})
    return sent, time.monotonic(), made


def first_routed(probes: list[Probe], version: int) -> float:
    return min(sent for probe in probes for sent, seen in probe.seen if seen >= version)


def share(values: list[float], part: float) -> float:
    return sorted(values)[min(len(values) - 1, int(part * len(values)))]


def measure(web_port: int, router_ports: list[int], token: str, publishes: int) -> None:
    api, stop = Api(web_port, token), threading.Event()
    probes = {port: [Probe(port) for _ in range(PROBES)] for port in router_ports}
    threads = [threading.Thread(target=probe.run, args=(stop,)) for group in probes.values() for probe in group]
    for thread in threads:
        thread.start()
    time.sleep(1)
    done = []
    began = time.monotonic()
    for number in range(publishes):
        done.append(publish(api, 20_000 + 100 * (1 + number % 50)))
        time.sleep(0.2)
    took = time.monotonic() - began
    time.sleep(1)
    stop.set()
    for thread in threads:
        thread.join()
    report(probes, done, took)


def report(probes: dict[int, list[Probe]], done: list[tuple[float, float, dict]], took: float) -> None:
    calls = [(answered - sent) * 1e3 for sent, answered, _ in done]
    missing = sum(bool(made["missing"]) for _, _, made in done)
    routed = [
        max(0.0, (first_routed(group, made["version"]["number"]) - answered) * 1e3)
        for _, answered, made in done
        for group in probes.values()
    ]
    requests = sum(len(probe.seen) for group in probes.values() for probe in group)
    print(
        f"{len(done)} publishes, {len(probes)} routers, {requests / (took + 2):.0f} requests/s besides the demo traffic"
    )
    print(f"publish call               p50 {share(calls, 0.5):6.1f} ms   p99 {share(calls, 0.99):6.1f} ms")
    print(f"answer → first routed by it p50 {share(routed, 0.5):5.1f} ms   p99 {share(routed, 0.99):6.1f} ms")
    print(f"publishes that some router did not acknowledge in time: {missing}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--publishes", type=int, default=50)
    options = parser.parse_args()
    first = free_ports(1)[0]
    with running("--routers", str(ROUTERS), "--router-port", str(first)) as weir:
        weir.wait_for("instances of pool demo are ready")
        token = (weir.folder / "token").read_text().strip()
        measure(weir.web_port, list(range(first + 1, first + 1 + ROUTERS)), token, options.publishes)
        weir.stop()


if __name__ == "__main__":
    main()
