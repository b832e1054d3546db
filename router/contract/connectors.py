"""KV connectors, which move KV blocks between engines, and what each can do.
A new connector is a line here, a flow in router/flows and, to simulate it, a dialect in fleet/simengine/kv.
"""

from dataclasses import dataclass

NIXL = "nixl"
MOONCAKE_P2P = "mooncake_p2p"
MOONCAKE_STORE = "mooncake_store"
NEURON = "neuron"
TRTLLM = "trtllm"
SGLANG = "sglang"

NONE = "none"  # option of an engine without a connector


@dataclass(frozen=True, slots=True)
class KvConnector:
    name: str
    cached_as: str = "p2p"  # label `source` in vLLM's counters of tokens received through this connector
    needs_bootstrap: bool = False  # both engines need the bootstrap server's URL, kv.bootstrap
    api_paths: frozenset[str] = frozenset()  # paths that a pair of instances can serve; empty: all
    is_shared: bool = False  # instances read each other's blocks by themselves, without pulls
    needs_prefill_role: bool = False  # an instance with role "both" would compute the whole answer
    continues_token: bool = False  # the prefill samples the first token of the answer, with all the client's options
    counts_fetched: bool = True  # an answer's cached tokens include those fetched from the prefill instance


_OPENAI = frozenset({"/v1/chat/completions", "/v1/completions"})
_OPENAI_NOW = _OPENAI | {"/v1/responses"}

CONNECTORS: dict[str, KvConnector] = {
    connector.name: connector
    for connector in (
        KvConnector(NIXL),
        KvConnector(MOONCAKE_STORE, cached_as="external_unspecified", is_shared=True),
        KvConnector(MOONCAKE_P2P, needs_bootstrap=True),
        KvConnector(NEURON, api_paths=_OPENAI),
        KvConnector(TRTLLM, api_paths=_OPENAI, counts_fetched=False),
        KvConnector(
            SGLANG,
            needs_bootstrap=True,
            api_paths=_OPENAI_NOW,
            needs_prefill_role=True,
            continues_token=True,
            counts_fetched=False,
        ),
    )
}
# The decoder pulls the blocks; when it has them, the KV usage that the prefill instance reports falls
PULLED_FROM_PREFILL = frozenset({NIXL, MOONCAKE_P2P, NEURON})
# Both halves are sent at the same time, so the failure of one may make the other fail
AT_ONCE = frozenset({MOONCAKE_P2P, NEURON, SGLANG})
CONNECTOR_CHOICES = (NONE, *CONNECTORS)
