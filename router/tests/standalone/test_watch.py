"""A standalone router judges its instances by their answers to repeated checks."""

import asyncio
from collections import Counter

import pytest

from router.contract.metrics.engine_metrics import VLLM_SCRAPE, parse_metrics
from router.contract.models import Alias, Target
from router.contract.net.probe import NotAsked
from router.serving.pools import Pools
from router.standalone import watch as watching
from router.standalone.files import listed
from router.standalone.watch import InstanceWatch, Watched, WatchedAnswer
from router.tests.engine import engine
from router.tests.plain_engine import PAGE, plain

GOOD = WatchedAnswer(models=("llama",))
REFUSED = WatchedAnswer(error="connection refused")


def seen(prompt_tokens):
    return parse_metrics(PAGE.format(prompt_tokens=prompt_tokens).encode(), VLLM_SCRAPE)


def watched(*answers):
    made = Watched(listed("a", "http://a:1"))
    for answer in answers:
        made.take(answer, "llama", 100.0)
    return made


@pytest.mark.parametrize(
    ("answers", "state"),
    [
        ([], "loading"),
        ([GOOD], "ready"),
        ([WatchedAnswer()], "ready"),  # the command line, not the answer, names the model
        ([WatchedAnswer(models=("qwen",))], "failed"),
        ([REFUSED], "unreachable"),
        ([GOOD, REFUSED], "ready"),
        ([GOOD, REFUSED, REFUSED], "unreachable"),
        ([GOOD, REFUSED, GOOD, REFUSED], "ready"),
        ([GOOD, REFUSED, REFUSED, GOOD], "ready"),
        ([GOOD, *[WatchedAnswer(error="slow", slow=True, metrics=seen(7))] * 5], "ready"),
        ([GOOD, *[WatchedAnswer(error="slow", slow=True)] * 2], "unreachable"),
    ],
)
def test_an_instance_leaves_after_two_failed_checks_and_returns_after_a_good_one(answers, state):
    assert watched(*answers).state == state


def test_the_reason_why_an_instance_left_is_shown():
    assert watched(WatchedAnswer(models=("qwen", "phi"))).reason == "it serves qwen, phi, not llama"
    assert watched(REFUSED).reason == "connection refused"


def test_the_reason_lists_only_a_few_of_many_models():
    names = tuple(f"m{number}" for number in range(1000))
    assert watched(WatchedAnswer(models=names)).reason == "it serves m0, m1, m2, m3, m4 and 995 more, not llama"


def test_falling_counters_begin_a_new_epoch():
    one, two, fallen = (WatchedAnswer(metrics=seen(count), models=("llama",)) for count in (5, 9, 0))
    assert watched(one, two).epoch == 1
    assert watched(one, two, fallen, one).epoch == 2


@pytest.fixture
def watch():
    def make(*engines, model=""):
        pools = Pools()
        made = InstanceWatch(pools, pools.get_or_add("default"), model)
        made.follow([listed(f"e{i}", each.url) for i, each in enumerate(engines)])
        return made, pools

    return make


async def test_a_check_gives_the_pool_its_state_figures_and_models(watch):
    async with engine(plain(models=("llama", "adapter-1"))) as one, engine(plain(models=("llama",))) as two:
        made, pools = watch(one, two)
        await made.step()
        pool = pools.get("default")
        assert (pool.model, pool.ready, dict(pools.aliases)) == ("llama", 2, {})
        endpoint = pool.endpoints["e0"]
        assert (endpoint.kv_usage, endpoint.waiting, endpoint.block_size, endpoint.kv_tokens) == (0.25, 3, 32, 16_000)
        made.close()


async def test_further_models_that_every_instance_serves_are_routed_too(watch):
    both = ("llama", "adapter-1")
    async with engine(plain(models=both)) as one, engine(plain(models=both)) as two:
        made, pools = watch(one, two)
        await made.step()
        assert [model.id for model in pools.models()] == ["adapter-1", "llama"]
        assert pools.aliases["adapter-1"] == Alias((Target("default", model="adapter-1"),))
        made.close()


