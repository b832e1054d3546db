"""What the sweep hands to the fit."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class CalibrationPoint:
    """Requests of one length that were sent together, so often; each figure is the median of these times.

    Seconds are the engine's own: of a sim engine that runs ten times faster, ten times those of the wall clock.
    """

    concurrency: int
    prompt_tokens: int  # of each request
    output_tokens: int  # of each request
    context: float  # tokens that they attended to together, at the middle of the time that `tpot_s` is of
    ttft_s: float | None  # of a request alone on the engine
    tpot_s: float | None  # while all of them decoded and none prefilled
    n: int  # how often
