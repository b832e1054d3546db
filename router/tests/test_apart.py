"""Names chosen by a client apply to that client alone: two clients that choose the same name stay separate."""

import hashlib

import orjson
import pytest

from router.contract.redis import redis_keys
from router.contract.redis.api_keys import PublishedKey
from router.pool.affinity import UNNAMED
from router.request.call import Call
from router.serving.prompt import prepare
from router.tests.conftest import entry, key_entry
from router.tests.engine import engine, reply
from router.tests.http.test_web_relay import SECRET
from router.tests.picker.test_picking import Gateway
from router.tests.test_aliases import known, second
from router.tests.test_keys import ALICE, BOB, bearer, keyed
from router.tests.values import loaded
from router.tokenize import salt

CHAT = "/v1/chat/completions"


async def test_a_session_of_one_key_never_binds_that_of_another(world):
    w = await world(None, None, strategy="session_sticky")
    w.published.keys(key_entry(ALICE), key_entry(BOB))
    await w.until(lambda: w.router.pools.auth.ring is not None and len(w.router.pools.auth.ring.by_hash) == 2)
    for headers in (bearer(ALICE), bearer(BOB), {}):
        await w.ask(headers={**headers, "x-session-id": "s"})
    pattern = redis_keys.affinity_key("demo", "*")
    await w.until(lambda: len(list(w.published.client.scan_iter(pattern))) == 3)
    names = {key.decode() for key in w.published.client.scan_iter(pattern)}
    assert names == {redis_keys.affinity_key("demo", name) for name in ("alice\0s", "bob\0s", "s")}
    sessions = set()
    for headers in (bearer(ALICE), bearer(BOB), {}):
        sessions.add((await w.receipt(await w.ask(headers={**headers, "x-session-id": "s"})))["session"])
    assert len(sessions) == 3


@pytest.mark.parametrize(
    ("key", "named", "session"),
    [
        (None, "s", "s"),
        (None, "alice\0s", "\0alice\0s"),
        (None, f"{UNNAMED}1f", f"\0{UNNAMED}1f"),
        ("alice", "s", "alice\0s"),
        ("alice", f"{UNNAMED}1f", f"alice\0{UNNAMED}1f"),
    ],
)
def test_no_session_name_equals_that_of_another_key_or_of_a_prompt(key, named, session):
    holder = PublishedKey(id=key, name=key, sha256="0" * 64) if key is not None else None
    assert prepare._of_key(holder, named) == session


async def test_a_cache_salt_is_separate_by_key(world):
    w = await keyed(world, key_entry(ALICE), key_entry(BOB), required=())
    for headers in (bearer(ALICE), bearer(BOB), {}):
        await w.ask(headers=headers, cache_salt="pepper")
    salts = [request.document["cache_salt"] for request in w.engines[0].received]
    assert salts == [salt.own("alice", "pepper"), salt.own("bob", "pepper"), "pepper"]
    assert len(set(salts)) == 3


async def test_a_salt_in_a_header_overrides_the_bodys_and_is_separate_by_key(world):
    w = await keyed(world, key_entry(ALICE), required=())
    for headers in (bearer(ALICE), {}):
        for path in ("/v1/completions", CHAT, "/v1/messages", "/v1/responses", "/v1/embeddings"):
            asked = await w.ask(path, headers={**headers, "X-Cache-Salt": "pepper"}, cache_salt="mine")
            assert asked.status_code == 200
    received = w.engines[0].received
    assert [request.document["cache_salt"] for request in received] == [salt.own("alice", "pepper")] * 5 + [
        "pepper"
    ] * 5
    assert not any("x-cache-salt" in request.headers for request in received)


@pytest.mark.parametrize("value", ["", "a/b", "a@b", "a\\b", "x" * 129])
async def test_a_salt_in_a_header_that_engines_would_refuse_is_refused_with_its_range(world, value):
    w = await world(None)
    asked = await w.ask(headers={"X-Cache-Salt": value})
    assert asked.status_code == 400
    error = asked.json()["error"]
    assert error["code"] == "invalid_cache_salt"
    assert "allowed: 1 to 128 characters" in error["message"]


