"""The load range of a calibration, and how much of another load is outside it."""

from fleet.engine.engine_model import LoadRange, RequestLoad, ServedRequest, in_flight

KNOWN = LoadRange((2, 8), (100, 4_000))
UNKNOWN = "the calibration did not, and its error is not known there"


def test_concurrent_requests_are_those_still_running_at_the_arrival() -> None:
    served = [ServedRequest(0, 10, 1), ServedRequest(1, 2, 1), ServedRequest(2, 5, 1), ServedRequest(20, 21, 1)]
    assert in_flight(served) == [1, 2, 3, 1]


def test_the_range_leaves_out_the_outermost_requests() -> None:
    load = RequestLoad([*range(1, 101)], [50] + [500] * 98 + [90_000])
    assert load.range == LoadRange((6, 95), (500, 500))
    assert RequestLoad([3], [7]).range == LoadRange((3, 3), (7, 7))


def test_only_much_more_or_much_less_than_known_is_outside() -> None:
    assert RequestLoad([10] * 100, [80] * 100).outside(KNOWN) == ()  # a little more, a little less
    assert RequestLoad([11] * 20 + [5] * 80, [1_000] * 100).outside(KNOWN) == ()  # a few
    assert RequestLoad([11] * 60 + [5] * 40, [10] * 100).outside(KNOWN) == (
        "60 of 100 requests see more than 8 requests at once on an instance; " + UNKNOWN,
        "100 of 100 requests see fewer than 100 new tokens in a prompt; " + UNKNOWN,
    )
    assert RequestLoad([], []).outside(KNOWN) == ()
