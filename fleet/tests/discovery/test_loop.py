"""Engines that another system starts and stops receive requests while they are ready, and are never killed."""

import importlib
import json
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from django.utils import timezone

from fleet import selectors, services
from fleet.control.node_agent import in_seconds
from fleet.control.reconciler import reconcile_step
from fleet.discovery.answer import SourceAway
from fleet.discovery.engine_file import UNTOLD
from fleet.discovery.sources import Sources
from fleet.discovery.step import discover_step
from fleet.kubernetes import mirror
from fleet.models import Instance, InstanceEvent, InstanceSource, State
from fleet.redis import connect
from fleet.services import NotPossible
from fleet.tests.cluster import Cluster
from fleet.tests.discovery.other_engines import NO_REUSE, SERVERS, VLLM_PAGE, OtherEngine, sglang_info
from fleet.tests.discovery.test_options import document
from fleet.tests.world import World, deliver, roll_back
from router.contract.redis import codec, redis_keys
from router.contract.redis.sample import InstanceSample


class Others:
    """Engines that another system runs, a source that lists them, and the steps of the control worker."""

    def __init__(self, world: World, folder: Path) -> None:
        self.world, self.path = world, folder / "engines.json"
        self.engines: list[OtherEngine] = []
        self.sources = Sources()
        self.listed()

    def start(self, pages: str = "vllm", **address: Any) -> OtherEngine:
        self.engines.append(OtherEngine(SERVERS[pages], **address))
        return self.engines[-1]

    def listed(self, *engines: OtherEngine, **labels: str) -> None:
        groups = [{"targets": [one.url.removeprefix("http://")], "labels": labels} for one in engines]
        self.path.write_text(json.dumps(groups))

    def tick(self) -> None:
        """Take the steps in the order of controlplane/doors/steps.py."""
        if discover_step(self.sources, timezone.now()):
            for _ in range(2):
                reconcile_step(timezone.now(), deliver, roll_back)
        self.world.tick()

    def until(self, condition: Callable[[], bool], limit_s: float = 60.0) -> int:
        """Take steps until the condition holds; return the number of rounds, which are one second apart."""
        began, rounds = time.monotonic(), 0
        while not condition():
            assert time.monotonic() - began < limit_s, self.world.states()
            self.tick()
            rounds += 1
        return rounds

    def seen(self) -> list[tuple[str, str]]:
        """Return the source's current list, once a change has arrived."""
        (source,) = self.sources.made.values()
        return [(engine.key, engine.held) for engine in source.look()]

    def comes(self, before: list[tuple[str, str]]) -> None:
        """Wait, without taking steps, until the watch has seen the change."""
        end = time.monotonic() + 60
        while self.seen() == before:
            assert time.monotonic() < end, "the watch reports no change"
            time.sleep(0.01)

    def routable(self) -> list[str]:
        return [entry["url"] for entry in self.world.published().values() if entry.get("routable")]

    def close(self) -> None:
        self.sources.keep_only({})
        for engine in self.engines:
            engine.close()


@pytest.fixture
def others(world: World, tmp_path: Path) -> Iterator[Others]:
    made = Others(world, tmp_path)
    yield made
    made.close()


def apply(others: Others, mode: str = "serve", **engine: Any) -> None:
    services.apply_fleet(document(mode, **(engine or {"file": str(others.path)})), "ada")


def test_engines_join_and_leave_with_their_source_even_below_a_path(others: Others) -> None:
    first, second = others.start(base="/team/llama"), others.start("sglang")
    others.listed(first, second)
    apply(others)
    others.until(lambda: len(others.routable()) == 2)
    assert selectors.pool_ready("p") == (2, 2)
    facts = {row.url: row.facts for row in Instance.objects.all()}
    assert (facts[first.url].server, facts[first.url].version) == ("vllm", "0.32.0")
    assert facts[first.url].events == first.url
    assert (facts[second.url].server, facts[second.url].version) == ("sglang", "0.5.23")
    others.listed(second)
    others.until(lambda: others.routable() == [second.url])
    gone = Instance.objects.get(url=first.url)
    others.until(lambda: Instance.objects.get(pk=gone.pk).state == State.STOPPED)
    assert Instance.objects.get(pk=gone.pk).reason == "its source no longer lists it"
    texts = InstanceEvent.objects.filter(pool="p", kind="source").values_list("text", flat=True)
    name = first.url.removeprefix("http://")
    assert f"no longer lists 1 engine: {name}" in texts
    assert all(path.startswith(first.base) for path in first.asked), first.asked
    # The engine is remembered for an hour: if it returns by then, it is the same instance.
    others.listed(first, second)
    others.until(lambda: len(others.routable()) == 2)
    assert Instance.objects.get(url=first.url).pk == gone.pk
    others.listed(second)
    others.until(lambda: Instance.objects.get(pk=gone.pk).state == State.STOPPED)
    Instance.objects.filter(pk=gone.pk).update(since=in_seconds(timezone.now(), -3599))
    others.tick()
    assert Instance.objects.filter(pk=gone.pk).exists()
    Instance.objects.filter(pk=gone.pk).update(since=in_seconds(timezone.now(), -3601))
    others.until(lambda: not Instance.objects.filter(pk=gone.pk).exists())