@pytest.mark.parametrize("path", ["/v1/audio/transcriptions", "/tokenize"])
def test_a_salt_in_a_header_is_refused_if_the_engines_accept_none(path):
    with pytest.raises(salt.BadSalt, match="engines take no salt at"):
        salt.of_header(b"pepper", path, has_body=path == "/tokenize")


def test_a_salt_in_a_header_is_ascii():
    with pytest.raises(salt.BadSalt, match="not ASCII"):
        salt.of_header("ü".encode(), CHAT, has_body=True)


@pytest.mark.parametrize("name", salt.FIELDS)
@pytest.mark.parametrize("given", ["x" * 500, "a@b", ["pepper", "salt"], "weir-"])
def test_a_keys_salt_is_short_and_plain_whatever_the_client_wrote(name, given):
    bodies = [
        prepare.read(orjson.dumps({"model": "m", "prompt": "x", name: given}), "/v1/completions", (), key_id)[1]
        for key_id in ("alice", "bob")
    ]
    assert not any(b"extra_key" in body for body in bodies)
    hers, his = (orjson.loads(body)["cache_salt"] for body in bodies)
    listed = hers if isinstance(hers, list) else [hers]
    assert hers != his
    assert all(salt.of_header(text.encode(), CHAT, has_body=True) == text for text in listed)


@pytest.mark.parametrize(
    ("extra", "given"), [("x", None), ("x", "y"), ("", "y"), (None, None), (["x", ""], "y"), ("x", ["y", ""])]
)
def test_an_extra_key_separates_caches_as_part_of_the_salt_in_events(extra, given):
    document = {"cache_salt": given, "extra_key": extra}
    salt.set_apart(document, "")
    made, count = document["cache_salt"], max((len(one) for one in (extra, given) if isinstance(one, list)), default=0)
    assert set(document) == {"cache_salt"}
    assert salt.is_apart(document, "") == (not extra)  # a client's own salt in this form is changed
    assert len(made) == count if count else made is None or isinstance(made, str)
    if extra and given is None:
        assert made != extra
        swapped = {"cache_salt": extra}
        salt.set_apart(swapped, "")
        assert swapped != document


@pytest.mark.parametrize(("extra", "given"), [(7, None), (["x"], ["y", "z"]), ([7], None), ("x", {})])
def test_an_extra_key_that_engines_refuse_reaches_them(extra, given):
    document = {"cache_salt": given, "extra_key": extra}
    salt.set_apart(document, "")
    assert document == {"cache_salt": given, "extra_key": extra}


async def with_rules(world, **rules):
    w = await keyed(world, key_entry(ALICE), key_entry(BOB), required=())
    w.published.fleet(entry("demo-0", w.engines[0].url), **rules)
    pool = w.router.pools.get("demo")
    await w.until(lambda: pool.salt_by_key or pool.removes_billing_line, "the rules are in force")
    return w


@pytest.mark.parametrize("path", ["/v1/completions", CHAT, "/v1/messages", "/v1/responses", "/v1/embeddings"])
async def test_a_pool_with_salts_by_key_gives_each_key_a_separate_cache(world, path):
    w = await with_rules(world, salt_by_key=True)
    for more in ({}, {"cache_salt": "pepper"}, {"cache_salt": None}, {"cache_salt": ["", "pepper"]}):
        for headers in (bearer(ALICE), bearer(BOB), {}):
            assert (await w.ask(path, headers=headers, stream=True, **more)).status_code == 200
    sent = [request.document for request in w.engines[0].received]
    of_alice, of_bob, of_none = ([body.get("cache_salt") for body in sent[first::3]] for first in range(3))
    assert of_alice == [salt.of_key("", "alice"), salt.own("alice", "pepper"), of_alice[0], of_alice[:2]]
    assert not {*of_alice[:2], *of_alice[3]} & {*of_bob[:2], *of_bob[3]}
    assert of_none == [None, "pepper", None, ["", "pepper"]]
    assert path in ("/v1/messages", "/v1/responses", "/v1/embeddings") or all(
        body["stream_options"]["include_usage"] for body in sent
    )


