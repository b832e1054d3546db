"""Words that pages have replaced by plainer ones: none returns in a template, a script or a message."""

from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
GIVEN_UP = {
    "Aborted by a guard": "Stopped by guard",
    "nothing speaks against": "no problem found",
    "Reasons not to rely on": "Caveats",
    "Read this before you rely on it": "Caveats",
    "decides as it did": "makes the same choice",
    "Steer it": "Controls",
    "Set aside": "Pause and return traffic",
    "Set an instance aside": "Overloaded above KV usage",
    "meant are": "expected",
    "draining drained": "drained by",
    "Better is up until": "a legend",
    "Small letters": "Lower-case letters",
    "Heavy from": "Heavy threshold",
    "Warm below": "Warm threshold",
    "Came in": "Received",
    "Decided again": "Replay decision",
    "has not been heard of": "no heartbeat from",
}
# Where people read: the pages, what scripts write on them, and the texts that the server generates for both.
READ = ("templates/**/*.html", "static/js/*.js", "controlplane/**/*.py", "router/policy/**/*.py", "fleet/**/*.py")


def sources() -> dict[str, str]:
    found = (path for pattern in READ for path in ROOT.glob(pattern))
    return {str(path.relative_to(ROOT)): path.read_text() for path in found if "tests" not in path.parts}


@pytest.fixture(scope="module")
def read() -> dict[str, str]:
    return sources()


@pytest.mark.parametrize("words", GIVEN_UP)
def test_replaced_words_do_not_return(read: dict[str, str], words: str) -> None:
    assert [path for path, text in read.items() if words in text] == [], f"say {GIVEN_UP[words]!r}"
