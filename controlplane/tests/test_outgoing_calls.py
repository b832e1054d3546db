"""Every connection that Weir makes passes router/contract/net/outgoing.py, which knows what its caller may reach."""

import ast
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
OPENERS = {
    *("create_connection", "open_connection", "urlopen", "build_opener", "HTTPConnection", "HTTPSConnection"),
    *("Client", "AsyncClient", "HTTPTransport", "AsyncHTTPTransport", "PoolManager", "HTTPConnectionPool", "Session"),
}
VERBS = ("get", "post", "put", "patch", "delete", "head", "options", "request", "stream")
OF_HTTPX = {f"httpx.{verb}" for verb in VERBS}
# Where connections are allowed, and why
ALLOWED = {
    "router/contract/net/outgoing.py": "the door itself",
    "router/serving/joining.py": "the router's own port",
    "controlplane/doors/up/ready.py": "the ports of processes that `up` started",
    "controlplane/base/spans/exporter.py": "the collector that the settings name, also while the process ends",
    "controlplane/doors/cli/weir/api.py": "the user's own machine, to the server that the user names",
    "fleet/discovery/dns.py": "the name servers of the host, as its resolver would ask them",
    "fleet/simengine/__main__.py": "a simulated engine, to the etcd of its command line",
    "fleet/simengine/kv/peers.py": "a simulated engine, to other engines",
}


def sources():
    for package in ("router", "fleet", "controlplane"):
        for path in sorted((ROOT / package).rglob("*.py")):
            if "tests" not in path.parts and not path.name.startswith("testing"):
                yield path


def openers(code):
    """Return (line, call) of each call that makes a connection; an httpx client with a pinned transport makes none by
    itself.
    """
    if not any(name in code for name in (*OPENERS, "httpx")):
        return
    for node in ast.walk(ast.parse(code)):
        if isinstance(node, ast.Call):
            name = ast.unparse(node.func)
            given = {word.arg: ast.unparse(word.value) for word in node.keywords}
            pinned = "transport" in given and name.startswith("httpx.")
            if (name.rpartition(".")[2] in OPENERS or name in OF_HTTPX) and not pinned:
                yield node.lineno, name


def test_modules_open_connections_only_through_that_module():
    found = {}
    for path in sources():
        for line, name in openers(path.read_text()):
            found.setdefault(str(path.relative_to(ROOT)), []).append(f"{line}: {name}")
    others = {path: calls for path, calls in found.items() if path not in ALLOWED}
    assert not others, f"{others}: call router.contract.net.outgoing.connect or use PinnedTransport"
    assert not ALLOWED.keys() - found.keys(), "they open no connection any more: take them off the list"


@pytest.mark.parametrize(
    "source",
    [
        "httpx.AsyncClient(base_url=url)",
        "urllib.request.urlopen(url)",
        "loop.create_connection(f, h)",
        "httpx.get(u)",
    ],
)
def test_a_call_that_bypasses_it_is_found(source):
    assert list(openers(source))


def test_a_client_with_a_pinned_transport_is_not_reported():
    assert not list(openers("httpx.AsyncClient(transport=PinnedTransport(ENGINES))"))
