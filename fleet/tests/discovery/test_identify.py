"""Identify the server behind a URL by its first answers."""

import asyncio
import json
from collections.abc import Callable, Iterator, Mapping

import pytest

from fleet.kinds.external import ExternalSpec
from fleet.observe.identify import Identified, identify, sglang_events
from fleet.observe.lacking import OF_TRTLLM, UNCACHED, is_uncached, lacking
from fleet.tests.discovery.other_engines import (
    NO_REUSE,
    SERVERS,
    SGLANG_PAGE,
    TRTLLM_PAGE,
    VLLM_PAGE,
    OtherEngine,
    sglang_info,
)
from router.contract.metrics.engine_metrics import SGLANG_SCRAPE, TRTLLM_SCRAPE, parse_metrics
from router.contract.net.probe import Prober
from router.kv_events.sources import KvEventSource, RankPlace, given

Start = Callable[[Mapping[str, str]], OtherEngine]


@pytest.fixture
def start() -> Iterator[Start]:
    made: list[OtherEngine] = []

    def one(pages: Mapping[str, str]) -> OtherEngine:
        made.append(OtherEngine(pages))
        return made[-1]

    yield one
    for each in made:
        each.close()


def told(url: str, **options: object) -> Identified | None:
    async def ask() -> Identified | None:
        found = await identify(Prober(), url, ExternalSpec(**options))  # type: ignore[arg-type]
        await asyncio.sleep(0.01)  # let the transports close
        return found

    return asyncio.run(ask())


@pytest.mark.parametrize(
    ("pages", "server", "version"),
    [
        ("vllm", "vllm", "0.32.0"),
        ("sglang", "sglang", "0.5.23"),
        ("sglang without metrics", "sglang", "0.5.23"),
        ("trtllm", "trtllm", "1.3.0"),
        ("owned by sglang", "sglang", ""),
        ("openai", "openai", ""),
    ],
)
def test_an_engine_is_identified_by_its_answers(start: Start, pages: str, server: str, version: str) -> None:
    found = told(start(SERVERS[pages]).url)
    assert found is not None
    assert (found.server.name, found.version, found.models) == (server, version, ("m",))


def test_kv_events_are_received_from_the_address_that_the_engine_reports(start: Start) -> None:
    vllm, sglang = start(SERVERS["vllm"]), start(SERVERS["sglang"])
    assert told(vllm.url).events == vllm.url  # type: ignore[union-attr]
    expected = "tcp://127.0.0.1:5557?replay=tcp%3A%2F%2F127.0.0.1%3A5558&topic=kv"
    assert told(sglang.url).events == expected  # type: ignore[union-attr]
    assert told(start(SERVERS["openai"]).url).events == ""  # type: ignore[union-attr]


@pytest.mark.parametrize(
    ("server", "about", "events", "lacks"),
    [
        ("vllm", {"version": "0.32.0"}, True, ()),
        ("vllm", None, False, ("--kv-events-config",)),
        ("sglang", {"enable_cache_report": True, "enable_metrics": True}, True, ()),
        ("sglang", {"enable_cache_report": False}, False, ("--kv-events-config", "--enable-cache-report")),
        ("sglang", {"speculative_algorithm": "EAGLE3"}, True, ("a start without --speculative-algorithm EAGLE3",)),
        ("sglang", {"speculative_algorithm": None, "enable_metrics": 0.5, "chat_template": None}, True, ()),
        ("sglang", {"hf_chat_template_name": "rag"}, True, ("a start without --hf-chat-template-name",)),
        ("openai", {"enable_cache_report": False}, False, ()),
        ("trtllm", {"version": "1.4.0"}, True, ()),
        ("trtllm", {"version": "1.4.0"}, False, ("kv_events_config (1.4), with its address as kv_endpoint",)),
    ],
)
def test_flags_needed_for_an_exact_index_are_reported_as_missing(
    server: str, about: object, events: bool, lacks: tuple[str, ...]
) -> None:
    assert lacking(server, about, events=events) == lacks


def cached(page: str) -> str:
    return f'{page}vllm:cache_config_info{{enable_prefix_caching="True",block_size="16"}} 1.0\n'


@pytest.mark.parametrize(
    ("server", "pages", "lacks"),
    [
        ("vllm", {"/metrics": cached(VLLM_PAGE)}, ()),
        ("vllm", {"/metrics": cached(VLLM_PAGE).replace("True", "False")}, (UNCACHED["vllm"],)),
        ("trtllm", {}, (OF_TRTLLM,)),
        ("trtllm", {"/prometheus/metrics": NO_REUSE}, (OF_TRTLLM, UNCACHED["trtllm"])),
        ("sglang", {"/server_info": sglang_info()}, ()),
        (
            "sglang",
            {"/server_info": sglang_info().replace("{", '{"disable_radix_cache": true,', 1)},
            (UNCACHED["sglang"],),
        ),
    ],
)
def test_an_engine_without_prefix_caching_is_recognised(
    start: Start, server: str, pages: Mapping[str, str], lacks: tuple[str, ...]
) -> None:
    engine = start({**SERVERS[server], **pages})
    for found in (told(engine.url), told(engine.url, server=server)):
        assert found is not None
        assert (found.uncached, found.lacks) == (UNCACHED.get(server) in lacks, lacks)
    decodes = {"disable_radix_cache": True, "disaggregation_mode": "decode"}
    assert not is_uncached("sglang", decodes, None)  # like all decode servers, which compute no prompts


