"""Read fields of a large JSON object however it is split, without mistaking text inside strings for fields."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from router.upstream.answer.field_scan import LONGEST, FieldScan

WANTED = [("usage",), ("response", "usage"), ("error",), ("response", "status"), ("type",)]
NAMES = st.sampled_from(["usage", "response", "error", "status", "type", "x", '\\"usage'])
TEXTS = st.text(max_size=12) | st.sampled_from(["usage", "\\", '"', "{", '\\\\"usage":{'])
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers(-5, 10**6) | TEXTS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(NAMES, inner, max_size=4),
    max_leaves=20,
)


def scanned(raw, cuts=()):
    scan, position = FieldScan(WANTED), 0
    for size in cuts:
        scan.feed(raw[position : position + size])
        position += size
    scan.feed(raw[position:])
    return scan.fields()


def wanted(document):
    read = {}
    for path in WANTED:
        value, into = document, read
        for name in path:
            if not isinstance(value, dict) or name not in value:
                break
            value = value[name]
        else:
            for name in path[:-1]:
                into = into.setdefault(name, {})
            into[path[-1]] = value
    return read


@given(st.dictionaries(NAMES, VALUES, max_size=5), st.lists(st.integers(1, 9), max_size=200), st.booleans())
def test_the_fields_equal_the_parsed_fields_however_the_object_is_chunked(document, cuts, indented):
    raw = json.dumps(document, ensure_ascii=False, indent=1 if indented else None).encode()
    assert scanned(raw, cuts) == wanted(document)


@pytest.mark.parametrize("size", [1_000, LONGEST + 1, 3 * LONGEST])
def test_strings_of_any_length_are_skipped(size):
    text = 'a\\"usage": {"prompt_tokens": 1}' * 20_000
    raw = json.dumps({"data": text, "more": ["q" * 200_000], "usage": {"prompt_tokens": 5}}).encode()
    assert scanned(raw, [size] * (len(raw) // size)) == {"usage": {"prompt_tokens": 5}}


def test_a_value_that_is_too_long_is_left_out():
    raw = json.dumps({"error": "x" * (2 * LONGEST), "usage": [1] * LONGEST, "type": "t"}).encode()
    assert scanned(raw, [10_000] * (len(raw) // 10_000)) == {"type": "t"}


def test_a_truncated_object_yields_its_complete_fields():
    assert scanned(b'{"usage": {"prompt_tokens": 5}, "error": {"mess') == {"usage": {"prompt_tokens": 5}}
