"""The connector that a command line asks for."""

from collections.abc import Callable

from fleet.simengine.arguments import Arguments
from fleet.simengine.kv.connector import Connector
from fleet.simengine.kv.link import TransferLink
from fleet.simengine.kv.peers import Host, PeerConnector
from fleet.simengine.kv.pooled import Pooled
from fleet.simengine.kv.ways import neuron_wish, nixl_answer, nixl_wish, no_answer, p2p_wish
from router.contract.connectors import MOONCAKE_P2P, MOONCAKE_STORE, NEURON, NIXL


def _nixl(arguments: Arguments, host: Host) -> Connector:
    return PeerConnector(host, _link(arguments), arguments.kv_hold_s, nixl_wish, nixl_answer)


def _p2p(arguments: Arguments, host: Host) -> Connector:
    return PeerConnector(host, _link(arguments), arguments.kv_hold_s, p2p_wish, no_answer)


def _neuron(arguments: Arguments, host: Host) -> Connector:
    wish = neuron_wish(arguments.role, arguments.kv_peer)
    return PeerConnector(host, _link(arguments), arguments.kv_hold_s, wish, no_answer)


def _store(arguments: Arguments, host: Host) -> Connector:
    return Pooled(host, arguments.kv_store or "")


CONNECTORS: dict[str, Callable[[Arguments, Host], Connector]] = {
    NIXL: _nixl,
    MOONCAKE_P2P: _p2p,
    NEURON: _neuron,
    MOONCAKE_STORE: _store,
}


def _link(arguments: Arguments) -> TransferLink:
    return TransferLink(arguments.kv_setup_ms / 1e3, arguments.kv_gb_per_s * 1e9, arguments.kv_busy_gb_per_s * 1e9)


def connector(
    arguments: Arguments,
    port: int,
    bytes_per_token: float,
    is_busy: Callable[[], bool],
    release: Callable[[str], None],
) -> Connector | None:
    build = CONNECTORS.get(arguments.kv)
    if build is None:
        return None
    scale, size = arguments.time_scale, arguments.block_size
    return build(arguments, Host(arguments.host, port, scale, size, bytes_per_token, is_busy, release))
