"""Reads a request's body, a large one in a thread, and builds the request for the engine: pool, prompt, headers."""

import asyncio
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import cache, partial
from typing import Final

from router.contract import engine_fields
from router.contract.api_paths import MEDIA, UNCOMPUTED, WITH_FILES
from router.contract.engine_fields import LOOKED_AT
from router.contract.models import Alias, Target
from router.contract.redis.api_keys import PublishedKey
from router.contract.values.json_value import JsonObject
from router.http import doors, headers
from router.http.client import IncomingRequest
from router.http.errors import ErrorResponse
from router.policy.value import replace
from router.pool.affinity import UNNAMED
from router.pool.pool import Pool
from router.prefix.blocks import chain_salt
from router.request.call import Call
from router.request.chosen import Chosen, Hashed
from router.request.request import NOT_READ, ProxiedRequest
from router.serving import aliases
from router.serving.pools import Pools
from router.serving.prompt.shared_names import MOST, MOST_OF_MANY
from router.tokenize import Prompt, bounds, prompt, salt

AT_ONCE: Final = 512 * 1024  # bytes parsed without a thread; the parser would block other threads anyway

_UNSALTED = frozenset((*UNCOMPUTED, *MEDIA))
# These APIs report a stream's usage only on request, in a separate chunk; the other APIs always report it.
USAGE_ON_REQUEST = ("/v1/chat/completions", "/v1/completions")


# (body, API path, content-type if the path takes files, API key id, salt from a header)
Form = tuple[bytes, str, Sequence[bytes], str, str]


def form(body: bytes, incoming: IncomingRequest, by_name: Mapping[bytes, bytes], key: PublishedKey | None) -> Form:
    """Return the form of the request. Raise ErrorResponse."""
    path, key_id = incoming.path, key.id if key is not None else ""
    salted = _salt_of_header(by_name[salt.HEADER], path) if salt.HEADER in by_name else ""
    if path not in WITH_FILES:
        return body, path, (), key_id, salted
    return body, path, [value for name, value in incoming.headers if name == b"content-type"], key_id, salted


def _salt_of_header(value: bytes, path: str) -> str:
    try:
        return salt.of_header(value, path, has_body=path not in WITH_FILES)
    except salt.BadSalt as why:
        raise ErrorResponse(400, "invalid_cache_salt", str(why)) from None


def read(
    body: bytes,
    api_path: str,
    content_types: Sequence[bytes] = (),
    key_id: str = "",
    salted: str = "",
    document: JsonObject | None = None,
) -> tuple[Prompt, bytes]:
    """Return the prompt, and the body for the engine. `salted` replaces the body's own salt. `document` is the parsed
    body, if it has already been parsed. Raise InvalidBody."""
    parsed = prompt.read(body, api_path, content_types, document)
    if salted:
        parsed = replace(parsed, document={**parsed.document, "cache_salt": salted})
    if salted or not prompt.is_for_engine(parsed, key_id):
        parsed, body = prompt.for_engine(parsed, key_id)
    strips = parsed.stream and strips_usage(parsed, api_path)
    return parsed, prompt.with_usage(body, parsed.document) if strips else body


async def read_large(
    body: bytes, api_path: str, content_types: Sequence[bytes] = (), key_id: str = "", salted: str = ""
) -> tuple[Prompt, bytes]:
    """Like `read`, for a body of more than bounds.SMALL bytes, in a thread if it may take long."""
    document = None
    if len(body) <= AT_ONCE and not content_types and not bounds.has_many(body, prompt.MANY):
        document = prompt.parsed(body)
        if not prompt.has_many(document):
            return read(body, api_path, content_types, key_id, salted, document)
    work = partial(read, body, api_path, content_types, key_id, salted, document)
    return await asyncio.get_running_loop().run_in_executor(_thread(), work)


def prepare(
    call: Call, incoming: IncomingRequest, by_name: dict[bytes, bytes], read: Prompt, body: bytes, pools: Pools
) -> None:
    """Set the call's pool and request; `by_name` holds the request's headers. Raise ErrorResponse, and InvalidBody
    for a body that cannot be rewritten."""
    forwarded = headers.forwarded(incoming.headers, by_name)
    try:
        _choose(call, incoming, forwarded, by_name, read, body, pools)
    except ErrorResponse:  # the error format depends on the request
        call.request = replace(NOT_READ, forwarded=forwarded, prompt=read)
        raise


