"""Decide which requests are sampled, and under which identity."""

import pytest

from router.spans import context
from router.spans.context import Parent
from router.spans.sampler import Sampler
from router.spans.settings import SAMPLERS, SpanSettings

TRACE, SPAN = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"


@pytest.mark.parametrize(
    ("header", "found"),
    [
        (f"00-{TRACE}-{SPAN}-01", Parent(TRACE, SPAN, True)),
        (f" 00-{TRACE}-{SPAN}-00 ", Parent(TRACE, SPAN, False)),
        (f"00-{TRACE}-{SPAN}-03", Parent(TRACE, SPAN, True)),
        (f"cc-{TRACE}-{SPAN}-01-what-comes", Parent(TRACE, SPAN, True)),
        (f"00-{TRACE}-{SPAN}-01-more", None),
        (f"ff-{TRACE}-{SPAN}-01", None),
        (f"00-{TRACE.upper()}-{SPAN}-01", None),
        (f"00-{'0' * 32}-{SPAN}-01", None),
        (f"00-{TRACE}-{'0' * 16}-01", None),
        (f"00-{TRACE}-{SPAN}", None),
        (f"00-{TRACE}-{SPAN}-1", None),
        ("", None),
    ],
)
def test_only_well_formed_headers_are_accepted(header: str, found: Parent | None) -> None:
    assert context.parse(header.encode()) == found


def test_ids_are_hex_of_the_right_length_and_never_zero() -> None:
    assert len(context.new_trace()) == 32
    low, line = context.unsampled()
    began = context.parse(line)
    assert began is not None
    assert (int(began.trace[16:], 16), began.sampled) == (low, False)
    assert context.span_id(7, 9) == "0000000000000010"
    assert context.span_id((1 << 64) - 1, 1) == "0000000000000001"
    assert context.parse(context.header(TRACE, context.span_id(1, 2), sampled=True)) == Parent(
        TRACE, "0000000000000003", True
    )


@pytest.mark.parametrize("sampler", SAMPLERS)
def test_samplers_decide_as_their_names_say(sampler: str) -> None:
    made = Sampler(SpanSettings("http://c", sampler=sampler, ratio=0.25))
    chance = sum(made.by_chance(i << 54) for i in range(1024)) / 1024
    assert chance == {"on": 1, "off": 0}.get(sampler.rpartition("_")[2], 0.25)
    asks_its_parent = made.wanted("f" * 32, Parent(TRACE, SPAN, True)) and not made.wanted(
        "0" * 32, Parent(TRACE, SPAN, False)
    )
    assert asks_its_parent == sampler.startswith("parentbased")


def test_a_sampler_allows_at_most_its_rate() -> None:
    made = Sampler(SpanSettings("http://c", per_s=5))
    assert [sum(made.allowed(100 + second) for _ in range(50)) for second in range(3)] == [5, 5, 5]
    assert made.allowed(102.2)
    assert not made.allowed(102.2)