async def test_a_keys_conversation_stays_where_it_began_although_its_cache_is_separate(world):
    w = await with_rules(world, salt_by_key=True)
    async with engine() as other:
        await second(w, other)
        w.published.fleet(entry("spot-0", other.url), pool="spot", model="llama", salt_by_key=True)
        await w.until(lambda: w.router.pools.get("spot").salt_by_key)
        await known(w, {"m": {"split": [{"pool": "demo", "weight": 50}, {"pool": "spot", "weight": 50}]}})
        for number in range(8):
            prompt, places = f"conversation {number} " * 40, set()
            for _ in range(3):
                answer = await w.ask(model="m", prompt=prompt, headers=bearer(ALICE))
                places.add(answer.headers["x-weir-instance"])
                prompt += "and so it went on, and on, and on, until the next turn came. " * 6
            assert len(places) == 1


@pytest.mark.parametrize("separates", ["demo", "spot"])
async def test_a_name_that_moves_between_pools_gets_a_keys_salt_in_the_pools_that_separate_keys(world, separates):
    w = await keyed(world, key_entry(ALICE), key_entry(BOB), required=(), engine=reply({"no": 1}, 429))
    async with engine() as other:
        await second(w, other)
        urls = {"demo": w.engines[0].url, "spot": other.url}
        w.published.fleet(entry(f"{separates}-0", urls[separates]), pool=separates, model="llama", salt_by_key=True)
        await w.until(lambda: w.router.pools.get(separates).salt_by_key)
        await known(w, {"m": {"pool": "demo", "fallback": [{"pool": "spot"}]}})
        for more in ({}, {"cache_salt": "pepper"}):
            for headers in (bearer(ALICE), bearer(BOB), {}):
                assert (await w.ask(model="m", headers=headers, stream=True, **more)).status_code == 200
        own = [salt.of_key("", "alice"), salt.of_key("", "bob"), None]
        given = [salt.own("alice", "pepper"), salt.own("bob", "pepper"), "pepper"]
        for pool, engine_ in (("demo", w.engines[0]), ("spot", other)):
            sent = [request.document.get("cache_salt") for request in engine_.received]
            assert sent == [*(own if pool == separates else [None] * 3), *given]


async def test_a_line_of_a_batch_shares_the_cache_of_the_key_that_created_it_alone(world):
    w = await with_rules(world, salt_by_key=True)
    digest = hashlib.sha256(SECRET.encode()).hexdigest()
    w.published.keys(key_entry(ALICE), key_entry(BOB), required=(), batch_sha256=digest)
    await w.until(lambda: w.router.pools.auth.ring.batch)
    for name in ("alice", "bob"):
        assert (await w.ask(headers={**bearer(SECRET), "x-weir-key-id": name})).status_code == 200
    assert (await w.ask(headers=bearer(ALICE))).status_code == 200
    salts = [request.document["cache_salt"] for request in w.engines[0].received]
    assert salts == [salt.of_key("", "alice"), salt.of_key("", "bob"), salt.of_key("", "alice")]


UNSALTED = ("/v1/messages", "/v1/embeddings", "/score", "/v1/decisions")


