"""Live, its alarms and the guards of a delivery count each outcome according to the table in docs/router.md."""

from collections import Counter

import msgspec
import pytest

from controlplane.live.dashboard.tests.test_attention import frame_of, rules
from controlplane.live.dashboard.tests.test_frames import router
from controlplane.traffic.deliveries.judge.pool_guards import METRICS
from router.contract.answer.verdict import VERDICTS, Result
from router.contract.redis.router_status import Window
from router.tests.contract.test_verdict import ROWS

FIGURES = {"client errors": "client_errors", "failed": "errors", "refused": "refused"}
ALARMS = {"failed": "50 % of warm requests failed", "refused": "50 % of warm requests were refused"}
EACH = 30


def counted(result: Result) -> Window:
    """Return a router's counts, with one served request for each request with the outcome."""
    label = VERDICTS[result].label
    counts = Counter(n=2 * EACH, ok=EACH) + Counter({"ok" if label == "picked" else label: EACH})
    return msgspec.convert(counts, Window)


@pytest.mark.parametrize("result", VERDICTS)
def test_an_outcome_is_counted_shown_and_reported_as_its_row_says(result: Result) -> None:
    is_error, live = ROWS[result][3], ROWS[result][7]
    window = counted(result)
    shown = router(warm=msgspec.to_builtins(window, str_keys=True))
    figures = frame_of(routers={"r": shown})["classes"]["demo"]["warm"]
    assert {name: figures[column] for name, column in FIGURES.items() if figures[column]} == (
        {live: EACH} if live in FIGURES else {}
    )
    told = rules(routers={"r": shown})
    assert told.keys() == ({"class_failing"} if live in ALARMS else set())
    assert told.get("class_failing", "").startswith(ALARMS.get(live, ""))
    assert METRICS["pool.errors_share"]([window]).value == (0.5 if is_error == "yes" else 0.0)
