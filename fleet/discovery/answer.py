"""A source's answer to one poll, and the part of it that becomes instances. Pure."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace

from msgspec import structs

from fleet.kinds.external import ROLE_LABEL, SECURE, ExternalSpec, is_engine_url, scheme
from fleet.kinds.listed import ListedEngine
from fleet.kinds.serving import ROLES
from fleet.spec.sections import MAX_REPLICAS
from router.contract.redis.published import InstanceRole

MOST_LABELS = 64
LLM_D_BOTH = "prefill-decode"  # llm-d's label for a Pod that does both
LONGEST_LABEL = 253  # most characters of a label


class SourceAway(Exception):
    """The source does not answer; its previous list remains valid."""


@dataclass(frozen=True, slots=True)
class Listing:
    engines: tuple[ListedEngine, ...]
    refused: tuple[str, ...] = ()  # listed addresses that Weir must not connect to, with the reason


def judged(spec: ExternalSpec, pool: str, found: Iterable[ListedEngine]) -> Listing:
    """Return the pool's engines with their roles, without duplicates, at most the first 512."""
    engines: dict[str, ListedEngine] = {}
    refused = []
    for listed in sorted(found, key=lambda one: (one.name, one.url)):
        engine = _addressed(spec, listed)
        if not _is_of(spec, pool, engine.labels):
            continue
        if not is_engine_url(engine.url):
            rule = "must be http://host:port or https://host:port, not of the host's or its cloud's services"
            refused.append(f"{engine.url[:200]}: {rule}")
        elif spec.tls and not engine.url.startswith(SECURE):
            refused.append(f"{engine.url[:200]}: must begin with {SECURE}, as the pool has tls")
        elif len(engines) >= MAX_REPLICAS and engine.key not in engines:
            refused.append(f"{engine.url[:200]}: a pool has at most {MAX_REPLICAS} instances")
        else:
            engines[engine.key] = _kept(engine, _role(spec, engine.labels))
    return Listing(tuple(engines.values()), tuple(refused[:20]))


def _addressed(spec: ExternalSpec, engine: ListedEngine) -> ListedEngine:
    """Return the engine with its URL. A file contains whole addresses; other sources provide host and port."""
    return engine if spec.file else structs.replace(engine, url=scheme(spec) + engine.url.partition("://")[2])


def _kept(engine: ListedEngine, role: InstanceRole | None) -> ListedEngine:
    first = sorted(engine.labels.items())[:MOST_LABELS]
    labels = {name[:LONGEST_LABEL]: value[:LONGEST_LABEL] for name, value in first}
    return structs.replace(engine, url=engine.url.rstrip("/"), labels=labels, role=role)


def _is_of(spec: ExternalSpec, pool: str, labels: Mapping[str, str]) -> bool:
    name = spec.labels.get("pool", "")
    return not name or labels.get(name) == pool


def _role(spec: ExternalSpec, labels: Mapping[str, str]) -> InstanceRole | None:
    given = labels.get(spec.labels.get("role", ROLE_LABEL), "")
    found = spec.roles.get(given, "both" if given == LLM_D_BOTH else given)
    return next((role for role in ROLES if role == found), None)


@dataclass(frozen=True, slots=True)
class Seen:
    """A source after one poll: the engines that it lists, or the time since which it has not answered."""

    answer: Listing | None = None  # None: it has not answered yet
    trouble: str = ""  # empty if the source answers
    answered_at: float | None = None  # Unix time of `answer`

    def away(self, why: str) -> "Seen":
        return replace(self, trouble=why)
