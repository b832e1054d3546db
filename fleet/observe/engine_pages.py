"""The pages of an engine that its node reads repeatedly, requested with the key of the engine's pool."""

import asyncio
from collections import Counter

from msgspec import structs

from fleet.kinds.external import cache_page
from fleet.kinds.kind import Kind
from fleet.kinds.servers import SGLANG, Server
from fleet.models import Instance
from fleet.plan.state import Health
from router.contract.metrics.engine_metrics import parse_metrics
from router.contract.metrics.metrics_page import LARGEST as METRICS_LARGEST
from router.contract.metrics.metrics_page import MetricsPage
from router.contract.metrics.tier_metrics import parse_tiers
from router.contract.model_cards import cards, lengths
from router.contract.net.engine_key import line_if_any, refusal
from router.contract.net.probe import LARGEST, READY, AnswerRefused, NotAsked, ProbeError, Prober, Slow
from router.contract.redis.sample import EngineMetrics

MODELS_LARGEST = 1024 * 1024  # bytes
MODELS = "/v1/models"  # page of an older SGLang, which has no READY


class EnginePages:
    """Reads pages over kept connections, for one event loop."""

    def __init__(self) -> None:
        self.prober = Prober()

    async def health(self, row: Instance, path: str, timeout_s: float) -> tuple[Health, str]:
        """Return the engine's health, and the reason if it is unhealthy."""
        asked = path
        try:
            status, _ = await self._get(row, asked, timeout_s)
            if status == 404 and path == READY:
                asked = MODELS
                status, _ = await self._get(row, asked, timeout_s, MODELS_LARGEST)
        except ProbeError as error:
            return ("slow" if isinstance(error, Slow | NotAsked) else "refused"), str(error)
        said = refusal(status, path, row.engine_key) or f"GET {row.url}{asked} answers {status}"
        return ("ok", "") if 200 <= status < 300 else ("error", said)

    async def metrics(
        self, row: Instance, kind: Kind | Server, timeout_s: float, refused: Counter[str]
    ) -> EngineMetrics | None:
        """Return the engine's metrics. `refused` counts values that could not be read, by reason."""
        if not kind.metrics_path:
            return None
        cache = cache_page(row.pool.engine, row.url)
        (_, page), of_cache = await asyncio.gather(
            self._page(row, kind.metrics_path, timeout_s, METRICS_LARGEST, refused),
            self._cache(row, cache, timeout_s, refused),
        )
        if page is None:
            return None
        found, there = parse_metrics(page + of_cache, kind.scrape, refused), MetricsPage(of_cache, Counter())
        named = {
            name: structs.replace(tier, page=cache)
            for name, tier in parse_tiers(there, kind.scrape.tiers).items()
            if tier == found.kv_tiers.get(name)
        }
        return structs.replace(found, kv_tiers=found.kv_tiers | named) if named else found

    async def _cache(self, row: Instance, url: str, timeout_s: float, refused: Counter[str]) -> bytes:
        """Return the page of the LMCache server beside the engine; empty without one. The engine's key is not sent
        to it."""
        try:
            status, page = await self.prober.get(url, timeout_s, METRICS_LARGEST, tls=row.tls) if url else (200, b"")
        except ProbeError as error:
            status, page = 0, b""
            refused[f"LMCache: {error}"[:200]] += 1
        if status not in (0, 200):
            refused[f"LMCache: GET {url} answers {status}"[:200]] += 1
        return b"\n" + page if status == 200 else b""

    async def models(
        self, row: Instance, path: str, timeout_s: float, refused: Counter[str]
    ) -> tuple[dict[str, int | None], str]:
        """Return the models' `max_model_len` by name, and an explanation if the engine requires a key."""
        status, body = await self._page(row, path, timeout_s, MODELS_LARGEST, refused)
        return _lengths(body) if body is not None else {}, refusal(status, path, row.engine_key)

    async def paused(self, row: Instance, path: str, timeout_s: float) -> bool | None:
        """Return whether the engine is paused; None if its server cannot report it: an older server, or one without
        developer paths.
        """
        try:
            status, body = await self._get(row, path, timeout_s)
        except ProbeError:
            return False
        if path == READY and status == 503:
            return await self._schedules(row, timeout_s)
        said = b'"is_paused":true' in body.replace(b" ", b"")
        return said if status in (200, 503) else None

    async def _schedules(self, row: Instance, timeout_s: float) -> bool:
        """Return whether the scheduler of an SGLang that takes no requests answers: a paused scheduler does, a hung one
        does not.
        """
        try:
            return (await self._get(row, SGLANG.version_path, timeout_s, MODELS_LARGEST))[0] == 200
        except ProbeError:
            return False

    async def _get(self, row: Instance, path: str, timeout_s: float, largest: int = LARGEST) -> tuple[int, bytes]:
        """Return (status, body). Raise ProbeError."""
        return await self.prober.get(row.url + path, timeout_s, largest, line_if_any(row.engine_key), row.tls)

    async def _page(
        self, row: Instance, path: str, timeout_s: float, largest: int, refused: Counter[str]
    ) -> tuple[int, bytes | None]:
        """Return (status, body of a good answer)."""
        try:
            status, body = await self._get(row, path, timeout_s, largest)
        except AnswerRefused as error:
            refused[str(error)] += 1
            return 0, None
        except ProbeError:
            return 0, None
        if why := refusal(status, path, row.engine_key):
            refused[why] += 1
        return status, body if status == 200 else None


def _lengths(body: bytes) -> dict[str, int | None]:
    try:
        return lengths(cards(body))
    except ValueError:
        return {}
