"""The split of a pool: which requests the candidate gets, and when the live version serves all of them."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from router.contract.redis.codec import Unreadable
from router.contract.redis.published import CandidateVersion, FullRollout
from router.policy.schema import document
from router.policy.schema.parameters import belongs_to_pool
from router.pool.pool import Pool
from router.pool.rollout import SplitState, cell_of, hashed, is_candidate, read_candidate
from router.tests.pool.splits import candidate, policy_value, split

NAMES = [f"session {number}" for number in range(20_000)]
shares = st.floats(0, 1)


@given(st.text(), st.text(max_size=20), shares, shares)
def test_a_growing_share_moves_no_session_back(salt: str, name: str, one: float, other: float) -> None:
    key = hashed(salt, name)
    less, more = sorted((one, other))
    assert is_candidate(key, less) <= is_candidate(key, more)
    assert not is_candidate(key, 0.0)
    assert is_candidate(key, 1.0)


@pytest.mark.parametrize("share", [0.05, 0.25, 0.5])
def test_the_candidate_gets_its_share_in_every_cell(share: float) -> None:
    keys = [hashed("a salt", name) for name in NAMES]
    chosen = [is_candidate(key, share) for key in keys]
    assert abs(sum(chosen) / len(keys) - share) < 0.015
    cells: dict[int, list[bool]] = {}
    for key, is_chosen in zip(keys, chosen, strict=True):
        cells.setdefault(cell_of(key), []).append(is_chosen)
    assert set(cells) == set(range(64))
    # 312 sessions per cell: five standard deviations of the share
    assert max(abs(sum(cell) / len(cell) - share) for cell in cells.values()) < 5 * (share * (1 - share) / 280) ** 0.5


def test_another_salt_chooses_other_sessions() -> None:
    first, second = ({name for name in NAMES if is_candidate(hashed(salt, name), 0.1)} for salt in ("one", "two"))
    assert abs(len(first & second) / len(NAMES) - 0.01) < 0.005


def test_a_session_keeps_its_arm_and_cell_and_a_request_without_one_gets_its_own() -> None:
    state = running()
    assert state.assign("s", "r1", 1.0) == state.assign("s", "r2", 2.0)
    keys = {made.key for number in range(10) if (made := state.assign(None, f"r{number}", 1.0))}
    assert len(keys) == 10


def running(*, watched_until: float = 30.0, **changes: object) -> SplitState:
    state = SplitState(split(**changes), document.parse(document.default("lpwl")))
    state.watched(7, watched_until, 0.0)
    return state


# States


def test_a_split_starts_when_its_watch_begins() -> None:
    state = running(watched_until=-1.0)
    assert (state.state(0.0), state.assign("s", "r", 0.0)) == ("off", None)
    state.watched(6, 30.0, 0.0)
    assert state.state(0.0) == "off"
    state.watched(7, 30.0, 1.0)
    assert state.state(1.0) == "on"
    assert state.counts_from == 1.0 + state.rollout.warmup_s
    assert state.trouble(1.0) == ""


def test_a_split_continues_while_its_watch_is_renewed_and_ends_for_good_when_it_is_not() -> None:
    state = running()
    state.watched(7, 40.0, 10.0)
    state.watched(7, 35.0, 12.0)  # read before, answered later
    assert state.state(39.9) == "on"
    assert state.state(40.0) == "unwatched"
    state.watched(7, 80.0, 50.0)
    assert state.state(50.0) == "unwatched"
    assert state.trouble(50.0) == "delivery 7 has not been watched for too long: the live version serves all requests"


def test_a_renewal_that_comes_too_late_does_not_count() -> None:
    state = running()
    state.watched(7, 60.0, 30.5)
    assert state.state(30.5) == "unwatched"


@pytest.mark.parametrize(("delivery", "is_meant"), [(7, True), (0, True), (6, False)])
def test_a_stop_of_this_delivery_or_of_all_trips_the_split(delivery: int, is_meant: bool) -> None:
    state = running()
    assert state.stopped(delivery, "an operator pressed Abort") is is_meant
    assert state.stopped(delivery, "again") is False
    assert state.state(1.0) == ("tripped" if is_meant else "on")
    assert ("an operator pressed Abort" in state.trouble(1.0)) is is_meant
    state.watched(7, 99.0, 2.0)
    assert (state.assign("s", "r", 2.0) is None) is is_meant


@pytest.mark.parametrize(
    ("delivery", "generation", "joins"), [(7, 3, False), (7, 2, False), (7, 4, True), (8, 1, True)]
)
def test_only_a_newer_generation_or_another_delivery_starts_over(delivery: int, generation: int, joins: bool) -> None:
    before = running()
    before.stopped(7, "tripped")
    after = SplitState(split(delivery=delivery, generation=generation), before.candidate)
    after.follow(before, 1.0)
    after.watched(delivery, 30.0, 1.0)
    assert after.state(1.0) == ("on" if joins else "tripped")


def test_a_generation_that_is_published_again_continues() -> None:
    before = running(warmup_s=5.0)
    after = SplitState(split(warmup_s=5.0), before.candidate)
    after.follow(before, 1.0)
    assert (after.state(29.0), after.state(30.0), after.counts_from) == ("on", "unwatched", 5.0)


def test_the_next_generation_needs_no_new_watch() -> None:
    before = running()
    after, late, other = (SplitState(split(delivery=d, generation=4), before.candidate) for d in (7, 7, 8))
    for state, now in ((other, 1.0), (after, 1.0), (late, 30.0)):
        state.follow(before, now)
    assert (after.state(29.0), after.state(30.0), after.counts_from) == ("on", "unwatched", 1.0)
    assert (late.state(30.0), other.state(1.0)) == ("off", "off")


def test_a_request_is_decided_by_the_candidate_only_while_the_split_of_its_delivery_is_on() -> None:
    state = running(share=1.0)
    assigned = state.assign("s", "r", 1.0)
    assert assigned is not None
    assert state.policy_of(assigned, 1.0) is state.candidate
    later = SplitState(split(generation=4, share=1.0), state.candidate)
    assert later.policy_of(assigned, 1.0) is None  # no watch yet
    later.watched(7, 30.0, 1.0)
    assert later.policy_of(assigned, 1.0) is later.candidate
    still = SplitState(split(generation=5, share=0.0), state.candidate)
    still.watched(7, 30.0, 1.0)
    assert still.policy_of(assigned, 1.0) is None
    other = SplitState(split(delivery=8), state.candidate)
    other.watched(8, 30.0, 1.0)
    assert other.policy_of(assigned, 1.0) is None
    assert state.policy_of(assigned, 31.0) is None
    control = running(share=0.0).assign("s", "r", 1.0)
    assert control is not None
    assert state.policy_of(control, 1.0) is None


# Pools


def test_the_candidate_keeps_the_parameters_that_the_pool_overrides_in_the_live_version() -> None:
    values = {
        "admission.share_warm": 9.0,
        "admission.max_queue_heavy": 1,
        "affinity.ttl_s": 60,
        "load.request_tokens": 1,
    }
    live = document.parse(document.apply_overrides(document.default(), {"failure.breaker_failures": 9}))
    made = document.apply_overrides(document.default("lpwl"), {**values, "failure.breaker_failures": 2})
    read = read_candidate(candidate(made), live)
    of_the_pool = [path for path in live if belongs_to_pool(path)]
    assert len(of_the_pool) == 10
    assert [read[path] for path in of_the_pool] == [live[path] for path in of_the_pool]
    assert (read["strategy.name"], read["load.request_tokens"], read["failure.breaker_failures"]) == ("lpwl", 1, 9)


def test_a_generation_is_taken_once_and_the_way_back_needs_no_candidate() -> None:
    pool = Pool("demo")
    assert pool.take_policy(policy_value(split()), 1.0)
    assert pool.split is not None
    assert (pool.generation, pool.split.state(0.0), pool.acked_at) == (3, "off", 1.0)
    assert not pool.take_policy(policy_value(split()), 2.0)
    before = pool.split
    assert pool.take_policy(policy_value(split(generation=4)), 3.0)
    assert pool.split is not before
    assert pool.take_policy(policy_value(FullRollout(generation=5)), 4.0)
    assert (pool.split, pool.generation, pool.acked_at) == (None, 5, 4.0)


def test_a_tripped_generation_stays_tripped_when_it_is_published_again_later() -> None:
    pool = Pool("demo")
    pool.take_policy(policy_value(split()), 1.0)
    pool.trip("KeyError: 'x'", "req-1")
    pool.take_policy(policy_value(FullRollout(generation=4)), 2.0)
    pool.take_policy(policy_value(split()), 3.0)
    assert pool.split is not None
    assert (pool.split.state(0.0), pool.split.why) == ("tripped", "KeyError: 'x'")


def test_only_the_first_raise_is_reported() -> None:
    pool, told = Pool("demo"), []
    pool.trip("no split", "req-0")
    pool.on_trip = lambda pool, why, request: told.append((pool.name, why, request))
    pool.take_policy(policy_value(split()), 1.0)
    pool.trip("KeyError: 'x'", "req-1")
    pool.trip("KeyError: 'y'", "req-2")
    assert told == [("demo", "KeyError: 'x'", "req-1")]


BAD = [
    ({"sha256": "0" * 64}, "candidate version 44: the document does not match its sha256"),
    ({"document": {"strategy": {"name": "nosuch"}}}, "candidate version 44: .*strategy.name"),
]


@pytest.mark.parametrize(("changes", "why"), BAD)
def test_a_candidate_that_cannot_be_read_leaves_the_new_live_version_in_force(
    changes: dict[str, object], why: str
) -> None:
    pool = Pool("demo")
    pool.take_policy(policy_value(split(generation=2)), 1.0)
    bad = CandidateVersion(**{"version": 44, "sha256": "", "document": document.default("lpwl"), **changes})  # type: ignore[arg-type]
    value = policy_value(split(candidate=bad), version=43, strategy="least_requests")
    with pytest.raises(Unreadable, match=why):
        pool.take_policy(value, 2.0)
    assert pool.split is not None
    assert (pool.version, pool.policy["strategy.name"], pool.generation) == (43, "least_requests", 2)
    assert (pool.split.state(0.0), pool.split.assign("s", "r", 0.0)) == ("unreadable", None)
    assert not pool.split.stopped(0, "why")
    with pytest.raises(Unreadable, match=why):
        pool.take_policy(value, 2.0)
    assert pool.take_policy(policy_value(split(), version=43, strategy="least_requests"), 3.0)
    pool.split.watched(7, 30.0, 0.0)
    assert pool.split.state(0.0) == "on"


def test_a_document_is_read_once_for_each_version(monkeypatch: pytest.MonkeyPatch) -> None:
    pool, value, next_value = Pool("demo"), policy_value(FullRollout()), policy_value(FullRollout(generation=1))
    pool.take_policy(value, 1.0)
    monkeypatch.setattr(document, "sha256", lambda made: pytest.fail("the document is hashed again"))
    assert not pool.take_policy(value, 2.0)
    assert pool.take_policy(next_value, 2.0)
