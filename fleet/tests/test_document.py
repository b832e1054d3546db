"""Read fleet documents from text."""

import re

import pytest

from fleet.spec import document


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("a: 1\nb: 2\na: 3", "line 3, column 1: the key 'a' is given twice"),
        ("x: {a: 1, a: 2}", "the key 'a' is given twice"),
        ("x:\n  ? [a]\n  : 1", "line 2, column 5: ['a'] cannot be a key"),
        ("x: &big [1]\ny: *big", "aliases"),
        ("- [", "line 2"),
        ("a: b: c", "line 1"),
        ("\x00", "control characters"),
        ("!!python/object/apply:os.system ['true']", "could not determine a constructor"),
        ("x: " + "9" * 5000, "80 characters"),
    ],
)
def test_text_that_is_not_a_document_is_refused_with_the_place(text: str, words: str) -> None:
    with pytest.raises(document.UnreadableDocument, match=re.escape(words)):
        document.load(text)


@pytest.mark.parametrize("read", [document.load, document.load_json])
def test_a_document_larger_than_the_limit_is_refused(read: object) -> None:
    with pytest.raises(document.UnreadableDocument, match="256,002 bytes; allowed: 256,000"):
        read('"' + "x" * 256_000 + '"')  # type: ignore[operator]


@pytest.mark.parametrize("read", [document.load, document.load_json])
def test_excessive_nesting_is_refused(read: object) -> None:
    with pytest.raises(document.UnreadableDocument):
        read("[" * 50_000)  # type: ignore[operator]


def test_pool_names_that_look_like_booleans_or_dates_stay_text() -> None:
    assert document.load("{name: on, policy: no, when: 2026-01-01}") == {
        "name": "on",
        "policy": "no",
        "when": "2026-01-01",
    }


def test_true_and_numbers_keep_their_types() -> None:
    assert document.load("{a: true, b: 3, c: 0.5, d: null}") == {"a": True, "b": 3, "c": 0.5, "d": None}


def test_json_is_read_as_json() -> None:
    assert document.load_json('{"a": 1e3}') == {"a": 1000.0}


@pytest.mark.parametrize("text", ['{"a": 1, "a": 2}', '{"x": [{"a": 1, "a": 2}]}', "{", '{"a": ' + "9" * 5000 + "}"])
def test_json_with_duplicate_keys_or_no_value_is_refused(text: str) -> None:
    with pytest.raises(document.UnreadableDocument):
        document.load_json(text)


def test_a_dumped_document_is_read_back_unchanged() -> None:
    value = {"kind": "Fleet", "spec": {"pools": [{"name": "ö", "replicas": 2}]}}
    assert document.load(document.dump(value)) == value
