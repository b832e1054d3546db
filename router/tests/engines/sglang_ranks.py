"""A real SGLang with two data-parallel ranks: the router's prediction for each prompt beside the tokens that were
cached.

python -m router.tests.engines.sglang_ranks (`make sglang` first; 3 to 6 minutes)
"""

import json
import sys
import tempfile
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from router.tests.agents.__main__ import ENGINES, MODEL, Receipt, get, process, receipts, until
from router.tests.engines.hybrids import TALKS, judged, talk
from router.tests.ports import free_ports

EVENTS, REPLAY = 23_101, 23_151  # ports of rank 0; rank 1 uses the following ones
VARIABLES = {"SGLANG_USE_CPU_ENGINE": "1", "SGLANG_CPU_OMP_THREADS_BIND": "0|1", "HF_HUB_OFFLINE": "1"}


def command(port: int) -> list[object]:
    places = {"endpoint": f"tcp://127.0.0.1:{EVENTS}", "replay_endpoint": f"tcp://127.0.0.1:{REPLAY}"}
    model = ("--model-path", ENGINES / "tiny-model", "--served-model-name", MODEL, "--load-format", "dummy")
    return [
        *(ENGINES / "sglang/bin/python", "-m", "sglang.launch_server", "--host", "127.0.0.1", "--port", port, *model),
        *("--dp-size", 2, "--context-length", 16384, "--mem-fraction-static", 0.1, "--max-total-tokens", 32768),
        *("--page-size", 16, "--max-running-requests", 8, "--dtype", "float32", "--enable-metrics"),
        *("--enable-cache-report", "--device", "cpu", "--attention-backend", "torch_native"),
        *("--sampling-backend", "pytorch", "--grammar-backend", "none", "--disable-cuda-graph"),
        *("--disable-overlap-schedule", "--kv-events-config"),
        json.dumps({"publisher": "zmq", "bind": True, "topic": "kv", **places}),
    ]


def played() -> Sequence[Receipt]:
    router, port = free_ports(2)
    events = f"tcp://127.0.0.1:{EVENTS}?replay=tcp://127.0.0.1:{REPLAY}&topic=kv"
    listed = f"http://127.0.0.1:{port};id=a;ranks=2;events={events};tokenizer=sglang:{ENGINES / 'tiny-model'}"
    weir = [sys.executable, "-m", "router", "--port", router, "--instances", listed]
    logs, url = Path(tempfile.gettempdir()), f"http://127.0.0.1:{router}"
    with process(command(port), logs / "weir-sglang-ranks.log", **VARIABLES):
        until(lambda: get(f"http://127.0.0.1:{port}/v1/models"), f"the engine, see {logs}/weir-sglang-ranks.log")
        with process(weir, logs / "weir-sglang-ranks-router.log"):
            until(lambda: get(f"{url}/healthz")["instances"][0]["index"] == "exact", "an exact index")
            with ThreadPoolExecutor(2) as together:
                list(together.map(lambda number: talk(url, number), range(TALKS)))
            return receipts(url, 0.0)


if __name__ == "__main__":
    found = played()
    ranks = {each["instance"] for each in found}
    sys.exit(not judged(f"SGLang's ranks {', '.join(sorted(ranks))}", found) or len(ranks) < 2)
