"""Documents that take long to parse or could be misread are refused, with line and column."""

import pytest

from router.contract.values.strict_text import NODES_LIMIT, UnreadableDocument, load_yaml


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("a: " + "[" * 60 + "]" * 60, "line 1, column 53: nested deeper than 50"),
        ("a: " + "[" * 100_000, "nested deeper than 50"),
        ("\n".join("- " * 60 for _ in range(2)), "nested deeper than 50"),
        ("a: &x [1]\nb: *x", "line 2, column 4: aliases (*name) are not allowed"),
        ("[" + "1," * NODES_LIMIT + "1]", "more than 100,000 values"),
        ("a: " + "9" * 81, "line 1, column 4: a number of more than 80 characters"),
        ("a: 0x" + "f" * 40_000, "a number of more than 80 characters"),
        ('a: !!int "' + "1:" * 20_000 + '1"', "a number of more than 80 characters"),
        ('a: !!float "' + "1:" * 20_000 + '1.0"', "a number of more than 80 characters"),
        ("a: 1\na: 2", "line 2, column 1: the key 'a' is given twice"),
        ("? [1]\n: 2", "cannot be a key"),
        ("a: [1", "line 2, column 1: did not find expected"),
        ("a: !!python/object:os.system {}", "could not determine a constructor"),
        ("a: \x00", "unacceptable character"),
    ],
)
def test_a_document_that_could_be_misread_is_refused(text, says):
    with pytest.raises(UnreadableDocument) as caught:
        load_yaml(text)
    assert says in str(caught.value)


def test_times_of_day_are_text_and_numbers_are_numbers():
    text = "a: 1:30\nb: 12:00:00\nc: -1_000\nd: 1.5e+3\ne: 0x10\nf: .inf\ng: '1'"
    found = load_yaml(text, words_as_text=True)
    assert found == {"a": "1:30", "b": "12:00:00", "c": -1000, "d": 1500.0, "e": 16, "f": float("inf"), "g": "1"}
