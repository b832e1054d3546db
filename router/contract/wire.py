"""The Redis contract between web, Celery and routers: key names, value shapes, staleness limits. Pure.

Every value is JSON and carries `schema`; `decode` answers None for what it cannot read, and the caller counts that:
an unreadable value is never fatal. Times are Unix seconds (float). Readers judge age by the time inside a value.

| key | type | written by | value |
|---|---|---|---|
| weir:pools | set | web, Celery | names of the pools that routers serve |
| weir:policy:<pool> | string | web | {schema, pool, policy, version, sha256, document, rollout: {"mode": "full"}, published_at} |
| weir:fleet:<pool> | string | Celery | {schema, pool, model, policy, at, halted (why a change does not go on), instances: [{id, epoch, url, state, routable, reason, kind, node, block_size, kv_blocks, matches (it is as declared), and as its kind says role, connector, kv, events, tokenizer}]}, see Instance below |
| weir:keys | string | web, Celery | {schema, at, required: [pool, or "*" for all], keys: [{id, name, sha256 (of the secret, hex), pools: [pool] (none: all), requests_per_min, tokens_per_min (null: no limit), expires_at (Unix seconds or null)}]}: the API keys that are good; one that is revoked is not in it |
| weir:keys:used | hash | routers | id of an API key: when it was last used |
| weir:limit:<key> | hash with TTL | routers | what is left of an API key's minute: {requests, tokens, at}, by the Redis server's clock; not there: all of it (router/sync/token_bucket_store.py) |
| weir:changed | channel | web, Celery | the key that changed, for example weir:policy:demo |
| weir:inst:<id> | string | Celery | the latest sample, see `Sample` keys below |
| weir:routers | sorted set | routers | router id, score: last seen |
| weir:router:<id> | string | routers | {schema, id, at, started_at, pid, url, pools: {pool: {policy, version, acked_at, fleet_at}}, degraded: [text], unreadable, inflight: {instance: [requests, prefill_tokens, decodes]}, classes: {pool: {class: Window}}, indexes: {instance: Index}} |
| weir:router:<id>:seen | string | routers | there for as long as Redis has not been lost: what is absent while it is there was deleted |
| weir:acks | channel | routers | {router, pool, version, at}, once for each policy version taken up |
| weir:affinity:<pool>:<session> | string with TTL | routers | instance id |
| weir:sent | stream, capped | routers | fields r: the router's present life, p: {schema, sent: [[pool, instance, epoch, session or null, base64 of the prompt's chain hashes]]}; only while there are several routers |
| weir:loads | stream, capped | routers | fields r: the router's present life, l: {schema, id, gone, inflight: {instance: [requests, prefill_tokens, decodes]}}; at every change and once a second |
| weir:receipts | stream, capped | routers | field r: one receipt (JSON) without what it was decided from |
| weir:receipt:<request id> | string with TTL | routers | the whole receipt (JSON) |
| weir:traffic | stream, capped | routers | fields p: the pool, t: one entry (JSON), see Traffic below |
| weir:traffic:salt | string | routers | key (hex) of the hashes in weir:traffic; random, set by the first router |
| weir:frames | stream, capped | web or Celery | field f: what is kept of one second's dashboard frame (controlplane/dashboard/history.py) |
| weir:frames:latest | string | web or Celery | the newest dashboard frame (JSON, controlplane/dashboard/frames.py) |
| weir:frames:control-at | string | Celery | when the control worker last had its second |
| weir:frame | channel | web or Celery | each frame, one a second |
| weir:frame:second:<s> | string with TTL | web or Celery | who claimed that second and builds its frame |
| weir:signin:<hash> | counter with TTL | web | failed sign-ins of one name from one address (both only in the hash) |
| weir:lock:<step> | string with TTL | Celery | whoever is at that step; another tick of it does nothing |
| weir:worker:<name> | string with TTL | Celery | {schema, name, at, started_at, pid, queues: [text]} |
| weir:nodes | string | Celery | {schema, at, nodes: [{name, last_seen, missed_at (since when it does not report, null: it does)}]} |
| weir:scaling:<pool> | string with TTL | Celery | {schema, pool, at, replicas, advised, why, mode, changed_at, points: [{at, ready, running, waiting, kv, ttft_p90_ms}]} |
| weir:events | stream, capped | web, Celery | field e: {at, kind, subject, text, actor} |

A policy whose document does not have its sha256 (router/policy/document.sha256) is unreadable.

Instance: of the keys that a kind adds, `role` is what it is there for ("prefill" never decodes, "decode" computes no long prompt; absent:
"both"), `connector` how KV blocks leave and reach it ("nixl", "mooncake_store", "mooncake_p2p", "neuron"; absent: they cannot), `kv` what
that flow needs besides (router/flows/) with `bytes_per_token` where the model's size of KV is known, `events` the base URL that answers GET /kv_event_sources, `tokenizer` the folder of the served
model or "sim". The last four are absent where there is no such thing.

Sample: {schema, id, pool, epoch, at, kv_usage (0–1), kv_blocks, block_size, running, waiting, prefix_queries_total,
prefix_hits_total (tokens), hit_rate (0–1 over the last 60 s, null when nothing was asked), prompt_tokens_total,
generation_tokens_total, preemptions_total, cached_by_source and prompt_by_source {source: tokens},
transfers {n, seconds, bytes, failed} of KV blocks since its start, transfer_bytes_per_s of them over the last 60 s, tiers {tier: [bytes used, bytes of room]} of a KV store, disk [bytes free,
bytes in all] under a KV tier}; a figure that the engine does not give is null.

Window: {n, started_10s, ok, error, refused, cancelled, retries, refusals {code: count, "" where an engine refused}, ttft, tpot, e2e, new_tokens, hit_share, hit_percent, reuse_gap}:
requests that ended in the last WINDOW_S seconds by outcome and how often they were retried, those that began in the last 10 s,
and sketches {bucket: count} (router/contract/sketch.py): three latencies in ms, new tokens n as predicted, the cached share of the prompt in
percent, and the pause since the session's previous request in s. hit_share is {n, sum} of that share, 0–1. Sketches leave out what
is unknown: `ttft` holds streamed answers only.

Index: {index (exact, approximate or none: the one that is believed), why (a better one is not), n, predicted, actual, error: the last n
answers (1,000 at most), in cached tokens summed up, error being |predicted - actual|}; of an instance whose KV events are followed also blocks
[device, host, disk], age_s (since it was known to be up to date, null: never), event_at, gaps, replayed (batches), purges.

Receipt: {schema, request_id, at, router, pool, model, endpoint, policy, version, route, class, flow, instance, rule, reasons [text],
session (hash of pool and session, null when unknown), key (name of the API key, null without one), prompt_tokens (L as estimated), index (what h is from: exact, approximate, none), predicted_cached (h), new_tokens (n),
cached_tokens, actual_prompt_tokens, output_tokens (the three as the engine's usage says), retries, attempts [{instance, status, error}],
stream, status (HTTP), outcome (ok, error, refused, cancelled), error (text), code (of the error), queue_ms (waiting in the router
for room), first_byte_ms, ttft_ms, tpot_ms, e2e_ms (all counted from `at`)}; null where unknown. Not in the stream's copy, and absent
when nothing was decided: what the last decision was made from, inputs {turn, draw, bound_to, history_tokens, prefix_key, rates [prefill
tokens/s, KV bytes per token, transfer bytes/s, transfer setup s]} (but for the first two left out where there is
nothing to tell) and candidates (one list per figure, router/policy/columns.py); router/policy/replay.py decides again from them. Where the policy wanted the prompt computed elsewhere it has prefill_instance,
prefill_ms, transfer_ms (from sending the decode request to its first byte: the transfer and one step), transfer_bytes (as predicted: what the decoder
did not hold), offload (ok; fallback: the decoder computed the prompt; ineligible: the request cannot be offloaded; failed; cancelled) and offload_reason. `ttft_ms` and `tpot_ms` exist for streamed answers only.

Traffic: {schema, at (arrival), pool, model, session (16 hex digits, "" when unknown), input_tokens (as the engine's usage says, else as
estimated), output_tokens (null when unknown), block_tokens (how many tokens a block of 2,048 prompt bytes has: 512 at four bytes each),
blocks (base64 of one 64-bit hash for each whole block: equal hash, equal prompt up to the block's end), outcome, policy and version
(that decided; "" and 0 when nothing did), ttft_ms, tpot_ms (as in its receipt: null when unknown)}: one finished
request of a pool that is no experiment's; entries of earlier routers lack the last four. Session and blocks are hashed with the salt; prompts are not kept.
"""

