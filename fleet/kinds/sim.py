"""The `sim` kind: vLLM's HTTP API over a model of the engine (fleet/simengine), for any machine without a GPU."""

from dataclasses import dataclass
from typing import Any

from fleet.engine import profiles
from fleet.kinds.kind import Kind, Launch
from fleet.kinds.option import option
from router.figures import VLLM_SCRAPE

GPUS = tuple(profiles.PEAKS)
MODEL_PROFILES = tuple(profiles.MODELS)


@dataclass(frozen=True)
class SimSpec:
    gpu: str = option("h100_sxm", title="GPU", kind="text", choices=GPUS, help="Whose step times are modelled.")
    model_profile: str = option(
        "Llama-3.1-8B",
        title="Model profile",
        kind="text",
        choices=MODEL_PROFILES,
        help="Which model they are fitted to.",
    )
    tp: int | None = option(
        None,
        title="Tensor parallel",
        unit="GPUs",
        minimum=1,
        maximum=64,
        help="GPUs that one instance spans; left out: the smallest number that is calibrated.",
    )
    time_scale: float = option(
        1.0,
        title="Time scale",
        kind="float",
        minimum=0.01,
        maximum=1000,
        help="10 runs ten times faster than the engine.",
    )
    seed: int = option(1, title="Seed", minimum=0, maximum=2**31 - 1, help="Of output lengths and text.")
    kv_blocks: int | None = option(
        None,
        title="KV blocks",
        unit="blocks",
        minimum=16,
        maximum=10_000_000,
        help="Size of the KV cache; left out: what fits beside the model on that GPU.",
    )
    block_size: int = option(16, title="Block size", unit="tokens", minimum=1, maximum=1024, help="Per KV block.")
    max_model_len: int = option(
        131_072, title="Longest request", unit="tokens", minimum=16, maximum=10_000_000, help="Prompt and output."
    )
    max_num_seqs: int = option(256, title="Sequences", minimum=1, maximum=65_536, help="Running at once.")
    max_num_batched_tokens: int = option(
        8192, title="Batched tokens", unit="tokens", minimum=16, maximum=1_048_576, help="Tokens in one engine step."
    )


def command(spec: SimSpec, launch: Launch) -> list[str]:
    flags: dict[str, object] = {
        "host": launch.host,
        "port": launch.ports["http"],
        "events-port": launch.ports["events"],
        "replay-port": launch.ports["replay"],
        "model": launch.model,
        "gpu": spec.gpu,
        "model-profile": spec.model_profile,
        "time-scale": spec.time_scale,
        "seed": spec.seed,
        "block-size": spec.block_size,
        "max-model-len": spec.max_model_len,
        "max-num-seqs": spec.max_num_seqs,
        "max-num-batched-tokens": spec.max_num_batched_tokens,
    }
    flags |= {name: value for name, value in (("kv-blocks", spec.kv_blocks), ("tp", spec.tp)) if value is not None}
    words = [word for name, value in flags.items() for word in (f"--{name}", str(value))]
    return [launch.python, "-m", "fleet.simengine", *words]


def environment(spec: SimSpec, launch: Launch) -> dict[str, str]:
    return {}


def wire(spec: SimSpec, launch: Launch) -> dict[str, Any]:
    return {"events": f"http://{launch.host}:{launch.ports['http']}", "tokenizer": "sim"}


def refuse(spec: SimSpec) -> dict[str, str]:
    """Only what has been calibrated can be simulated."""
    try:
        profiles.profile(spec.gpu, spec.model_profile, spec.tp)
    except profiles.UnknownProfile as error:
        return {"model_profile" if spec.tp is None else "tp": str(error)}
    return {}


SIM = Kind(
    name="sim",
    title="Simulated engine",
    spec=SimSpec,
    ports=("http", "events", "replay"),
    command=command,
    environment=environment,
    health_path="/health",
    models_path="/v1/models",
    metrics_path="/metrics",
    scrape=VLLM_SCRAPE,
    load_timeout_s=60,
    drain_timeout_s=120,
    grace_s=5,
    refuse=refuse,
    wire=wire,
)
