from collections.abc import Sequence

import pytest

from controlplane.traffic.deliveries.judge.findings import GuardFinding
from controlplane.traffic.deliveries.judge.memory import Block
from controlplane.traffic.deliveries.judge.switchback import begun, counted, judge, unended
from controlplane.traffic.deliveries.judge.tests.traffic import cells, tally
from controlplane.traffic.deliveries.plan.parsing import parse_plan

PAIRS = 6
PLAN = parse_plan(
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
        found = cells(requests, float(candidate), seed=number, factors=factors, **options)
        made.append(counted(Block(number, bool(candidate), {}, number), [tally(found)]))
    return made


def judged(made: Sequence[Block], *, final: bool = True, earlier: int = 0) -> dict[str, GuardFinding]:
    found = judge(made, PLAN, final=final, earlier=earlier)
    return {f"{each.metric} {each.request_class}": each for each in found}


def test_an_equal_candidate_is_fine() -> None:
    found = judged(blocks())
    assert {name: each.verdict for name, each in found.items() if each.needed} == dict.fromkeys(
        ("ttft warm", "ttft medium", "ttft heavy", "tpot warm"), "fine"
    )
    assert found["slow heavy"].verdict == "inconclusive"


def test_a_candidate_half_as_slow_again_fails() -> None:
    found = judged(blocks(1.5))
    assert found["ttft warm"].verdict == "fail"
    assert found["ttft warm"].estimate == pytest.approx(0.5, abs=0.1)
    assert found["slow heavy"].verdict == "fail"


def test_a_faster_candidate_is_fine() -> None:
    assert judged(blocks(0.8))["ttft heavy"].verdict == "fine"


def test_a_difference_that_varies_from_pair_to_pair_is_inconclusive() -> None:
    """With a tenth of the requests, pairs differ by chance."""
    made = [
        replace_classes(each, blocks(2.0 if each.number in (1, 5) else 0.7)[each.number]) if each.candidate else each
        for each in blocks()
    ]
    assert judged(made)["ttft warm"].verdict == "inconclusive"


def replace_classes(block: Block, other: Block) -> Block:
    return Block(block.number, block.candidate, other.classes)


def test_missing_pairs_count_as_no_data() -> None:
    found = judged(blocks(count=9))["ttft warm"]
    assert (found.verdict, found.text) == ("no_data", "4 of 6 pairs of blocks have enough warm requests")


def test_blocks_with_few_requests_count_as_no_data() -> None:
    assert judged(blocks(requests=60))["ttft heavy"].verdict == "no_data"


def test_without_any_request_nothing_is_judged() -> None:
    assert {each.verdict for each in judged([]).values()} == {"no_data"}


def test_a_rare_class_is_not_judged() -> None:
    assert judged(blocks(mix=(0.6, 0.395, 0.005)))["ttft heavy"].verdict == "not_judged"


def test_a_rare_class_with_too_few_pairs_does_not_keep_a_good_candidate_from_passing() -> None:
    found = judged(blocks(mix=(0.6, 0.38, 0.02)))
    assert (found["ttft heavy"].verdict, found["ttft warm"].verdict) == ("deferred", "fine")
    assert found["ttft heavy"].text.endswith("too rare for blocks of this length: not judged")


def test_the_judge_waits_for_a_rare_class_that_points_to_harm() -> None:
    """Each of the few requests is twice as slow."""
    made = [
        counted(
            Block(number, bool(candidate), {}),
            [tally(cells(800, float(candidate), seed=number, factors={"heavy": 3.0}, mix=(0.6, 0.38, 0.02)))],
        )
        for number, candidate in enumerate(SCHEDULE)
    ]
    found = judged(made)["ttft heavy"]
    assert found.verdict == "no_data"
    assert "this step waits for it" in found.text


def test_a_switchback_has_an_estimate_but_no_verdict_before_its_end() -> None:
    found = judged(blocks(1.5, count=8), final=False)["ttft warm"]
    assert (found.verdict, found.text) == ("no_data", "4 of 6 pairs of blocks have enough warm requests")
    assert found.estimate == pytest.approx(0.5, abs=0.1)
    assert judged(blocks(1.5), final=False)["ttft warm"].verdict == "inconclusive"


def test_each_judgement_with_more_pairs_has_a_wider_interval() -> None:
    first, second = judged(blocks())["ttft warm"], judged(blocks(), earlier=1)["ttft warm"]
    assert first.estimate == second.estimate
    assert [second.upper, first.upper, first.lower, second.lower] == sorted(
        [second.upper, first.upper, first.lower, second.lower], reverse=True
    )


def test_a_block_includes_answers_that_end_after_it() -> None:
    early = cells(400, 1.0)
    block = counted(begun([], 3, True, 12)[0], [tally(early)])
    assert (block.number, block.generation, block.total("ended"), unended([block])) == (3, 12, 400, 0)
    later = counted(block, [tally(early), tally(cells(100, 1.0, seed=2), router="r2")])
    assert later.total("ended") == 500


def test_a_block_keeps_its_counts_after_a_router_has_forgotten_them() -> None:
    block = counted(Block(0, True, {}, 1), [tally(cells(400, 1.0))])
    assert counted(block, []) == block


def test_a_block_that_is_repeated_is_counted_again() -> None:
    first, second = blocks(count=2)
    assert begun([first, second], 1, True, 9) == [first, Block(1, True, {}, 9)]


def test_a_block_counts_the_arm_that_had_the_pool() -> None:
    """Requests that began in the previous block count in no arm of this one."""
    found = cells(400, 0.5)
    candidate, control = (counted(Block(0, arm, {}), [tally(found)]).total("n") for arm in (True, False))
    assert candidate + control == 400
    assert candidate == sum(one.n for each in found["candidate"].values() for one in each.values())
