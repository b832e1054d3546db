"""Selection of the prefill instance when another instance decodes."""

from collections.abc import Sequence
from math import inf

from router.policy.rules.filters import doubtful, kv_headroom
from router.policy.rules.roles import prefills, sends_to
from router.policy.types import InstanceState, Pick
from router.policy.value import replace
from router.policy.view import View, by_turn, least


def offloaded(view: View, pick: Pick) -> Pick:
    """Return the pick with a prefill instance, or with the reason why there is none."""
    instance, why = prefiller(view, pick.instance)
    return replace(pick, prefill=instance, reasons=(*pick.reasons, why))


def prefiller(view: View, decoder: InstanceState) -> tuple[InstanceState | None, str]:
    """Return the instance with the least work_i that can send KV to the decoder, and the reason.

    None if no other instance has the connector; the decoder then computes the prompt itself.
    """
    if not decoder.connector:
        return None, _alone(decoder)
    others, scores = _connected(view, decoder)
    position = least(others, scores)
    if scores[position] == inf:
        return None, _alone(decoder)
    chosen = others.instances[position]
    return chosen, f"prefill on {chosen.id}: least work, {scores[position]:,.0f} tokens, to {decoder.connector}"


def prefiller_in_turn(view: View, decoder: InstanceState) -> tuple[InstanceState | None, str]:
    """Return an instance that can prefill, in turn and regardless of work; `prefiller` chooses by work."""
    whole = view if view.instances is view.fleet else view.of(view.fleet)
    able = able_to_prefill(whole, decoder)
    if not able:
        return None, _alone(decoder)
    turn = view.request.turn
    chosen = whole.instances[by_turn(whole, able, turn)]
    return chosen, f"prefill on {chosen.id}: turn {turn} over {len(able)} instances"


def _alone(decoder: InstanceState) -> str:
    if not decoder.connector:
        return f"prefill stays on {decoder.id}: KV blocks cannot reach it"
    if decoder.pair:
        return f"prefill stays on {decoder.id}: {decoder.pair}, the other instance of its pair, is not able"
    return f"prefill stays on {decoder.id}: no other instance that can prefill is connected by {decoder.connector}"


def _connected(view: View, decoder: InstanceState) -> tuple[View, list[float]]:
    """Return the work_i of the instances that can prefill for the decoder; infinity for the others."""
    whole = view if view.instances is view.fleet else view.of(view.fleet)
    fleet = whole.instances
    if decoder.pair or doubtful(fleet, view.policy) or fleet.connector.count(decoder.connector) < len(fleet):
        work, scores = whole.work, [inf] * len(fleet)
        for position in able_to_prefill(whole, decoder):
            scores[position] = work[position]
        return whole, scores
    scores = whole.work.copy()
    scores[fleet.position(decoder.id) or 0] = inf
    return whole, scores


def able_to_prefill(view: View, decoder: InstanceState, among: Sequence[int] | None = None) -> list[int]:
    """Return the positions of the instances, among all or `among`, that can compute the prompt for the decoder.
    Instances with a full KV cache count only if no other instance can."""
    limit, policy, fleet = view.policy["admission.max_inflight_per_instance"], view.policy, view.instances

    def can(one: InstanceState) -> bool:
        return sends_to(one, decoder) and prefills(one, limit)

    able = [position for position in (range(len(fleet)) if among is None else among) if can(fleet[position])]
    with_room = [position for position in able if not kv_headroom(fleet[position], policy)]
    if with_room or among is None:
        return with_room or able
    return able if able and not any(can(one) and not kv_headroom(one, policy) for one in fleet) else []


def serving(view: View) -> View:
    """Return only the instances that also prefill, if there are any."""
    roles = view.instances.role
    if not 0 < roles.count("decode") < len(roles):
        return view
    return view.only([role != "decode" for role in roles])
