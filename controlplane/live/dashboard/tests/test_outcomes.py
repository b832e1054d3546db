"""Live, its alarms and the guards of a delivery count each result as the table of outcomes in docs/router.md says."""

from types import SimpleNamespace

import msgspec
import pytest

from controlplane.live.dashboard.tests.test_attention import frame_of, rules
from controlplane.live.dashboard.tests.test_frames import NOW, router
from controlplane.traffic.deliveries.judge.pool_guards import METRICS
from router.contract.redis.router_status import Window
from router.contract.verdict import VERDICTS, Result
from router.request.call import Call
from router.telemetry.window import LatencyWindow
from router.tests.contract.test_verdict import ROWS

FIGURES = {"client errors": "client_errors", "failed": "errors", "refused": "refused"}
ALARMS = {"failed": "50 % of warm requests failed", "refused": "50 % of warm requests were refused"}
EACH = 30


def counted(result: Result) -> Window:
    """As many served requests as ones with the result."""
    window = LatencyWindow()
    for number in range(2 * EACH):
        call = Call(f"r{number}", "/v1/completions", 0.0, 0.0)
        call.request = SimpleNamespace(prompt=SimpleNamespace(stream=False))  # type: ignore[assignment]
        call.outcome.close(result if number < EACH else "served")
        window.ended(call, NOW)
    return window.read(NOW)


@pytest.mark.parametrize("result", VERDICTS)
def test_a_result_is_counted_shown_and_told_as_its_row_says(result: Result) -> None:
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
