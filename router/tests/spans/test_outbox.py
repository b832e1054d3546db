"""Spans wait for the collector, but neither forever nor without bound."""

from collections import Counter

from router.spans.outbox import Outbox


def outbox(spans: int, most: int = 4, batch: int = 2) -> Outbox:
    made = Outbox(most, batch, Counter())
    for number in range(spans):
        made.add(b"%d" % number)
    return made


def test_batches_leave_in_order_one_at_a_time() -> None:
    made = outbox(3)
    assert made.take(0) == [b"0", b"1"]
    assert made.take(0) == []
    made.answered(200, b"{}", "", 0)
    assert made.take(0) == [b"2"]
    assert made.results == {"sent": 2, "rejected": 0}


def test_the_oldest_are_dropped_when_too_many_wait() -> None:
    made = outbox(7)
    assert (made.take(0), made.results) == ([b"3", b"4"], {"dropped": 3})
    made.add(b"7")
    made.unanswered(0)
    assert (made.take(60), len(made), made.results["dropped"]) == ([b"3", b"4"], 2, 4)


def test_an_unreachable_collector_is_retried_at_growing_intervals() -> None:
    made, pauses = outbox(1), []
    for _ in range(7):
        now = made.not_before
        assert made.take(now) == [b"0"]
        made.unanswered(now)
        pauses.append(made.not_before - now)
    assert pauses == [1, 2, 4, 8, 16, 30, 30]


def test_a_collector_is_retried_when_it_asked_to_be() -> None:
    for status in (429, 502, 503, 504):
        made = outbox(1)
        made.take(0)
        made.answered(status, b"", "7", 0)
        assert (made.take(6.9), made.take(7)) == ([], [b"0"])
    made.answered(503, b"", "Thu, 01 Jan 2099 00:00:00 GMT", 10)
    assert 10 < made.not_before < 20


def test_spans_refused_by_the_collector_are_counted() -> None:
    made = outbox(4)
    made.take(0)
    made.answered(200, b'{"partialSuccess": {"rejectedSpans": "1", "errorMessage": "too old"}}', "", 0)
    made.take(0)
    made.answered(400, b"not JSON", "", 0)
    assert made.results == {"sent": 1, "rejected": 1, "failed": 2}
    for answer in (b"", b"[]", b"{", b'{"partialSuccess": {"rejectedSpans": "x"}}', b'{"partialSuccess": 1}'):
        made.add(b"x")
        made.take(0)
        made.answered(200, answer, "", 0)
    assert made.results["sent"] == 6
