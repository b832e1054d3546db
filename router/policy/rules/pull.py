"""A pull: a peer that holds more of a prompt computes the rest, and the chosen instance pulls the KV.

n_i: new tokens on instance i; PP_i: tokens queued before them; rate: measured rate of further tokens of a prompt.
    here   (PP_d + n_d) / pace_d / rate
    peer   (PP_s + n_s) / pace_s / rate + extra + t0 + (1 + pulls_s) · n_d · bytes per token / transfer rate
    pull if here > peer

PP_i excludes pulls that i waits for, as its GPU is free meanwhile. Pulls from one peer share its link. `extra` is the
measured excess over this formula. The peer is the instance with the least second term, and among equals the one with
the fewest requests. Until one pull has been measured, a router starts no second one. The stalls that a pull saves do
not count: a pull must not delay a first token.
"""

from collections.abc import Iterator

from router.contract.connectors import CONNECTORS
from router.policy.rules.offload import able_to_prefill
from router.policy.types import InstanceState, Pick
from router.policy.value import replace
from router.policy.view import View

PULL = "flow.pull_gb_per_s"
SHARED = frozenset(name for name, connector in CONNECTORS.items() if connector.is_shared)


def pulled(view: View, pick: Pick) -> Pick:
    """Return the pick, with the peer if a pull takes less time, and with the reason if a peer holds more of the
    prompt."""
    here, request = pick.instance, view.request
    if not here.connector or here.connector in SHARED or request.indivisible or not request.generates:
        return pick
    held = view.cached_on(here)
    peers = list(_holding_more(view, here, held))
    if not peers:
        return pick
    if why := _unable(view, here):
        return replace(pick, reasons=(*pick.reasons, f"no pull: {why}"), weighed=True)
    rates, new = request.rates, request.prompt_tokens - held
    rate = rates.compute_tokens_per_s or rates.prefill_tokens_per_s  # the only rate in older receipts
    alone_s = rates.transfer_s(new, view.policy[PULL] * 1e9)

    def taken_s(peer: InstanceState, cached: int) -> float:
        shared_s = peer.pulls * (alone_s - rates.transfer_setup_s)
        return _tokens(view, peer, cached) / rate + rates.pull_extra_s + alone_s + shared_s

    peer, cached = min(peers, key=lambda one: (taken_s(*one), one[0].running))
    here_ms = 1000 * _tokens(view, here, held) / rate
    pull_ms = 1000 * taken_s(peer, cached)
    why = f"{peer.id} holds {cached:,} tokens: {pull_ms:,.0f} ms, {1000 * alone_s:,.0f} of them to move the KV"
    if peer.pulls:
        why += f" alone and {peer.pulls} further from there"
    if pull_ms >= here_ms:
        no = f"no pull: {why}, against {here_ms:,.0f} ms on {here.id}"
        return replace(pick, reasons=(*pick.reasons, no), weighed=True)
    reason = f"pull: {why}, against {here_ms:,.0f} ms to compute it on {here.id}"
    stands_for = min(new, round(pull_ms / 1000 * rate * view.pace_of(here)))
    reasons = (*pick.reasons, reason)
    return replace(pick, prefill=peer, pull_ms=pull_ms, pull_tokens=stands_for, reasons=reasons, weighed=True)


def _unable(view: View, here: InstanceState) -> str:
    """Return why the gain of a pull is unknown or no pull is possible now; empty otherwise."""
    rates = view.request.rates
    if not rates.prefill_tokens_per_s:
        return "how fast prompts are computed is not known yet"
    if not rates.kv_bytes_per_token:
        return "the size of a token's KV is not known yet"
    if here.kv_tokens and (1 - here.kv_usage) * here.kv_tokens < view.request.prompt_tokens:
        return f"{here.id} has no room for the prompt's KV"
    if not rates.transfer_bytes_per_s and any(instance.pull_tokens for instance in view.fleet):  # pulls by this router
        return "the first one is under way, and tells how long others take"
    return ""


def _holding_more(view: View, here: InstanceState, held: int) -> Iterator[tuple[InstanceState, int]]:
    """Return the instances that can send the KV they hold, with their h_i."""
    whole = view if view.instances is view.fleet else view.of(view.fleet)
    cached = whole.cached
    more = [position for position, tokens in enumerate(cached) if tokens > held]
    for position in able_to_prefill(whole, here, more) if more else ():
        yield whole.instances[position], cached[position]


def _tokens(view: View, instance: InstanceState, held: int) -> float:
    """Return the time until that instance has computed the prompt, in tokens of the pool's median instance."""
    queued = instance.prefill_tokens - instance.pull_tokens
    return (queued + view.request.prompt_tokens - held) / view.pace_of(instance)