async def test_an_engine_without_pages_counts_as_ready_if_its_model_is_given(watch):
    async def nothing_here(engine, request, writer):
        writer.write(b"HTTP/1.1 404 X\r\ncontent-length: 0\r\n\r\n")
        await writer.drain()

    async with engine(nothing_here) as bare:
        made, pools = watch(bare, model="llama")
        await made.step()
        assert pools.get("default").ready == 1
        made.close()
        made, pools = watch(bare)
        await made.step()
        assert pools.get("default").endpoints["e0"].refusal(0, 1).startswith("loading: GET /v1/models names no model")
        made.close()


async def test_requests_for_any_name_wait_until_the_model_is_known(watch):
    async with engine(plain(health=503)) as sick:
        made, pools = watch(sick)
        await made.step()
        pool = pools.pick(None, "anything")
        assert (pool.name, pool.ready) == ("default", 0)
        assert "answers 503" in pool.endpoints["e0"].refusal(0, 1)
        made.close()


async def test_too_many_names_are_cut_off(watch):
    names = ("llama", *(f"m{number}" for number in range(2000)), "x" * 1000)
    async with engine(plain(models=names)) as one:
        made, _ = watch(one)
        await made.step()
        assert len(made.watched[0].models) == 1000
        made.close()


async def test_an_endless_page_of_models_is_not_read(watch):
    async with engine(plain(models=("x" * 2_000_000,))) as one:
        made, _ = watch(one, model="llama")
        await made.step()
        assert made.watched[0].models is None
        assert made.watched[0].state == "ready"  # like an engine without such a page
        made.close()


async def test_a_router_that_can_open_no_connection_keeps_its_last_state(monkeypatch):
    async with engine(plain()) as made:
        pools = Pools()
        watch = InstanceWatch(pools, pools.get_or_add("default"), "")
        watch.follow([listed("a", made.url)])
        await watch.step()

        async def get(url, timeout_s, *sizes, **more):
            raise NotAsked("Too many open files")

        monkeypatch.setattr(watch._prober, "get", get)
        for _ in range(3):
            await watch.step()
        assert [(each.state, each.failures) for each in watch.watched] == [("ready", 0)]
        watch.close()


class Answers:
    """A stand-in for the prober that counts how often each host was asked for its health; hosts that hang do so until
    released.
    """

    def __init__(self, *hanging):
        self.hanging = hanging
        self.go_on = asyncio.Event()
        self.asked = Counter()
        self.at_once, self.most = 0, 0

    async def get(self, url, timeout_s, *sizes):
        host, _, page = url.removeprefix("http://").partition("/")
        self.asked[host] += page == "health"
        self.at_once += page == "health"
        self.most = max(self.most, self.at_once)
        await (self.go_on.wait() if host in self.hanging else asyncio.sleep(0))
        self.at_once -= page == "health"
        return 200, b'{"data": [{"id": "llama"}]}' if page == "v1/models" else b""

    def keep_only(self, urls):
        self.go_on.set()


@pytest.fixture
def answered_by(monkeypatch):
    def make(answers, *hosts):
        monkeypatch.setattr(watching, "Prober", lambda: answers)
        pools = Pools()
        made = InstanceWatch(pools, pools.get_or_add("default"), "")
        made.follow([listed(host, f"http://{host}") for host in hosts])
        return made

    return make


def states(watch):
    return {each.listed.id: each.state for each in watch.watched}


async def test_an_instance_that_hangs_does_not_delay_checks_of_the_others(answered_by):
    answers = Answers("hangs")
    watch = answered_by(answers, "hangs", "good")
    for _ in range(3):
        await watch.step()
    assert answers.asked == {"hangs": 1, "good": 3}
    assert states(watch) == {"hangs": "loading", "good": "ready"}
    watch.close()


async def test_a_late_answer_is_used_by_a_later_check(answered_by):
    answers = Answers("slow")
    watch = answered_by(answers, "slow", "good")
    await watch.step()
    answers.go_on.set()
    await asyncio.gather(*watch._asked.values())
    await watch.step()
    assert states(watch) == {"slow": "ready", "good": "ready"}
    assert answers.asked == {"slow": 2, "good": 2}
    watch.close()


