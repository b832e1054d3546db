"""The peer that holds more of a prompt than its instance: it computes the rest, and the instance pulls the KV.

With n_i new tokens on instance i, PP_i tokens queued before them and the measured prefill rate:

    here   (PP_d + n_d) / pace_d / rate
    peer   (PP_s + n_s) / pace_s / rate
    pull where here > peer + t0 + n_d · bytes per token / transfer rate

The peer is the one with the least of the second, of equals the one with the fewest requests. The stalls that a pull
saves are not counted: it is not to delay a first token.
"""

from collections.abc import Iterator

from router.contract.connectors import CONNECTORS
from router.policy.rules.offload import able_to_prefill
from router.policy.types import InstanceState
from router.policy.value import replace
from router.policy.view import Pick, View

PULL = "flow.pull_gb_per_s"
SHARED = frozenset(name for name, connector in CONNECTORS.items() if connector.is_shared)


def pulled(view: View, pick: Pick) -> Pick:
    """The pick, with the peer where that takes less time, and with the reason where a peer holds more of the prompt."""
    here, request = pick.instance, view.request
    if not here.connector or here.connector in SHARED or request.indivisible or not request.generates:
        return pick
    held = view.cached_on(here)
    peers = list(_holding_more(view, here, held))
    if not peers:
        return pick
    peer, cached = min(peers, key=lambda one: (_tokens(view, *one), one[0].running))
    rates, new = request.rates, request.prompt_tokens - held
    if not (rates.prefill_tokens_per_s and rates.kv_bytes_per_token):
        lacks = "how large a token's KV is" if rates.prefill_tokens_per_s else "how fast prompts are computed"
        return replace(pick, reasons=(*pick.reasons, f"no pull: {lacks} is not known yet"))
    if here.kv_tokens and (1 - here.kv_usage) * here.kv_tokens < request.prompt_tokens:
        return replace(pick, reasons=(*pick.reasons, f"no pull: {here.id} has no room for the prompt's KV"))
    here_ms = 1000 * _tokens(view, here, held) / rates.prefill_tokens_per_s
    move_ms = 1000 * rates.transfer_s(new, view.policy[PULL] * 1e9)
    pull_ms = 1000 * _tokens(view, peer, cached) / rates.prefill_tokens_per_s + move_ms
    why = f"{peer.id} holds {cached:,} tokens: {pull_ms:,.0f} ms, {move_ms:,.0f} of them to move the KV, against"
    if pull_ms >= here_ms:
        return replace(pick, reasons=(*pick.reasons, f"no pull: {why} {here_ms:,.0f} ms on {here.id}"))
    reason = f"pull: {why} {here_ms:,.0f} ms to compute it on {here.id}"
    return replace(pick, prefill=peer, pull_ms=pull_ms, reasons=(*pick.reasons, reason))


def _holding_more(view: View, here: InstanceState, held: int) -> Iterator[tuple[InstanceState, int]]:
    """Those that can send what they hold, with h_i."""
    whole = view if view.instances is view.fleet else view.of(view.fleet)
    cached = whole.cached
    if max(cached) <= held:
        return
    able = able_to_prefill(whole, here)
    for instance, tokens, can in zip(whole.instances, cached, able, strict=True):
        if can and tokens > held:
            yield instance, tokens


def _tokens(view: View, instance: InstanceState, held: int) -> float:
    """Until the prompt is computed there, in tokens of the pool's median instance."""
    return (instance.prefill_tokens + view.request.prompt_tokens - held) / view.pace_of(instance)
