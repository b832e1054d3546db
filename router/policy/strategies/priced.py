"""The least price: the time that the request waits on an instance plus the time that it makes others wait there. All
terms are in tokens of prefill, so no rate needs to be known. They need only two ratios of the engines' step-time law:
the extra cost of a token by attention, and the cost of reading a token of context in a decode step, in prefill tokens.
docs/policies.md derives each term.
"""

from collections.abc import Sequence
from math import inf
from typing import Any, Final

from router.policy.fleet import FleetColumns
from router.policy.reasons import Reasons
from router.policy.rules.classify import classify
from router.policy.rules.offload import able_to_prefill
from router.policy.schema.parameter import Parameter
from router.policy.strategies.conditional_offload import ASSUMED_KV, ASSUMED_TRANSFER, assumed_rates
from router.policy.strategies.peers.smetric import EQUAL_COST_TOKENS, cost_of, prefill_cost
from router.policy.strategies.strategy import FEWER, Shortlisting, Strategy, Weights, always
from router.policy.types import InstanceState, ParsedPolicy, Pick, Rates, RoutingRequest
from router.policy.value import replace
from router.policy.view import View, least

CONTEXT_COST: Final = 0.001  # assumed if unknown; 0.0009 for Qwen3-32B on two H100, 0.0022 for Llama-3.1-8B on one
MISSED: Final = 0.5  # cost of a late first token, as a multiple of the limit
MOST: Final = 2.0  # waiting time beyond which the cost no longer grows, as a multiple of the limit

_NOBODY = FleetColumns(())
Helpers = Sequence[InstanceState | None]  # for each instance, the instance that computes the prompt for it, if any


def rank(view: View) -> Pick:
    """argmin l(PP_i + w_i) + a·[R_i·w_i + c·(R_i·L + u_i·KV_i + PP_i)], ties by R_i. An offload from p to d has the
    same terms, for the prefill on p and for the decode on d, plus its transfer."""
    request, policy, fleet, cached = view.request, view.policy, view.instances, view.cached
    rates = request.rates
    equal: float = rates.equal_cost_tokens or policy["strategy.equal_cost_tokens"]
    queued, some_decode = fleet.prefill_tokens, fleet.is_divided and "decode" in fleet.role
    if some_decode:  # prompts never wait on a decode-only instance
        queued = [tokens for role, tokens in zip(fleet.role, queued, strict=True) if role != "decode"] or [0]
    # Share of the instances without prompts to compute, or (count, total)
    idle = (queued.count(0), len(queued)) if request.pool is None else request.pool.idle
    stall = _stall(policy, idle[0] / idle[1] if isinstance(idle, tuple) else idle)
    context = stall * _context_weight(request, policy)
    # The first token is late if more tokens of prefill than this come before it; infinite while no rate is known
    late = policy["strategy.late_after_s"] * rates.work_tokens_per_s or inf
    lates = [late * pace for pace in fleet.pace] if view.paced else [late] * len(cached)
    scores, most = _colocated(fleet, cached, request.prompt_tokens, equal, stall, context, lates)
    if view.paced:
        scores = view.at_pace(scores)
    helpers: Helpers = ()
    request_class = classify(request.prompt_tokens, most, policy)
    if some_decode or request_class == "heavy":
        if some_decode:
            scores = [inf if role == "decode" else price for role, price in zip(fleet.role, scores, strict=True)]
        scores, helpers = _Offloads(view, equal, stall, context, late).priced(scores, optional=request_class == "heavy")
    position = least(view, scores, fleet.running)
    instance, helper = fleet.instances[position], helpers[position] if helpers else None
    given = request, policy, view.paced, scores[position], instance, helper, equal, stall, idle, late
    return Pick(instance, request_class, "least_price", Reasons(_terms, given), fleet, scores, helper)


