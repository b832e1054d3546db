"""The tokens that an engine reports for a request."""

from typing import Annotated

import msgspec

from router.policy.value import Value

LARGEST = 1_000_000_000  # tokens; larger numbers are wrong and would overflow sums


class Usage(Value, frozen=True):
    """Token counts; None where the engine reports no number."""

    prompt_tokens: int | None = None
    cached_tokens: int | None = None
    output_tokens: int | None = None
    cached_tiers: tuple[int, int, int] | None = None  # cached tokens from device, host memory and disk
    audio_s: float | None = None  # length of the audio in a transcription


_Tokens = Annotated[int, msgspec.Meta(ge=0, le=LARGEST)]


class _Details(msgspec.Struct):
    cached_tokens: _Tokens | None = None
    cached_tokens_details: None = None


class PlainUsage(msgspec.Struct):
    """The usage in the form reported by nearly every engine."""

    prompt_tokens: _Tokens
    completion_tokens: _Tokens | None = None
    prompt_tokens_details: _Details | None = None
