"""KV connectors: how KV blocks move between engines. Named here once, with what each of them can do.

A new connector is a line here, a flow in router/flows and, to simulate it, a dialect in fleet/simengine/kv.
"""

from dataclasses import dataclass

NIXL = "nixl"
MOONCAKE_P2P = "mooncake_p2p"
MOONCAKE_STORE = "mooncake_store"
NEURON = "neuron"
TRTLLM = "trtllm"

NONE = "none"  # the option of an engine that moves no blocks


@dataclass(frozen=True, slots=True)
class KvConnector:
    name: str
    cached_as: str = "p2p"  # `source` of vLLM's counters for tokens that arrived through it
    needs_bootstrap: bool = False  # engines meet at the URL in kv.bootstrap
    api_paths: frozenset[str] = frozenset()  # paths that a pair of instances can serve; empty: all
    is_shared: bool = False  # an instance reads what others have computed by itself, so that nothing is to be pulled
    counts_fetched: bool = True  # an answer's cached tokens include those that came from the prefill


_OPENAI = frozenset({"/v1/chat/completions", "/v1/completions"})

CONNECTORS: dict[str, KvConnector] = {
    connector.name: connector
    for connector in (
        KvConnector(NIXL),
        KvConnector(MOONCAKE_STORE, cached_as="external_unspecified", is_shared=True),
        KvConnector(MOONCAKE_P2P, needs_bootstrap=True),
        KvConnector(NEURON, api_paths=_OPENAI),
        KvConnector(TRTLLM, api_paths=_OPENAI, counts_fetched=False),
    )
}
# The decoder pulls, and the usage of the KV cache that the prefill instance tells falls once it has
PULLED_FROM_PREFILL = frozenset({NIXL, MOONCAKE_P2P, NEURON})
CONNECTOR_CHOICES = (NONE, *CONNECTORS)