import json
from typing import Any

SCHEMA = 1
PREFIX = "weir:"

POOLS = PREFIX + "pools"
ROUTERS = PREFIX + "routers"
NODES = PREFIX + "nodes"
RECEIPTS = PREFIX + "receipts"
TRAFFIC = PREFIX + "traffic"
SENT = PREFIX + "sent"
LOADS = PREFIX + "loads"
TRAFFIC_SALT = PREFIX + "traffic:salt"
FRAMES = PREFIX + "frames"
FRAMES_LATEST = PREFIX + "frames:latest"
FRAMES_CONTROL_AT = PREFIX + "frames:control-at"
EVENTS = PREFIX + "events"
SIGNIN = PREFIX + "signin"
KEYS = PREFIX + "keys"
KEYS_USED = PREFIX + "keys:used"
CHANGED = PREFIX + "changed"
ACKS = PREFIX + "acks"
FRAME = PREFIX + "frame"

POLL_S = 2.0  # routers look for what a lost pub/sub message would have told them
WINDOW_S = 60  # what a router's per-class window covers
STALE_S = 3.0  # an older sample is shown as stale
OFFLINE_S = 15.0  # an older one as offline
ROUTER_GONE_S = 5.0  # a router that has not written for so long is not waited for
WORKER_TTL_S = 10  # a Celery worker writes that it is there every 2 s
RECEIPT_TTL_S = 3600
RECEIPTS_KEPT = 5_000
SENT_KEPT = 500  # of at most about 43 kB, so that Redis holds 21 MB of them
LOADS_KEPT = 1_000
TRAFFIC_KEPT = 20_000
TRAFFIC_BYTES = 32_000_000  # with longer prompts fewer entries are kept
TRAFFIC_BLOCK_CHUNKS = 8  # chunks of the prefix index (256 bytes) that make a block
FRAMES_KEPT = 3_700  # an hour and a little


