"""Prefill blocks that no tier holds, plus decode blocks (NVIDIA Dynamo's KV router, temperature 0)."""

from operator import add

from router.policy.rules.classify import class_by_cache
from router.policy.schema.parameter import Parameter
from router.policy.strategies.strategy import Strategy, always
from router.policy.types import InstanceState, Pick
from router.policy.view import View, least


def rank(view: View) -> Pick:
    """argmin max(PP_i/B + L/B − credit_i/B, 0) + decode_blocks_i, in blocks of B_i tokens."""
    prompt = view.request.prompt_tokens
    fleet = view.instances
    loads = zip(fleet.prefill_tokens, _credits(view), fleet.block_size, strict=True)
    blocks = view.at_pace(
        [left / size if (left := prefill + prompt - credit) > 0 else 0.0 for prefill, credit, size in loads]
    )
    scores = list(map(add, blocks, _decode_blocks(view)))
    position = least(view, scores)
    reason = f"least blocks: {scores[position]:,.1f} to prefill and held by decodes"
    return Pick(view.instances[position], class_by_cache(view), "least_blocks", (reason,), view.instances, scores)


def _credits(view: View) -> list[float]:
    """Return cached tokens, weighted less on slower tiers; without known tiers all count as on the device."""
    device, host, disk = (view.policy[f"strategy.{tier}_credit"] for tier in ("device", "host", "disk"))
    tiers = view.request.held_tiers
    if tiers is None:
        return [device * cached for cached in view.cached]
    credit = []
    for name, cached in zip(view.instances.ids, view.cached, strict=True):
        on_device, on_host, on_disk = tiers.get(name) or (cached, 0, 0)  # uses its own weights
        credit.append(device * on_device + host * on_host + disk * on_disk)
    return credit


def _decode_blocks(view: View) -> list[float]:
    """Return the blocks held by running requests; an assumed number per request if the KV size is unknown."""
    return view.instances.column(_held_blocks, view.policy["load.request_tokens"])


def _held_blocks(instance: InstanceState, request_tokens: float) -> float:
    tokens = instance.kv_usage * instance.kv_tokens if instance.kv_tokens else request_tokens * instance.running
    return tokens / instance.block_size


def _credit(tier: str, default: float, title: str) -> Parameter:
    return Parameter(
        name=f"strategy.{tier}_credit",
        title=title,
        unit="ratio",
        default=default,
        range=(0.0, 1.0),
        step=0.05,
        help=f"Requests follow what is cached on the {tier} further before load sends them elsewhere.",
        metric="class.hit_share_p50",
        up=f"follows caches on the {tier} more",
        down=f"follows caches on the {tier} less",
    )


STRATEGY = Strategy(
    "dynamo",
    "Dynamo",
    "The fewest blocks: those still to prefill with this request, less what each tier holds of it, and those that "
    "decodes hold.",
    "argmin max(PP_i/B + L/B − (device_credit · device_i + host_credit · host_i + disk_credit · disk_i), 0) "
    "+ decode_blocks_i",
    rank,
    reads_kv=always,
    as_published=True,
    parameters=(
        _credit("device", 1.0, "Credit for a block on the device"),
        _credit("host", 0.75, "Credit for a block in host memory"),
        _credit("disk", 0.25, "Credit for a block on disk"),
    ),
)
