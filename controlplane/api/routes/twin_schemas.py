"""Schemas that results of the twin share."""

from ninja import Field, Schema


class ExpectedErrorOut(Schema):
    """The expected error of the twin against warm engines, by the source of its constants. 0.05: 5 %; null: unknown."""

    tpot: float | None
    e2e: float | None
    ttft_mean: float | None
    ttft_p99: float | None = Field(description="Null without a measurement under load")
