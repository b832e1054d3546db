"""Limits of API keys that a single router counts by itself."""

from hypothesis import given
from hypothesis import strategies as st

from router.limits.token_buckets import TokenRequest
from router.standalone.file_source import LocalBuckets


def token_request(needed, wanted=None, *, kind="requests", limit=60):
    return TokenRequest(kind, limit, needed, needed if wanted is None else wanted)


def test_a_new_key_has_a_full_bucket_and_is_granted_what_it_requests():
    grant = LocalBuckets().lend("ci", [token_request(1, 5)], now=0)
    assert (grant.wait_s, grant.granted, grant.left) == (0, (5,), (55,))


def test_an_empty_bucket_says_when_it_will_hold_enough():
    buckets = LocalBuckets()
    buckets.lend("ci", [token_request(60)], now=0)
    grant = buckets.lend("ci", [token_request(3)], now=1)
    assert (grant.wait_s, grant.granted) == (2, (0,))
    assert buckets.lend("ci", [token_request(3)], now=3).granted == (3,)


def test_all_kinds_are_lent_or_none():
    buckets = LocalBuckets()
    grant = buckets.lend("ci", [token_request(1), token_request(11, kind="tokens", limit=10)], now=0)
    assert grant.wait_s == 6
    assert grant.left == (60, 10)


def test_returned_tokens_can_be_granted_again_but_never_more_than_the_limit():
    buckets = LocalBuckets()
    buckets.lend("ci", [token_request(60)], now=0)
    assert buckets.lend("ci", [token_request(0, -5)], now=0).left == (5,)
    assert buckets.lend("ci", [token_request(0, -500)], now=0).left == (60,)


def test_each_key_has_its_own_bucket_and_a_returning_key_starts_with_a_full_one():
    buckets = LocalBuckets()
    buckets.lend("ci", [token_request(60)], now=0)
    buckets.lend("cd", [token_request(20)], now=0)
    buckets.keep_only(["cd"])
    assert buckets.lend("ci", [token_request(60)], now=0).granted == (60,)
    assert buckets.lend("cd", [token_request(0)], now=0).left == (40,)


async def test_a_bucket_refills_by_the_clock_of_the_loop():
    grant = await LocalBuckets().borrow("ci", [token_request(1)])
    assert grant is not None
    assert grant.granted == (1,)


@given(st.lists(st.tuples(st.floats(0, 5), st.integers(1, 60)), max_size=60))
def test_grants_never_exceed_the_bucket_and_its_refill(steps):
    buckets, now, lent = LocalBuckets(), 0.0, 0.0
    for pause, needed in steps:
        now += pause
        lent += buckets.lend("ci", [token_request(needed)], now).granted[0]
    assert lent <= 60 + now + 1e-6
