"""The data-parallel ranks behind one address: each is an engine with its own cache, as in vLLM."""

from collections.abc import Iterable, Sequence

import msgspec

from fleet.simengine.http.errors import unknown_rank
from fleet.simengine.kv.wire import OTHER_ENGINE
from fleet.simengine.service import Service
from router.contract.ranks import HEADER


class Ranks:
    def __init__(self, services: Sequence[Service]) -> None:
        self.services = services
        self._turn = 0

    def chosen(self, headers: Iterable[tuple[bytes, bytes]]) -> Service:
        """Return the rank for a request: the requested rank, counted from 0 behind this address, or else the rank
        with the fewest requests. Raise ApiError."""
        named = next((value for name, value in headers if name == HEADER), b"")
        try:
            rank = int(named)
        except ValueError:  # an unreadable rank counts as none, like in vLLM
            return self._least_loaded()
        if not 0 <= rank < len(self.services):
            raise unknown_rank(rank, len(self.services))
        return self.services[rank]

    async def exchange(self, path: str, raw: bytes) -> tuple[int, bytes]:
        """Pass another engine's request to the connector of the rank whose engine it names, and answer it. Raise
        DecodeError."""
        for service in self.services:
            status, answer = await service.connector_writes[path](raw)
            if status != OTHER_ENGINE:
                break
        return status, answer

    @property
    def load(self) -> int:
        return sum(service.load for service in self.services)

    def sources(self) -> bytes:
        """Return, as JSON, where each rank publishes its KV events."""
        publishers = [service.publisher for service in self.services if service.publisher is not None]
        return msgspec.json.encode({str(publisher.rank): publisher.source() for publisher in publishers})

    def metrics_page(self) -> bytes:
        """Return the series of all ranks, grouped by name."""
        pages = [service.metrics_page() for service in self.services]
        return pages[0] if len(pages) == 1 else _joined(pages)

    def reset_cache(self) -> bool:
        return all([service.reset_cache() for service in self.services])

    def sleep(self, level: int) -> None:
        for service in self.services:
            service.sleep(level)

    def wake(self, tags: Sequence[str]) -> None:
        for service in self.services:
            service.sleep_mode.wake(tags)

    def reload_weights(self) -> None:
        for service in self.services:
            service.sleep_mode.reload_weights()

    async def close(self) -> None:
        for service in self.services:
            await service.close()
            if service.publisher is not None:
                service.publisher.close()

    def _least_loaded(self) -> Service:
        if len(self.services) == 1:
            return self.services[0]
        self._turn = (self._turn + 1) % len(self.services)
        turned = [*self.services[self._turn :], *self.services[: self._turn]]
        return min(turned, key=lambda service: service.load)


def _joined(pages: Iterable[bytes]) -> bytes:
    families: dict[bytes, list[bytes]] = {}
    for page in pages:
        family: list[bytes] = []
        for line in page.splitlines():
            if line.startswith(b"# TYPE "):
                family = families.setdefault(line, [])
            else:
                family.append(line)
    return b"".join(b"%b\n" % line for head, lines in families.items() for line in (head, *lines))