@pytest.mark.parametrize("instance", [{"kind": "sglang"}, {"tokenizer": "sglang:/nowhere"}])
async def test_a_pool_with_salts_by_key_serves_no_key_where_its_engines_ignore_salts(world, instance):
    w = await with_rules(world, salt_by_key=True)
    w.published.fleet(entry("demo-0", w.engines[0].url, **instance), salt_by_key=True)
    await w.until(lambda: w.router.pools.get("demo").has_sglang)
    for path in UNSALTED:
        refused = await w.ask(path, headers=bearer(ALICE))
        assert refused.status_code == 404
        assert "salts, which its engines ignore there: use " in refused.json()["error"]["message"]
        assert (await w.ask(path)).status_code == 200  # requests without a key share a cache
    assert "use /v1/chat/completions" in (await w.ask("/v1/messages", headers=bearer(BOB))).text
    for path in ("/v1/completions", CHAT, "/v1/responses", "/tokenize"):
        assert (await w.ask(path, headers=bearer(ALICE))).status_code == 200
    w.router.pools.get("demo").endpoints["demo-0"].uncached = True
    assert (await w.ask("/v1/messages", headers=bearer(ALICE))).status_code == 200


async def test_a_pool_with_salts_by_key_transcribes_for_no_key_unless_its_engines_cache_nothing(world):
    w = await with_rules(world, salt_by_key=True)
    w.engines[0].behaviour = reply({})
    pool, w.engines[0].behaviour = w.router.pools.get("demo"), reply({"text": "hi"})
    form = {"files": {"file": b"sound"}, "data": {"model": "llama"}}
    for path in salt.TRANSCRIBED:
        for uncached, headers, status in ((False, bearer(ALICE), 404), (False, {}, 200), (True, bearer(ALICE), 200)):
            pool.endpoints["demo-0"].uncached = uncached
            assert (await w.client.post(path, headers=headers, **form)).status_code == status
    w.published.fleet(entry("demo-0", w.engines[0].url))
    await w.until(lambda: not pool.salt_by_key)
    pool.endpoints["demo-0"].uncached = False
    assert (await w.client.post(path, headers=bearer(ALICE), **form)).status_code == 200


async def test_a_gateway_is_given_the_keys_salt_in_the_body(world):
    w = await with_rules(world, salt_by_key=True)
    gateway, salts = Gateway(w), []
    for number, secret in enumerate((ALICE, BOB)):
        asking, work = gateway.ask(None, **bearer(secret), x_request_id=f"r-{number}")
        await asking.answer()
        salts.append(orjson.loads((await asking.answer()).body)["cache_salt"])
        asking.say(None)
        await work
    assert salts == [salt.of_key("", "alice"), salt.of_key("", "bob")]


async def test_a_salt_by_key_is_not_sent_if_nothing_is_cached(world):
    w = await with_rules(world, salt_by_key=True)
    assert (await w.ask("/tokenize", headers=bearer(ALICE))).status_code == 200
    assert "cache_salt" not in w.engines[0].received[0].document


LINE = "x-anthropic-billing-header: cch=1"


@pytest.mark.parametrize(
    ("path", "given", "sent"),
    [
        ("/v1/messages", {"system": [{"type": "text", "text": LINE}, {"type": "text", "text": "a"}]}, "a"),
        ("/v1/messages", {"system": [{"type": "text", "text": f"{LINE}\nbe brief"}]}, "be brief"),
        ("/v1/messages", {"system": LINE}, ""),
        ("/v1/messages", {"system": f"{LINE}\nbe brief"}, "be brief"),
        (CHAT, {"messages": [{"role": "system", "content": f"{LINE}\nbe brief"}]}, "be brief"),
        (CHAT, {"messages": [{"role": "user", "content": LINE}]}, LINE),
    ],
)
async def test_the_billing_line_is_removed_for_engines_that_would_keep_it(world, path, given, sent):
    w = await with_rules(world, removes_billing_line=True)
    body = {"messages": [{"role": "user", "content": "hi"}], "stream": True, **given}
    assert (await w.ask(path, **body)).status_code == 200
    got = w.engines[0].received[0].document
    said = got["system"] if path == "/v1/messages" else got["messages"][0]["content"]
    assert (said if isinstance(said, str) else said[0]["text"]) == sent
    assert path == "/v1/messages" or got["stream_options"] == {"include_usage": True}


