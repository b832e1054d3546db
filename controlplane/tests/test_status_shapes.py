"""Every state that a page names has its own shape, so that no reader depends on colour."""

import re
from pathlib import Path

import pytest
from django.template.loader import render_to_string

from controlplane.people.notices.models import Status

ROOT = Path(__file__).resolve().parents[2]
SHAPED = set(re.findall(r"\.status--([\w-]+)", (ROOT / "static/css/status.css").read_text()))
PLAIN = {"waiting"}  # the open ring of .status
STATES = {
    "batches/batches.html": ["validating", "in_progress", "finalizing", "completed", "failed", "expired", "cancelling"],
    "shares/shares.html": ["usable", "expired", "revoked"],
    "accounts/tokens.html": ["usable", "expired", "revoked"],
    "keys/keys.html": ["usable", "expired", "revoked"],
    "keys/key.html": ["usable", "expired", "revoked"],
    "notices/channel.html": [*Status.values],
    "notices/channels.html": ["enabled", "disabled", *Status.values],
}


@pytest.mark.parametrize("page", STATES)
def test_every_state_on_the_page_has_a_shape(page: str) -> None:
    template = (ROOT / "templates" / page).read_text()
    assert re.search(r"components/status.html\" with state=", template)
    assert not re.search(r'data-label="State">\{\{', template)
    for state in STATES[page]:
        (name,) = re.findall(r'"status status--(\S+)"', render_to_string("components/status.html", {"state": state}))
        assert name in SHAPED | PLAIN
