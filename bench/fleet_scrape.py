"""CPU of one node's worker that probes and scrapes n instances once a second.

    python bench/fleet_scrape.py [8 100 200] [--seconds 20] [--httpx]

The worker is a separate process that runs the loop of `manage.py node` (controlplane/base/worker.py: watch); its own
CPU time counts. A second process plays the engines, each on its own port, with the page that vLLM writes
(bench/vllm_page.py, 75 kB); database (SQLite) and Redis are real, in a separate folder. `--httpx` adds the same two
requests per instance by httpx, without anything done with the answers.
"""

import argparse
import asyncio
import json
import os
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))
WARM_UP_S = 3.0
FIRST_PORT = 31_000


class Engine(asyncio.Protocol):
    """Answers whole requests with prepared bytes."""

    answers: dict[bytes, bytes] = {}

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = transport

    def data_received(self, data: bytes) -> None:
        self.transport.write(self.answers[data.split(b" ", 2)[1]])  # type: ignore[attr-defined]


async def engines(first: int, count: int) -> None:
    from bench.vllm_page import page

    bodies = {b"/health": b"", b"/metrics": page(), b"/v1/models": b'{"data":[{"id":"m"}]}'}
    for path, body in bodies.items():
        Engine.answers[path] = b"HTTP/1.1 200 OK\r\ncontent-length: %d\r\n\r\n" % len(body) + body
    for port in range(first, first + count):
        await asyncio.get_running_loop().create_server(Engine, "127.0.0.1", port)
    print("ready", flush=True)
    await asyncio.Event().wait()


def declare(count: int, first: int, pid: int) -> None:
    from django.utils import timezone

    from fleet.models import Instance, Pool
    from fleet.node import process as launch

    state = launch.inspect(pid)
    assert state is not None
    pool = Pool.objects.create(name="p", model="m", kind="vllm", replicas=count)
    for n in range(count):
        Instance.objects.create(
            pool=pool, name=f"p-{n}", ordinal=n, state="ready", since=timezone.now(), epoch=1, pid=pid,
            pid_started=state.started, boot_id=launch.boot_id(), url=f"http://127.0.0.1:{first + n}", config_hash="x",
            config={"kind": "vllm", "model": "m", "engine": {}},
        )  # fmt: skip


def worker(seconds: float) -> None:
    """Run the loop for that long and print its core share and samples per second."""
    setup()
    from controlplane.base.worker import watch
    from fleet.services import LOCAL

    stopping = threading.Event()
    thread = threading.Thread(target=watch, args=(LOCAL, stopping))
    thread.start()
    time.sleep(WARM_UP_S)
    begin, at = time.process_time(), time.monotonic()
    time.sleep(seconds)
    took, lasted = time.process_time() - begin, time.monotonic() - at
    stopping.set()
    thread.join()
    print(json.dumps({"share": took / lasted}))


async def httpx_cost(count: int, first: int, seconds: int) -> float:
    import httpx

    urls = [f"http://127.0.0.1:{first + n}/{path}" for n in range(count) for path in ("health", "metrics")]
    async with httpx.AsyncClient(limits=httpx.Limits(max_connections=None)) as client:
        await asyncio.gather(*(client.get(url) for url in urls))
        begin = time.process_time()
        for _ in range(seconds):
            await asyncio.gather(*(client.get(url) for url in urls))
        return (time.process_time() - begin) / seconds


def measure(count: int, first: int, given: argparse.Namespace) -> None:
    from fleet.models import Pool

    argv = [sys.executable, __file__, "--engines", str(first), str(count)]
    with subprocess.Popen(argv, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        process.stdout.readline()
        declare(count, first, process.pid)
        watch = [sys.executable, __file__, "--worker", str(given.seconds)]
        ran = subprocess.run(watch, capture_output=True, check=True)
        print(f"{count:4d} instances: {json.loads(ran.stdout)['share']:.3f} of a core{_sampled(count)}", end="")
        if given.httpx:
            print(f"; httpx {asyncio.run(httpx_cost(count, first, 3)):.3f}", end="")
        print(flush=True)
        process.terminate()
    Pool.objects.all().delete()


def _sampled(count: int) -> str:
    """Return the result of the worker's latest look: whether it was complete, and its age."""
    from fleet.redis import values_of
    from router.contract.redis import redis_keys
    from router.contract.redis.sample import InstanceSample

    samples = values_of(InstanceSample, redis_keys.instance_key, [f"p-{n}" for n in range(count)]).values()
    assert len(samples) == count, f"{len(samples)} of {count} were sampled"
    assert all(sample.cached_by_source and sample.transfers for sample in samples)
    times = [sample.at for sample in samples]
    return f", samples {time.time() - min(times):.1f} s old"


def setup() -> None:
    import django

    django.setup()


def run(folder: Path, given: argparse.Namespace) -> None:
    os.environ |= {"WEIR_DATA_DIR": str(folder), "REDIS_URL": f"unix://{folder}/redis.sock"}
    os.environ["DJANGO_SETTINGS_MODULE"] = "controlplane.settings"
    setup()
    from django.core.management import call_command

    from controlplane.base.process import redis_server

    server = redis_server.arguments(redis_server.find_server(), folder / "redis.sock")
    with subprocess.Popen(server, stdout=subprocess.DEVNULL) as store:
        redis_server.wait_until_ready(os.environ["REDIS_URL"], store)
        call_command("migrate", verbosity=0)
        for number, count in enumerate(given.counts):
            measure(count, FIRST_PORT + 300 * number, given)
        store.terminate()


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    parser.add_argument("counts", nargs="*", type=int, default=[8, 100, 200])
    parser.add_argument("--seconds", type=float, default=20.0)
    parser.add_argument("--httpx", action="store_true")
    parser.add_argument("--engines", nargs=2, type=int, help=argparse.SUPPRESS)
    parser.add_argument("--worker", type=float, help=argparse.SUPPRESS)
    return parser.parse_args()


def main(given: argparse.Namespace) -> None:
    if given.engines:
        import uvloop

        uvloop.run(engines(*given.engines))
    elif given.worker:
        worker(given.worker)
    else:
        with tempfile.TemporaryDirectory(prefix="weir-scrape-", dir="/tmp") as folder:
            run(Path(folder), given)


if __name__ == "__main__":
    main(arguments())
