"""docs/notices.md lists every event, and nothing else."""

import re
from pathlib import Path

from controlplane.people.notices.events import EVENTS

TEXT = (Path(__file__).resolve().parents[4] / "docs" / "notices.md").read_text()


def test_every_event_is_documented_with_its_meaning() -> None:
    assert dict(re.findall(r"^\| `([a-z_.]+)` \| (.+) \|$", TEXT, re.MULTILINE)) == EVENTS


def test_the_example_for_receivers_verifies_what_is_sent() -> None:
    from controlplane.people.notices.senders import signing

    namespace: dict[str, object] = {}
    exec(re.search(r"```python\n(.+?)```", TEXT, re.DOTALL)[1], namespace)
    old, new = signing.new_secret(), signing.new_secret()
    headers = signing.headers("msg_1", 1_700_000_000, b"{}", [new, old])
    is_genuine = namespace["is_genuine"]
    assert is_genuine(headers, b"{}", old)
    assert is_genuine(headers, b"{}", new)
    assert not is_genuine(headers, b"[]", new)
    assert not is_genuine(headers, b"{}", signing.new_secret())