def _choose(
    call: Call,
    incoming: IncomingRequest,
    forwarded: bytes,
    by_name: dict[bytes, bytes],
    read: Prompt,
    body: bytes,
    pools: Pools,
) -> None:
    header = by_name.get(b"x-weir-pool")
    named = header.decode("latin-1") if header is not None else None
    if call.owner is not None and named is None and read.model in pools.aliases:
        named = call.owner.pool
    session = _session(call, by_name, read, pools)
    alias = pools.alias(read.model) if read.model in pools.names else None
    if alias is not None:
        call.alias = _chosen(call, alias, named, session, read, body, pools)
    target = call.api_path.encode() + (b"?" + incoming.query if incoming.query else b"")
    if call.alias is not None:
        _aim(call, call.alias, target, forwarded, session, pools)
        return
    pool = pools.pick(named, read.model, call.key)
    adapter = call.adapter = "" if read.model == pool.model else pool.adapter(read.model)
    if pool.removes_billing_line or pool.salt_by_key:
        read, body = _by_rules_of(pool, call, read, body)
    salt = _salt(adapter, read) if adapter or "cache_salt" in read.document else 0
    chunks = pool.chains.hashes(read.rendered, salt)
    _set(call, pool, target, forwarded, session, read, body, chunks)


def _session(call: Call, by_name: dict[bytes, bytes], read: Prompt, pools: Pools) -> str | None:
    """Return the session by the most trusted name; None if there is no name, or if many conversations share the
    name."""
    table = pools.session_names
    header, field = table.of_headers(by_name), table.of_body(read.document)
    named = field if header is None or (field is not None and field[0] < header[0]) else header
    if named is None:
        return None
    _, name, row = named
    session = _of_key(call.key, name)
    most = MOST_OF_MANY if row.of_many else MOST
    if pools.shared_names.is_shared(session, read, most, call.at):
        call.session_by = f"the prompt: more than {most} conversations share {row.words}"
        return None
    call.session_by = row.words
    return session


def _of_key(key: PublishedKey | None, session: str) -> str:
    """Return a session name that cannot collide with those of other keys, of requests without a key, or of prompts."""
    if key is not None:
        return prompt.apart(key.id, session)
    return f"\0{session}" if session.startswith(UNNAMED) or "\0" in session else session


def _chosen(
    call: Call, alias: Alias, named: str | None, session: str | None, read: Prompt, body: bytes, pools: Pools
) -> Chosen | None:
    if named is not None:
        return aliases.in_pool(read.model, alias, read, body, named)

    hashed: Hashed = {}

    def known(target: Target) -> int:
        pool, adapter = pools.get(target.pool), target.adapter.name if target.adapter is not None else ""
        if pool is None:
            return 0
        there = _by_rules_of(pool, call, read, body)[0] if pool.salt_by_key else read
        return pool.affinity.continues(_chunks(pool, adapter, there, hashed))

    draw = aliases.drawing(session, call.own_id, known)
    chosen = aliases.choose(read.model, alias, read, body, lambda pool: pools.barred(call.key, pool), draw)
    chosen.hashed = hashed
    return chosen


def falls_back(call: Call, refusal: ErrorResponse, pools: Pools) -> bool:
    """Redirect the request to the next target of its alias; return False if the refusal stands."""
    chosen, request = call.alias, call.request
    stays = call.outcome.begun or call.owner is not None
    if chosen is None or stays or not aliases.fall_back(chosen, refusal):
        return False
    call.start_over()
    _aim(call, chosen, request.target, request.forwarded, request.session, pools)
    return True


