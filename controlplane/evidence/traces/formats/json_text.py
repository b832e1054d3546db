"""Splits a file into lines; in a JSON document, each entry of a list becomes a line, at the entry's own line number."""

import io
import json
import re
from collections.abc import Iterable, Iterator
from itertools import product

from controlplane.evidence.traces.types import BadTrace

LIST = re.compile(r"\[\s*[{\]]")  # does not match a log whose lines begin with a date in brackets
LISTS = ("data", "resourceSpans", "batches")  # fields of a document whose entries are the rows


def lines_of(text: str) -> Iterable[str]:
    """Return the lines. Raise BadTrace for a JSON document that ends early."""
    begins = text.lstrip()
    if LIST.match(begins):
        return _entries(text, text.index("["))
    first, _, others = begins.partition("\n")
    if begins[:1] == "{" and not (others.strip() and _is_json(first)):
        return _of_document(text)
    return io.StringIO(text, newline="")


def _is_json(line: str) -> bool:
    try:
        json.loads(line)
    except (ValueError, RecursionError):
        return False
    return True


def _of_document(text: str) -> Iterable[str]:
    """Return the entries of a single document; other texts stay lines, which their reader refuses."""
    try:
        document = json.loads(text)
    except (ValueError, RecursionError):
        return io.StringIO(text, newline="")
    within = document.get("trace")
    for values, name in product((document, within if isinstance(within, dict) else {}), LISTS):
        if isinstance(entries := values.get(name), list):
            return (json.dumps(entry if name == "data" else {name: [entry]}) for entry in entries)
    return [json.dumps(document)]


def _entries(text: str, start: int) -> Iterator[str]:
    """Yield the entries, with blank lines that keep the line numbers right."""
    decoder, at, line, written = json.JSONDecoder(), start + 1, 1 + text.count("\n", 0, start), 0
    while True:
        begins = at
        while at < len(text) and text[at] in ", \t\r\n":
            at += 1
        line += text.count("\n", begins, at)
        if text[at : at + 1] == "]":
            return
        try:
            value, end = decoder.raw_decode(text, at)
            entry = json.dumps(value)
        except (ValueError, RecursionError):
            raise BadTrace(line, "", text[at : at + 40], "a JSON list of objects") from None
        yield from ("\n" for _ in range(line - 1 - written))
        written = max(written, line - 1) + 1
        yield entry
        line, at = line + text.count("\n", at, end), end
