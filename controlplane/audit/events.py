"""Events for the ticker and the marks on charts. They may be lost; the audit log is the record."""

import json
import time

import redis
import structlog

from fleet.redis import connect
from router.contract import redis_keys

log = structlog.get_logger(__name__)
KEPT = 1_000


def announce(kind: str, subject: str, text: str, actor: str) -> None:
    event = {"at": time.time(), "kind": kind, "subject": subject, "text": text, "actor": actor}
    try:
        connect().xadd(redis_keys.EVENTS, {"e": json.dumps(event)}, maxlen=KEPT, approximate=True)
    except redis.RedisError as error:
        log.warning("event.lost", kind=kind, error=str(error))
