"""docs/previews.md agrees with the code."""

import re
from pathlib import Path

from controlplane.evidence.previews import body, services
from controlplane.evidence.previews.analysis import trust
from controlplane.evidence.previews.models import Preview
from fleet import jobs

ROOT = Path(__file__).resolve().parents[4]
PAGE = (ROOT / "docs" / "previews.md").read_text()


def test_every_code_is_explained_and_no_other():
    sources = [
        (ROOT / "controlplane" / "evidence" / "previews" / name).read_text()
        for name in ("analysis/trust.py", "running.py", "services.py")
    ]
    given = {code for text in sources for code in re.findall(r'caution\("([a-z_]+)"', text)} | {trust.OF_A_CLASS}
    assert set(re.findall(r"^\| `([a-z_]+)` \|", PAGE.partition("## Cautions")[2], re.MULTILINE)) == given


def test_the_documented_limits_are_those_of_the_code():
    for figure in (
        f"at least {trust.LEAST_REQUESTS}",
        f"| {body.MAX_REQUESTS:,} | up to {body.MOST_REQUESTS:,}",
        f"The last {services.KEPT} of each policy",
        f"after {jobs.LOST_S:.0f} s",
        f"more than {trust.OLD_S / 3600:.0f} hours",
        f"more than {trust.MOST_DEVIATION * 100:.0f} %",
    ):
        assert figure in PAGE
    assert Preview.AT_ONCE == 2
