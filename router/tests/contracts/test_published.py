"""The structs, names and paths published by the newest engines, compared with those that Weir reads."""

import __future__

import ast
import asyncio
import re
import time
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import fields
from functools import partial
from types import SimpleNamespace
from typing import Any, Optional

import jinja2
import msgpack
import pytest
import zmq

from router.contract.api_paths import find
from router.contract.metrics.engine_metrics import SGLANG_SCRAPE, VLLM_SCRAPE, Scrape
from router.contract.metrics.tier_metrics import (
    LMCACHE_SERVER_TIERS,
    LMCACHE_TIERS,
    MOONCAKE_CLIENT_TIERS,
    MOONCAKE_MASTER_TIERS,
    SGLANG_TIERS,
    TierNames,
)
from router.contract.net.probe import READY
from router.flows.bodies import ROOM
from router.flows.nixl import HOLD
from router.kv_events.batch import UNTOLD, BlocksStored, decode
from router.kv_events.feed import Feed
from router.kv_events.sources import RankPlace, discover, given
from router.prefix.blocks import Medium, extra_keys, linked, media_keys
from router.prefix.exact.index import ExactIndex
from router.request.lending import ASKED, Whereabouts
from router.tests.contracts.publishers import publisher, structs
from router.tests.contracts.wheels import DOCUMENT, ROOT, sources, table, wheel
from router.tests.engines import surface
from router.tests.engines.servers import SERVERS
from router.tests.kv_events.encode_published import ENGINES, TOKENS, batch
from router.tests.ports import free_ports
from router.tests.test_exact_index import until
from router.tokenize.template_source import environment, wants_parts
from router.tokenize.tokenizer import packed

contracts = pytest.mark.contracts
# Fields of stored and removed blocks: those that are read, and those without effect
READ = {
    *("block_hashes", "parent_block_hash", "token_ids", "block_size", "lora_id", "lora_name", "medium", "extra_keys"),
    *("group_idx", "kv_cache_spec_kind", "kv_cache_spec_sliding_window", "cache_salt", "remaining_copy_counts"),
    "lookahead_token_ids",
}
LEFT = {"session_id", "locality", "ownership"}
OF_SPECULATION = "generate_lookahead_block_hash_extra_keys"
SEED = 1


@contracts
@pytest.mark.parametrize("engine", ["vllm", "sglang"])
def test_blocks_that_an_engine_encodes_are_found_by_their_prompt_salt_and_adapter(engine: str) -> None:
    names, (_, common, cases) = structs(engine), ENGINES[engine]
    with_adapter = ("ad", "tenant-a" if engine == "sglang" else "")
    for case, adapter, salt in (("plain", "", ""), ("salted", "", "tenant-a"), ("adapter", *with_adapter)):
        with zmq.Context() as context:
            feed = Feed("a", lambda: discover(""), ExactIndex(SEED), context)
            feed._tell(decode(batch(names, case, {**common, **cases[case]})))
            hashes = linked(packed(TOKENS), 16, SEED, extra_keys(adapter, salt, 2))
            assert feed._index.match(hashes, 16) == {"a": (32, 0, 0)}, case
            feed._tell(decode(batch(names, "removed", common)))
            assert feed._index.match(hashes, 16) == {}, case


@contracts
@pytest.mark.parametrize("engine", ["vllm", "sglang"])
def test_every_field_of_an_engines_events_is_read_or_known_to_have_no_effect(engine: str) -> None:
    names = structs(engine)
    given = {*names["BlockStored"].__struct_fields__, *names["BlockRemoved"].__struct_fields__}
    assert given - READ <= LEFT


def functions(engine: str, path: str, *wanted: str) -> dict[str, Any]:
    """Return these functions of a file, including those of its classes, as in the engine's source."""
    tree = ast.parse(sources(engine, path)[path])
    found = [node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef) and node.name in wanted]
    for node in found:
        node.decorator_list = []
    made: dict[str, Any] = {"Optional": Optional}
    exec(compile(ast.Module(found, []), path, "exec", flags=__future__.annotations.compiler_flag), made)
    return made


@contracts
@pytest.mark.parametrize(
    ("engine", "path"),
    [("vllm", "vllm/distributed/kv_events.py"), ("sglang", "sglang/srt/disaggregation/kv_events.py")],
)
def test_each_rank_publishes_at_the_port_where_its_events_are_followed(engine: str, path: str) -> None:
    port = functions(engine, path, "offset_endpoint_port")["offset_endpoint_port"]
    for rank in range(4):
        followed = given("tcp://10.0.0.1:5557?replay=tcp://10.0.0.1:6557", RankPlace(rank, rank, 4))
        published = port("tcp://10.0.0.1:5557", rank), port("tcp://10.0.0.1:6557", rank)
        assert (followed.endpoint, followed.replay) == published


