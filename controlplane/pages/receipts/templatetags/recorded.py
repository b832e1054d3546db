"""Pictures of recorded traffic beside the thresholds of a draft, in the editor of a policy."""

from collections.abc import Collection
from dataclasses import dataclass

import redis
from django import template

from controlplane.pages.receipts import class_shares, spreads
from controlplane.pages.receipts.spreads import RecordedRequests
from controlplane.traffic.policies.drafts.editor import PolicyField
from fleet.redis import connect
from router.contract.values.json_value import JsonObject
from router.policy.schema.document import parse

register = template.Library()


@register.simple_tag
def recorded_requests(pools: Collection[str]) -> RecordedRequests | None:
    """Return the requests; None when Redis is unreachable."""
    try:
        return spreads.read(connect(), pools)
    except redis.RedisError:
        return None


@dataclass(frozen=True, slots=True)
class SpreadPicture:
    recorded: RecordedRequests | None  # None if Redis is unreachable
    data: object = None  # data for the script that draws the picture; None if nothing was recorded
    sentence: str = ""
    what: str = ""
    few: bool = False


@register.inclusion_tag("receipts/_class_shares.html")
def class_shares_picture(
    recorded: RecordedRequests | None, live: JsonObject, draft: JsonObject
) -> dict[str, SpreadPicture]:
    found = class_shares.sizes(recorded.requests) if recorded else []
    if not found:
        return {"picture": SpreadPicture(recorded)}
    sentence = class_shares.sentence(found, parse(live), parse(draft))
    return {"picture": SpreadPicture(recorded, {"sizes": found, "live": live["classes"]}, sentence)}


@register.inclusion_tag("receipts/_spread.html")
def spread_picture(
    recorded: RecordedRequests | None, field: PolicyField, live: JsonObject, draft: JsonObject
) -> dict[str, SpreadPicture | PolicyField]:
    """Return the picture; empty for a parameter that does not limit a recorded quantity."""
    if field.path not in spreads.QUANTITIES:
        return {}
    what, policy = spreads.what(recorded, field.path), parse(live)
    found = spreads.spread(recorded, field.path, policy["load.request_tokens"]) if recorded is not None else []
    if not found:
        return {"field": field, "picture": SpreadPicture(recorded, what=what)}
    unit, new = field.parameter.unit, parse(draft)[field.path]
    old = policy.get(field.path, new)  # another strategy may lack the field
    data = {"values": found, "live": old, "unit": unit}
    few = sum(count for _, count in found) < spreads.FEW
    return {
        "field": field,
        "picture": SpreadPicture(recorded, data, spreads.sentence(found, old, new, unit), what, few),
    }
