"""The servers behind the URLs of engines that another system started: their API paths and metrics. Pure."""

from dataclasses import dataclass

from fleet.kinds.kind import PAUSE_PATH, Kind
from router.contract.metrics.engine_metrics import NO_SCRAPE, SGLANG_SCRAPE, TRTLLM_SCRAPE, VLLM_SCRAPE, Scrape
from router.contract.net.probe import READY

AUTO = "auto"


@dataclass(frozen=True, slots=True)
class Server:
    name: str
    title: str
    scrape: Scrape
    health_path: str = "/health"
    metrics_path: str = "/metrics"  # empty if it has none
    models_path: str = "/v1/models"
    version_path: str = "/version"
    # True if its version page shows its options; without that page, the server is not identified
    tells_options: bool = False
    pause_path: str = ""  # as of a kind
    mark: bytes = b""  # prefix of the names on its metrics page

    @property
    def reports_kv(self) -> bool:
        return bool(self.scrape.kv_usage)


VLLM = Server("vllm", "vLLM", VLLM_SCRAPE, pause_path=PAUSE_PATH, mark=b"vllm:")
SGLANG = Server(
    "sglang",
    "SGLang",
    SGLANG_SCRAPE,
    READY,
    version_path="/server_info",
    tells_options=True,
    pause_path=READY,
    mark=b"sglang:",
)
SERVERS = {
    server.name: server
    for server in (
        VLLM,
        SGLANG,
        # Its /metrics is a JSON list of iterations.
        Server("trtllm", "TensorRT-LLM", TRTLLM_SCRAPE, metrics_path="/prometheus/metrics", mark=b"trtllm_"),
        Server("openai", "OpenAI API", NO_SCRAPE, health_path="/v1/models", metrics_path="", version_path=""),
    )
}


def answering(kind: Kind, server: str) -> Kind | Server:
    """Return paths and metrics of an instance: those of its kind, unless another server is known to answer there."""
    return SERVERS[server] if not kind.launched and server in SERVERS else kind


CHOICES = (AUTO, *SERVERS)
