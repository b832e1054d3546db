"""The measurements that the sweep passes to the fit."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class CalibrationPoint:
    """Medians over `n` repetitions of concurrent requests of one length.

    Seconds are virtual: with a time scale of 10, ten times those of the wall clock.
    """

    concurrency: int
    prompt_tokens: int  # of each request
    output_tokens: int  # of each request
    context: float  # tokens attended to by all of them, at the middle of the `tpot_s` interval
    ttft_s: float | None  # of a single request on an idle engine
    tpot_s: float | None  # while all requests decoded
    n: int  # repetitions