def policy_key(pool: str) -> str:
    return f"{PREFIX}policy:{pool}"


def fleet_key(pool: str) -> str:
    return f"{PREFIX}fleet:{pool}"


def instance_key(instance: str) -> str:
    return f"{PREFIX}inst:{instance}"


def router_key(router: str) -> str:
    return f"{PREFIX}router:{router}"


def seen_key(router: str) -> str:
    return f"{router_key(router)}:seen"


def affinity_key(pool: str, session: str) -> str:
    return f"{PREFIX}affinity:{pool}:{session}"


def receipt_key(request_id: str) -> str:
    return f"{PREFIX}receipt:{request_id}"


def scaling_key(pool: str) -> str:
    return f"{PREFIX}scaling:{pool}"


def limit_key(key_id: str) -> str:
    return f"{PREFIX}limit:{key_id}"


def worker_key(name: str) -> str:
    return f"{PREFIX}worker:{name}"


def frame_claim_key(second: int) -> str:
    return f"{FRAME}:second:{second}"


def lock_key(step: str) -> str:
    return f"{PREFIX}lock:{step}"


def encode(value: dict[str, Any]) -> str:
    """JSON with the schema version; NaN is refused (null is how an unknown figure is written)."""
    return json.dumps({"schema": SCHEMA, **value}, separators=(",", ":"), allow_nan=False)


def decode(raw: bytes | str | None) -> dict[str, Any] | None:
    """The value, or None when there is none or it cannot be read (not JSON, not an object, another schema)."""
    if raw is None:
        return None
    try:
        value = json.loads(raw)
    except ValueError:
        return None
    if not isinstance(value, dict) or value.get("schema") != SCHEMA:
        return None
    return value