@contracts
def test_sglang_publishes_nothing_for_a_cache_that_has_only_windows() -> None:
    path = "sglang/srt/mem_cache/pure_swa_radix_cache.py"
    assert "event" not in sources("sglang", path)[path]


@contracts
def test_ranks_of_sglang_are_numbered_the_same_with_and_without_parallel_attention() -> None:
    numbered = functions("sglang", "sglang/srt/disaggregation/kv_events.py", "select_kv_publisher_dp_rank")
    of = numbered["select_kv_publisher_dp_rank"]
    assert [of(4, rank, None) for rank in range(4)] == [of(1, 0, rank) for rank in range(4)] == [0, 1, 2, 3]


@contracts
async def test_ranks_of_sglangs_own_publisher_are_distinguished_from_their_first_event_on() -> None:
    names, ports = publisher("sglang"), free_ports(4)
    places = {"endpoint": f"tcp://127.0.0.1:{ports[0]}", "replay_endpoint": f"tcp://127.0.0.1:{ports[2]}"}
    ranks = [names["ZmqEventPublisher"](rank, **places, topic="kv", bind=True) for rank in range(2)]
    address = f"{places['endpoint']}?replay={places['replay_endpoint']}&topic=kv"
    stored, index = {"parent_block_hash": None, "block_size": 16, "lora_id": None}, ExactIndex(SEED)

    def held(prompt: int) -> object:
        return index.match(linked(packed([prompt] * 16), 16, SEED, ()), 16)

    for rank, sender in enumerate(ranks):  # before anybody listens
        event = names["BlockStored"](block_hashes=[7], token_ids=[rank] * 16, **stored)
        sender.publish(names["KVEventBatch"](time.time(), [event]))
    with zmq.Context() as context:
        feeds = [
            Feed(f"a#{rank}", partial(discover, address, RankPlace(rank, rank, 2)), index, context) for rank in range(2)
        ]
        tasks = [asyncio.create_task(feed.run()) for feed in feeds]
        await until(lambda: all(feed.confirmed_at and feed.block_size for feed in feeds))
        assert [held(0), held(1)] == [{"a#0": (16, 0, 0)}, {"a#1": (16, 0, 0)}]
        ranks[1].publish(names["KVEventBatch"](time.time(), [names["BlockRemoved"](block_hashes=[7])]))
        await until(lambda: held(1) == {})
        assert (held(0), [feed.complete for feed in feeds]) == ({"a#0": (16, 0, 0)}, [True, True])
        for task, sender in zip(tasks, ranks, strict=True):
            task.cancel()
            sender.shutdown()
        await asyncio.gather(*tasks, return_exceptions=True)


@contracts
@pytest.mark.parametrize("ahead", [0, 1, 3])
def test_images_and_sounds_are_in_the_keys_of_blocks_as_vllm_writes_them(ahead: int) -> None:
    tree = ast.parse(sources("vllm", path := "vllm/v1/core/kv_cache_utils.py")[path])
    wanted = ("_gen_mm_extra_hash_keys", "generate_block_hash_extra_keys", "to_event_extra_keys", OF_SPECULATION)
    tree.body = [node for node in tree.body if isinstance(node, ast.FunctionDef) and node.name in wanted]
    assert len(tree.body) == len(wanted)
    names: dict[str, Any] = {
        **{"Any": Any, "Iterable": Iterable, "Request": object, "_gen_prompt_embeds_extra_hash_keys": lambda *args: []},
        "_gen_lora_extra_hash_keys": lambda request: [("lora", "ad", "/ad")],
    }
    exec(compile(tree, path, "exec"), names)
    media = [Medium(3, 30, "cat"), Medium(33, 2, "dog"), Medium(64, 10, "cat")]
    features = [
        SimpleNamespace(identifier=name, mm_position=SimpleNamespace(offset=at, length=tokens))
        for at, tokens, name in media
    ]
    request, number, keys = SimpleNamespace(mm_features=features, cache_salt="s"), 0, []
    for start in range(0, 96, 16):
        end = start + 16
        own = (request, start, end, end + ahead, number) if ahead else (request, start, end, number)
        key, number = names[OF_SPECULATION if ahead else "generate_block_hash_extra_keys"](*own)
        keys.append(key)
    told = [bytes(msgpack.packb(each)) for each in names["to_event_extra_keys"](keys)]
    assert told == list(media_keys("ad", "s", 6, 16, media, ahead))


