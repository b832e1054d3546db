"""First turns are computed on a prefill instance, later turns with few new tokens by their decoder (PPD)."""

from router.policy.rules.affinity import binding
from router.policy.rules.classify import class_by_cache, class_on
from router.policy.rules.offload import prefiller, serving
from router.policy.schema.parameter import Parameter
from router.policy.strategies.baselines.least_requests import fewest_requests
from router.policy.strategies.strategy import Strategy
from router.policy.types import InstanceState, Pick, RequestClass
from router.policy.view import View, least


def rank(view: View) -> Pick:
    """Turn 1: P, then D. Later turns: on the session's decoder if n < local_new_tokens, else again P, then D."""
    bound = binding(view)
    if bound.instance is None:
        rest = view.without(bound.left)
        return _prefill_then_decode(rest, _decoder(rest), class_by_cache(view), bound.reasons)
    request_class = class_on(view, bound.instance)
    new_tokens = view.request.prompt_tokens - view.cached_on(bound.instance)
    if bound.instance.role != "decode" and new_tokens < view.policy["strategy.local_new_tokens"]:
        reasons = (*bound.reasons, f"{new_tokens:,} new tokens are computed there")
        return Pick(bound.instance, request_class, "session", reasons)
    return _prefill_then_decode(view, bound.instance, request_class, bound.reasons)


def _decoder(view: View) -> InstanceState:
    """argmin R_i over decode-only instances, or over all if there are none."""
    roles = view.instances.role
    decoders = view.only([role == "decode" for role in roles]) if "decode" in roles else view
    return decoders.instances[least(decoders, decoders.instances.running)]


def _prefill_then_decode(
    view: View, decoder: InstanceState, request_class: RequestClass, reasons: tuple[str, ...]
) -> Pick:
    helper, why = prefiller(view, decoder)
    if helper is not None:
        return Pick(decoder, request_class, "prefill_decode", (*reasons, why), prefill=helper)
    if decoder.id == view.request.bound_to:
        return Pick(decoder, request_class, "session", (*reasons, why))
    return fewest_requests(serving(view), request_class, (*reasons, why))


LOCAL_NEW_TOKENS = Parameter(
    name="strategy.local_new_tokens",
    title="Later turns stay with the decoder below",
    unit="tokens",
    default=512,
    range=(0, 1_000_000),
    step=128,
    help="Longer additions to a session are computed beside the decodes instead of elsewhere.",
    metric="class.new_tokens_p90",
    up="looser: longer later turns are computed by the decoder",
    down="stricter: shorter later turns already go through a prefill instance",
)

STRATEGY = Strategy(
    "ppd",
    "Prefill, then decode",
    "The first turn is computed on a prefill instance and decoded elsewhere; later turns stay with the decoder while "
    "they add few tokens.",
    "turn 1: prefill argmin work_j, decode argmin R_i; later: the decoder alone if n < local_new_tokens, else prefill "
    "elsewhere again",
    rank,
    as_published=True,
    parameters=(LOCAL_NEW_TOKENS,),
    affinity=True,
    offloads=True,
)