def test_one_half_of_a_disaggregated_sglang_gets_no_requests_as_a_whole_engine(others: Others) -> None:
    engine = others.start("sglang")
    info = {**json.loads(engine.pages["/server_info"]), "disaggregation_mode": "decode"}
    engine.pages["/server_info"] = json.dumps(info)
    others.listed(engine)
    apply(others)
    others.until(lambda: "it is a decode server, which fails alone" in str(others.world.states()))
    assert others.routable() == []
    engine.pages["/server_info"] = json.dumps({**info, "disaggregation_mode": "null"})
    others.until(lambda: others.routable() == [engine.url])


def uncached() -> bool:
    sample = connect().get(redis_keys.instance_key("p-0"))
    return sample is not None and codec.decode(InstanceSample, sample).uncached


@pytest.mark.parametrize(
    ("server", "path", "off"),
    [
        ("vllm", "/metrics", f'{VLLM_PAGE}vllm:cache_config_info{{enable_prefix_caching="False"}} 1.0\n'),
        ("sglang", "/server_info", sglang_info().replace("{", '{"disable_radix_cache": true,', 1)),
        ("trtllm", "/prometheus/metrics", NO_REUSE),
    ],
)
def test_an_engine_restarted_with_prefix_caching_is_known_to_cache(
    others: Others, server: str, path: str, off: str
) -> None:
    engine = others.start(server)
    engine.pages[path] = off
    others.listed(engine)
    apply(others)
    others.until(lambda: others.routable() == [engine.url] and uncached())
    engine.closed = True
    others.until(lambda: others.routable() == [])
    engine.pages[path] = SERVERS[server][path]
    engine.closed = False
    others.until(lambda: others.routable() == [engine.url])
    others.tick()
    assert not uncached()


def test_an_sglang_restarted_as_one_half_of_a_disaggregated_one_gets_no_requests(others: Others) -> None:
    engine = others.start("sglang")
    others.listed(engine)
    apply(others)
    others.until(lambda: others.routable() == [engine.url])
    engine.closed = True
    others.until(lambda: others.routable() == [])
    engine.pages["/server_info"] = sglang_info().replace("{", '{"disaggregation_mode": "decode",', 1)
    engine.closed = False
    others.until(lambda: "it is a decode server, which fails alone" in str(others.world.states()))
    assert others.routable() == []


def test_an_unreachable_source_keeps_its_engines_and_reports_since_when(others: Others) -> None:
    engine = others.start()
    others.listed(engine)
    apply(others)
    others.until(lambda: len(others.routable()) == 1)
    others.path.rename(others.path.with_suffix(".away"))
    for _ in range(3):
        others.tick()
    source = InstanceSource.objects.get()
    assert source.away_since is not None
    assert source.trouble == UNTOLD
    assert others.routable() == [engine.url]
    # Another control worker takes over and has never seen the source answer: the rows still hold.
    others.sources = Sources()
    others.tick()
    assert InstanceSource.objects.get().away_since == source.away_since
    assert others.routable() == [engine.url]
    others.path.with_suffix(".away").rename(others.path)
    others.tick()
    assert InstanceSource.objects.get().away_since is None
    kinds = [event.kind for event in InstanceEvent.objects.filter(pool="p", kind__startswith="source ")]
    assert kinds == ["source back", "source away"]


def test_a_source_that_never_answered_has_no_engines_and_gives_the_reason(others: Others) -> None:
    apply(others, file=str(others.path) + ".no")
    others.tick()
    assert "cannot be read" in InstanceSource.objects.get().trouble
    assert not Instance.objects.exists()
    assert selectors.pool_ready("p") == (0, 0)


def test_another_role_is_another_epoch(others: Others) -> None:
    engine = others.start()
    others.listed(engine, **{"llm-d.ai/role": "prefill"})
    apply(others)
    others.until(lambda: len(others.routable()) == 1)
    assert others.world.published()["p-0"]["role"] == "prefill"
    others.listed(engine, **{"llm-d.ai/role": "decode"})
    others.until(lambda: others.world.one().epoch == 2 and len(others.routable()) == 1)
    assert others.world.published()["p-0"]["role"] == "decode"


def test_an_engine_that_only_lists_its_models_is_ready_with_unknown_figures(others: Others) -> None:
    engine = others.start("openai")
    others.listed(engine)
    apply(others)
    others.until(lambda: len(others.routable()) == 1)
    others.tick()
    row = others.world.one()
    assert (row.facts.server, row.kv_blocks) == ("openai", None)
    engine.close()
    others.engines.clear()
    others.until(lambda: not others.routable())


