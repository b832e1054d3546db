"""The flow of requests: class → rule → instance, and KV blocks from prefill to decode. Pure."""

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from controlplane.common.figures import significant
from controlplane.live.dashboard.frame.types import PoolFlow
from router.contract.redis.router_status import WINDOW_S, RouterStatus, Window

INSTANCES_SHOWN = 16  # instances shown per pool; the others are merged into one
OTHERS = ""  # name of the merged instances, which no instance has


# Describes the requests by the names in the document Models, in a line for Live and the wall
MOST = 5  # names shown; the others are counted


def in_words(pool: str, routers: Iterable[RouterStatus]) -> str:
    """Describe the requests per second for each additional name that the pool serves, the most requested first."""
    counts: Counter[str] = Counter()
    for router in routers:
        counts.update({name: n for name, n in router.aliases.get(pool, {}).items() if name != pool})
    parts = [f"{name} {significant(count / WINDOW_S)} requests/s" for name, count in counts.most_common(MOST)]
    if len(counts) > MOST:
        rest = sum(counts.values()) - sum(count for _, count in counts.most_common(MOST))
        parts.append(f"{len(counts) - MOST} others {significant(rest / WINDOW_S)} requests/s")
    return ", ".join(parts)


def of_pools(routers: Sequence[RouterStatus], pools: Iterable[str]) -> dict[str, PoolFlow]:
    return {pool: _of_pool([router.classes.get(pool, {}) for router in routers]) for pool in pools}


def _of_pool(reported: Sequence[Mapping[str, Window]]) -> PoolFlow:
    """Sum the routers' flows. `links` are [class, rule, instance, requests/s]; `arcs` are [prefill, decode,
    offloads/s, bytes/s]."""
    links: Counter[tuple[str, str, str]] = Counter()
    arcs: dict[tuple[str, str], list[int]] = defaultdict(lambda: [0, 0])
    for classes in reported:
        for name, window in classes.items():
            for rule, instances in window.chosen.items():
                for instance, n in instances.items():
                    links[name, rule, instance] += n
            for prefill, decodes in window.moved.items():
                for decode, moved in decodes.items():
                    arcs[prefill, decode][0] += moved.n
                    arcs[prefill, decode][1] += moved.size
    shown = _busiest(links, arcs)
    return {
        "links": [[*key, _rate(n)] for key, n in _merged(links, shown).most_common()],
        "arcs": [[*pair, _rate(n), round(size / WINDOW_S)] for pair, (n, size) in arcs.items() if {*pair} <= shown],
        "instances": len({instance for _, _, instance in links}),
    }


def _busiest(links: Counter[tuple[str, str, str]], arcs: Mapping[tuple[str, str], Any]) -> set[str]:
    by_instance: Counter[str] = Counter()
    for (_, _, instance), n in links.items():
        by_instance[instance] += n
    kept = {name for name, _ in by_instance.most_common(INSTANCES_SHOWN)}
    return kept | {prefill for prefill, decode in arcs if decode in kept}


def _merged(links: Counter[tuple[str, str, str]], shown: set[str]) -> Counter[tuple[str, str, str]]:
    total: Counter[tuple[str, str, str]] = Counter()
    for (name, rule, instance), n in links.items():
        total[name, rule, instance if instance in shown else OTHERS] += n
    return total


def _rate(n: int) -> float:
    return round(n / WINDOW_S, 3)
