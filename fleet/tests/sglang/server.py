"""Serve `python -m sglang.launch_server …` as its kind writes it: SGLang's pages over a simulated engine.

Like the real server, it exits if told to release memory that is already released, or to map memory that is mapped.
"""

import argparse
import asyncio
import json
import os
import re
import sys
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[3]))

import uvicorn

from fleet.simengine import __main__ as simengine
from fleet.simengine.arguments import parse_arguments
from fleet.simengine.http.app import App, read_body, respond
from fleet.simengine.http.server import listen
from fleet.simengine.service import Service

MEMORY = ("kv_cache", "weights", "cuda_graph")
# Paths that vLLM has and SGLang does not
OTHERS = ("/version", "/is_sleeping", "/kv_event_sources", "/sleep", "/wake_up", "/load", "/collective_rpc", "/ping")
NAMES = {
    "vllm:kv_cache_usage_perc": "sglang:token_usage",
    "vllm:num_requests_running": "sglang:num_running_reqs",
    "vllm:num_requests_waiting": "sglang:num_queue_reqs",
    "vllm:num_preemptions_total": "sglang:num_retracted_requests_total",
    "vllm:prompt_tokens_total": "sglang:prompt_tokens_total",
    "vllm:generation_tokens_total": "sglang:generation_tokens_total",
    "vllm:prompt_tokens_cached_by_source_total": "sglang:cached_tokens_total",
    "vllm:kv_offload_load_bytes_total": "sglang:load_back_bytes_total",
    "vllm:kv_offload_load_time_total": "sglang:load_back_duration_seconds_sum",
    "vllm:kv_offload_store_bytes_total": "sglang:hicache_backup_bytes_total",
    "vllm:kv_offload_store_time_total": "sglang:hicache_backup_duration_seconds_sum",
}
SIZES = re.compile(r'block_size="(\d+)",.*num_gpu_blocks="(\d+)"')


def options(words: list[str]) -> argparse.Namespace:
    """Parse the options that the kind writes; any other option is an error."""
    parser = argparse.ArgumentParser(allow_abbrev=False)
    for name in ("model-path", "served-model-name", "host", "dtype", "load-format"):
        parser.add_argument(f"--{name}", required=True)
    for name in ("port", "tp-size", "page-size"):
        parser.add_argument(f"--{name}", type=int, required=True)
    for name in ("attn-dp-size", "context-length", "max-running-requests", "chunked-prefill-size", "hicache-size"):
        parser.add_argument(f"--{name}", type=int)
    parser.add_argument("--mem-fraction-static", type=float)
    for name in ("enable-metrics", "enable-cache-report", "enable-memory-saver", "enable-weights-cpu-backup"):
        parser.add_argument(f"--{name}", action="store_true")
    parser.add_argument("--kv-events-config", type=json.loads, required=True)
    parser.add_argument("--enable-hierarchical-cache", action="store_true")
    for name in ("hicache-write-policy", "hicache-storage-backend", "disaggregation-transfer-backend"):
        parser.add_argument(f"--{name}")
    parser.add_argument("--disaggregation-mode", default="both", choices=("prefill", "decode"))
    parser.add_argument("--disaggregation-bootstrap-port", type=int)
    parser.add_argument("--disaggregation-ib-device")
    return parser.parse_args(words)


def engine_words(given: argparse.Namespace) -> list[str]:
    events, replay = (str(given.kv_events_config[name]).rpartition(":")[2] for name in ("endpoint", "replay_endpoint"))
    found = {
        **{"host": given.host, "port": given.port, "model": given.served_model_name, "block-size": given.page_size},
        **{
            "events-port": events,
            "replay-port": replay,
            "events-dialect": "sglang",
            "time-scale": os.environ.get("STANDIN_TIME_SCALE", "50"),
        },
        **{"data-parallel-size": given.attn_dp_size, "max-model-len": given.context_length},
        **{"max-num-seqs": given.max_running_requests, "max-num-batched-tokens": given.chunked_prefill_size},
        **{"dram-gb": given.hicache_size, "ssd-gb": given.hicache_storage_backend and 64},
    }
    if given.disaggregation_mode != "both":
        found |= {"kv": "sglang", "role": given.disaggregation_mode}
    return [word for name, value in found.items() if value is not None for word in (f"--{name}", str(value))]


