"""Publishes the document Models to Redis, for routers. The database is authoritative."""

import structlog

from controlplane.traffic.aliases import selectors
from controlplane.traffic.policies import acknowledged
from controlplane.traffic.policies.acknowledged import Acknowledgement, RouterVersion
from fleet.redis import live_routers, ordered_write, values_of
from fleet.redis.ordered_write import Published
from router.contract.redis import redis_keys
from router.contract.redis.published import ModelsValue
from router.contract.redis.router_status import RouterStatus

log = structlog.get_logger(__name__)
OF_NO_POOL = ""  # pool in acknowledgements of the document Models, which belongs to no pool


def _as_stored() -> Published:
    version = selectors.live()
    if not version.number:
        return {redis_keys.MODELS: None}
    value = ModelsValue(version=version.number, sha256=version.sha256, document=version.document)
    return {redis_keys.MODELS: value}


def publish() -> None:
    """Publish the live version. Raise ordered_write.FAILURES."""
    ordered_write.publish(_as_stored)


def republish() -> bool:
    """Write the document to Redis if it differs from the database. Return whether it was written. A step of the control
    worker's loop."""
    if not ordered_write.differing(_as_stored(), ordered_write.refused_by_routers()):
        return False
    log.info("models.republished")
    publish()
    return True


def acknowledgement() -> Acknowledgement:
    """Return the live routers, and whether each runs the live version according to its last report."""
    return acknowledged.acknowledgement(selectors.live().number, _router_versions)


def _router_versions() -> list[RouterVersion]:
    names = live_routers()
    statuses = values_of(RouterStatus, redis_keys.router_key, names)
    return [RouterVersion(name, OF_NO_POOL, statuses[name].models if name in statuses else None) for name in names]
