"""Pictures of what was recorded beside the thresholds of a draft, on the editor of a policy."""

from collections.abc import Collection, Mapping
from typing import Any

import redis
from django import template

from controlplane.receipts import class_shares, spreads
from fleet.redis import connect

register = template.Library()


@register.simple_tag
def recorded_requests(pools: Collection[str]) -> spreads.RecordedRequests | None:
    """None when Redis is away."""
    try:
        return spreads.read(connect(), pools)
    except redis.RedisError:
        return None


@register.inclusion_tag("receipts/_class_shares.html")
def class_shares_picture(
    recorded: spreads.RecordedRequests | None, live: Mapping[str, Any], draft: Mapping[str, Any]
) -> dict[str, Any]:
    if recorded is None:
        return {"away": True}
    found = class_shares.sizes(recorded.requests)
    if not found:
        return {}
    return {
        "n": len(found),
        "recorded": recorded,
        "sentence": class_shares.sentence(found, live, draft),
        "data": {"sizes": found, "live": live["classes"]},
    }


@register.inclusion_tag("receipts/_spread.html")
def spread_picture(
    recorded: spreads.RecordedRequests | None, field: Any, live: Mapping[str, Any], draft: Mapping[str, Any]
) -> dict[str, Any]:
    """`field`: the parameter's field on the editor. Empty for a parameter that limits nothing recorded."""
    if field.path not in spreads.QUANTITIES:
        return {}
    shown = {"field": field, "what": spreads.QUANTITIES[field.path].what, "away": recorded is None}
    found = spreads.spread(recorded, field.path, live) if recorded is not None else []
    if not found:
        return shown
    section, _, name = field.path.partition(".")
    new = draft[section][name]
    old = live[section].get(name, new)  # of another strategy
    return {
        **shown,
        "recorded": recorded,
        "few": sum(count for _, count in found) < spreads.FEW,
        "sentence": spreads.sentence(found, old, new, field.parameter.unit),
        "data": {"values": found, "live": old, "unit": field.parameter.unit},
        "id": f"{field.id}-recorded",
    }
