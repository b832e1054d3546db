"""One vLLM with two data-parallel ranks at one address: each has an endpoint, an index and a header."""

import json
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest

from controlplane.tests.engines.fleet import CODE, PATIENCE_S, Fleet, running
from controlplane.tests.engines.talks import Talk, hold, receipts

pytestmark = [pytest.mark.engines, pytest.mark.timeout(1200)]
BLOCK = 32  # tokens
HITS = "vllm:prefix_cache_hits_total"
RANKS = ("tiny-0#0", "tiny-0#1")


@pytest.fixture(scope="module")
def fleet(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Fleet]:
    text = (CODE / "examples/cpu-plain.yaml").read_text().replace("replicas: 2", "replicas: 1")
    document: Path = tmp_path_factory.mktemp("fleet") / "cpu-ranks.yaml"
    document.write_text(text.replace("block_size: 32", "data_parallel_size: 2\n        block_size: 32"))
    document.write_text(document.read_text().replace("./.engines", str(CODE / ".engines")))
    with running(document) as made:
        yield made


def test_each_rank_is_an_endpoint_whose_cached_tokens_are_predicted(fleet: Fleet) -> None:
    # Each is in the table of ranks and in that of indexes.
    fleet.until(lambda: fleet.page("/fleet/instances/tiny-0/").count(">exact<") >= 4, "both indexes to be believed", 60)
    before = [fleet.metric("tiny-0", f'{HITS}{{engine="{rank}"') for rank in range(2)]
    answered = receipts(fleet, hold(fleet, [Talk(number) for number in range(8)], turns=4, words=100))
    assert {one["index"] for one in answered} == {"exact"}
    assert {one["instance"] for one in answered} == set(RANKS)
    for rank, name in enumerate(RANKS):  # the header selects the rank that the receipt names
        counted = fleet.metric("tiny-0", f'{HITS}{{engine="{rank}"') - before[rank]
        assert counted == sum(one["cached_tokens"] for one in answered if one["instance"] == name) > 0
    errors = [abs(one["predicted_cached"] - one["cached_tokens"]) for one in answered]
    print(
        f"ENGINES ranks: predicted and actual cached tokens of {len(errors)} requests differ by at most {max(errors)}"
    )
    assert max(errors) <= BLOCK


def test_the_engine_refuses_a_rank_that_it_does_not_have_with_the_message_of_simulated_engines(fleet: Fleet) -> None:
    """Routers learn from this message whether an engine counts the ranks of its group or only its own."""

    def named(rank: int) -> tuple[int, str]:
        body = json.dumps({"model": "tiny", "prompt": "1", "max_tokens": 1}).encode()
        headers = {"content-type": "application/json", "X-data-parallel-rank": str(rank)}
        try:
            url = fleet.one("tiny-0")["url"] + "/v1/completions"
            with urllib.request.urlopen(urllib.request.Request(url, body, headers), timeout=PATIENCE_S) as answer:
                return answer.status, ""
        except urllib.error.HTTPError as error:
            with error:
                return error.code, json.load(error)["error"]["message"]

    assert named(1) == (200, "")
    assert named(2) == (400, "data_parallel_rank 2 is out of range [0, 2).")
