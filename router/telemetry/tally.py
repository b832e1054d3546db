"""The counts and latencies of one class of a pool: the last minute for the dashboard, and totals for /metrics."""

from collections import defaultdict

from router.contract.metrics.metrics_page import Histogram
from router.request.call import Call
from router.telemetry.window import LatencyWindow

TOKEN_MS = (1, 2.5, 5, 10, 25, 50, 100, 250, 500, 1_000, 2_500, 5_000, 10_000, 30_000, 60_000, 120_000, 300_000)
REQUEST_MS = (*TOKEN_MS, 600_000, 1_200_000, 1_800_000, 3_600_000)  # up to the longest time-out of a policy


class Tally:
    __slots__ = ("e2e", "outcomes", "tokens", "tpot", "ttft", "window")

    def __init__(self) -> None:
        self.window = LatencyWindow()
        # An addition to a Counter takes twice as long
        self.outcomes: defaultdict[str, int] = defaultdict(int)
        self.tokens: defaultdict[str, int] = defaultdict(int)  # by kind
        self.ttft = Histogram(REQUEST_MS)
        self.tpot = Histogram(TOKEN_MS)
        self.e2e = Histogram(REQUEST_MS)

    def ended(self, call: Call) -> None:
        outcome = call.outcome
        self.outcomes[outcome.label] += 1
        if call.decision is not None:
            self.window.ended(call, call.at + outcome.e2e_ms / 1000)
        if outcome.label == "ok":
            self.e2e.observe(outcome.e2e_ms)
            if outcome.ttft_ms is not None:
                self.ttft.observe(outcome.ttft_ms)
            if outcome.tpot_ms is not None:
                self.tpot.observe(outcome.tpot_ms)
        usage, decision, tokens = outcome.usage, call.decision, self.tokens
        if usage is None or decision is None:
            return
        tokens["prompt"] += usage.prompt_tokens or 0
        tokens["output"] += usage.output_tokens or 0
        if usage.cached_tokens is not None:
            tokens["cached"] += usage.cached_tokens
            tokens["cached_predicted"] += decision.cached_tokens