class SglangApp:
    def __init__(self, services: list[Service], given: argparse.Namespace) -> None:
        self.app, self.services, self.given = App(*services), services, given
        self.released: set[str] = set()
        self.paused = False

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        path, method = scope["path"], scope["method"]
        answer = getattr(self, f"{method.lower()}_{path[1:].replace('/', '_')}", None)
        if path in OTHERS:
            await respond(send, 404, b'{"detail":"Not Found"}')
        elif answer is not None:
            await respond(send, *answer(json.loads(await read_body(receive) or b"{}") if method == "POST" else {}))
        else:
            await self.app(scope, receive, send)

    def get_ready(self, body: Any) -> tuple[int, bytes]:
        return (503 if self.paused else 200), b""

    def get_health_generate(self, body: Any) -> tuple[int, bytes]:
        return (503 if self.released else 200), b""

    def get_server_info(self, body: Any) -> tuple[int, bytes]:
        given = self.given
        events = {
            **{"publisher": "zmq", "topic": given.kv_events_config["topic"], "dp_size": given.attn_dp_size or 1},
            **{f"{name}_port_base": int(given.kv_events_config[name].rpartition(":")[2])
               for name in ("endpoint", "replay_endpoint")},
        }  # fmt: skip
        mode = given.disaggregation_mode.replace("both", "null")
        about = {"version": "0.5.23", "kv_events": events, "disaggregation_mode": mode}
        return 200, json.dumps(
            vars(given) | about | {"max_running_requests": given.max_running_requests or 256}
        ).encode()

    def get_v1_models(self, body: Any) -> tuple[int, bytes]:
        card = {"id": self.given.served_model_name, "object": "model", "owned_by": "sglang"}
        window = self.services[0].about.window
        return 200, json.dumps({"object": "list", "data": [card | {"max_model_len": window}]}).encode()

    def get_metrics(self, body: Any) -> tuple[int, bytes]:
        lines = [line for rank, service in enumerate(self.services) for line in self._of_rank(rank, service)]
        return 200, ("\n".join(lines) + "\n").encode()

    def _of_rank(self, rank: int, service: Service) -> list[str]:
        labels, lines = f'model_name="{self.given.served_model_name}",dp_rank="{rank}"', []
        for line in service.metrics_page().decode().splitlines():
            name, value = line.partition("{")[0], line.rpartition(" ")[2]
            source = re.search('source="(device|host|disk)"', line)
            if name in NAMES and ("source=" not in line or source):
                more = f',cache_source="{source[1].replace("disk", "storage")}"' if source else ""
                lines.append(f"{NAMES[name]}{{{labels}{more}}} {value}")
            elif name == "vllm:cache_config_info" and (sizes := SIZES.search(line)):
                lines += [f"sglang:page_size{{{labels}}} {sizes[1]}", f"sglang:num_pages{{{labels}}} {sizes[2]}"]
            elif name == "weir_sim_kv_tier_used_bytes" and 'tier="dram"' in line:
                lines.append(f"sglang:hicache_host_used_tokens{{{labels}}} {float(value) / 131072}")
                lines.append(f"sglang:hicache_host_total_tokens{{{labels}}} {self.given.hicache_size * 1e9 / 131072}")
            elif name == "weir_sim_time_scale":
                lines.append(line)
        return lines

    def post_release_memory_occupation(self, body: Any) -> tuple[int, bytes]:
        self._must_be(set(body.get("tags") or MEMORY), released=False)
        self.released |= set(body.get("tags") or MEMORY)
        for service in self.services:
            service.sleep(1)
        return 200, b""

    def post_resume_memory_occupation(self, body: Any) -> tuple[int, bytes]:
        self._must_be(set(body.get("tags") or MEMORY), released=True)
        self.released -= set(body.get("tags") or MEMORY)
        if not self.released:
            for service in self.services:
                service.sleep_mode.wake(())
        return 200, b""

    def post_update_weights_from_disk(self, body: Any) -> tuple[int, bytes]:
        self._must_be({"weights"}, released=False)
        print(f"weights of {body['model_path']}", flush=True)
        return 200, b'{"success":true}'

    def _must_be(self, tags: set[str], *, released: bool) -> None:
        if not self.given.enable_memory_saver or (self.released & tags != (tags if released else set())):
            print(f"fatal: {sorted(tags)} must {'' if released else 'not '}be released", flush=True)
            os._exit(1)

    def post_pause_generation(self, body: Any) -> tuple[int, bytes]:
        self.paused = True
        return 200, b""

    def post_continue_generation(self, body: Any) -> tuple[int, bytes]:
        self.paused = False
        return 200, b""


async def run(words: list[str]) -> None:
    given = options(words)
    arguments = parse_arguments(engine_words(given))
    sockets = [listen(given.host, port) for port in (given.port, given.disaggregation_bootstrap_port) if port]
    publishers = [simengine._publisher(arguments, rank) for rank in range(arguments.data_parallel_size)]
    services = simengine._services(arguments, given.port, publishers)
    print("The server is fired up and ready to roll!", flush=True)
    config = uvicorn.Config(SglangApp(services, given), lifespan="off", log_config=None, timeout_graceful_shutdown=3)
    await uvicorn.Server(config).serve(sockets)


if __name__ == "__main__":
    asyncio.run(run(sys.argv[1:]))