async def test_an_image_that_two_keys_name_alike_is_two_images_to_an_engine(world):
    w = await keyed(world, key_entry(ALICE), key_entry(BOB), required=())
    image = {"type": "image_url", "image_url": {"url": "data:,x"}, "uuid": "logo"}
    parts = [{"type": "text", "text": "uuid"}, image, {**image, "uuid": 7}, {**image, "uuid": None}, "plain"]
    messages = [{"role": "system", "content": "look"}, {"role": "user", "content": parts}, None]
    for headers in (bearer(ALICE), bearer(BOB), {}):
        assert (await w.ask(CHAT, messages=messages, headers=headers)).status_code == 200
    sent = [request.document["messages"] for request in w.engines[0].received]
    named = [[part.get("uuid") for part in made[1]["content"][1:4]] for made in sent]
    assert named == [["alice\0logo", "alice\x007", None], ["bob\0logo", "bob\x007", None], ["logo", 7, None]]
    assert all(
        (made[0], made[1]["content"][0], made[1]["content"][4]) == (messages[0], parts[0], "plain") for made in sent
    )


@pytest.mark.parametrize(
    ("path", "one", "other"),
    [
        *(("/score", *names) for names in (("queries", "items"), ("text_1", "text_2"), ("data_1", "data_2"))),
        *((path, "query", "documents") for path in ("/rerank", "/v1/rerank", "/v2/rerank")),
    ],
)
def test_an_image_in_a_score_request_has_a_name_for_each_key(path, one, other):
    """vLLM reuses an image's embeddings by name alone if it has seen the name before."""
    image = {"content": [{"type": "image_embeds", "image_embeds": None, "uuid": "logo"}]}
    _, sent = prepare.read(orjson.dumps({one: image, other: ["a text", image]}), path, (), "bob")
    document = orjson.loads(sent)
    assert [part["content"][0]["uuid"] for part in (document[one], document[other][1])] == ["bob\0logo"] * 2
    assert document[other][0] == "a text"


@pytest.mark.parametrize(
    "body",
    [
        b'{"prompt":"x","cache_salt":"weir-of-alice"}',
        b'{"messages":[{"role":"user","content":[{"type":"image_url","\\u0075uid":"alice\\u0000logo"}]}]}',
        b'{"messages":[{"role":"user","content":[{"type":"image_url","uuid":"alice\\u0000logo"}]}]}',
    ],
)
@pytest.mark.parametrize("key_id", ["", "bob"])
def test_no_spelling_of_a_name_equals_that_of_another_key(body, key_id):
    _, sent = prepare.read(body, CHAT if b"messages" in body else "/v1/completions", (), key_id)
    document = orjson.loads(sent)
    part = document["messages"][0]["content"][0] if "messages" in document else document
    if "uuid" in part:
        assert part["uuid"].startswith(f"{key_id}\0alice\0")
    else:
        assert part["cache_salt"] == salt.own(key_id, "weir-of-alice")
        assert part["cache_salt"] not in ("weir-of-alice", salt.own("alice", "weir-of-alice"))


@pytest.mark.parametrize("salt", ["", None, 7, [[["a"]]]])
def test_a_salt_that_engines_refuse_reaches_them_unchanged(salt):
    _, body = prepare.read(orjson.dumps({"model": "m", "prompt": "x", "cache_salt": salt}), "/v1/completions", (), "k")
    assert orjson.loads(body)["cache_salt"] == salt


def test_a_salt_may_be_nested_as_deeply_as_any_value():
    body = b'{"model":"m","prompt":"x","cache_salt":%b}' % (b"[" * 1010 + b"]" * 1010)
    assert prepare.read(body, "/v1/completions", (), "k")[1] == body


@pytest.mark.parametrize("path", [CHAT, "/v1/completions", "/v1/responses", "/v1/messages", "/v1/embeddings"])
async def test_no_client_chooses_a_requests_id_at_an_engine(world, path):
    w = await world(None)
    names = {"request_id": "resp_a", "rid": "r"}
    assert (await w.ask(path, temperature=0.5, **names)).status_code == 200
    (got,) = w.engines[0].received
    assert got.document["temperature"] == 0.5
    assert not names.keys() & got.document.keys()


