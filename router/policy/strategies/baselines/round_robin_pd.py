"""Each decoder and each prefill instance in turn, like Neuron's proxy (dynamic xPyD)."""

from router.policy.rules.classify import class_by_cache
from router.policy.rules.offload import prefiller_in_turn
from router.policy.strategies.strategy import FEWER, Shortlisting, Strategy
from router.policy.types import Pick
from router.policy.view import View, by_turn


def rank(view: View) -> Pick:
    """Number `turn mod n` among the decoders and among the prefill instances, in the order of ids. Every request is
    offloaded."""
    roles, turn = view.instances.role, view.request.turn
    decoders = view.only([role == "decode" for role in roles]) if "decode" in roles else view
    count = len(decoders.instances)
    decoder = decoders.instances[by_turn(decoders, range(count), turn)]
    helper, why = prefiller_in_turn(view, decoder)
    return Pick(
        decoder, class_by_cache(view), "turn", (f"decode: turn {turn} over {count} instances", why), prefill=helper
    )


STRATEGY = Strategy(
    "round_robin_pd",
    "Round robin, prefill and decode",
    "Each decoder in turn and each prefill instance in turn, whatever their load: every request is offloaded.",
    "decode = turn mod number of decoders, prefill = turn mod number of instances that can prefill for it",
    rank,
    offloads=True,
    shortlisting=Shortlisting("turn", most=FEWER),
)
