"""Where a prompt is computed when that is not where it is decoded."""

from dataclasses import replace
from math import inf

from router.policy.rules.filters import doubtful, kv_headroom
from router.policy.types import InstanceState
from router.policy.view import Pick, View, least


def offloaded(view: View, pick: Pick) -> Pick:
    """The same pick with the prompt computed elsewhere, or with the reason why it is not."""
    instance, why = prefiller(view, pick.instance)
    return replace(pick, prefill=instance, reasons=(*pick.reasons, why))


def prefiller(view: View, decoder: InstanceState) -> tuple[InstanceState | None, str]:
    """The instance with the least work_i of those that can hand the KV over to the decoder; and the reason in words.

    None when there is no other of the same connector: then the decoder computes the prompt itself.
    """
    if not decoder.connector:
        return None, f"prefill stays on {decoder.id}: KV blocks cannot reach it"
    others, scores = _connected(view, decoder)
    place = least(others, scores)
    if scores[place] == inf:
        return (
            None,
            f"prefill stays on {decoder.id}: no other instance that is able is connected by {decoder.connector}",
        )
    chosen = others.instances[place]
    return chosen, f"prefill on {chosen.id}: least work, {scores[place]:,.0f} tokens, to {decoder.connector}"


def _connected(view: View, decoder: InstanceState) -> tuple[View, list[float]]:
    """Everybody, with the work_i of those that can compute for the decoder; infinite of the others."""
    everybody = view if view.instances is view.fleet else view.of(view.fleet)
    fleet = everybody.instances
    if doubtful(fleet, view.policy) or fleet.connector.count(decoder.connector) < len(fleet):
        return everybody, _work_of(everybody, _able(everybody, decoder))
    scores = everybody.work.copy()
    scores[fleet.place(decoder.id) or 0] = inf
    return everybody, scores


def _work_of(view: View, able: list[bool]) -> list[float]:
    return [work if one else inf for work, one in zip(view.work, able, strict=True)]


def _able(view: View, decoder: InstanceState) -> list[bool]:
    limit = view.policy["admission.max_inflight_per_instance"]
    able = [
        one.connector == decoder.connector
        and one.id != decoder.id
        and one.role != "decode"
        and not one.refused
        and one.running < limit
        for one in view.instances
    ]
    roomy = [one and not kv_headroom(instance, view.policy) for one, instance in zip(able, view.instances, strict=True)]
    return roomy if any(roomy) else able


def serving(view: View) -> View:
    """Only those that also compute prompts, while there are any."""
    roles = view.instances.role
    if not 0 < roles.count("decode") < len(roles):
        return view
    return view.only([role != "decode" for role in roles])
