"""Flags, roles and GPUs, shared by the kinds that serve requests. Pure."""

import json
from collections.abc import Callable, Collection, Iterable, Mapping
from typing import Any, cast

from fleet.kinds.kind import Launch
from router.contract.redis.published import InstanceRole
from router.contract.values.json_value import JsonObject

NVIDIA = "nvidia.com/gpu"  # Kubernetes resource of NVIDIA GPUs
BOTH: InstanceRole = "both"
PREFILL: InstanceRole = "prefill"
DECODE: InstanceRole = "decode"
ROLES = (BOTH, PREFILL, DECODE)
TOPIC = "kv"  # topic of KV events
CONFIG = "--config"  # argument with a file of further options, which may change prompts
FIRST_ADDED_PREFILL = 1024  # lowest ordinal of prefill instances that the autoscaler adds, above those of a document


def flags(values: Mapping[str, object]) -> list[str]:
    """Convert `{"port": 1, "lazy": True, "left-out": None}` to --port 1 --lazy; False becomes --no-…"""
    found: list[str] = []
    for name, value in values.items():
        if isinstance(value, bool):
            found.append(f"--{name}" if value else f"--no-{name}")
        elif value is not None:
            found += [f"--{name}", str(value)]
    return found


def compact(value: Mapping[str, object]) -> str:
    return json.dumps(value, separators=(",", ":"))


def address(launch: Launch, use: str) -> str:
    return f"{launch.host}:{launch.ports[use]}"


def events_config(host: str, live: int | str, replay: int | str) -> JsonObject:
    """Return the publisher's configuration with two ports, under names that vLLM and TensorRT-LLM share."""
    return {
        "enable_kv_cache_events": True,
        "publisher": "zmq",
        # vLLM connects to a concrete address instead of listening.
        "endpoint": f"tcp://*:{live}",
        "replay_endpoint": f"tcp://{host}:{replay}",
        "topic": TOPIC,
    }


def events_at(launch: Launch) -> str:
    """Return where routers subscribe to KV events if the engine does not report its addresses."""
    live, replay = (f"tcp://{address(launch, name)}" for name in ("events", "replay"))
    return f"{live}?replay={replay}&topic={TOPIC}"


def base_url(launch: Launch) -> str:
    return f"http://{address(launch, 'http')}"


def role_of(role: str, prefill_instances: int, ordinal: int) -> InstanceRole:
    """Return an instance's role: the first `prefill_instances` of a pool and those added by the autoscaler prefill,
    the others decode. With 0, all have the pool's role."""
    if not prefill_instances:
        return cast(InstanceRole, role)
    return PREFILL if ordinal < prefill_instances or ordinal >= FIRST_ADDED_PREFILL else DECODE


def own_role(spec: Any, launch: Launch) -> InstanceRole:
    return role_of(getattr(spec, "role", BOTH), spec.prefill_instances, launch.ordinal)


def weights_of(spec: Any, launch: Launch) -> str:
    """Return the folder or hub name of the weights."""
    return launch.path(spec.model) if spec.model else launch.model


def tokenizer_of(spec: Any, launch: Launch, option: str, others: Collection[str], default: str) -> str:
    """Return the folder that determines how the engine's prompts are tokenized; empty if no folder does, so that
    routers cannot reproduce the tokens. `option` names another folder than the `default`; `others` make prompts differ
    from what a folder implies.
    """
    given = {}
    for word, following in zip(spec.arguments, (*spec.arguments[1:], ""), strict=False):
        name, equals, value = word.partition("=")
        given[name.partition(".")[0].replace("_", "-")] = value if equals else following  # vLLM: --OPTION.FIELD VALUE
    if (
        CONFIG in given
        or not given.keys().isdisjoint(others)
        or given.get("--tokenizer-mode", "auto") not in ("auto", "hf")
    ):
        return ""
    return launch.path(given[option]) if option in given else default


def kv_folder(spec: Any, launch: Launch) -> str:
    """Return the folder of the KV blocks on disk."""
    return launch.path(spec.disk) if spec.disk else f"{launch.folder}/kv"


def first_device(spec: Any, ordinal: int, devices: Callable[[Any, str], int]) -> int:
    """Return the place of the instance's first device in the pool's list. Prefill instances come first, and may use
    another number of devices.
    """
    prefills = min(ordinal, spec.prefill_instances or (ordinal if spec.role == PREFILL else 0))
    return prefills * devices(spec, PREFILL) + (ordinal - prefills) * devices(spec, DECODE)


def fitting(spec: Any, listed: int, devices: Callable[[Any, str], int]) -> int:
    """Return the number of instances for which a list of this many devices suffices."""
    return max(ordinal for ordinal in range(listed + 1) if first_device(spec, ordinal, devices) <= listed)


def ordinals_of(prefill_instances: int, prefills: int, replicas: int) -> frozenset[int]:
    """Return the ordinals of `replicas` instances, of which `prefills` prefill, whatever the previous numbers were."""
    added = range(FIRST_ADDED_PREFILL, FIRST_ADDED_PREFILL + prefills - prefill_instances)
    decoders = range(prefill_instances, prefill_instances + replicas - prefills)
    return frozenset([*range(min(prefills, prefill_instances)), *decoders, *added])


def pair_of(prefill_instances: int, ordinal: int) -> int | None:
    """Return, for fixed pairs, the ordinal of a decoder's prefill instance; None for a prefill instance itself."""
    return ordinal - prefill_instances if ordinal >= prefill_instances else None


def gpus_of(ids: tuple[str, ...], each: int, launch: Launch) -> tuple[str, ...]:
    """Return the GPUs of the instance's placement, or else its share of the pool's list, in order."""
    return launch.gpus or ids[launch.ordinal * each : (launch.ordinal + 1) * each]


def replicas_for(ids: tuple[str, ...], each: int) -> int | None:
    return len(ids) // each if ids else None


def visible(ids: Iterable[str], variable: str = "CUDA_VISIBLE_DEVICES") -> dict[str, str]:
    joined = ",".join(ids)
    return {variable: joined} if joined else {}
