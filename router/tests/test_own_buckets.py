"""Limits of API keys that one router counts for itself."""

from hypothesis import given
from hypothesis import strategies as st

from router.limits.local_buckets import OwnBuckets
from router.limits.token_buckets import Wish


def wish(needed, wanted=None, *, kind="requests", limit=60):
    return Wish(kind, limit, needed, needed if wanted is None else wanted)


def test_a_new_key_has_a_full_minute_and_is_lent_what_it_wants():
    loan = OwnBuckets().lend("ci", [wish(1, 5)], now=0)
    assert (loan.wait_s, loan.granted, loan.left) == (0, (5,), (55,))


def test_an_empty_bucket_says_how_long_until_it_holds_what_is_needed():
    buckets = OwnBuckets()
    buckets.lend("ci", [wish(60)], now=0)
    loan = buckets.lend("ci", [wish(3)], now=1)
    assert (loan.wait_s, loan.granted) == (2, (0,))
    assert buckets.lend("ci", [wish(3)], now=3).granted == (3,)


def test_all_kinds_are_lent_or_none():
    buckets = OwnBuckets()
    loan = buckets.lend("ci", [wish(1), wish(11, kind="tokens", limit=10)], now=0)
    assert loan.wait_s == 6
    assert loan.left == (60, 10)


def test_what_is_given_back_can_be_lent_again_but_never_more_than_the_limit():
    buckets = OwnBuckets()
    buckets.lend("ci", [wish(60)], now=0)
    assert buckets.lend("ci", [wish(0, -5)], now=0).left == (5,)
    assert buckets.lend("ci", [wish(0, -500)], now=0).left == (60,)


def test_keys_have_buckets_of_their_own_and_one_that_went_begins_anew():
    buckets = OwnBuckets()
    buckets.lend("ci", [wish(60)], now=0)
    buckets.lend("cd", [wish(20)], now=0)
    buckets.keep_only(["cd"])
    assert buckets.lend("ci", [wish(60)], now=0).granted == (60,)
    assert buckets.lend("cd", [wish(0)], now=0).left == (40,)


async def test_it_lends_by_the_clock_of_the_loop():
    loan = await OwnBuckets().borrow("ci", [wish(1)])
    assert loan is not None
    assert loan.granted == (1,)


@given(st.lists(st.tuples(st.floats(0, 5), st.integers(1, 60)), max_size=60))
def test_nobody_is_lent_more_than_the_bucket_and_what_flowed_into_it(steps):
    buckets, now, lent = OwnBuckets(), 0.0, 0.0
    for pause, needed in steps:
        now += pause
        lent += buckets.lend("ci", [wish(needed)], now).granted[0]
    assert lent <= 60 + now + 1e-6
