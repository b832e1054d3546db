"""CPU of the node's step for n instances: `python bench/fleet_scrape.py [8 100]`.

A second process plays the engines, each on its own port, with a page as long as vLLM's (52 kB). Database and Redis are
real, in a folder of their own. The last column is the same two requests by httpx, for comparison.
"""

import asyncio
import contextlib
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))
SECONDS = 10
PAGE = "".join(f'vllm:other_{n:03d}_bucket{{engine="0",le="{n}",model_name="m"}} {n}.0\n' for n in range(900)) + (
    'vllm:num_requests_running{engine="0",model_name="m"} 3.0\n'
    'vllm:num_requests_waiting{engine="0",model_name="m"} 0.0\n'
    'vllm:kv_cache_usage_perc{engine="0",model_name="m"} 0.25\n'
    'vllm:prefix_cache_queries_total{engine="0"} 100.0\n'
    'vllm:prefix_cache_hits_total{engine="0"} 50.0\n'
    'vllm:prompt_tokens_total{engine="0"} 100.0\n'
    'vllm:generation_tokens_total{engine="0"} 100.0\n'
    'vllm:num_preemptions_total{engine="0"} 0.0\n'
    'vllm:cache_config_info{block_size="16",num_gpu_blocks="1024"} 1.0\n'
)
BODIES = {b"/health": b"", b"/metrics": PAGE.encode(), b"/v1/models": b'{"data":[{"id":"m"}]}'}


async def engines(first: int, count: int) -> None:
    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(asyncio.IncompleteReadError, ConnectionError):  # the client has gone
            while head := await reader.readuntil(b"\r\n\r\n"):
                body = BODIES[head.split(b" ", 2)[1]]
                writer.write(b"HTTP/1.1 200 OK\r\ncontent-length: %d\r\n\r\n" % len(body) + body)
        writer.close()

    for port in range(first, first + count):
        await asyncio.start_server(serve, "127.0.0.1", port)
    print("ready", flush=True)
    await asyncio.Event().wait()


def declare(count: int, first: int, pid: int) -> None:
    from django.utils import timezone

    from fleet import launch
    from fleet.models import Instance, Pool

    state = launch.inspect(pid)
    assert state is not None
    pool = Pool.objects.create(name="p", model="m", kind="sim", replicas=count)
    for n in range(count):
        Instance.objects.create(
            pool=pool, name=f"p-{n}", ordinal=n, state="ready", since=timezone.now(), epoch=1, pid=pid,
            pid_started=state.started, boot_id=launch.boot_id(), url=f"http://127.0.0.1:{first + n}", config_hash="x",
        )  # fmt: skip


def scraper_cost(seconds: int) -> tuple[float, float]:
    """(core share at one step a second, slowest step in s)."""
    from django.utils import timezone

    from fleet.scrape import Scraper

    scraper = Scraper()
    for _ in range(2):
        scraper.step(timezone.now())
    begin, slowest = time.process_time(), 0.0
    for _ in range(seconds):
        at = time.perf_counter()
        moved = scraper.step(timezone.now())
        assert not moved, moved
        slowest = max(slowest, time.perf_counter() - at)
    return (time.process_time() - begin) / seconds, slowest


async def httpx_cost(count: int, first: int, seconds: int) -> float:
    import httpx

    urls = [f"http://127.0.0.1:{first + n}/{path}" for n in range(count) for path in ("health", "metrics")]
    async with httpx.AsyncClient(limits=httpx.Limits(max_connections=None)) as client:
        await asyncio.gather(*(client.get(url) for url in urls))
        begin = time.process_time()
        for _ in range(seconds):
            await asyncio.gather(*(client.get(url) for url in urls))
        return (time.process_time() - begin) / seconds


def measure(count: int, first: int) -> None:
    from fleet.models import Pool

    argv = [sys.executable, __file__, "engines", str(first), str(count)]
    with subprocess.Popen(argv, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        process.stdout.readline()
        declare(count, first, process.pid)
        share, slowest = scraper_cost(SECONDS)
        other = asyncio.run(httpx_cost(count, first, SECONDS))
        print(f"{count:4d} instances: {share:.3f} of a core, slowest step {slowest * 1000:.0f} ms; httpx {other:.3f}")
        process.terminate()
    Pool.objects.all().delete()


def main(counts: list[int]) -> None:
    with tempfile.TemporaryDirectory(prefix="weir-scrape-", dir="/tmp") as folder:
        run(counts, Path(folder))


def run(counts: list[int], folder: Path) -> None:
    os.environ |= {"WEIR_DATA_DIR": str(folder), "REDIS_URL": f"unix://{folder}/redis.sock"}
    os.environ["DJANGO_SETTINGS_MODULE"] = "controlplane.settings"
    import django

    django.setup()
    from django.core.management import call_command

    from controlplane import redis_server

    server = redis_server.arguments(redis_server.find_server(), folder / "redis.sock")
    with subprocess.Popen(server, stdout=subprocess.DEVNULL) as store:
        redis_server.wait_until_ready(os.environ["REDIS_URL"], store)
        call_command("migrate", verbosity=0)
        for number, count in enumerate(counts):
            measure(count, 31_000 + 300 * number)
        store.terminate()


if __name__ == "__main__":
    if sys.argv[1:2] == ["engines"]:
        asyncio.run(engines(int(sys.argv[2]), int(sys.argv[3])))
    else:
        main([int(word) for word in sys.argv[1:]] or [8, 100])
