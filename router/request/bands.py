"""The priority band of a request: a whole number, 0 by default; a higher band is admitted earlier. Pure.
It is requested by `x-weir-priority`, or else by the body's `priority` (with vLLM's sign: lower is earlier), or else by
`service_tier`, or else by the request's API key. It never exceeds what the key allows or, without a key,
`admission.keyless_band_max`.
"""

import reprlib
from dataclasses import dataclass
from typing import Final

from router.contract.redis.api_keys import BAND_MAX, PublishedKey
from router.http.errors import ErrorResponse
from router.policy.types import ParsedPolicy
from router.tokenize import Prompt

HEADER: Final = b"x-weir-priority"
TIERS = {"priority": 10, "flex": -10}  # values of OpenAI's service_tier; auto, default and scale request no band
LONGEST = 20  # characters of a number


@dataclass(frozen=True, slots=True)
class AskedBand:
    band: int = 0
    by: str = ""  # source of the requested band; empty: none was requested


NOT_ASKED: Final = AskedBand()


def asked(headers: dict[bytes, bytes], prompt: Prompt, key: PublishedKey | None) -> AskedBand:
    """Return the requested band and its source. Raise ErrorResponse."""
    if HEADER in headers:
        return AskedBand(_of_header(headers[HEADER]), HEADER.decode())
    if prompt.priority is not None:
        return AskedBand(_of_body(prompt.priority), "priority")
    tier = prompt.document.get("service_tier")
    if isinstance(tier, str) and tier in TIERS:
        return AskedBand(TIERS[tier], f"service_tier {tier}")
    if key is not None and key.priority:
        return AskedBand(key.priority, f"the API key {key.name}")
    return NOT_ASKED


def granted(asked: AskedBand, key: PublishedKey | None, policy: ParsedPolicy, *, is_replay: bool = False) -> int:
    """Return the granted band. With `is_replay`, recorded requests in an experiment's pool keep their granted band."""
    if is_replay and key is None:
        return asked.band
    return min(asked.band, key.priority_max if key is not None else policy["admission.keyless_band_max"])


def _of_header(given: bytes) -> int:
    text = given.strip().decode("latin-1")
    if len(text) > LONGEST or not text.removeprefix("-").isascii() or not text.removeprefix("-").isdigit():
        raise _invalid(HEADER.decode(), text)
    return _within(HEADER.decode(), text, int(text))


def _of_body(given: object) -> int:
    if not isinstance(given, int) or isinstance(given, bool):
        raise _invalid("priority", given)
    return -_within("priority", given, given)


def _within(where: str, given: object, band: int) -> int:
    if not -BAND_MAX <= band <= BAND_MAX:
        raise _invalid(where, given)
    return band


def _invalid(where: str, given: object) -> ErrorResponse:
    shown = reprlib.repr(given)[:40]  # repr() of a large value would take a second
    return ErrorResponse(
        400, "invalid_priority", f"{where}: {shown} must be a whole number from -{BAND_MAX} to {BAND_MAX}"
    )