def _aim(call: Call, chosen: Chosen, target: bytes, forwarded: bytes, session: str | None, pools: Pools) -> None:
    adapter = chosen.target.adapter
    call.adapter = adapter.name if adapter is not None else ""
    pool = pools.get(chosen.target.pool)
    if pool is None:  # removed in the meantime
        raise ErrorResponse(503, "no_instance_ready", f"there is no pool {chosen.target.pool}", retry_after_s=5)
    read, body = aliases.aimed(chosen, pool.model)
    read, body = _by_rules_of(pool, call, read, body)
    _set(call, pool, target, forwarded, session, read, body, _chunks(pool, call.adapter, read, chosen.hashed))


def _by_rules_of(pool: Pool, call: Call, read: Prompt, body: bytes) -> tuple[Prompt, bytes]:
    """Return the request, changed for the engines as the pool's settings require. Raise InvalidBody."""
    asks_usage = strips_usage(read, call.api_path)
    if pool.removes_billing_line:
        read, body = prompt.without_billing_line(read, body, asks_usage=asks_usage)
    if pool.salt_by_key and call.key is not None and call.api_path not in _UNSALTED:
        read, body = prompt.of_key(read, body, call.key.id, asks_usage=asks_usage)
    return read, body


def _set(
    call: Call,
    pool: Pool,
    target: bytes,
    forwarded: bytes,
    session: str | None,
    read: Prompt,
    body: bytes,
    chunks: Sequence[int],
) -> None:
    if not LOOKED_AT.isdisjoint(read.document):
        _check_fields(read.document, pool, call.key)
    if pool.salt_by_key and call.key is not None:
        _check_salts(pool, call.api_path)
    call.pool = pool
    turn, pool.turn = pool.turn, pool.turn + 1
    strips = read.stream and strips_usage(read, call.api_path)
    call.request = ProxiedRequest(target, forwarded, body, read, chunks, session, turn, strips)
    call.session = session
    ids = read.token_ids
    call.prediction.prompt_tokens = ids if ids is not None else pool.tokens.estimate(len(read.rendered))


def _check_fields(document: JsonObject, pool: Pool, key: PublishedKey | None) -> None:
    """Raise ErrorResponse for fields that control engines, unless the pool trusts the key, and for a session name that
    is too long."""
    if path := engine_fields.long_session(document):
        allowed = f"a text of up to {engine_fields.LONGEST_SESSION:,} characters"
        message = f"{path}: allowed is {allowed}: give the session a shorter name"
        raise ErrorResponse(400, "parameter_not_allowed", message)
    paths = engine_fields.named(document)
    if not paths or (key is not None and key.name in pool.trusted_keys):
        return
    message = (
        f"{', '.join(paths)}: steers engines ({engine_fields.whose(paths)}) and is for the API keys that the pool "
        f"{pool.name} names in `access.trusted_keys`: leave it out"
    )
    raise ErrorResponse(400, "parameter_not_allowed", message)


def _check_salts(pool: Pool, api_path: str) -> None:
    """Raise ErrorResponse if engines that reuse prefixes would ignore the key's salt."""
    if not salt.is_ignored(api_path, by_sglang=pool.has_sglang) or all(one.uncached for one in pool.endpoints.values()):
        return
    instead = "/v1/chat/completions" if api_path == "/v1/messages" else "another pool"
    why = f"the pool {pool.name} separates the caches of API keys by salts, which its engines ignore there"
    raise doors.not_served(api_path, f"{why}: use {instead}")


def _chunks(pool: Pool, adapter: str, read: Prompt, hashed: Hashed) -> Sequence[int]:
    """Hash an alias's prompt once per salt, however many of its pools need the hashes."""
    salt = _salt(adapter, read)
    chunks = hashed.get(salt)
    if chunks is None:
        chunks = hashed[salt] = pool.chains.hashes(read.rendered, salt)
    return chunks


def _salt(adapter: str, read: Prompt) -> int:
    return chain_salt(adapter, salt.of(read.document)) if adapter or "cache_salt" in read.document else 0


def strips_usage(read: Prompt, api_path: str) -> bool:
    """Return whether the router requests the stream's usage and strips it because the client did not request it."""
    return read.stream and not read.usage_asked and api_path in USAGE_ON_REQUEST


@cache
def _thread() -> ThreadPoolExecutor:
    return ThreadPoolExecutor(1, thread_name_prefix="read")  # more threads would only compete for the GIL