@contracts
def test_chunks_below_the_device_are_named_as_they_are_read() -> None:
    """LMCache gives one name to many blocks, in memory; vLLM names each block of a chunk, if configured to."""
    path = "lmcache/v1/multiprocess/custom_types.py"
    assert 'KV_EVENT_MEDIUM_CPU = "CPU"' in sources("lmcache", path)[path]
    path = "lmcache/integration/vllm/lmcache_mp_connector.py"
    assert re.search(
        r"BlockStored\(\s+block_hashes=block_hashes,.*?block_size=event", sources("lmcache", path)[path], re.S
    )
    path = "vllm/distributed/kv_transfer/kv_connector/v1/offloading/"
    assert all(
        option in "\n".join([*sources("vllm", path).values(), *sources("vllm", "vllm/v1/kv_offload/").values()])
        for option in ('"blocks_per_chunk"', '"self_describing_kv_events"')
    )


@contracts
def test_the_needs_of_every_kind_of_vllm_layer_are_known() -> None:
    tree = ast.parse(sources("vllm", "vllm/v1/kv_cache_interface.py")["vllm/v1/kv_cache_interface.py"])
    (kinds,) = [node for node in tree.body if isinstance(node, ast.ClassDef) and node.name == "KVCacheSpecKind"]
    values = [node.value for node in kinds.body if isinstance(node, ast.Assign)]
    named = [str(value.value) for value in values if isinstance(value, ast.Constant)]
    unknown = {kind for kind in named if _looks_back(kind) == UNTOLD}
    assert len(named) > 5
    assert unknown <= {"encoder_only_attention", "cross_attention"}  # none of their prefixes is cached


def _looks_back(kind: str) -> int | None:
    names, (_, common, _) = structs("vllm"), ENGINES["vllm"]
    given = {**common, "kv_cache_spec_kind": kind, "kv_cache_spec_sliding_window": 32}
    (event,) = decode(batch(names, "window", given)).events
    assert isinstance(event, BlocksStored)
    return event.looks_back


def names_of(scrape: Scrape) -> Iterator[tuple[str, str]]:
    """Return names of metrics in two parts, which engines may join."""
    for value in (*(getattr(scrape, field.name) for field in fields(scrape)), *scrape.queues):
        if isinstance(value, str) and value and not value.startswith("weir_sim_"):  # only simulated engines have these
            prefix, _, name = value.partition(":")
            yield f"{prefix}:", name
    for way in scrape.transfers:
        yield from ((way.prefix, name) for part in (way.n, way.seconds, way.bytes, way.failed) for name in part)


def names_of_tiers(tiers: Sequence[TierNames]) -> Iterator[tuple[str, str]]:
    yield from ((tier.prefix, name) for tier in tiers for names in tier.names.values() for name in names)


def missing(names: Iterable[tuple[str, str]], text: str) -> list[str]:
    """Return the names that are missing in the text, whole or in two parts; Prometheus clients add the suffixes."""
    plain = [(prefix, re.sub(r"_(total|sum|count)$", "", name)) for prefix, name in names]
    assert plain
    return [prefix + name for prefix, name in plain if not (name in text and prefix in text)]


@contracts
def test_vllm_has_every_metric_that_is_scraped() -> None:
    """Metrics of some older versions are also scraped."""
    text = "\n".join(sources("vllm", "vllm/").values())
    older = {"vllm:kv_offload_tiering_block_queries", "vllm:kv_offload_tiering_block_hits"}
    own = [tier for tier in VLLM_SCRAPE.tiers if tier.prefix.startswith("vllm:")]
    assert set(missing([*names_of(VLLM_SCRAPE), *names_of_tiers(own)], text)) <= older


