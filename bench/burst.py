"""The answers to a burst of requests, by status and code, and the retry times that they name.

    .venv/bin/python -m bench.burst [--requests 500,1000,2000,4000] [--engines 2] [--bytes 250] [--stream]

A standalone router in front of simulated engines. This process sends all requests at once, each on its own connection.
"""

import argparse
import asyncio
import re
import resource
import subprocess
import sys
import time
import urllib.request
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

import orjson

from router.tests.ports import free_ports

HERE = Path(__file__).resolve().parent.parent
MODEL = "burst"
PATIENCE_S = 60.0
START_S = 30.0
SHOWN = 160  # characters of a shown message

Answer = tuple[int, str, int, str, float]  # status, code, s after which to retry (0: none), message, duration


@contextmanager
def process(*words: str) -> Iterator[subprocess.Popen[bytes]]:
    running = subprocess.Popen([sys.executable, *words], cwd=HERE, stdout=subprocess.DEVNULL)
    try:
        yield running
    finally:
        running.terminate()
        running.wait(20)


def wait_for(url: str, word: bytes = b"") -> None:
    until = time.monotonic() + START_S
    while time.monotonic() < until:
        with suppress(OSError), urllib.request.urlopen(url, timeout=5) as answer:
            if word in answer.read():
                return
        time.sleep(0.1)
    raise SystemExit(f"{url} did not come up within {START_S:g} s")


async def ask(port: int, number: int, stream: bool, size: int, began: float) -> Answer:
    prompt = f"{number} " * (size // 5)
    messages = [{"role": "user", "content": prompt}]
    body = orjson.dumps({"model": MODEL, "stream": stream, "max_tokens": 16, "messages": messages})
    head = b"POST /v1/chat/completions HTTP/1.1\r\nhost: a\r\nconnection: close\r\ncontent-length: %d\r\n\r\n"
    try:
        async with asyncio.timeout(PATIENCE_S):
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            writer.write(head % len(body) + body)
            answer = await reader.read()
            writer.close()
    except (OSError, TimeoutError) as error:
        return 0, type(error).__name__, 0, str(error), time.monotonic() - began
    return read(answer, time.monotonic() - began)


def read(answer: bytes, took: float) -> Answer:
    head, _, rest = answer.partition(b"\r\n\r\n")
    status = int(head.split()[1]) if head else 0
    said = re.search(rb"\r\nretry-after: (\d+)", head.lower())
    later = int(said[1]) if said else 0
    if status == 200:
        return status, "", later, "", took
    try:
        error = orjson.loads(rest)["error"]
    except (orjson.JSONDecodeError, KeyError, TypeError):
        return status, "of the engine", later, rest[:SHOWN].decode("latin-1"), took
    return status, error.get("code") or "of the engine", later, error["message"][:SHOWN], took


async def burst(port: int, requests: int, stream: bool, size: int) -> list[Answer]:
    began = time.monotonic()
    return await asyncio.gather(*(ask(port, number, stream, size, began) for number in range(requests)))


def report(requests: int, answers: list[Answer]) -> None:
    counts = Counter((status, code, later > 0) for status, code, later, _, _ in answers)
    last = max(took for *_, took in answers)
    for (status, code, says_when), count in sorted(counts.items()):
        alike = [each for each in answers if (each[0], each[1], each[2] > 0) == (status, code, says_when)]
        message, told = alike[0][3], sorted(each[2] for each in alike)
        says = f"{told[0]} to {told[-1]} s, half up to {told[len(told) // 2]} s" if says_when else "no"
        print(
            f"| {requests:,} | {status or 'none'} | {code} | {count:,} | {says} | {last:.1f} | {message} |", flush=True
        )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--requests", default="500,1000,2000,4000", help="sizes of the bursts")
    parser.add_argument("--engines", type=int, default=2)
    parser.add_argument("--bytes", type=int, default=250, help="of each prompt")
    parser.add_argument("--stream", action="store_true")
    options = parser.parse_args()
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    port, *engines = free_ports(1 + options.engines)
    with ExitStack() as stack:
        for each in engines:
            engine = ("-m", "fleet.simengine", "--port", str(each), "--model", MODEL, "--time-scale", "10")
            stack.enter_context(process(*engine))
        urls = [f"http://127.0.0.1:{each}" for each in engines]
        for url in urls:
            wait_for(f"{url}/health")
        stack.enter_context(process("-m", "router", "--instances", ",".join(urls), "--port", str(port)))
        wait_for(f"http://127.0.0.1:{port}/healthz", b'"ready":%d' % len(urls))
        print("| requests | status | code | answers | says when to come back | over after, s | message |")
        print("|---|---|---|---|---|---|---|")
        for requests in map(int, options.requests.split(",")):
            report(requests, asyncio.run(burst(port, requests, options.stream, options.bytes)))


if __name__ == "__main__":
    main()