async def test_two_requests_with_one_id_have_a_receipt_each(world):
    w = await world(None)
    client = w.published.client
    for prompt in ("one", "two " * 50, "three " * 100):
        answer = await w.ask(prompt=prompt, headers={"x-request-id": "same"})
        await w.until(lambda: not w.router.recorder.pending)
        assert answer.headers["x-request-id"] == "same"
    await w.until(lambda: client.xlen(redis_keys.RECEIPTS) == 3)
    tokens, name = [], "same"
    while name:
        receipt = loaded(client.get(redis_keys.receipt_key(name)))
        assert receipt["request_id"] == "same"
        assert w.engines[0].received[2 - len(tokens)].headers["x-request-id"] == receipt["own_id"]
        tokens.append(receipt["prompt_tokens"])
        name = receipt.get("earlier")
    assert tokens == sorted(tokens, reverse=True)
    assert len(tokens) == 3


async def test_an_id_does_not_reveal_host_and_port_to_an_engine(world):
    w = await world(None)
    name = "___prefill_addr_10.0.0.1:80___decode_addr_10.0.0.2:90_x"  # as vLLM's P2pNcclConnector parses it
    answer = await w.ask(headers={"x-request-id": name})
    assert answer.headers["x-request-id"] == name
    assert ":" not in w.engines[0].received[0].headers["x-request-id"]


async def test_a_client_that_repeats_a_routers_id_replaces_no_receipt(world):
    w = await world(None)
    client = w.published.client
    name = (await w.ask()).headers["x-request-id"]
    await w.until(lambda: client.exists(redis_keys.receipt_key(name)))
    await w.ask(headers={"x-request-id": name})
    await w.until(lambda: client.xlen(redis_keys.RECEIPTS) == 2)
    assert loaded(client.get(redis_keys.receipt_key(name)))["earlier"] == f"{name}~earlier"
    assert loaded(client.get(redis_keys.receipt_key(f"{name}~earlier")))["request_id"] == name


async def test_a_batch_of_receipts_that_is_written_twice_overwrites_none(world):
    w = await world(None)
    client, reporter = w.published.client, w.router.source.reporter
    calls = [Call("same", "/v1/completions", 0.0, 0.0, own_id=f"same-{number}") for number in (1, 2)]
    for number, call in enumerate(calls):
        call.number = number + 1
        await reporter._keep([call])
        await reporter._keep([call])
    assert loaded(client.get(redis_keys.receipt_key("same")))["earlier"] == "same-1"
    assert "earlier" not in loaded(client.get(redis_keys.receipt_key("same-1")))
    assert client.xlen(redis_keys.RECEIPTS) == 2


async def test_a_receipt_of_an_older_router_is_also_moved(world):
    w = await world(None)
    client = w.published.client
    client.set(redis_keys.receipt_key("same"), '{"schema":2,"request_id":"same","at":1.0}')
    await w.ask(headers={"x-request-id": "same"})
    await w.until(lambda: client.exists(redis_keys.receipt_key("same~earlier")))
    assert loaded(client.get(redis_keys.receipt_key("same")))["earlier"] == "same~earlier"
    assert loaded(client.get(redis_keys.receipt_key("same~earlier")))["at"] == 1.0


async def test_the_target_of_an_alias_does_not_depend_on_an_id_that_a_client_gives(world):
    w = await world(None)
    split = [{"pool": "demo", "model": "llama", "weight": 50}, {"pool": "spot", "model": "llama", "weight": 50}]
    async with engine() as spot:
        await second(w, spot)
        await known(w, {"chat": {"split": split}})
        for number in range(30):
            await w.ask(model="chat", prompt=f"{number} is a number", headers={"x-request-id": "same"})
        assert w.engines[0].received
        assert spot.received
