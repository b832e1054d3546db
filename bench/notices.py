"""The delay of notices, from the event until a webhook has received it, and their order.

    .venv/bin/python -m bench.notices [--notices 40] [--rate 1] [--burners 4]

Starts its own Weir with a receiver on this host, and publishes versions of a policy: each is an event. Measures on a
quiet machine, and beside processes that burn CPU.
"""

import argparse
import json
import statistics
import threading
import time
from datetime import datetime
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

from bench.declare import burners
from controlplane.tests.faults import api
from controlplane.tests.real_up import RealUp, running

PATIENCE_S = 300.0


class Receiver:
    """Records (sequence, seconds since the event) of each notice, in the order of arrival."""

    def __init__(self) -> None:
        self.got: list[tuple[int, float]] = []
        got = self.got

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = json.loads(self.rfile.read(int(self.headers["content-length"])))
                got.append((body["sequence"], time.time() - datetime.fromisoformat(body["timestamp"]).timestamp()))
                self.send_response(204)
                self.end_headers()

            def log_message(self, *_: object) -> None:
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self._server.server_port}/"
        threading.Thread(target=self._server.serve_forever, daemon=True).start()


def publish(weir: RealUp, number: int) -> None:
    api(weir, "/policies/default/draft", {}, timeout_s=60)
    changed = {"overrides": {"classes.heavy_new_tokens": 10_000 + number}}
    api(weir, "/policies/default/draft", changed, method="PATCH", timeout_s=60)
    api(weir, "/policies/default/draft/publish", {"reason": f"version {number} of the bench"}, timeout_s=60)


def measure(weir: RealUp, receiver: Receiver, notices: int, rate: float) -> str:
    receiver.got.clear()
    for number in range(notices):
        began = time.monotonic()
        publish(weir, int(time.time() * 10) % 100_000 + number)
        time.sleep(max(0.0, 1 / rate - (time.monotonic() - began)))
    end = time.monotonic() + PATIENCE_S
    while len(receiver.got) < notices and time.monotonic() < end:
        time.sleep(0.1)
    late = sorted(seconds for _, seconds in receiver.got)
    order = [sequence for sequence, _ in receiver.got]
    p90 = statistics.quantiles(late, n=10)[-1]
    said = "in order" if order == sorted(order) else "out of order"
    times = f"median {statistics.median(late):.1f} s, p90 {p90:.1f} s, most {late[-1]:.1f} s"
    return f"{len(order)} of {notices} notices, {said}: {times}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--notices", type=int, default=40)
    parser.add_argument("--rate", type=float, default=1.0, help="events a second")
    parser.add_argument("--burners", type=int, default=4)
    options = parser.parse_args()
    receiver = Receiver()
    with running("--no-demo", WEIR_NOTICE_NETWORKS="127.0.0.0/8") as weir:
        weir.until(lambda: weir.get("/login") == 200 and (weir.folder / "token").exists(), "the pages")
        api(
            weir, "/channels", {"kind": "webhook", "name": "bench", "url": receiver.url, "events": ["policy.published"]}
        )
        measure(weir, receiver, 2, options.rate)  # the control worker may still be starting
        for beside in (0, options.burners):
            with burners(beside):
                print(f"beside {beside} burners: {measure(weir, receiver, options.notices, options.rate)}", flush=True)
        weir.stop()


if __name__ == "__main__":
    main()