@contracts
def test_sglang_and_lmcache_have_every_metric_that_is_scraped() -> None:
    own = [*names_of(SGLANG_SCRAPE), *names_of_tiers(SGLANG_TIERS)]
    assert missing(own, "\n".join(sources("sglang", "sglang/srt/").values())) == []
    cache = "\n".join(sources("lmcache", "lmcache/").values())
    assert missing(names_of_tiers(LMCACHE_TIERS), cache) == []
    for _, name in names_of_tiers(LMCACHE_SERVER_TIERS):  # its exporter adds unit and suffix
        plain, unit = re.fullmatch(r"(\w+?)(?:_(tokens|chunks)_total)?", name).groups("")  # type: ignore[union-attr]
        found = re.search(rf'"lmcache_mp\.{plain}"' + (r'.*?unit="(\w+)"' if unit else "()"), cache, re.S)
        assert found, name
        assert found[1] == unit, name


@contracts
def test_mooncakes_master_and_client_have_every_metric_that_is_scraped() -> None:
    archive = wheel("mooncake-transfer-engine-non-cuda")
    for program, tiers in (("mooncake_master", MOONCAKE_MASTER_TIERS), ("mooncake_client", MOONCAKE_CLIENT_TIERS)):
        (path,) = [name for name in archive.namelist() if name.endswith(f"/{program}")]
        assert missing(names_of_tiers(tiers), archive.read(path).decode("latin-1")) == [], program


ROUTE = re.compile(r"@(?:router|app)\.(?:get|post|put|delete|api_route|websocket)\(\s*[\"']([^\"']+)[\"']")


@contracts
@pytest.mark.parametrize("engine", SERVERS)
def test_every_path_and_method_of_an_engines_server_is_in_the_table_of_paths(engine: str) -> None:
    """For another version, `python -m router.tests.engines.surface` and `….servers` write the tables again."""
    under = surface.SERVERS[engine]
    server = surface.Sources({path: ast.parse(text) for path, text in sources(engine, under).items()})
    found = {(route.path, method) for route in surface.routes(server, under) for method in route.methods}
    paths = SERVERS[engine]["paths"].items()
    known = {(path, method) for path, taken in paths if path not in surface.FASTAPI for method in taken["methods"]}
    assert len(found) > 70
    assert sorted(path for path, _ in found if find(path) is None) == []
    assert found - {(path, "GET") for path in surface.FASTAPI} == known


@contracts
def test_vllm_takes_every_option_that_its_kind_writes() -> None:
    kind = (ROOT / "fleet" / "kinds" / "vllm" / "vllm.py").read_text()
    kind = kind[kind.index("given = {") : kind.index("return [*argv")]
    written = {f"--{name}" for name in re.findall(r'^ +"([a-z]+(?:-[a-z]+)+)": ', kind, re.MULTILINE)}
    written |= set(re.findall(r'"(--[a-z-]+)"', kind))
    parsers = "\n".join(
        text
        for folder in ("vllm/engine/", "vllm/entrypoints/", "vllm/config/")
        for text in sources("vllm", folder).values()
    )
    assert len(written) > 15
    taken = {option for option in written if f'"{option}"' in parsers or option[2:].replace("-", "_") in parsers}
    assert written - taken == set()
    ranks = re.search(
        r"^MaxLoRARanks = Literal\[(.*)\]$", sources("vllm", path := "vllm/config/lora.py")[path], re.MULTILINE
    )
    assert ranks is not None
    assert f"\n_LORA_RANKS = ({ranks[1]})" in (ROOT / "fleet" / "kinds" / "vllm" / "vllm.py").read_text()
    connectors = set(re.findall(r'"kv_connector": "(\w+)"', (ROOT / "fleet" / "kinds" / "transfer.py").read_text()))
    known = "\n".join(sources("vllm", "vllm/distributed/kv_transfer/kv_connector/factory.py").values())
    assert "MultiConnector" in connectors
    assert {name for name in connectors if f'"{name}"' not in known} == set()


@contracts
def test_vllm_knows_every_parameter_of_an_offload_and_nixl_every_backend() -> None:
    connectors = "vllm/distributed/kv_transfer/kv_connector/v1/"
    nixl = "\n".join(sources("vllm", f"{connectors}nixl/").values())
    assert [name for name in HOLD if f'"{name}"' not in nixl] == []
    mooncake = "\n".join(sources("vllm", f"{connectors}mooncake/").values())
    own = set(
        re.findall(r'"((?:do_)?remote_\w+|transfer_id)": ', (ROOT / "router" / "flows" / "mooncake.py").read_text())
    )
    assert {"do_remote_prefill", "remote_bootstrap_addr", "transfer_id"} <= own
    assert [name for name in own if f'"{name}"' not in mooncake] == []
    kinds = "\n".join(path.read_text() for path in (ROOT / "fleet" / "kinds").rglob("*.py"))
    backends = set(re.findall(r'"backends": \["(\w+)"\]', kinds))
    assert backends
    plugins = {name.rpartition("/libplugin_")[2] for name in wheel("nixl-cu12").namelist() if "/libplugin_" in name}
    assert {f"{backend}.so" for backend in backends} <= plugins


