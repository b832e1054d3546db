"""The wait of new pools: from `PUT /fleet` with N new pools until each has its instance created and is in Redis.

Starts its own Weir, and measures each N on a quiet machine and beside processes that burn CPU. The pools are bound to a
node that does not exist, so the figures include no engine's start.

    .venv/bin/python -m bench.declare [--pools 8,32] [--burners 4]
"""

import argparse
import http.client
import json
import multiprocessing
import time
from collections.abc import Iterator
from contextlib import contextmanager

import redis

from controlplane.tests.real_up import running
from router.contract.redis import codec, redis_keys
from router.contract.redis.published import FleetValue

LIMIT_S = 300.0


def burn() -> None:
    while True:
        pass


@contextmanager
def burners(count: int) -> Iterator[None]:
    found = [multiprocessing.Process(target=burn, daemon=True) for _ in range(count)]
    for each in found:
        each.start()
    try:
        yield
    finally:
        for each in found:
            each.kill()
            each.join()


def document(names: list[str]) -> dict:
    pools = [{"name": name, "model": "m", "kind": "sim", "replicas": 1, "node": "nowhere"} for name in names]
    return {"apiVersion": "weir/v1", "kind": "Fleet", "metadata": {"name": "declared"}, "spec": {"pools": pools}}


def put(port: int, token: str, names: list[str]) -> None:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=120)
    headers = {"authorization": f"Bearer {token}", "content-type": "application/json"}
    connection.request("GET", "/api/v1/fleet", headers=headers)
    answer = connection.getresponse()
    answer.read()
    headers["if-match"] = answer.headers.get("etag", "")
    connection.request("PUT", "/api/v1/fleet", json.dumps(document(names)), headers)
    answer = connection.getresponse()
    text = answer.read()
    if answer.status >= 300:
        raise SystemExit(f"PUT /fleet: {answer.status} {text.decode()}")


def published(client: redis.Redis, name: str) -> bool:
    value = codec.decode(FleetValue, client.get(redis_keys.fleet_key(name)))
    return value is not None and len(value.instances) == 1


def seconds(client: redis.Redis, port: int, token: str, names: list[str]) -> tuple[float, float]:
    """Return the duration of the call, and the time from its start until the last pool is published with its
    instance."""
    began = time.monotonic()
    put(port, token, names)
    called, waiting = time.monotonic() - began, set(names)
    while waiting:
        waiting = {name for name in waiting if not published(client, name)}
        if time.monotonic() - began > LIMIT_S:
            raise SystemExit(f"not published after {LIMIT_S:g} s: {', '.join(sorted(waiting))}")
        time.sleep(0.02)
    return called, time.monotonic() - began


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--pools", default="8,32", help="how many at once, each in turn")
    parser.add_argument("--burners", type=int, default=4)
    options = parser.parse_args()
    with running() as weir:
        weir.wait_for("instances of pool demo are ready")
        token = (weir.folder / "token").read_text().strip()
        client = redis.Redis(unix_socket_path=str(weir.folder / "run" / "redis.sock"))
        for beside in (0, options.burners):
            for count in map(int, options.pools.split(",")):
                with burners(beside):
                    names = [f"new-{beside}-{count}-{number}" for number in range(count)]
                    called, took = seconds(client, weir.web_port, token, names)
                print(
                    f"{count:3} pools beside {beside} burners: call {called:5.2f} s, published {took:5.2f} s",
                    flush=True,
                )
        weir.stop()


if __name__ == "__main__":
    main()
