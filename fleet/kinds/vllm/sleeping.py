"""Steps that put an engine to sleep and wake it, through vLLM's API paths. Pure. Level 1 keeps the weights in host
memory. Level 2 loads them again on waking, while the KV cache still sleeps; otherwise the engine would answer from
random memory without an error. An engine counts as awake once it has computed a token.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class SleepStep:
    path: str
    body: Mapping[str, object] | None = None
    asks: bool = False  # True for a GET, False for a POST
    says: str = ""  # text that the answer must contain


@dataclass(frozen=True, slots=True)
class Weights:
    served: str  # name under which the engine serves the model
    folder: str  # folder or hub name


@dataclass(frozen=True, slots=True)
class Sleeping:
    sleep: Callable[[int], tuple[SleepStep, ...]]  # by level
    wake: Callable[[int, Weights], tuple[SleepStep, ...]]
    # False: the engine ends if it receives the order twice, so steps that it may have taken are not repeated.
    repeats: bool = True


ASLEEP = SleepStep("/is_sleeping", asks=True, says='{"is_sleeping":true}')
AWAKE = SleepStep("/is_sleeping", asks=True, says='{"is_sleeping":false}')
EMPTY = SleepStep("/reset_prefix_cache")  # drops the prefix cache, which is invalid after waking
RELOADED = (
    SleepStep("/wake_up?tags=weights"),
    SleepStep("/collective_rpc", {"method": "reload_weights"}),
    SleepStep("/wake_up?tags=kv_cache"),
)


def _wake_vllm(level: int, weights: Weights) -> tuple[SleepStep, ...]:
    token = SleepStep("/v1/completions", {"model": weights.served, "prompt": "a", "max_tokens": 1})
    return *((SleepStep("/wake_up"),) if level == 1 else RELOADED), EMPTY, AWAKE, token


VLLM_SLEEP = Sleeping(lambda level: (SleepStep(f"/sleep?level={level}"), ASLEEP), _wake_vllm)
