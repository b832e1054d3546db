"""adaptive_offload, limited to offloads that save more time than the transfer takes."""

from dataclasses import dataclass

from router.policy.rules.offload import prefiller, serving
from router.policy.schema.parameter import Parameter
from router.policy.strategies.adaptive_v1 import HEAVY_CACHE_LOSS_MAX, ORDER, adaptive, least_decode
from router.policy.strategies.strategy import Strategy, always
from router.policy.types import InstanceState, Pick, Rates
from router.policy.view import View


def rank(view: View) -> Pick:
    """Heavy: offload if D_d · T_prefill(n) + queue saved > t0 + bytes/BW and the decoder has KV capacity for L."""
    return adaptive(view, _offload_if_it_pays)


def _offload_if_it_pays(view: View, home: InstanceState, reasons: tuple[str, ...]) -> Pick:
    helper, why = prefiller(view, home)
    if helper is None:
        return least_decode(serving(view), home, (*reasons, why))
    pays, judged = _judge(view, home, helper)
    if not pays:
        return least_decode(serving(view), home, (*reasons, judged))
    return Pick(home, "heavy", "offload", (*reasons, judged, why), prefill=helper)


def _judge(view: View, decoder: InstanceState, helper: InstanceState) -> tuple[bool, str]:
    free = (1 - decoder.kv_usage) * decoder.kv_tokens
    if decoder.kv_tokens and free < view.request.prompt_tokens:
        return False, f"no offload: {decoder.id} has KV room for {free:,.0f} of {view.request.prompt_tokens:,} tokens"
    rates = assumed_rates(view)
    if not (rates.prefill_tokens_per_s and rates.kv_bytes_per_token and rates.transfer_bytes_per_s):
        return False, f"no offload: {_unknown(rates)}"
    balance = _balance(view, decoder, helper, rates)
    verb = "pays" if balance.saved_s > balance.transfer_s else "does not pay"
    return balance.saved_s > balance.transfer_s, (
        f"offload {verb}: {balance.stall_s:.2f} s of stalls and {balance.queue_s:.2f} s of queue saved, "
        f"{balance.transfer_s:.2f} s of transfer"
    )


@dataclass(frozen=True, slots=True)
class OffloadGain:
    """The parts of an offload's gain, in seconds."""

    stall_s: float  # total stall of the decodes that share the instance with the prefill
    queue_s: float  # time by which the prompt is computed earlier
    transfer_s: float

    @property
    def saved_s(self) -> float:
        return self.stall_s + self.queue_s


def _balance(view: View, decoder: InstanceState, helper: InstanceState, rates: Rates) -> OffloadGain:
    prompt, rate = view.request.prompt_tokens, rates.prefill_tokens_per_s
    own, other = prompt - view.cached_on(decoder), prompt - view.cached_on(helper)
    here, there = view.pace_of(decoder), view.pace_of(helper)
    # Decodes on the prefill instance stall instead
    stalled = decoder.decodes * own / here - helper.decodes * other / there
    before = (decoder.prefill_tokens + own) / here - (helper.prefill_tokens + other) / there
    return OffloadGain(stalled / rate, before / rate, rates.transfer_s(own))


def assumed_rates(view: View) -> Rates:
    """Return the measured rates, or the policy's assumed rates, so that a first transfer can take place."""
    rates, policy = view.request.rates, view.policy
    return Rates(
        rates.prefill_tokens_per_s,
        rates.kv_bytes_per_token or policy["strategy.assumed_kv_kib_per_token"] * 1024,
        rates.transfer_bytes_per_s or policy["strategy.assumed_transfer_gb_per_s"] * 1e9,
        rates.transfer_setup_s,
    )


def _unknown(rates: Rates) -> str:
    if not rates.prefill_tokens_per_s:
        return "how fast prompts are computed is not known yet"
    if not rates.kv_bytes_per_token:
        return f"the size of a token's KV is not known: set {ASSUMED_KV.name}"
    return f"no transfer was measured: set {ASSUMED_TRANSFER.name}"


ASSUMED_TRANSFER = Parameter(
    name="strategy.assumed_transfer_gb_per_s",
    title="Transfer speed until one is measured",
    unit="GB/s",
    default=0.0,
    range=(0.0, 10_000.0),
    step=0.5,
    help="Offloads pay sooner while no transfer was measured; at 0 nothing is offloaded then, so that none is measured "
    "either.",
    up="looser: transfers are taken to be faster until measured",
    down="stricter: transfers are taken to be slower until measured",
)
ASSUMED_KV = Parameter(
    name="strategy.assumed_kv_kib_per_token",
    title="KV of a token until it is known",
    unit="KiB",
    default=0.0,
    range=(0.0, 100_000.0),
    step=16.0,
    help="Transfers are taken to be larger while the size is not known; at 0 there is no offload until then.",
    up="stricter: transfers are taken to be larger until known",
    down="looser: transfers are taken to be smaller until known",
)

STRATEGY = Strategy(
    "conditional_offload",
    "Conditional offload",
    "As Adaptive offload, but only when the stalls and the queue that it saves are longer than the transfer and the "
    "decoder has room.",
    "heavy: offload if D_d · T_prefill(n) + queue saved > t0 + n · bytes/token / BW and (1 − u_d) · KV_d ≥ L; else as "
    "adaptive_v1",
    rank,
    reads_kv=always,
    parameters=(ORDER, HEAVY_CACHE_LOSS_MAX, ASSUMED_TRANSFER, ASSUMED_KV),
    affinity=True,
    by_pace=True,
    offloads=True,
)
