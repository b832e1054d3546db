"""The request that starts a preview, defined once for the API and the form."""

from pydantic import Field

from controlplane.evidence.experiments.start.body import Seeds, Strict

MAX_REQUESTS, MOST_REQUESTS = 2_000, 20_000
MOST_SEEDS = 5


class PreviewIn(Strict):
    """Pool and traffic of the preview; every field is optional."""

    pool: str = Field(
        "",
        max_length=63,
        examples=["demo"],
        description="A pool that uses the policy; default: the one with the most recorded requests",
    )
    trace: str = Field(
        "",
        max_length=100,
        examples=["recorded:demo"],
        description="Default: the pool's recorded traffic, or agentic-demo if there is little",
    )
    seeds: Seeds = Field(
        [1], min_length=1, max_length=MOST_SEEDS, description="Live version and draft are simulated once per seed"
    )
    max_requests: int = Field(
        MAX_REQUESTS,
        ge=1,
        le=MOST_REQUESTS,
        description="At most this many requests: the newest of a recording, the first of another trace",
    )


AS_USUAL = PreviewIn.model_validate({})
