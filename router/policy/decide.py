"""The decision: filter, then apply the policy's strategy. Pure: router, shadow, twin and preview call it."""

from collections import Counter
from collections.abc import Mapping, Sequence

from router.policy.candidates import Candidates
from router.policy.fleet import FleetColumns
from router.policy.rules.classify import classify
from router.policy.rules.filters import refusals
from router.policy.rules.offload import offloaded
from router.policy.rules.pull import PULL, pulled
from router.policy.strategies import STRATEGIES
from router.policy.types import Decision, InstanceState, ParsedPolicy, RoutingRequest, of_low_bands
from router.policy.view import View, cached_tokens

REASONS_SHOWN = 5  # distinct reasons listed when no instance can take a request


def decide(request: RoutingRequest, instances: Sequence[InstanceState], policy: ParsedPolicy, draw: float) -> Decision:
    """Choose the instance for the request, with reasons; `draw` in [0, 1) breaks ties. If no instance can take the
    request, `Decision.instance` is empty. The request's class depends on n and h on the instance that the policy picks
    by cache."""
    if request.band < 0:
        policy = of_low_bands(policy)
    strategy = STRATEGIES[policy["strategy.name"]]
    fleet = instances if isinstance(instances, FleetColumns) else FleetColumns(instances)
    offloads = strategy.offloads
    by_policy = not offloads and policy["flow.heavy"] == "offload"
    refused = refusals(fleet, request, policy, offloads=by_policy or offloads, picks_prefill=offloads)
    if len(refused) == len(fleet.instances):
        return _no_instance(request, fleet, policy, refused, draw)
    able = fleet.only([position not in refused for position in range(len(fleet.instances))]) if refused else fleet
    paced = fleet.is_paced and (strategy.by_pace or policy["load.by_pace"] == "on")
    view = View(request, able, policy, draw, fleet, paced)
    pick = strategy.rank(view)
    if pick.prefill is None and (pick.instance.role == "decode" or (by_policy and pick.request_class == "heavy")):
        # A decode-only instance requires an offload; the filters have made sure that another instance can prefill
        pick = offloaded(view, pick)
    elif not offloads and policy[PULL] and not pick.refused:
        pick = pulled(view, pick)
    instance, is_refused = pick.instance, pick.refused
    prefill = None if is_refused else pick.prefill
    cached = view.held_on(instance)
    return Decision(  # positional, because keyword arguments take more than twice as long
        "" if is_refused else instance.id,
        pick.request_class,
        "colocated" if prefill is None else "offload",
        policy["strategy.name"],
        pick.rule,
        pick.reasons,
        cached,
        request.prompt_tokens - cached,
        Candidates(request, fleet, refused, pick, draw),
        "" if prefill is None else prefill.id,
        0 if prefill is None else request.prompt_tokens - view.held_on(prefill),
        pick.pull_ms,
        pick.pull_tokens,
    )


def _no_instance(
    request: RoutingRequest, instances: FleetColumns, policy: ParsedPolicy, refused: Mapping[int, str], draw: float
) -> Decision:
    cached = max(cached_tokens(request, instances), default=0)
    return Decision(
        instance="",
        request_class=classify(request.prompt_tokens, cached, policy),
        flow="colocated",
        strategy=policy["strategy.name"],
        rule="nobody",
        reasons=_refusals(refused),
        cached_tokens=cached,
        new_tokens=request.prompt_tokens - cached,
        candidates=Candidates(request, instances, refused, None, draw),
    )


def _refusals(refused: Mapping[int, str]) -> tuple[str, ...]:
    if not refused:
        return ("the pool has no instances",)
    kinds = Counter(refused.values()).most_common()
    listed = [f"{count} of {len(refused)}: {why}" for why, count in kinds[:REASONS_SHOWN]]
    rest = sum(count for _, count in kinds[REASONS_SHOWN:])
    return ("no instance can take the request", *listed, *([f"{rest} more for other reasons"] if rest else []))
