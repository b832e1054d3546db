"""The cost of a name of the document Models to a request: `python -m bench.alias [--rounds 150]`.

`prepare` chooses the target, renames the model in the body and hashes the prompt; a request that names its pool is
measured for comparison. Prints µs of CPU, the minimum of all rounds, by prompt size, with a session id and without.
"""

import argparse
import time
from collections.abc import Callable

import orjson

from router.contract import models
from router.contract.redis.published import FleetValue, ModelsValue
from router.http.client import IncomingRequest
from router.request.call import Call
from router.serving.pools import Pools
from router.serving.prompt import prepare

PATH = "/v1/chat/completions"
SIZES = (200, 4_000, 40_000)  # bytes per prompt
BATCH = 60
SPLIT = [{"pool": "h200", "weight": 90}, {"pool": "h100", "weight": 10}]
MODELS = {"schema": 1, "models": {"chat": {"split": SPLIT, "fallback": [{"pool": "spot"}]}}}


def pools() -> Pools:
    made = Pools()
    for name in ("h200", "h100", "spot"):
        made.get_or_add(name).take_fleet(FleetValue(pool=name, model="llama", at=1.0, instances=()))
    made.changed()
    document = models.dump(models.parse(MODELS))
    made.take_models(ModelsValue(version=1, document=document, sha256=models.sha256(document)))
    return made


def request(served: Pools, model: str, size: int, session: str | None) -> Callable[[], None]:
    messages = [{"role": "system", "content": "x" * size}, {"role": "user", "content": "hello"}]
    body = orjson.dumps(
        {"model": model, "messages": messages, "stream": True, **({"user": session} if session else {})}
    )
    read, sent = prepare.read(body, PATH)
    incoming = IncomingRequest(PATH, b"", [(b"host", b"router"), (b"content-type", b"application/json")], "127.0.0.1")
    own = dict(incoming.headers)
    return lambda: prepare.prepare(Call("request", PATH, 0.0, 0.0), incoming, own, read, sent, served)


def least_us(asked: Callable[[], None]) -> float:
    began = time.process_time()
    for _ in range(BATCH):
        asked()
    return (time.process_time() - began) / BATCH * 1e6


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=150)
    rounds, served = parser.parse_args().rounds, pools()
    print("  bytes  session   alias    pool  difference")
    for size in SIZES:
        for session in ("one", None):
            both = [request(served, model, size, session) for model in ("chat", "h200")]
            alias, pool = (min(each) for each in zip(*([*map(least_us, both)] for _ in range(rounds)), strict=True))
            print(f"{size:7,}  {session or 'none':7}  {alias:6.1f}  {pool:6.1f}  {alias - pool:10.1f}")


if __name__ == "__main__":
    main()
