from collections.abc import Sequence
from dataclasses import replace

import pytest

from controlplane.deliveries import plan as plans
from controlplane.deliveries.judge.findings import GuardFinding
from controlplane.deliveries.judge.memory import Block
from controlplane.deliveries.judge.switchback import block_of, judge, replaced
from controlplane.deliveries.judge.tests.traffic import evidence

PAIRS = 6
PLAN = plans.parse(
    {
        "steps": [
            {"mode": "canary", "share": 0.1, "for_s": 60},
            {"mode": "switchback", "block_s": 300, "pairs": PAIRS},
            {"mode": "full"},
        ],
        "guards": [
            {"metric": "ttft", "worse": 0.1, "fine": 0.25},
            {"metric": "tpot", "classes": ["warm"], "worse": 0.1, "fine": 0.25},
            {"metric": "slow", "classes": ["heavy"], "worse": 0.05},
        ],
    },
    pools=["demo"],
)
SCHEDULE = [0, 1, 1, 0, 0, 1, 1, 0, 1, 0, 0, 1]


def blocks(factor: float = 1.0, requests: int = 800, count: int = 12, **options: object) -> list[Block]:
    made = []
    for number, candidate in enumerate(SCHEDULE[:count]):
        factors = dict.fromkeys(("warm", "medium", "heavy"), factor)
        found = evidence(requests, float(candidate), seed=number, factors=factors, **options)
        made.append(block_of(found, number, bool(candidate)))
    return made


def judged(made: Sequence[Block]) -> dict[str, GuardFinding]:
    return {f"{each.metric} {each.request_class}": each for each in judge(made, PLAN, PAIRS)}


def test_alike_is_fine() -> None:
    found = judged(blocks())
    assert {name: each.verdict for name, each in found.items() if each.needed} == dict.fromkeys(
        ("ttft warm", "ttft medium", "ttft heavy", "tpot warm"), "fine"
    )
    assert found["slow heavy"].verdict == "inconclusive"


def test_half_as_slow_again_fails() -> None:
    found = judged(blocks(1.5))
    assert found["ttft warm"].verdict == "fail"
    assert found["ttft warm"].estimate == pytest.approx(0.5, abs=0.1)
    assert found["slow heavy"].verdict == "fail"


def test_faster_is_fine() -> None:
    assert judged(blocks(0.8))["ttft heavy"].verdict == "fine"


def test_what_changes_from_pair_to_pair_is_inconclusive() -> None:
    """A tenth of the requests: pairs differ by chance."""
    made = [
        replace_classes(each, blocks(2.0 if each.number in (1, 5) else 0.7)[each.number]) if each.candidate else each
        for each in blocks()
    ]
    assert judged(made)["ttft warm"].verdict == "inconclusive"


def replace_classes(block: Block, other: Block) -> Block:
    return Block(block.number, block.candidate, other.classes)


def test_missing_pairs_are_no_data() -> None:
    found = judged(blocks(count=9))["ttft warm"]
    assert (found.verdict, found.text) == ("no_data", "4 of 6 pairs of blocks have enough warm requests")


def test_blocks_with_few_requests_are_no_data() -> None:
    assert judged(blocks(requests=60))["ttft heavy"].verdict == "no_data"


def test_without_any_request_nothing_is_judged() -> None:
    assert {each.verdict for each in judged([]).values()} == {"no_data"}


def test_a_rare_class_is_not_judged() -> None:
    assert judged(blocks(mix=(0.6, 0.395, 0.005)))["ttft heavy"].verdict == "not_judged"


def test_a_block_is_replaced_until_it_is_over() -> None:
    first, second = blocks(count=2)
    later = Block(1, True, {})
    assert replaced([first, second], later) == [first, later]


def test_a_block_counts_the_arm_that_had_the_pool() -> None:
    """Requests that began in the block before are counted in no arm of this one."""
    found = evidence(400, 0.5)
    whole = sum(tally.n for tally in block_of(found, 0, True).classes.values())
    assert whole == found.total("candidate").n
    assert replace(found).total("control").n + whole == 400