def test_an_observed_pool_gets_no_requests_until_it_is_served(others: Others) -> None:
    engine = others.start()
    others.listed(engine)
    apply(others, "observe", file=str(others.path))
    others.until(lambda: others.world.states() == {"p-0": "ready: answers /health and serves the model"})
    entry = others.world.published()["p-0"]
    assert (entry["routable"], entry["reason"]) == (False, "it is observed only")
    epoch = others.world.one().epoch
    apply(others, "serve", file=str(others.path))
    others.tick()
    from fleet.control.publish import publish_step

    publish_step()
    assert others.routable() == [engine.url]
    assert others.world.one().epoch == epoch


def test_a_pool_with_a_source_is_scaled_elsewhere(others: Others) -> None:
    apply(others)
    with pytest.raises(NotPossible, match="its source lists the instances"):
        services.scale_pool("p", 3, "ada")


def test_a_pool_that_loses_its_source_forgets_it(others: Others) -> None:
    engine = others.start()
    others.listed(engine)
    apply(others)
    others.until(lambda: len(others.routable()) == 1)
    apply(others, urls=[engine.url])
    others.until(lambda: not InstanceSource.objects.exists() and len(others.routable()) == 1)


def test_pools_share_the_poll_of_one_source() -> None:
    made = []

    class Counted:
        def look(self) -> Any:
            raise SourceAway("no")

        def close(self) -> None:
            made.append("closed")

    from fleet.kinds.external import ExternalSpec

    sources = Sources(lambda spec: made.append("made") or Counted())  # type: ignore[func-returns-value,arg-type]
    chat, code = ExternalSpec(dns="a:1", labels={"pool": "x"}), ExternalSpec(dns="a:1")
    assert sources.look("chat", chat).trouble == sources.look("code", code).trouble == "no"
    sources.keep_only({"code": code})
    assert made == ["made"]
    sources.keep_only({})
    assert made == ["made", "closed"]


def pod(name: str, engine: OtherEngine, ready: bool, **labels: str) -> dict[str, Any]:
    condition = {"type": "Ready", "status": "True" if ready else "False", "message": "" if ready else "probe failed"}
    return {
        "metadata": {"name": name, "uid": f"uid-{name}", "labels": {"app": "vllm", **labels}},
        "spec": {"nodeName": "gpu-1"},
        "status": {"phase": "Running", "podIP": engine.url.split("/")[2].split(":")[0], "conditions": [condition]},
    }


def test_a_pod_is_in_routing_soon_after_it_is_ready_and_out_of_it_soon_after_its_deletion(
    others: Others, clusters: Callable[..., Cluster]
) -> None:
    importlib.import_module("fleet.discovery.sources")  # the client loads slowly on a busy machine
    cluster = clusters()
    first = others.start(address=("127.0.0.11", 0))
    second = others.start(address=("127.0.0.12", first.port))
    cluster.put("pods", "a", pod("a", first, True, **{"llm-d.ai/role": "both"}))
    cluster.put("pods", "other", {**pod("other", first, True), "metadata": {"name": "other", "labels": {"app": "db"}}})
    port = str(first.port)
    apply(others, kubernetes={"namespace": "llm", "selector": "app=vllm", "port": port})
    others.until(lambda: others.routable() == [first.url])
    row = Instance.objects.get()
    assert row.listing is not None
    assert (row.listing.name, row.listing.node, row.listing.labels["app"]) == ("a", "gpu-1", "vllm")

    cluster.put("pods", "b", pod("b", second, False))
    others.until(lambda: Instance.objects.count() == 2)
    for _ in range(3):
        others.tick()
    assert others.routable() == [first.url]
    assert "its Pod is not ready: probe failed" in others.world.states()["p-1"]
    for change, routable in (
        (lambda: cluster.put("pods", "b", pod("b", second, True)), [first.url, second.url]),
        (lambda: cluster.delete("a", 30), [second.url]),
        (lambda: cluster.put("pods", "b", pod("b", second, False)), []),
        (lambda: cluster.put("pods", "b", pod("b", second, True)), [second.url]),
    ):
        before = others.seen()
        change()
        others.comes(before)
        assert others.until(lambda wanted=routable: others.routable() == wanted) <= 2  # type: ignore[misc]
    assert all(method == "GET" for method, _ in cluster.requests)  # Weir changes nothing that belongs to others


def test_pods_are_kept_while_the_api_server_is_unreachable_or_refuses(
    others: Others, clusters: Callable[..., Cluster], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(mirror, "WATCH_S", 1.0)  # a watch that ends without events shows that the server is back
    monkeypatch.setattr(mirror, "_AGAIN_S", 0.05)
    cluster = clusters()
    engine = others.start(address=("127.0.0.11", 0))
    cluster.put("pods", "a", pod("a", engine, True))
    apply(others, kubernetes={"namespace": "llm", "selector": "app=vllm", "port": str(engine.port)})
    others.until(lambda: others.routable() == [engine.url])
    cluster.stop()
    others.until(lambda: "cannot be reached" in InstanceSource.objects.get().trouble)
    assert InstanceSource.objects.get().away_since is not None
    assert others.routable() == [engine.url]
    cluster.start()
    others.until(lambda: InstanceSource.objects.get().away_since is None)
