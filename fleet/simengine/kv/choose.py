"""Chooses the connector that a command line names."""

from collections.abc import Callable

from fleet.engine.engine_model import TransferModel
from fleet.simengine.arguments import Arguments
from fleet.simengine.kv.connector import Connector
from fleet.simengine.kv.dialects import (
    neuron_request,
    nixl_request,
    nixl_response,
    no_response,
    p2p_request,
    sglang_request,
    sglang_response,
    trtllm_request,
    trtllm_response,
)
from fleet.simengine.kv.peers import ConnectorEngine, PeerConnector
from fleet.simengine.kv.pooled import Pooled
from router.contract.connectors import MOONCAKE_P2P, MOONCAKE_STORE, NEURON, NIXL, SGLANG, TRTLLM

CONNECTORS: dict[str, Callable[[Arguments, ConnectorEngine], Connector]] = {
    NIXL: lambda arguments, host: PeerConnector(
        host, nixl_request(lends=arguments.kv_lend_s > 0), nixl_response, arguments.kv_lend_s
    ),
    MOONCAKE_P2P: lambda arguments, host: PeerConnector(host, p2p_request, no_response),
    NEURON: lambda arguments, host: PeerConnector(host, neuron_request(arguments.role, arguments.kv_peer), no_response),
    TRTLLM: lambda arguments, host: PeerConnector(host, trtllm_request, trtllm_response),
    SGLANG: lambda arguments, host: PeerConnector(host, sglang_request(arguments.role), sglang_response),
    MOONCAKE_STORE: lambda arguments, host: Pooled(host, arguments.kv_store or ""),
}


def connector(
    arguments: Arguments,
    port: int,
    transfers: TransferModel,
    is_busy: Callable[[], bool],
    release: Callable[[str], None],
) -> Connector:
    scale, size = arguments.time_scale, arguments.block_size
    host = ConnectorEngine(arguments.host, port, scale, size, transfers, is_busy, release)
    return CONNECTORS[arguments.kv](arguments, host)