@contracts
def test_vllms_answer_names_a_decoders_blocks_for_another_engine_to_take() -> None:
    folder = "vllm/distributed/kv_transfer/kv_connector/v1/nixl/"
    pull, base = (sources("vllm", folder)[f"{folder}{name}_scheduler.py"] for name in ("pull", "base"))
    assert '"bidirectional_kv_xfer"' in base
    assert '"decoder_kv_blocks_ttl"' in base
    said = pull[pull.rindex("return delay_free_blocks, dict(") :]
    assert {name for name in Whereabouts.__struct_fields__ if f"{name}=" not in said} == set()
    chat = sources("vllm", "vllm/entrypoints/openai/chat_completion/")[
        "vllm/entrypoints/openai/chat_completion/protocol.py"
    ]
    assert ASKED in chat


@contracts
def test_sglang_ignores_salts_at_one_api_only() -> None:
    """The router must know at which API its engine ignores salts."""
    named = sources("sglang", "sglang/srt/entrypoints/")
    assert not any("cache_salt" in text for path, text in named.items() if "/anthropic/" in path)
    protocol = named["sglang/srt/entrypoints/openai/protocol.py"]
    assert len(re.findall(r"^    cache_salt: ", protocol, re.MULTILINE)) == 3  # completions, chats, responses


@contracts
def test_vllm_accepts_a_salt_wherever_it_computes_prompts_except_for_transcriptions() -> None:
    """The router must refuse keys with separate salts at every API that ignores salts."""
    under = "vllm/entrypoints/"
    salted = {path for path, text in sources("vllm", under).items() if "    cache_salt: str | None = Field(" in text}
    apis = ("openai/completion", "openai/chat_completion", "openai/responses", "openai/decisions", "anthropic")
    assert {f"{under}{api}/protocol.py" for api in (*apis, "pooling/base")} <= salted
    assert not any("speech_to_text" in path or "/audio" in path for path in salted)


@contracts
def test_no_engine_resolves_an_item_by_its_id() -> None:
    """Once an engine does, the router must send such requests to the instance that has the item."""
    named = {**sources("sglang", "sglang/srt/entrypoints/openai/"), **sources("vllm", "vllm/entrypoints/openai/")}
    assert [path for path, text in named.items() if "item_reference" in text or "ItemReference" in text] == []


@contracts
def test_sglang_takes_every_option_that_its_kind_writes() -> None:
    kind = (ROOT / "fleet" / "kinds" / "sglang" / "sglang.py").read_text()
    kind = kind[kind.index("given = {") : kind.index("def _events")]
    written = {f"{name}:".replace("-", "_") for name in re.findall(r'^ +"([a-z]+(?:-[a-z]+)+)": ', kind, re.MULTILINE)}
    fields_of = "\n".join(sources("sglang", "sglang/srt/arg_groups/fields/").values())
    assert len(written) > 15
    assert {name for name in written if not re.search(rf"^ +{name} A\[", fields_of, re.MULTILINE)} == set()
    requests = "\n".join(sources("sglang", "sglang/srt/entrypoints/openai/protocol.py").values())
    assert [name for name in ROOM if f"    {name}: Optional[" not in requests] == []
    config = event_settings()
    assert {"publisher", "endpoint", "replay_endpoint", "bind", "topic"} <= config


LISTS = {  # by the expression that a template loops over
    "messages": "{% set ns = namespace(first=messages[0]) %}",
    "kept": "{% set kept = messages[1:] %}",
    "b": "{% set ns = namespace(rest=messages) %}{% set b = ns.rest %}",
    "ns.all": "{% set a = messages %}{% set ns = namespace(all=a | list) %}",
    "ns.rest": "{% set ns = namespace() %}{% set ns.rest = messages[1:] %}",
    "ns.some": "{% set ns = namespace(some=[]) %}{% set ns.some = ns.some + messages %}",
    "one": "{% set one, two = messages, 1 %}",
}
LOOPS = ("{{ m.content }}", "{% for p in m['content'] | list %}{% endfor %}", "{% for k, v in m.content %}{% endfor %}")
LOOPS += ("{% set content = m.content %}{% for p in content %}{% endfor %}", "{{ said(m.content) }}")


