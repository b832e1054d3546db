"""Prompts with the same beginning go to the same instance, unless that instance has more than its share."""

from math import ceil

from router.policy.rules.classify import class_by_cache
from router.policy.rules.hashing import MASK, hash_of, rendezvous
from router.policy.schema.parameter import Parameter
from router.policy.strategies.strategy import Shortlisting, Strategy
from router.policy.types import Pick, RoutingRequest
from router.policy.view import View


def rank(view: View) -> Pick:
    """Consistent hashing with bounded loads (Mirrokni, Thorup, Zadimoghaddam 2016), by rendezvous instead of a ring.
    The request goes to the first instance, in the order of the hashes of (prefix, instance), whose load stays within
    factor · the mean, both counted with this request."""
    running = view.instances.running
    pool, count = view.request.pool, len(running)
    mean = sum(running) / count if pool is None else pool.running
    most = ceil(view.policy["strategy.load_factor"] * (mean + 1 / count))
    hashes = rendezvous(hash_of(_beginning(view.request)), view.instances)
    scores = [
        position / MASK if requests < most else 1 + position / MASK
        for position, requests in zip(hashes, running, strict=True)
    ]
    position = scores.index(min(scores))
    home = hashes.index(min(hashes))
    reasons = [f"the beginning of the prompt hashes to {view.instances[home].id}"]
    if position != home:
        reasons.append(f"which has {running[home]} requests, its share is {most}: the next in the order of the hashes")
    return Pick(view.instances[position], class_by_cache(view), "prefix_hash", tuple(reasons), view.instances, scores)


def _beginning(request: RoutingRequest) -> str:
    return str(request.prefix_key)


LOAD_FACTOR = Parameter(
    name="strategy.load_factor",
    title="An instance takes at most its share times",
    unit="ratio",
    default=1.25,
    range=(1.0, 100.0),
    step=0.05,
    help="Prompts that begin alike stay together for longer while their instance fills up.",
    metric="instance.running_max",
    up="looser: an instance may have more than the others",
    down="stricter: load is more even, and more prefixes are computed twice",
)

STRATEGY = Strategy(
    "prefix_hash",
    "Prefix hash",
    "The instance that the beginning of the prompt hashes to, or the next by hash when that has more than its share.",
    "argmin hash(prefix, i) over those with R_i < ⌈load_factor · (Σ R + 1) / n⌉",
    rank,
    parameters=(LOAD_FACTOR,),
    shortlisting=Shortlisting("draw", key=_beginning),
)
