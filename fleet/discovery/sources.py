"""The kinds of sources, and the set polled by one process."""

import time
from collections.abc import Callable, Collection
from dataclasses import dataclass, field
from typing import Protocol

from fleet.discovery.answer import Seen, SourceAway, judged
from fleet.discovery.dns import DnsSource
from fleet.discovery.engine_file import EngineFile
from fleet.kinds.external import ExternalSpec, scheme
from fleet.kinds.listed import ListedEngine


class Source(Protocol):
    def look(self) -> list[ListedEngine]:
        """Return the engines that the source lists now. Raise SourceAway."""

    def close(self) -> None: ...


def source_of(spec: ExternalSpec) -> Source:
    """Create the source that the options name; they must name one. Raise SourceAway."""
    if spec.dns:
        return DnsSource.of(spec.dns)
    if spec.file:
        return EngineFile(spec.file, scheme(spec))
    # Imported late, because the Kubernetes client takes half a second to load
    from fleet.discovery.pods import PodsSource

    return PodsSource.of(spec.kubernetes)


def _identity(spec: ExternalSpec) -> str:
    """Return the identity of the source: pools with the same source share a poll."""
    return repr((spec.dns, spec.file, sorted(spec.kubernetes.items()), scheme(spec)))


@dataclass(slots=True)
class Sources:
    make: Callable[[ExternalSpec], Source] = source_of
    made: dict[str, Source] = field(default_factory=dict)
    seen: dict[str, Seen] = field(default_factory=dict)  # latest poll by pool

    def look(self, pool: str, spec: ExternalSpec) -> Seen:
        """Poll the source; if it does not answer, return its latest answer."""
        try:
            found = self._source(spec).look()
        except SourceAway as away:
            self.seen[pool] = self.seen.get(pool, Seen()).away(str(away)[:500])
        else:
            self.seen[pool] = Seen(judged(spec, pool, found), "", time.time())
        return self.seen[pool]

    def keep_only(self, pools: dict[str, ExternalSpec]) -> None:
        wanted = {_identity(spec) for spec in pools.values()}
        for identity in self.made.keys() - wanted:
            self.made.pop(identity).close()
        self._forget(pools)

    def _forget(self, pools: Collection[str]) -> None:
        for pool in self.seen.keys() - set(pools):
            del self.seen[pool]

    def _source(self, spec: ExternalSpec) -> Source:
        identity = _identity(spec)
        if identity not in self.made:
            self.made[identity] = self.make(spec)
        return self.made[identity]
