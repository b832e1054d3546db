"""Measure a JSON body against its limits without parsing it, whatever its strings hold and wherever a window ends."""

import json
import random

import pytest

from router.tokenize import bounds


@pytest.fixture(autouse=True)
def small(monkeypatch):
    monkeypatch.setattr(bounds, "SMALL", 0)
    monkeypatch.setattr(bounds, "MAX_VALUES", 1000)
    monkeypatch.setattr(bounds, "MAX_CONTAINERS", 100)
    monkeypatch.setattr(bounds, "FEW", 10)


@pytest.fixture(params=[2, 3, 7, 64, 64 * 1024])
def window(request, monkeypatch):
    monkeypatch.setattr(bounds, "_WINDOW", request.param)


@pytest.mark.parametrize(
    ("body", "refused"),
    [
        (b"[%b1]" % (b"1," * 998), False),
        (b"[%b1]" % (b"1," * 1001), True),
        (b"[%b{}]" % (b"{}," * 98), False),
        (b"[%b{}]" % (b"{}," * 101), True),
        (b"[" * 101, True),
        (b'{"a":"%b"}' % (b"[{," * 2000), False),
        (b'{"a":"%b"}' % (rb"\"[,\\" * 2000), False),
        (b'{"a":"%b' % (b"[{," * 2000), False),  # an unterminated string, which the parser reports
        (b'{"a":"\\' + b"[" * 200 + b"\\", False),
        (b'["[[[",%b1]' % (b'"a,b",' * 1100), True),
        (b"x" * 5000, False),
        (b"", False),
    ],
)
def test_values_are_counted_outside_of_strings(window, body, refused):
    assert bool(bounds.exceeded(body)) is refused


def made(draw, depth=0):
    kind = draw.randrange(6 if depth < 4 else 3)
    if kind == 0:
        return draw.random()
    if kind < 3:
        return "".join(draw.choice('ab"\\,[]{}é\n') for _ in range(draw.randrange(30)))
    items = [made(draw, depth + 1) for _ in range(draw.randrange(5))]
    return items if kind < 5 else {str(number): item for number, item in enumerate(items)}


def counted(value):
    """Return (commas and openings, openings)."""
    if not isinstance(value, list | dict):
        return 0, 0
    inner = [counted(item) for item in (value if isinstance(value, list) else value.values())]
    return 1 + max(0, len(value) - 1) + sum(signs for signs, _ in inner), 1 + sum(openings for _, openings in inner)


def test_the_count_equals_that_of_the_parsed_document(window, monkeypatch):
    for seed in range(60):
        value = [made(random.Random(seed))]
        body = json.dumps(value, ensure_ascii=bool(seed % 2)).encode()
        signs, openings = counted(value)
        for values_over, containers_over in ((0, 0), (1, 0), (0, 1)):
            monkeypatch.setattr(bounds, "MAX_VALUES", signs - values_over)
            monkeypatch.setattr(bounds, "MAX_CONTAINERS", openings - containers_over)
            assert bool(bounds.exceeded(body)) is bool(values_over or containers_over), seed


def test_a_small_body_is_not_examined(monkeypatch):
    monkeypatch.setattr(bounds, "SMALL", 5000)
    assert bounds.exceeded(b"[" * 5000) == ""


def test_the_refusal_names_both_limits():
    assert bounds.exceeded(b"[" * 101) == "the body may have at most 1,000 values and 100 objects and arrays"
