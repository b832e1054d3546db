"""Adaptive prefill offload in closed form: the cost of moving a heavy prompt's KV, the stalls that it saves other
decodes, and how full the KV of decoding instances is. The decoder pulls the tokens that it does not hold, which are the
new ones.

    resident KV = rate · mean of (prompt + answer/2) · answer · TPOT    (Little's law; each counts its whole prefix)
    offload pays when decodes · T_prefill(new) > setup + new KV / rate
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from statistics import fmean

from fleet.engine.law import Law

TRANSFER_RATES = (3.0, 9.7, 40.0)  # GB/s: Mooncake over RDMA with a computing sender and with an idle one; ideal


@dataclass(frozen=True, slots=True)
class Classified:
    """A request of a trace, with the part that an unbounded prefix cache would hold."""

    prompt_tokens: int
    new_tokens: int
    output_tokens: int
    follows: bool  # True if an earlier request of its session was served


@dataclass(frozen=True, slots=True)
class Thresholds:
    heavy_new_tokens: int = 20_000
    warm_hit_share: float = 0.5
    warm_new_tokens: int = 5_000
    session_first: bool = False  # True: sessions stay, and warm is checked before heavy


def class_of(request: Classified, limits: Thresholds) -> str:
    """Return the class. With `session_first`, a heavy request that continues its session stays there and counts as
    medium."""
    cached = request.prompt_tokens - request.new_tokens
    is_warm = cached > limits.warm_hit_share * request.prompt_tokens or request.new_tokens < limits.warm_new_tokens
    is_heavy = request.new_tokens >= limits.heavy_new_tokens
    if limits.session_first:
        is_heavy = is_heavy and not is_warm and not request.follows
    if is_heavy:
        return "heavy"
    return "warm" if is_warm else "medium"


@dataclass(frozen=True, slots=True)
class ClassShare:
    requests: float  # share of the requests, 0–1
    new_tokens: float  # share of all new tokens, 0–1
    mean_new_tokens: float
    mean_prompt_tokens: float


def shares(requests: Sequence[Classified], limits: Thresholds) -> dict[str, ClassShare]:
    groups: dict[str, list[Classified]] = {"warm": [], "medium": [], "heavy": []}
    for request in requests:
        groups[class_of(request, limits)].append(request)
    new = sum(request.new_tokens for request in requests)
    return {name: _share(group, len(requests), new) for name, group in groups.items()}


def _share(group: Sequence[Classified], requests: int, new_tokens: int) -> ClassShare:
    if not group:
        return ClassShare(0.0, 0.0, 0.0, 0.0)
    own = sum(request.new_tokens for request in group)
    prompt = fmean(request.prompt_tokens for request in group)
    return ClassShare(len(group) / requests, own / max(new_tokens, 1), own / len(group), prompt)


def resident_tokens(requests: Iterable[Classified], rate: float, tpot_s: float) -> float:
    """Return the KV tokens of all requests that are decoding at one moment; `rate` is in requests per second."""
    each = ((one.prompt_tokens + one.output_tokens / 2) * one.output_tokens * tpot_s for one in requests)
    return rate * fmean(each)


def transfer_s(tokens: float, kv_bytes: float, gb_per_s: float, setup_s: float) -> float:
    return setup_s + tokens * kv_bytes / (gb_per_s * 1e9)


def decodes_that_pay(law: Law, request: ClassShare, moved_s: float) -> float:
    """Return the number of decodes on the same instance above which an offload pays."""
    prefill_s = law.prefill_s(
        round(request.mean_new_tokens), round(request.mean_prompt_tokens - request.mean_new_tokens)
    )
    return moved_s / prefill_s
