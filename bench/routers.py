"""The cost of routers to each other: `python -m bench.routers [--routers 2 8 16] [--instances 1000] [--requests 1000]`.

Of one router, while each of the others reports its load five times a second: CPU seconds a second of hearing the
others' loads, of telling its own, and the bytes that it reads. `--requests` arrive at all routers together in a second,
each on a drawn instance, and last `--lasts` seconds, so that this many are in flight. In one process, without Redis:
the messages are encoded and read as they are, and the connection's own time is not counted.
"""

import argparse
import asyncio
import random
import time
from typing import Any, cast

from bench.decide import print_table
from router.contract.redis import redis_keys
from router.contract.redis.published import FleetValue, PublishedInstance
from router.pool.endpoint import Endpoint
from router.pool.lease import Lease
from router.serving.pools import Pools
from router.sync.peers import TELL_S, RouterPeers
from router.sync.redis_link import RedisLink

Entries = list[tuple[bytes, dict[bytes, bytes]]]


class Link:
    """A link that receives what a router writes."""

    def __init__(self) -> None:
        self.client = self
        self.written: Entries = []

    async def xadd(self, stream: str, fields: dict[str, Any], **_: object) -> None:
        raw = {name.encode(): value.encode() if isinstance(value, str) else value for name, value in fields.items()}
        self.written.append((b"1-1", raw))


class Router:
    def __init__(self, number: int, instances: int) -> None:
        self.link, self.pools = Link(), Pools()
        engines = tuple(
            PublishedInstance(id=f"chat-{each}", epoch=1, url="http://127.0.0.1:1", state="ready", routable=True)
            for each in range(instances)
        )
        pool = self.pools.get_or_add("chat")
        pool.take_fleet(FleetValue(pool="chat", model="m", at=1.0, instances=engines))
        self.endpoints: list[Endpoint] = list(pool.endpoints.values())
        self.peers = RouterPeers(cast(RedisLink, self.link), self.pools, f"router-{number}")
        self.leases: list[tuple[float, Lease]] = []  # leases, each with its end

    def serve(self, requests: int, now: float, lasts_s: float, draw: random.Random) -> None:
        for _, lease in [one for one in self.leases if one[0] <= now]:
            lease.end()
        self.leases = [one for one in self.leases if one[0] > now]
        for _, lease in self.leases:
            lease.first_content()
        for _ in range(requests):
            lease = draw.choice(self.endpoints).lease(draw.randrange(20_000), lambda: None)
            self.leases.append((now + lasts_s, lease))

    def told(self) -> Entries:
        asyncio.run(self.peers.tell())
        written, self.link.written = self.link.written, []
        return written


def measured(routers: int, options: argparse.Namespace) -> list[str]:
    draw = random.Random(options.seed)
    made = [Router(number, options.instances) for number in range(routers)]
    first, rest = made[0], made[1:]
    hearing = telling = 0.0
    size = messages = 0
    steps = round(options.seconds / TELL_S)
    warm = round(options.lasts / TELL_S)
    each = max(1, round(options.requests * TELL_S / routers))
    for step in range(warm + steps):
        began = time.monotonic()
        for router in made:
            router.serve(each, step * TELL_S, options.lasts, draw)
        heard = [router.told() for router in rest]
        mark = time.thread_time()
        first.told()
        told = time.thread_time()
        for entries in heard:
            first.peers._take(redis_keys.LOADS, entries)
        if step >= warm:
            telling, hearing = telling + told - mark, hearing + time.thread_time() - told
            messages += sum(map(len, heard))
            size += sum(len(value) for entries in heard for _, fields in entries for value in fields.values())
        time.sleep(max(0.0, TELL_S - (time.monotonic() - began)))  # messages depend on the clock
    seconds = steps * TELL_S
    figures = hearing / seconds, telling / seconds, size / seconds / 1e3, messages / seconds
    return [
        str(routers),
        str(options.instances),
        *(f"{one:.4f}" for one in figures[:2]),
        *(f"{one:.0f}" for one in figures[2:]),
    ]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--routers", type=int, nargs="+", default=[2, 8, 16])
    parser.add_argument("--instances", type=int, default=1_000)
    parser.add_argument("--requests", type=int, default=1_000, help="per second, of all routers together")
    parser.add_argument("--lasts", type=float, default=4.0, help="seconds of a request")
    parser.add_argument("--seconds", type=float, default=6.0)
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    rows = [["routers", "instances", "hearing, cores", "telling, cores", "kB/s read", "messages/s"]]
    rows += [measured(routers, options) for routers in options.routers]
    print_table(rows)


if __name__ == "__main__":
    main()
