import itertools

import pytest

from controlplane.traffic.deliveries.judge.sums import OLD_S, Life, gather
from controlplane.traffic.deliveries.judge.tests.traffic import cells, tally
from router.contract.redis.delivery import DeliveryTally, ShadowTally

ONE, TWO = (tally(cells(400, seed=seed), router=f"r{seed}") for seed in (1, 2))


def gathered(*tallies: DeliveryTally, now: float = 100.0, known: dict[str, Life] | None = None, **options: object):
    given = {"unreadable": (), "routers": (), "since": 95.0, **options}
    return gather(tallies, given["unreadable"], given["routers"], known or {}, given["since"], now)  # type: ignore[arg-type]


def test_tallies_of_routers_are_added() -> None:
    evidence, _ = gathered(ONE, TWO)
    for arm, name in itertools.product(("candidate", "control"), ("warm", "medium", "heavy")):
        for cell in range(64):
            parts = [each.cells[arm].get(name, {}).get(cell) for each in (ONE, TWO)]
            found = evidence.of(arm, name).get(cell)
            assert (found.n if found else 0) == sum(part.n for part in parts if part)
            assert (found.ttft.xy if found else 0) == pytest.approx(sum(part.ttft.xy for part in parts if part))


def test_the_order_of_routers_makes_no_difference() -> None:
    three = tally(cells(400, seed=3), router="r3")
    first, *others = [gathered(*order)[0] for order in itertools.permutations((ONE, TWO, three))]
    for other in others:
        assert other.total("candidate").n == first.total("candidate").n
        assert other.total("candidate").ttft.y == pytest.approx(first.total("candidate").ttft.y)


def test_a_tally_written_twice_counts_once() -> None:
    once, lives = gathered(ONE)
    again, _ = gathered(tally(ONE.cells, router="r1", written=2), known=lives, now=105.0)
    assert again.total("control") == once.total("control")
    assert again.problems == ()


def test_the_incarnations_of_a_router_are_added() -> None:
    evidence, _ = gathered(ONE, tally(ONE.cells, router="r1", life="b"))
    assert evidence.total("control").n == 2 * gathered(ONE)[0].total("control").n


def test_a_tally_that_has_shrunk_is_a_problem() -> None:
    _, lives = gathered(ONE)
    less = tally(cells(200, seed=1), router="r1", written=2)
    evidence, _ = gathered(less, known=lives)
    assert evidence.problems == ("router r1.a has 200 requests in its tally and had 400",)


def test_a_tally_that_has_disappeared_is_a_problem() -> None:
    _, lives = gathered(ONE)
    evidence, still = gathered(known=lives)
    assert evidence.problems == ("router r1.a has no requests in its tally and had 400",)
    assert "r1.a" in still  # and stays a problem until the step begins again


def test_an_unreadable_tally_is_a_problem() -> None:
    assert gathered(unreadable=["demo:r1.a"])[0].problems == ("the tally of demo:r1.a is unreadable",)


def test_a_live_router_that_does_not_write_is_a_problem() -> None:
    _, lives = gathered(ONE, routers=["r1"], now=100.0)
    late, _ = gathered(ONE, routers=["r1"], known=lives, now=100.0 + OLD_S + 1)
    assert late.problems == ("router r1 has not written its tally for 16 s",)
    wrote, _ = gathered(tally(ONE.cells, written=2), routers=["r1"], known=lives, now=100.0 + OLD_S + 1)
    assert wrote.problems == ()


def test_a_router_that_never_wrote_gets_the_full_time_from_the_first_look() -> None:
    assert gathered(routers=["r9"], now=100.0, since=95.0)[0].problems == ()
    assert gathered(routers=["r9"], now=111.0, since=95.0)[0].problems != ()


def test_an_ended_router_need_not_write() -> None:
    _, lives = gathered(ONE)
    assert gathered(ONE, known=lives, now=500.0)[0].problems == ()


def test_shadow_tallies_are_added() -> None:
    shadows = [ShadowTally(n=10, changed=2, to={"a": 7}, sample=1.0), ShadowTally(n=5, to={"a": 1, "b": 4}, sample=0.5)]
    evidence, _ = gathered(*(tally({}, router=f"r{n}", shadow=one) for n, one in enumerate(shadows)))
    assert (evidence.shadow.n, evidence.shadow.changed, evidence.shadow.sample) == (15, 2, 0.5)
    assert evidence.shadow.to == {"a": 8, "b": 4}


def test_a_missing_tally_is_not_evidence() -> None:
    evidence, lives = gathered()
    assert (evidence.total("candidate").n, evidence.shadow.n, lives) == (0, 0, {})