@contracts
def test_vllm_gives_parts_of_content_to_the_templates_that_are_known_to_get_them() -> None:
    path = "vllm/renderers/hf.py"
    under = ast.parse(sources("vllm", path)[path])
    wanted = [node.name for node in under.body if isinstance(node, ast.FunctionDef) and node.name.startswith("_i")]
    vllm = functions("vllm", path, *wanted, "_attr_dotted_name")
    vllm.update(jinja2=jinja2, deque=deque)
    found = set()
    for name, kept in LISTS.items():
        for loop in LOOPS:
            source = f"{{% macro said(x) %}}{{% for p in x %}}{{% endfor %}}{{% endmacro %}}{kept}"
            source += f"{{% for m in {name} %}}{loop}{{% endfor %}}"
            try:
                in_parts = any(True for _ in vllm["_iter_nodes_assign_content_item"](environment().parse(source)))
            except AssertionError:  # it gives up
                in_parts = False
            ours = wants_parts(source)
            assert in_parts in ours, source
            found.add((in_parts, len(ours)))
    assert found == {(False, 1), (True, 1), (True, 2)}


@contracts
@pytest.mark.parametrize(
    ("engine", "under"), [("vllm", "vllm/entrypoints/common/cli_args.py"), ("sglang", "sglang/srt/arg_groups/fields/")]
)
def test_every_option_that_changes_an_engines_prompts_is_known_to_its_kind(engine: str, under: str) -> None:
    """With any other option the router renders prompts as the engine does."""
    kind = (ROOT / "fleet" / "kinds" / engine / f"{engine}.py").read_text().partition("_OTHER_PROMPTS = (")[2]
    known = re.findall(r'"--([a-z-]+)"', kind.partition("\n)")[0])
    declared = r"^    (\w*(?:chat_template|completion_template|effort|exclude_tools)\w*): "
    found = set(re.findall(declared, "\n".join(sources(engine, under).values()), re.MULTILINE))
    assert found - {"trust_request_chat_template"} == {name.replace("-", "_") for name in known}


@contracts
def test_engines_report_whether_they_cache_prefixes_where_weir_asks() -> None:
    cache = sources("vllm", "vllm/config/cache.py")["vllm/config/cache.py"]
    assert re.search(r"^    enable_prefix_caching: bool", cache, re.MULTILINE)
    assert "{key: str(value) for key, value in self.__dict__.items()}" in cache  # labels of vllm:cache_config_info
    fields_of = "\n".join(sources("sglang", "sglang/srt/arg_groups/fields/").values())
    asked = ("disable_radix_cache", "enable_cache_report", "enable_metrics", "speculative_algorithm")
    assert [name for name in asked if not re.search(rf"^ +{name}: A\[", fields_of, re.MULTILINE)] == []


@contracts
def test_sglang_sleeps_and_reports_readiness_at_the_paths_that_weir_uses() -> None:
    path = "sglang/srt/entrypoints/http_server.py"
    server = sources("sglang", path)[path]
    kind = (ROOT / "fleet" / "kinds" / "sglang" / "sleeping.py").read_text()
    asked = {READY, *re.findall(r'SleepStep\("(/\w+)"', kind)}
    assert len(asked) == 5
    assert asked - set(ROUTE.findall(server)) == set()
    inputs = "\n".join(sources("sglang", "sglang/srt/managers/io_struct.py").values())
    fields_of = set(re.findall(r'"(\w+)": ', kind))
    assert fields_of == {name for name in fields_of if re.search(rf"^    {name}: ", inputs, re.MULTILINE)}
    assert {"tags", "model_path"} <= fields_of
    # Its health page waits for a second before it checks for its token, which is longer than a node's probe.
    waits = server[server.index("async def health_generate") :].partition("@app.")[0]
    assert "await asyncio.sleep(1)" in waits


def event_settings() -> set[str]:
    """Return the fields of the JSON with which SGLang configures KV events."""
    path = "sglang/srt/disaggregation/kv_events.py"
    tree = ast.parse(sources("sglang", path)[path])
    (config,) = (node for node in tree.body if isinstance(node, ast.ClassDef) and node.name == "KVEventsConfig")
    return {one.target.id for one in config.body if isinstance(one, ast.AnnAssign) and isinstance(one.target, ast.Name)}


@contracts
def test_the_document_names_the_versions_that_satisfy_the_contracts() -> None:
    assert "\n".join(table()) in DOCUMENT.read_text()
