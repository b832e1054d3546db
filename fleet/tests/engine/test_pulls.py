"""KV pulled from another engine: blocks held there, and blocks reserved for it here."""

from fleet.engine.engine import Engine
from fleet.engine.request import EngineRequest
from fleet.tests.engine.builders import engine, request


def pulling(name: str, prompt: int, output: int, **words: object) -> EngineRequest:
    made = request(name, prompt, output, **words)  # type: ignore[arg-type]
    made.pull_tokens = prompt
    return made


def run(made: Engine) -> None:
    while made.step() is not None:
        pass


def test_blocks_of_a_held_request_stay_in_use_until_they_are_released() -> None:
    made, first = engine(), request("a", 320, 1)
    first.held = True
    made.add_request(first, 0.0)
    run(made)
    assert first.is_over
    assert (made.stats().running, made.stats().held_blocks) == (0, 20)
    assert made.pool.free == 980
    assert made.held("a") is first
    assert made.release_held("a", 0.1)
    assert made.stats().kv_usage == 0
    assert not made.release_held("a", 0.1)


def test_an_aborted_request_is_not_held() -> None:
    made, first = engine(), request("a", 320, 1)
    first.held = True
    made.add_request(first, 0.0)
    made.advance(0.016)
    made.abort("a")
    assert made.held("a") is None
    assert made.stats().kv_usage == 0


def test_a_request_with_kv_from_elsewhere_gets_its_blocks_and_waits() -> None:
    made, one = engine(), pulling("a", 320, 4)
    made.add_request(one, 0.0)
    assert made.step() is None
    assert made.take_pulls() == [one]
    assert made.take_pulls() == []
    assert (made.stats().running, made.stats().waiting) == (0, 1)
    assert made.pool.free == 980
    assert made.next_event_s() is None


def test_a_request_decodes_after_its_pull_with_one_token_computed() -> None:
    made, one = engine(), pulling("a", 320, 4)
    made.add_request(one, 0.0)
    made.step()
    made.pulled(one, 320, 0.5)
    step = made.step()
    assert step is not None
    assert (step.start_s, step.scheduled, step.first) == (0.5, 1, [one])
    assert (one.cached_tokens, one.pulled_tokens) == (319, 319)
    run(made)
    assert one.generated == 4
    stats = made.stats()
    assert (stats.pull_queries, stats.pull_hits, stats.cache_hits) == (320, 319, 0)


def test_pulled_blocks_are_hit_by_the_next_request() -> None:
    made = engine()
    one = pulling("a", 320, 1, family="f", shared=320)
    made.add_request(one, 0.0)
    made.step()
    made.pulled(one, 320, 0.5)
    run(made)
    other = request("b", 336, 1, family="f", shared=320)
    made.add_request(other, 1.0)
    run(made)
    assert other.cached_tokens == 320


def test_blocks_in_the_instances_own_cache_are_not_pulled() -> None:
    made = engine()
    made.add_request(request("a", 320, 1, family="f", shared=160), 0.0)
    run(made)
    one = pulling("b", 320, 1, family="f", shared=160)
    made.add_request(one, 1.0)
    made.step()
    made.pulled(one, 320, 1.5)
    run(made)
    assert (one.cached_tokens, one.pulled_tokens) == (319, 159)
    assert made.stats().pull_queries == 160


def test_a_request_covered_by_the_engines_own_cache_waits_for_nothing() -> None:
    made = engine()
    made.add_request(request("a", 321, 1, family="f", shared=320), 0.0)
    run(made)
    one = request("b", 321, 1, family="f", shared=320)
    one.pull_tokens = 320
    made.add_request(one, 1.0)
    run(made)
    assert made.take_pulls() == []
    assert (one.generated, one.cached_tokens) == (1, 320)


def test_after_a_failed_pull_the_prompt_is_computed_here() -> None:
    made, one = engine(), pulling("a", 320, 2)
    made.add_request(one, 0.0)
    made.step()
    made.pulled(one, 0, 0.5)
    step = made.step()
    assert step is not None
    assert (step.scheduled, one.cached_tokens, one.pulled_tokens) == (320, 0, 0)


def test_an_aborted_pull_frees_its_blocks_and_ignores_later_data() -> None:
    made, one = engine(), pulling("a", 320, 2)
    made.add_request(one, 0.0)
    made.step()
    made.abort("a")
    made.pulled(one, 320, 0.5)
    assert made.step() is None
    assert made.stats().kv_usage == 0


def test_other_requests_run_while_one_waits_for_its_kv() -> None:
    made, one = engine(), pulling("a", 320, 2)
    other = request("b", 320, 8)
    made.add_request(one, 0.0)
    made.add_request(other, 0.0)
    run(made)
    assert other.generated == 8
    assert one.generated == 0


def test_a_request_with_its_blocks_does_not_wait_behind_one_without() -> None:
    made, one = engine(blocks=30), pulling("a", 320, 2)
    made.add_request(one, 0.0)
    made.step()
    made.add_request(request("b", 400, 2), 0.1)
    assert made.step() is None  # b does not fit until a is over
    assert made.next_event_s() is None
    made.pulled(one, 320, 0.5)
    run(made)
    assert one.generated == 2
    assert made.stats().waiting == 0
