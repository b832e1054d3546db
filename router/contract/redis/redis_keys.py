"""Names of the keys, streams and channels in Redis, and how much of each is kept (docs/redis.md). Pure."""

PREFIX = "weir:"

POOLS = PREFIX + "pools"
ROUTERS = PREFIX + "routers"
NODES = PREFIX + "nodes"
DELIVERIES = PREFIX + "deliveries"
SAVINGS = PREFIX + "savings"
RECEIPTS = PREFIX + "receipts"
TRAFFIC = PREFIX + "traffic"
SENT = PREFIX + "sent"
LOADS = PREFIX + "loads"
TRAFFIC_SALT = PREFIX + "traffic:salt"
FRAMES = PREFIX + "frames"
FRAMES_COARSE = PREFIX + "frames:coarse"
FRAMES_LATEST = PREFIX + "frames:latest"
FRAMES_CARRIED = PREFIX + "frames:carried"
FRAMES_CONTROL_AT = PREFIX + "frames:control-at"
EVENTS = PREFIX + "events"
STEPS = PREFIX + "steps"
CONTROL_WORKERS = PREFIX + "control-workers"
SIGNIN = PREFIX + "signin"
API_KEYS = PREFIX + "keys"
MODELS = PREFIX + "models"
API_KEYS_USED = PREFIX + "keys:used"
USE = PREFIX + "use"
RESPONSES = PREFIX + "responses:counts"
CHANGED = PREFIX + "changed"
ACKS = PREFIX + "acks"
FRAME = PREFIX + "frame:4"  # numbered by schema, as an older web process cannot read newer frames

WORKER_TTL_S = 10  # Celery workers report every 2 s
RECEIPT_TTL_S = 3600
RECEIPTS_KEPT = 5_000
RESPONSE_TTL_S = 86_400
RESPONSES_KEPT = 100_000  # about 0.4 kB each
SENT_KEPT = 500  # messages of at most about 43 kB, so that Redis holds 21 MB of them
LOADS_KEPT = 1_000
TRAFFIC_KEPT = 20_000
TRAFFIC_BYTES = 32_000_000  # longer prompts leave space for fewer entries
FRAMES_KEPT = 3_700  # a little over an hour
FRAMES_COARSE_KEPT = 1_500  # one frame in 15 s: a little over six hours
DELIVERY_TTL_S = 86_400  # after the last write by a router
STOP_TTL_S = 86_400
DELIVERIES_TTL_S = 30
SAVINGS_TTL_S = 60
WATCH_TTL_S = 30  # after the judge's last renewal
USE_TTL_S = 8 * 86_400  # exceeds the time for which a router keeps an unconfirmed hour
REMOVED_TTL_S = 86_400  # time for which the order of a removed key is remembered


def policy_key(pool: str) -> str:
    return f"{PREFIX}policy:{pool}"


def delivery_key(delivery: int) -> str:
    return f"{PREFIX}delivery:{delivery}"


def delivery_field(pool: str, router: str, life: str, generation: int) -> str:
    return f"{pool}:{router}.{life}.g{generation}"


def stop_key(pool: str) -> str:
    return f"{PREFIX}stop:{pool}"


def watch_key(pool: str) -> str:
    return f"{PREFIX}watch:{pool}"


def fleet_key(pool: str) -> str:
    return f"{PREFIX}fleet:{pool}"


def pool_of(key: str) -> str:
    """Return the pool in the key of a policy or fleet; empty for other keys."""
    return next((key.removeprefix(kind) for kind in (policy_key(""), fleet_key("")) if key.startswith(kind)), "")


def beside(key: str) -> str:
    """Return the other key of the same pool; for a key without a pool, the key itself."""
    pool = pool_of(key)
    others = {policy_key(pool): fleet_key(pool), fleet_key(pool): policy_key(pool)}
    return others.get(key, key)


def order_key(key: str) -> str:
    return f"{PREFIX}order:{key.removeprefix(PREFIX)}"


def instance_key(instance: str) -> str:
    return f"{PREFIX}inst:{instance}"


def router_key(router: str) -> str:
    return f"{PREFIX}router:{router}"


def seen_key(router: str) -> str:
    return f"{router_key(router)}:seen"


def receipted_key(router: str, life: str) -> str:
    return f"{router_key(router)}:receipted:{life}"


def affinity_key(pool: str, session: str) -> str:
    return f"{PREFIX}affinity:{pool}:{session}"


def response_key(name: str) -> str:
    return f"{PREFIX}response:{name}"


def responses_key(key_id: str) -> str:
    return f"{PREFIX}responses:of:{key_id}"


def receipt_key(request_id: str) -> str:
    return f"{PREFIX}receipt:{request_id}"


def scaling_key(pool: str) -> str:
    return f"{PREFIX}scaling:{pool}"


def limit_key(key_id: str) -> str:
    return f"{PREFIX}limit:{key_id}"


def use_key(router_life: str) -> str:
    return f"{USE}:{router_life}"


def use_kept_key(router_life: str) -> str:
    return f"{USE}-kept:{router_life}"


def budget_key(budget_id: str, period: str) -> str:
    return f"{PREFIX}budget:{budget_id}:{period}"


def worker_key(name: str) -> str:
    return f"{PREFIX}worker:{name}"


def frame_claim_key(second: int) -> str:
    return f"{FRAME}:second:{second}"


def lock_key(step: str) -> str:
    return f"{PREFIX}lock:{step}"