def _colocated(
    fleet: FleetColumns,
    cached: Sequence[int],
    prompt: int,
    equal: float,
    stall: float,
    context: float,
    lates: list[float],
) -> tuple[list[float], int]:
    """Return the prices without offload, also for decode-only instances, and the largest number of cached tokens. Every
    decision runs this for every instance, so its terms are ordered for speed."""
    prices, most, beside = [], 0, context * prompt
    queued: int
    held: int
    requests: int
    used: float
    tokens: int
    late: float
    for queued, held, requests, used, tokens, late in zip(  # noqa: B905 - columns
        fleet.prefill_tokens, cached, fleet.running, fleet.kv_usage, fleet.kv_tokens, lates
    ):
        if held > most:
            most = held
        new = prompt - held
        cost = new + new * (prompt - new / 2) / equal  # `cost_of` written out, then `_loss`, `_context`
        wait = queued + cost
        if wait > late:
            wait = (wait if wait < MOST * late else MOST * late) + MISSED * late
        prices.append(wait + requests * (stall * cost + beside) + context * (used * tokens + queued))
    return prices, most


def _loss(wait: float, late: float) -> float:
    """Return the cost of waiting for the request's own first token. It jumps by half the limit once the token is late,
    and stops growing at twice the limit."""
    return wait if wait <= late else min(wait, MOST * late) + MISSED * late


class _Offloads:
    """The prices of one request's offloads."""

    def __init__(self, view: View, equal: float, stall: float, context: float, late: float) -> None:
        self.view, self.equal, self.stall, self.context, self.late = view, equal, stall, context, late

    def priced(self, colocated: list[float], *, optional: bool) -> tuple[list[float], Helpers]:
        """Return the prices, reduced if an offload is cheaper. With `optional`, offloads also compete on instances that
        could compute the prompt, once the transfer's price is known."""
        view, rates = self.view, assumed_rates(self.view)
        known = rates.prefill_tokens_per_s and rates.kv_bytes_per_token and rates.transfer_bytes_per_s
        optional = optional and bool(known) and not view.request.indivisible
        helpers: list[InstanceState | None] = [None] * len(colocated)
        senders: dict[tuple[str, str], tuple[InstanceState | None, float]] = {}
        for position, decoder in enumerate(view.instances):
            if not decoder.connector or (decoder.role != "decode" and not optional):
                continue
            group = decoder.connector, decoder.pair
            if group not in senders:
                senders[group] = self._sender(decoder)
            helper, price = senders[group]
            price += _beside(view, decoder, self.context) + _transfer(view, position, rates)
            # If the decoder is also the cheapest instance for the prefill, no KV has to move.
            if helper is not None and helper.id != decoder.id and price < colocated[position]:
                colocated[position], helpers[position] = price, helper
        return colocated, helpers

    def _sender(self, decoder: InstanceState) -> tuple[InstanceState | None, float]:
        """Return the cheapest instance to compute the prompt for the decoder, which may be the decoder itself, and its
        price."""
        whole = self.view.of(self.view.fleet)
        prices = [inf] * len(whole.instances)
        for position in able_to_prefill(whole, replace(decoder, id="")):
            one, new = whole.instances[position], whole.new[position]
            prices[position] = self._prefill(one, prefill_cost(whole, new, self.equal), whole.pace_of(one))
        position = least(whole, prices, lambda: whole.instances.running)
        return (None, inf) if prices[position] == inf else (whole.instances[position], prices[position])

    def _prefill(self, instance: InstanceState, cost: float, pace: float) -> float:
        return _loss((instance.prefill_tokens + cost) / pace, self.late) + self.stall * _stalled(instance) * cost / pace


def _terms(
    request: RoutingRequest,
    policy: ParsedPolicy,
    paced: bool,
    price: float,
    decoder: InstanceState,
    helper: InstanceState | None,
    equal: float,
    stall: float,
    idle: float | tuple[int, int],
    late: float,
) -> tuple[Any, ...]:
    """Return the fields of a LeastPrice."""
    fleet = FleetColumns((decoder,)) if helper is not None else _NOBODY
    view = View(request, fleet, policy, 0.0, fleet, paced)
    instance = helper or decoder
    new = request.prompt_tokens - view.cached_on(instance)
    cost, stalled = prefill_cost(view, new, equal), _stalled(instance)
    moved = None if helper is None else _transfer(view, 0, assumed_rates(view))
    wait, late = instance.prefill_tokens + cost, late * view.pace_of(instance)
    is_late, lost = wait > late, _loss(wait, late)
    beside = _beside(view, decoder, stall * _context_weight(request, policy))
    where = instance.id, instance.prefill_tokens, cost, new, moved, late if is_late else None, lost if is_late else None
    return price, *where, stalled, stall, decoder.running, _context(decoder), beside, idle


