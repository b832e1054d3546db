"""The command palette's search: pages, names of the fleet and of policies, and request ids."""

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any
from urllib.parse import quote

import redis

from controlplane.live.dashboard.context import HELP, PAGES, account_pages
from controlplane.traffic.aliases.selectors import live as live_models
from controlplane.traffic.policies.models import Policy
from fleet.models import Instance, Node, Pool
from fleet.redis import connect
from router.contract.redis import redis_keys

LIMIT = 20
PER_KIND = 6
LONGEST = 200  # characters of a query
MORE_PAGES = (("/wall", "Wall", "activity"), ("/fleet/new-pool", "New pool", "layers"), ("/freezes/", "Freezes", ""))
_REQUEST_ID = re.compile(r"[\w.:-]{3,200}")


@dataclass(frozen=True, slots=True)
class SearchHit:
    kind: str  # pool, policy, instance, node, request or page
    title: str
    detail: str
    href: str
    icon: str


def search(query: str, user: Any) -> list[SearchHit]:
    """Return the hits, best first; without a query, the pages that the user may open."""
    asked = query.strip().replace("\x00", "")[:LONGEST]
    if not asked:
        return list(_pages(asked, user))
    found = [
        *_request(asked),
        *_pools(asked),
        *_policies(asked),
        *_models(asked),
        *_instances(asked),
        *_nodes(asked),
        *_pages(asked, user),
    ]
    lower = asked.lower()
    # Names that begin with the query come before names that contain it; kinds keep their order.
    return sorted(found, key=lambda one: (one.kind != "request", not one.title.lower().startswith(lower)))[:LIMIT]


def _pages(asked: str, user: Any) -> Iterator[SearchHit]:
    pages: Iterable[tuple[str, str, str]] = (*PAGES, *MORE_PAGES, HELP, *account_pages(user))
    for href, label, icon in pages:
        if asked.lower() in label.lower():
            yield SearchHit("page", label, "", href, icon or "file-text")


def _pools(asked: str) -> Iterator[SearchHit]:
    for pool in Pool.objects.filter(name__icontains=asked, ephemeral_owner="").order_by("name")[:PER_KIND]:
        yield SearchHit("pool", pool.name, f"{pool.model}, {pool.kind}", f"/fleet/pools/{quote(pool.name)}/", "layers")


def _policies(asked: str) -> Iterator[SearchHit]:
    for policy in Policy.objects.filter(name__icontains=asked).order_by("name")[:PER_KIND]:
        yield SearchHit("policy", policy.name, "", f"/policies/{quote(policy.name)}/", "scroll-text")


def _models(asked: str) -> Iterator[SearchHit]:
    found = [name for name in live_models().aliases if asked.lower() in name.lower()]
    yield from (SearchHit("model", name, "", "/models/", "layers") for name in sorted(found)[:PER_KIND])


def _instances(asked: str) -> Iterator[SearchHit]:
    rows = Instance.objects.select_related("pool").filter(name__icontains=asked, pool__ephemeral_owner="")
    for row in rows.order_by("pool__name", "ordinal")[:PER_KIND]:
        detail = f"{row.state} on {row.node}" if row.node else row.state
        yield SearchHit("instance", row.name, detail, f"/fleet/instances/{quote(row.name)}/", "gauge")


def _nodes(asked: str) -> Iterator[SearchHit]:
    for node in Node.objects.filter(name__icontains=asked).order_by("name")[:PER_KIND]:
        yield SearchHit("node", node.name, node.hostname, f"/fleet/nodes/{quote(node.name)}/", "server")


def _request(asked: str) -> Iterator[SearchHit]:
    """Find a request by its complete id, while its receipt is stored."""
    if not _REQUEST_ID.fullmatch(asked):
        return
    try:
        kept = connect().exists(redis_keys.receipt_key(asked))
    except redis.RedisError:
        return
    if kept:
        yield SearchHit("request", asked, "receipt", f"/requests/{quote(asked)}/", "list")
