"""An Envoy that ends TLS before the engines of bench/router.py, so that routers reach them over https://."""

import importlib.util
import json
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from bench.peers import Unavailable, process
from router.tests.certificates import Authority, Issued
from router.tests.picker.gateway import cluster, typed

TLS = "transport_sockets.tls.v3.DownstreamTlsContext"


@contextmanager
def terminator(folder: Path, pairs: Sequence[tuple[int, int]], pin: Iterable[object]) -> Iterator[Path]:
    """Forward TLS connections from the first port of each pair to its second port; yield the file of the authority to
    trust.
    """
    found = importlib.util.find_spec("envoy")
    if found is None or found.origin is None:
        raise Unavailable("--tls needs Envoy: make test-deploy installs it (requirements-deploy.txt)")
    authority = Authority(folder)
    written = folder / "terminator.json"
    written.write_text(json.dumps(_config(pairs, authority.issue("127.0.0.1"))))
    envoy = Path(found.origin).parent / "_bin" / "envoy"
    with process([*pin, envoy, "-c", written, "--concurrency", 1, "-l", "error", "--disable-hot-restart"]):
        yield authority.path


def _config(pairs: Sequence[tuple[int, int]], shown: Issued) -> object:
    certificate = {
        "certificate_chain": {"filename": str(shown.certificate)},
        "private_key": {"filename": str(shown.key)},
    }
    secure = {"name": "tls", "typed_config": typed(TLS, common_tls_context={"tls_certificates": [certificate]})}

    def listener(outer: int, inner: int) -> object:
        passed = typed("filters.network.tcp_proxy.v3.TcpProxy", stat_prefix="engine", cluster=f"engine-{inner}")
        return {
            "address": {"socket_address": {"address": "127.0.0.1", "port_value": outer}},
            "filter_chains": [
                {"transport_socket": secure, "filters": [{"name": "pass", "typed_config": passed}]},
            ],
        }

    clusters = [cluster(f"engine-{inner}", [inner]) for _, inner in pairs]
    return {"static_resources": {"listeners": [listener(*pair) for pair in pairs], "clusters": clusters}}