async def test_an_answer_of_an_instance_that_is_no_longer_listed_is_dropped(answered_by):
    answers = Answers("gone")
    watch = answered_by(answers, "gone", "good")
    await watch.step()
    watch.follow([listed("good", "http://good")])
    answers.go_on.set()
    await asyncio.gather(*watch._asked.values())
    await watch.step()
    assert (states(watch), watch._asked) == ({"good": "ready"}, {})
    watch.close()


async def test_the_number_of_instances_asked_at_once_is_limited(answered_by, monkeypatch):
    monkeypatch.setattr(watching, "AT_ONCE", 3)
    answers = Answers()
    watch = answered_by(answers, *(f"e{number}" for number in range(10)))
    await watch.step()
    assert (answers.most, set(states(watch).values())) == (3, {"ready"})
    watch.close()


KEYED = listed("a", "http://a:1", engine_key="env:QWEN_API_KEY")
UNAUTHORISED = WatchedAnswer(refused="GET /v1/models answers 401: …")


@pytest.mark.parametrize(
    ("listed", "model", "answer", "state", "reason"),
    [
        (listed("a", "http://a:1"), "", UNAUTHORISED, "loading", "GET /v1/models answers 401: …"),
        # Clients may have the key, so the instance counts as ready.
        (listed("a", "http://a:1"), "llama", UNAUTHORISED, "ready", "GET /v1/models answers 401: …"),
        (KEYED, "llama", UNAUTHORISED, "failed", "GET /v1/models answers 401: …"),
        (KEYED, "llama", GOOD, "ready", ""),
        (
            KEYED,
            "llama",
            WatchedAnswer(models=("llama",), unseen="GET /metrics answers 401: …"),
            "ready",
            "GET /metrics",
        ),
    ],
)
def test_an_engine_that_requires_a_key_is_reported(monkeypatch, listed, model, answer, state, reason):
    monkeypatch.setenv("QWEN_API_KEY", "sk-engine-1")
    made = Watched(listed)
    made.take(answer, model, 100.0)
    assert made.state == state
    assert made.reason.startswith(reason)
    assert bool(made.reason) == bool(reason)


def test_an_instance_without_its_key_is_out_until_the_key_exists(monkeypatch):
    made = Watched(KEYED)
    made.take(GOOD, "llama", 100.0)
    missing = "its engine key is missing: the environment variable QWEN_API_KEY is not set or empty"
    assert (made.state, made.reason) == ("failed", missing)
    monkeypatch.setenv("QWEN_API_KEY", "sk-engine-1")
    made.take(GOOD, "llama", 101.0)
    assert (made.state, made.reason, made.instance().engine_key) == ("ready", "", "env:QWEN_API_KEY")


async def test_every_call_to_an_engine_carries_its_key(monkeypatch):
    monkeypatch.setenv("QWEN_API_KEY", "sk-engine-1")
    async with engine(plain()) as made:
        pools = Pools()
        watch = InstanceWatch(pools, pools.get_or_add("default"), "llama")
        watch.follow([listed("a", made.url, engine_key="env:QWEN_API_KEY")])
        await watch.step(5.0)
        watch.close()
    asked = {request.target: request.headers.get("authorization") for request in made.received}
    assert asked == dict.fromkeys(("/health", "/metrics", "/v1/models"), "Bearer sk-engine-1")


async def test_a_health_page_that_computes_a_token_is_called_once_if_a_cheaper_one_answers(watch, monkeypatch):
    monkeypatch.setattr(watching, "TIMEOUT_S", 0.2)
    asked = Counter()

    async def sglang(engine, request, writer):
        asked[request.target] += 1
        if request.target == "/health":
            await asyncio.sleep(0.4)
        status = b"200" if request.target in ("/health", "/ready") else b"404"
        writer.write(b"HTTP/1.1 %b X\r\ncontent-length: 0\r\n\r\n" % status)
        await writer.drain()

    async with engine(sglang) as one:
        made, pools = watch(one, model="llama")
        for _ in range(3):
            await made.step()
        assert (pools.get("default").ready, asked["/health"]) == (1, 1)
        made.close()