def _beside(view: View, instance: InstanceState, context: float) -> float:
    """Return the price of decoding beside the other requests of an instance. `context` is the weight of a token of
    context.
    """
    beside = instance.running * view.request.prompt_tokens + _context(instance)
    return context * beside / view.pace_of(instance)


def _transfer(view: View, position: int, rates: Rates) -> float:
    """Return the price of the transfer. An unknown price counts as 0, since every choice pays for a required
    offload."""
    if not rates.transfer_bytes_per_s:
        return 0.0
    return rates.prefill_tokens_per_s * rates.transfer_s(view.new[position])


def _weights(request: RoutingRequest, policy: ParsedPolicy) -> Weights:
    """Return the weights in the price of an instance that has no part of the prompt cached."""
    prompt, stall = request.prompt_tokens, _stall(policy, request.pool.idle if request.pool is not None else 1.0)
    context = stall * _context_weight(request, policy)
    equal: float = request.rates.equal_cost_tokens or policy["strategy.equal_cost_tokens"]
    return stall * cost_of(prompt, prompt, equal) + context * prompt, context


def _stall(policy: ParsedPolicy, idle: float) -> float:
    """Return the weight of a stall. It grows with the share of busy instances, as decodes advance only while no prompt
    is computed."""
    return min(1.0, policy["strategy.stall_weight"] / idle) if idle else 1.0


def _context_weight(request: RoutingRequest, policy: ParsedPolicy) -> float:
    weight: float = policy["strategy.answer_tokens"] * (request.rates.context_cost or CONTEXT_COST)
    return weight


def _context(instance: InstanceState) -> float:
    """Return u_i·KV_i + PP_i: the tokens that decodes read, both now and once the queued prompts are computed."""
    return instance.kv_usage * instance.kv_tokens + instance.prefill_tokens


def _stalled(instance: InstanceState) -> int:
    """Return the number of requests that would decode meanwhile, including all that are queued ahead."""
    return 0 if instance.role == "prefill" else instance.running


STALL_WEIGHT = Parameter(
    name="strategy.stall_weight",
    title="Weight of stalls",
    unit="ratio",
    default=0.07,
    range=(0.0, 1.0),
    step=0.01,
    help="Requests avoid instances with many others more, and wait longer for their own first token.",
    metric="ttft_p99_ms",
    up="answers are stalled less, first tokens come later",
    down="first tokens come sooner, answers are stalled more",
)
ANSWER_TOKENS = Parameter(
    name="strategy.answer_tokens",
    title="Length of a typical answer",
    unit="tokens",
    default=350,
    range=(0, 100_000),
    step=50,
    help="Requests avoid instances with much context more.",
    up="contexts are spread more evenly",
    down="contexts count less",
)

LATE_AFTER_S = Parameter(
    name="strategy.late_after_s",
    title="First token is late after",
    unit="s",
    default=5.0,
    range=(0.1, 3_600.0),
    step=0.5,
    help="More requests keep the limit, and those that cannot gather where they harm least.",
    metric="ttft_p99_ms",
    up="later first tokens count as in time",
    down="fewer requests can still be in time, and the others gather sooner",
)

STRATEGY = Strategy(
    "priced",
    "Priced",
    "The least price: the request's own wait for its first token, and what it makes the other requests there wait for, "
    "in tokens of prefill.",
    "argmin l(PP_i + w_i) + a · [R_i · w_i + c · (R_i · L + u_i · KV_i + PP_i)]; w_i = n_i + n_i · (L − n_i/2) / "
    "equal_cost_tokens; a = min(1, stall_weight / share of instances with PP = 0); l(x) = x up to "
    "T = late_after · rate, then min(x, 2 · T) + T/2",
    rank,
    reads_kv=always,
    kv_optional=True,  # PP_i takes the place of u_i · KV_i
    parameters=(EQUAL_COST_TOKENS, STALL_WEIGHT, ANSWER_TOKENS, LATE_AFTER_S, ASSUMED_TRANSFER, ASSUMED_KV),
    by_pace=True,
    shortlisting=Shortlisting(most=FEWER, weights=_weights),
    offloads=True,
)