def test_an_engine_with_other_ranks_than_its_pool_lacks_their_number_and_no_flag(start: Start) -> None:
    ranks = {str(rank): {"endpoint": f"tcp://*:{5557 + rank}"} for rank in range(4)}
    vllm = start({**SERVERS["vllm"], "/kv_event_sources": json.dumps(ranks)})
    sglang = start({**SERVERS["sglang"], "/server_info": sglang_info(dp_size=4)})
    for engine in (vllm, sglang):
        one, four = told(engine.url), told(engine.url, data_parallel_size=4)
        assert one is not None
        assert four is not None
        assert (one.ranks, one.lacks) == (4, ("data_parallel_size: 4",))
        assert (four.ranks, four.lacks, bool(four.events)) == (4, (), True)


@pytest.mark.parametrize("where", ["https://engine.llm", "http://engine.llm:8000/base/"])
def test_kv_events_of_sglang_come_from_its_host(where: str) -> None:
    assert sglang_events({"publisher": "zmq", "endpoint_port_base": 5557}, where, 1) == "tcp://engine.llm:5557"


@pytest.mark.parametrize("wrong", [{"endpoint_port_base": True}, {"endpoint_port_base": 70_000}, {"publisher": "null"}])
def test_kv_events_without_a_port_are_not_received(start: Start, wrong: dict[str, object]) -> None:
    pages = {**SERVERS["sglang"], "/server_info": sglang_info(**wrong)}
    assert told(start(pages).url).events == ""  # type: ignore[union-attr]


def test_the_document_may_state_the_kind_and_whether_events_are_wanted(start: Start) -> None:
    vllm = start(SERVERS["vllm"])
    found = told(vllm.url, server="openai", kv_events=False)
    assert found is not None
    assert (found.server.name, found.events) == ("openai", "")
    assert "/kv_event_sources" not in vllm.asked


@pytest.mark.parametrize("page", ["", "[]", "{", '{"data": [1]}', '{"data": [{"owned_by": {}}]}', "null"])
def test_an_answer_without_models_is_not_an_engine_with_a_model(start: Start, page: str) -> None:
    found = told(start({"/v1/models": page}).url)
    assert found is None or found.models == ()


def test_a_redirect_is_not_followed(start: Start) -> None:
    behind, first = start(SERVERS["vllm"]), start(SERVERS["vllm"])
    first.redirect = f"{behind.url}/v1/models"
    assert told(first.url) is None
    assert behind.asked == []


def test_an_address_of_the_clouds_own_services_is_not_contacted() -> None:
    assert told("http://169.254.169.254:80") is None


def test_the_figures_of_sglang_are_read() -> None:
    found = parse_metrics(SGLANG_PAGE.encode(), SGLANG_SCRAPE)
    ranked = SGLANG_PAGE.replace('tp_rank="0"', 'dp_rank="0"') + SGLANG_PAGE.replace('tp_rank="0"', 'dp_rank="1"')
    assert list(parse_metrics(ranked.encode(), SGLANG_SCRAPE).ranks) == ["0", "1"]
    assert (found.kv_usage, found.running, found.waiting) == (0.25, 3, 1)
    assert (found.block_size, found.kv_blocks) == (64, 2048)
    assert (found.prefix_queries_total, found.prefix_hits_total, found.generation_tokens_total) == (1000, 500, 70)
    assert found.cached_by_source == {"device": 400, "host": 100}


def test_each_rank_of_sglang_has_its_load_and_its_port_of_events(start: Start) -> None:
    page = "\n".join(
        f'sglang:{name}{{model_name="m",tp_rank="0",dp_rank="{rank}"}} {value}'
        for rank, value in ((0, 0.25), (1, 0.75))
        for name in ("token_usage", "num_running_reqs", "num_queue_reqs")
    )
    loads = parse_metrics(page.encode(), SGLANG_SCRAPE).ranks
    assert {rank: (load.kv_usage, load.running) for rank, load in loads.items()} == {"0": (0.25,) * 2, "1": (0.75,) * 2}
    two = start({**SERVERS["sglang"], "/server_info": sglang_info(dp_size=2)}).url
    assert told(two).events == ""  # type: ignore[union-attr]
    events = told(two, data_parallel_size=2).events  # type: ignore[union-attr]
    assert given(events, RankPlace(1, 1, 2)) == KvEventSource("tcp://127.0.0.1:5558", "tcp://127.0.0.1:5559", "kv")


def test_the_figures_of_tensorrt_llm_are_read() -> None:
    found = parse_metrics(TRTLLM_PAGE.encode(), TRTLLM_SCRAPE)
    assert (found.kv_usage, found.running, found.waiting) == (0.5, 2, 0)
    assert (found.block_size, found.kv_blocks, found.prefix_hits_total) == (32, 512, None)
