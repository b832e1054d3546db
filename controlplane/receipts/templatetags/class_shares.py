"""The picture of the class thresholds, on the editor of a policy."""

from collections.abc import Collection, Mapping
from typing import Any

import redis
from django import template

from controlplane.receipts import class_shares
from fleet.redis import connect

register = template.Library()


@register.inclusion_tag("receipts/_class_shares.html")
def class_shares_picture(pools: Collection[str], live: Mapping[str, Any], draft: Mapping[str, Any]) -> dict[str, Any]:
    try:
        found, since = class_shares.sizes(connect(), pools)
    except redis.RedisError:
        return {"away": True}
    if not found:
        return {}
    return {
        "n": len(found),
        "since": since,
        "sentence": class_shares.sentence(found, live, draft),
        "data": {"sizes": found, "live": live["classes"]},
    }
