"""Keys that engines require (vLLM's and SGLang's `--api-key`), of which Weir keeps only references.
`env:NAME` is an environment variable of the process that calls the engine, `file:/PATH` a file with one line. Both are
read again when they change. The key itself is never in a database, Redis value, log line, receipt or answer.
"""

import re

from router.contract.answer.verdict import KEY_REFUSED
from router.contract.net.whereabouts import Missing, Sought, is_named, read

ALLOWED = "env:NAME, whose name has API_KEY or ENGINE_KEY in it, or file:/PATH"
OPTION = "engine_key"
VARIABLE = "VLLM_API_KEY"  # variable with the key that vLLM, or a simulated engine, requires
LONGEST = 4096  # bytes of a key
RULE = f"up to {LONGEST} visible characters"
_REFERENCE = re.compile(r"env:(?=\w*(?:API_KEY|ENGINE_KEY))[A-Za-z_]\w{0,199}|file:/[\w./@+~-]{1,1000}", re.ASCII)
_KEY = re.compile(rb"[!-~]+")
_REFUSAL = re.compile(r"GET \S+ answers 40[13]: ")
_SOUGHT = Sought("engine key", RULE, LONGEST, lambda raw: _KEY.fullmatch(raw) is not None)
_OWN = re.compile(rb"^(?:authorization|x-api-key|api-key):[^\r\n]*\r\n", re.IGNORECASE | re.MULTILINE)


class EngineKeyMissing(OSError):
    """The key cannot be read; the message is one sentence without the key."""


def is_reference(given: str) -> bool:
    return _REFERENCE.fullmatch(given) is not None and is_named(given)


def line(reference: str) -> bytes:
    """Return the header line for an engine; nothing for an empty reference. Raise EngineKeyMissing."""
    return b"authorization: Bearer %b\r\n" % _key(reference) if reference else b""


def text(reference: str) -> str:
    """Return the key. Raise EngineKeyMissing."""
    return _key(reference).decode("ascii")


def headers(reference: str) -> dict[str, str]:
    """Return the same header for httpx. Raise EngineKeyMissing."""
    return {"authorization": f"Bearer {text(reference)}"} if reference else {}


def line_if_any(reference: str) -> bytes:
    """Return the header line, or nothing if the key is unreadable: the engine then reports that a key is missing."""
    return b"" if trouble(reference) else line(reference)


def trouble(reference: str) -> str:
    """Return why the key cannot be read; empty if it can be read, or if the reference is empty."""
    try:
        line(reference)
    except EngineKeyMissing as error:
        return str(error)
    return ""


def refusal(status: int, path: str, reference: str) -> str:
    """Explain an engine's 401 or 403, with advice; empty for other statuses."""
    if status not in KEY_REFUSED:
        return ""
    said = f"GET {path} answers {status}"
    if not reference:
        return f"{said}: the engine asks for a key, and none is named ({OPTION}: env:NAME or file:/PATH)"
    return f"{said}: {trouble(reference) or f'the engine does not take the key of {reference}'}"


def is_refusal(reason: str) -> bool:
    """Return whether `refusal` wrote this reason of an instance."""
    return _REFUSAL.match(reason) is not None


def is_engines(status: int | None, reference: str, *, sent: bytes, known: bool) -> bool:
    """Return whether an engine's answer concerns a key that the client cannot provide: the pool's key, or a key that is
    not configured while the client uses an API key of Weir. `sent` holds the client's header lines as passed on;
    `known` is True if the client presented a key of Weir."""
    if status not in KEY_REFUSED:
        return False
    return bool(reference) or (status == 401 and known and _OWN.search(sent) is None)


def replaced(lines: bytes, reference: str) -> bytes:
    """Replace a client's own key in its header lines by the engine's. Raise EngineKeyMissing."""
    return line(reference) + _OWN.sub(b"", lines)


def _key(reference: str) -> bytes:
    if not is_reference(reference):
        raise EngineKeyMissing(f"its engine key must be named as {ALLOWED}")
    try:
        return read(reference, _SOUGHT)
    except Missing as error:
        raise EngineKeyMissing(str(error)) from None
