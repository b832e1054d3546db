"""The cost to an operator of viewers who ask large questions: the time of a page and of REST, and the web process' CPU.

    .venv/bin/python -m bench.viewers [--viewers 5] [--seconds 20] [--slug tutti] [--each]

A web process with its own database and Redis. First the operator works alone, then beside the viewers, each of
whom asks a system again as soon as it is answered, with inputs that nobody asked before. A checkout of another version
is measured by the same file: put it into its `bench/`.

With `--each` the viewers instead open one address at once, each page and operation of REST in turn:
the CPU of the web process per request, the operator's included.
"""

import argparse
import json
import os
import threading
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median

import httpx

from controlplane.testing_browser import Web, serving

PAUSE_S = 0.2  # between two requests of the operator
LIMIT_S = 120.0
MAKE = """
import json
from django.contrib.auth.models import Group, User
from controlplane.people.accounts.services import create_token
from controlplane.people.audit.services import Actor
from django.test import Client
from controlplane.tests.test_bounded_work import addresses
tokens, sessions = {{}}, []
for number in range({viewers}):
    user = User.objects.create_user(f"viewer{{number}}")
    user.groups.add(Group.objects.get(name="viewer"))
    client = Client()
    client.force_login(user)
    sessions.append(client.cookies["sessionid"].value)
    tokens[user.username] = create_token(user, "bench", ["experiments:read"], Actor("user", "ada"))[1]
otto = User.objects.get(username="otto")
tokens["otto"] = create_token(otto, "bench", ["policy:read", "fleet:read"], Actor("user", "ada"))[1]
open({path!r}, "w").write(json.dumps([tokens, sessions, list(addresses())]))
"""


@dataclass
class Told:
    """Measurements of one phase."""

    times: dict[str, list[float]] = field(default_factory=dict)  # the operator's times in s, by path
    statuses: Counter[int] = field(default_factory=Counter)  # statuses of the viewers' answers
    took: list[float] = field(default_factory=list)  # seconds of each viewer's answer


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--viewers", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=20.0)
    parser.add_argument("--slug", default="tutti")
    parser.add_argument("--each", action="store_true")
    given = parser.parse_args()
    with serving() as web:
        path = web.folder / "tokens.json"
        web.run(MAKE.format(viewers=given.viewers, path=str(path)))
        tokens, sessions, addresses = json.loads(path.read_text())
        otto = tokens.pop("otto")
        measure(web, otto, {}, 5.0, given.slug)  # covers imports and first connections
        if given.each:
            walk(web, otto, sessions, addresses)
            return
        for name, viewers in (("alone", {}), (f"beside {given.viewers} viewers", tokens)):
            before = cpu_s(web)
            told = measure(web, otto, viewers, given.seconds, given.slug)
            show(name, told, cpu_s(web) - before)


def measure(web: Web, otto: str, viewers: dict[str, str], seconds: float, slug: str) -> Told:
    told, end = Told(), time.monotonic() + seconds
    askers = [
        threading.Thread(target=ask, args=(web.url, token, number, slug, end, told))
        for number, token in enumerate(viewers.values())
    ]
    for asker in askers:
        asker.start()
    work(web.url, otto, end, told)
    for asker in askers:
        asker.join()
    return told


def walk(web: Web, otto: str, sessions: list[str], addresses: list[str]) -> None:
    """Print which viewers' requests cost most."""
    cost: dict[str, float] = {}
    statuses: Counter[int] = Counter()
    clients = [httpx.Client(base_url=web.url, cookies={"sessionid": one}, timeout=LIMIT_S) for one in sessions]
    threading.Thread(target=until_the_end, args=(web.url, otto), daemon=True).start()
    with ThreadPoolExecutor(len(clients)) as viewers:
        for address in addresses:
            before = cpu_s(web)
            statuses.update(viewers.map(lambda client, to=address: client.get(to).status_code, clients))
            cost[address] = (cpu_s(web) - before) / len(clients)
    print(f"{len(addresses)} addresses, {len(clients)} viewers at once beside an operator: {dict(statuses)}")
    print(f"CPU of the web process for a request: median {median(cost.values()):.3f} s; the most:")
    for address in sorted(cost, key=cost.__getitem__, reverse=True)[:5]:
        print(f"  {cost[address]:.2f} s  {address[:100]}")


def until_the_end(url: str, token: str) -> None:
    with suppress(httpx.TransportError):
        work(url, token, float("inf"), Told())


def work(url: str, token: str, end: float, told: Told) -> None:
    """Play the operator."""
    with httpx.Client(base_url=url, headers={"Authorization": f"Bearer {token}"}, timeout=LIMIT_S) as client:
        while time.monotonic() < end:
            for path in ("/api/v1/policies", "/login"):
                began = time.monotonic()
                client.get(path)
                told.times.setdefault(path, []).append(time.monotonic() - began)
            time.sleep(PAUSE_S)


def ask(url: str, token: str, number: int, slug: str, end: float, told: Told) -> None:
    """Play a viewer."""
    asked = 0
    with httpx.Client(base_url=url, headers={"Authorization": f"Bearer {token}"}, timeout=LIMIT_S) as client:
        while time.monotonic() < end:
            asked += 1
            inputs = {"rate": 1.0 + number + asked / 1_000} if slug != "offload" else {"tpot_ms": 30 + number + asked}
            began = time.monotonic()
            answer = client.post(f"/api/v1/systems/{slug}", json={"inputs": inputs})
            told.statuses[answer.status_code] += 1
            told.took.append(time.monotonic() - began)


def cpu_s(web: Web) -> float:
    """Return the CPU time of the web process itself, without the processes beside it."""
    text = Path(f"/proc/{web.processes['web'].pid}/stat").read_text().rpartition(")")[2].split()
    return (int(text[11]) + int(text[12])) / os.sysconf("SC_CLK_TCK")


def show(name: str, told: Told, cpu: float) -> None:
    print(f"{name}:")
    for path, times in told.times.items():
        print(
            f"  {path:<18} median {median(times) * 1e3:6.0f} ms, slowest {max(times) * 1e3:6.0f} ms, {len(times)} times"
        )
    answered = sum(told.statuses.values())
    if answered:
        each = f"median {median(told.took):.1f} s, slowest {max(told.took):.1f} s"
        print(f"  viewers' answers   {dict(told.statuses)}, {each}; {cpu / answered:.2f} s of the web's CPU for each")


if __name__ == "__main__":
    main()
