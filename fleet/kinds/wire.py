"""Facts that routers need about one start of an instance besides its address: part of its entry in weir:fleet. Pure."""

from msgspec import Struct, to_builtins
from msgspec.structs import asdict

from router.contract.redis.published import DataParallel as DataParallel
from router.contract.redis.published import InstanceRole
from router.contract.redis.published import KvFacts as KvFacts


class KvWire(Struct, frozen=True):
    role: InstanceRole = "both"
    connector: str = ""  # connector that moves KV blocks (router/contract/connectors.py); empty: none
    kv: KvFacts = KvFacts()
    events: str = ""  # base URL that serves GET /kv_event_sources, or tcp://… for an engine without it
    tokenizer: str = ""  # folder of the tokenizer, or "sim"
    dp: DataParallel = DataParallel()
    server: str = ""  # server behind a URL that Weir did not start (fleet/kinds/servers.py)
    version: str = ""  # version of the connector
    uncached: bool = False  # True if it is known, though not from its metrics page, that it reuses no prefix

    def stored(self) -> dict[str, object]:
        """Return the non-default values, for Instance.wire and annotations of Pods."""
        given = {**asdict(self), "kv": self.kv_stored(), "dp": to_builtins(self.dp)}
        return {name: value for name, value in given.items() if value and value != "both"}

    def kv_stored(self) -> dict[str, object]:
        return {name: value for name, value in asdict(self.kv).items() if value}
