"""Real vLLM with tiny hybrid models, or files: the router's prediction for each prompt beside the tokens that were
cached.

python -m router.tests.engines.hybrids [KIND …] (`make engines` first; 1 to 2 minutes for each kind)

Growing conversations and branches of them, two at a time. Those that begin alike do not begin at once: nobody can
foretell whether the engine's next step takes both, so that the second finds the blocks of the first. Ends with 1 when
fewer than GOOD are within a block, or when too few prompts are cached to tell.
"""

import json
import random
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from router.tests.agents.__main__ import CODE, ENGINES, MODEL, ON_CPU, Receipt, get, process, receipts, until
from router.tests.ports import free_ports

GOOD, CACHED = 0.95, 0.4  # shares of prompts predicted within a block, and of their tokens that were cached
TALKS, TURNS = 6, 5
PAUSE_S = 0.3  # pause between turns, in which the events of the previous turn arrive on a busy machine
Config = Mapping[str, Any]
_ALL: Config = {
    **{"vocab_size": 512, "hidden_size": 128, "intermediate_size": 256, "max_position_embeddings": 16384},
    **{"num_attention_heads": 4, "num_key_value_heads": 2, "rms_norm_eps": 1e-6, "torch_dtype": "float32"},
}
_WINDOWS: Config = {
    **{"architectures": ["Gemma3ForCausalLM"], "model_type": "gemma3_text", "head_dim": 32, "num_hidden_layers": 4},
    **{"sliding_window": 64, "layer_types": [*(["sliding_attention"] * 3), "full_attention"]},
    **{"hidden_activation": "gelu_pytorch_tanh", "query_pre_attn_scalar": 32, "tie_word_embeddings": True},
}
_STATES: Config = {
    **{"architectures": ["Lfm2ForCausalLM"], "model_type": "lfm2", "num_hidden_layers": 4, "conv_L_cache": 3},
    **{
        "layer_types": ["conv", "conv", "full_attention", "conv"],
        "conv_bias": False,
        "norm_eps": 1e-6,
        "conv_dim": 128,
    },
    **{"block_auto_adjust_ff_dim": False, "block_dim": 128, "block_multiple_of": 64, "block_ffn_dim_multiplier": 1.0},
    **{"conv_dim_out": 128, "rope_theta": 10000.0, "tie_word_embeddings": True},
}
_MTP: Config = {
    **{"architectures": ["Glm4MoeForCausalLM"], "model_type": "glm4_moe", "num_hidden_layers": 2, "hidden_act": "silu"},
    **{"num_nextn_predict_layers": 1, "first_k_dense_replace": 1, "head_dim": 32, "rope_theta": 10000.0},
    **{"n_routed_experts": 4, "num_experts_per_tok": 2, "n_shared_experts": 1, "moe_intermediate_size": 64},
    **{"n_group": 1, "topk_group": 1, "attention_bias": False, "use_qk_norm": False, "partial_rotary_factor": 0.5},
}
_WINDOWS_MTP: Config = {
    **{"architectures": ["ExaoneMoeForCausalLM"], "model_type": "exaone_moe", "head_dim": 32, "num_hidden_layers": 4},
    **{"sliding_window": 64, "layer_types": [*(["sliding_attention"] * 3), "full_attention"], "hidden_act": "silu"},
    **{"num_nextn_predict_layers": 1, "mtp_layer_types": ["full_attention"], "first_k_dense_replace": 1},
    **{"num_experts": 4, "num_experts_per_tok": 2, "num_shared_experts": 1, "moe_intermediate_size": 64},
}
_STATES_MTP: Config = {
    **{"architectures": ["Qwen3NextForCausalLM"], "model_type": "qwen3_next", "head_dim": 128, "num_hidden_layers": 4},
    **{"layer_types": [*(["linear_attention"] * 3), "full_attention"], "num_nextn_predict_layers": 1},
    **{"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 64, "shared_expert_intermediate_size": 64},
    "num_key_value_heads": 4,
    **{"linear_key_head_dim": 64, "linear_value_head_dim": 64, "linear_num_key_heads": 2, "linear_num_value_heads": 2},
}
_SPECULATES = ("--speculative-config", '{"method": "mtp", "num_speculative_tokens": 1}')
_COPYLESS = ("--worker-cls", "router.tests.engines.copyless.CopylessWorker")
_PLAIN: Config = {"architectures": ["LlamaForCausalLM"], "model_type": "llama", "num_hidden_layers": 2}
_FOLDER = "FOLDER"  # placeholder for the folder of the run
_FILES: Config = {
    **{"spec_module_path": "router.tests.engines.cpu_offload", "spec_name": "CopyingSpec"},
    "cpu_bytes_to_use": 20 << 15,
    "secondary_tiers": [{"type": "fs", "root_dir": _FOLDER, "enable_kv_events": True}],
}
_OFFLOADS: Config = {
    **{"kv_connector": "OffloadingConnector", "kv_role": "kv_both", "kv_load_failure_policy": "recompute"},
    "kv_connector_extra_config": _FILES,
}
# The configuration of each kind's model, and further arguments of its engine
KINDS: Mapping[str, tuple[Config, tuple[str, ...]]] = {
    "window": ({**_ALL, **_WINDOWS}, ("--block-size", "32")),
    "state": ({**_ALL, **_STATES}, ("--mamba-cache-mode", "align")),
    "mtp": ({**_ALL, **_MTP}, ("--block-size", "32", *_SPECULATES)),
    "window-mtp": ({**_ALL, **_WINDOWS_MTP}, ("--block-size", "32", *_SPECULATES)),
    "state-mtp": (
        {**_ALL, **_STATES_MTP},
        (*("--block-size", "32", "--dtype", "bfloat16", "--mamba-cache-mode", "align"), *_COPYLESS, *_SPECULATES),
    ),
    "files": (  # 40 blocks on the device, 20 in memory, the others in files
        {**_ALL, **_PLAIN},
        (
            *("--block-size", "32", "--num-gpu-blocks-override", "40", "--max-model-len", "1024"),
            *("--kv-transfer-config", json.dumps(_OFFLOADS)),
        ),
    ),
}
AGAIN = ("files",)  # kinds to which all conversations return a second time, from files


def command(folder: Path, ports: Sequence[int], more: Sequence[str]) -> list[object]:
    port, events, replay = ports
    told = {"enable_kv_cache_events": True, "publisher": "zmq", "topic": "kv"}
    places = {"endpoint": f"tcp://*:{events}", "replay_endpoint": f"tcp://*:{replay}"}
    return [
        *(ENGINES / "bin/python", "-m", "vllm.entrypoints.openai.api_server", "--host", "127.0.0.1", "--port", port),
        *("--model", folder / "model", "--served-model-name", MODEL, "--load-format", "dummy", "--dtype", "float32"),
        *("--max-model-len", 8192, "--enforce-eager", "--num-gpu-blocks-override", 512, "--enable-prefix-caching"),
        *("--enable-prompt-tokens-details", "--kv-events-config", json.dumps({**told, **places})),
        *(word.replace(_FOLDER, str(folder / "kv")) for word in more),
    ]


def make_model(folder: Path, config: Config) -> None:
    file = folder / "config.json"
    file.write_text(json.dumps(config))
    maker = [str(ENGINES / "bin/python"), str(CODE / "examples/tiny_model.py"), str(folder / "model"), str(file)]
    subprocess.run(maker, check=True, capture_output=True, timeout=300)


def ask(url: str, messages: Sequence[Mapping[str, str]]) -> None:
    body = json.dumps({"model": MODEL, "messages": messages, "max_tokens": 8, "temperature": 0}).encode()
    request = urllib.request.Request(
        f"{url}/v1/chat/completions", body, {"content-type": "application/json", "x-session-id": messages[0]["content"]}
    )
    with urllib.request.urlopen(request, timeout=300) as answer:
        json.loads(answer.read())


def talk(url: str, number: int) -> None:
    """Hold a growing conversation, and ask one more last question in each turn."""
    alike = number % (TALKS // 2)
    draw = random.Random(alike)
    messages = [{"role": "system", "content": f"system {alike} " + words(draw, 120)}]
    for turn in range(TURNS):
        question = {"role": "user", "content": f"talk {number}: {words(draw, 60)}"}
        ask(url, [*messages, question])
        if turn % 2:
            ask(url, [*messages, {"role": "user", "content": f"a branch of {number}: {words(draw, 30)}"}])
        messages += [question, {"role": "assistant", "content": words(draw, 20)}]
        time.sleep(PAUSE_S)


def words(draw: random.Random, count: int) -> str:
    return " ".join(draw.choice(("river", "weir", "water", "engine", "token", "prompt", "cache")) for _ in range(count))


def played(kind: str) -> Sequence[Receipt]:
    config, more = KINDS[kind]
    with tempfile.TemporaryDirectory(prefix=f"weir-{kind}-") as name:
        folder, (router, *ports) = Path(name), free_ports(4)
        make_model(folder, config)
        log, url = Path(tempfile.gettempdir()) / f"weir-hybrid-{kind}.log", f"http://127.0.0.1:{router}"
        with process(command(folder, ports, more), log, **ON_CPU):
            until(lambda: get(f"http://127.0.0.1:{ports[0]}/v1/models"), f"the engine, see {log}")
            events = f"tcp://127.0.0.1:{ports[1]}?replay=tcp://127.0.0.1:{ports[2]}&topic=kv"
            listed = f"http://127.0.0.1:{ports[0]};id=a;events={events};tokenizer={folder / 'model'}"
            weir = [sys.executable, "-m", "router", "--port", router, "--instances", listed]
            with process(weir, Path(tempfile.gettempdir()) / f"weir-hybrid-{kind}-router.log"):
                until(lambda: get(f"{url}/healthz")["instances"][0]["index"] == "exact", "an exact index")
                with ThreadPoolExecutor(2) as together:
                    list(together.map(lambda number: talk(url, number), [*range(TALKS)] * (1 + (kind in AGAIN))))
                if kind in AGAIN:
                    print(f"HYBRID {kind}: {read_bytes(ports[0]):,.0f} bytes read from files", flush=True)
                return receipts(url, 0.0)


def read_bytes(port: int) -> float:
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=30) as answer:
        page = answer.read().decode().splitlines()
    read = sum(float(line.split()[-1]) for line in page if line.startswith("vllm:kv_offload_tiering_read_bytes_total{"))
    assert read, "nothing was read from files"
    return read


def judged(kind: str, received: Sequence[Receipt]) -> bool:
    asked = [each for each in received if each.get("cached_tokens") is not None]
    block = max((each.get("block_size") or 32 for each in asked), default=32)
    off = [(each.get("predicted_cached") or 0) - each["cached_tokens"] for each in asked]
    exact = sum(each.get("index") == "exact" for each in asked)
    cached, tokens = (sum(each[name] for each in asked) for name in ("cached_tokens", "actual_prompt_tokens"))
    good, same = sum(abs(each) <= block for each in off), off.count(0)
    print(
        f"HYBRID {kind}: {len(asked)} requests, {exact} by the exact index, {same} predicted to the token, {good} "
        f"within a block, {cached:,} of {tokens:,} tokens cached",
        flush=True,
    )
    for each, wrong in zip(asked, off, strict=True):
        if wrong:
            print("   ", {name: each.get(name) for name in ("index", "index_reason", "cached_tokens")}, "off by", wrong)
    return bool(asked) and good >= GOOD * len(asked) and cached >= CACHED * tokens


if __name__ == "__main__":
    sys.exit(not all([judged(kind, played(kind)) for kind in sys.argv[1:] or KINDS]))
