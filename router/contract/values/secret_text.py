"""Hides secrets of known shapes in any text: log lines, reasons, the output of engines. Pure.

This prevents accidental leaks only; a program can always write a secret in another form.
"""

import logging
import re

HIDDEN = "(hidden)"

_NAMES = "(?:KEY|TOKEN|SECRET|PASSWORD)"
_SHAPES = tuple(
    (re.compile(shape), shown)
    for shape, shown in (
        # API tokens weir_1a2b3c4d_…, shares weir_share_… and keys sk-weir-1a2b3c4d-…; their prefix stays, to identify
        # the secret
        (r"\b(weir_(?:share_)?[0-9a-f]{8}_|sk-weir-[0-9a-f]{8}-)[\w-]{16,}", rf"\1{HIDDEN}"),
        (r"\b(whsec_)[\w+/=]{16,}", rf"\1{HIDDEN}"),  # webhook secrets
        # redis://user:password@host, postgresql://…
        (r"(?i)(\b[a-z][a-z0-9+.-]{0,30}://[^\s/:@]{0,200}):[^\s/]{1,500}@", rf"\1:{HIDDEN}@"),
        (r"(?i)\b(bearer|basic)(\s+)[\w.~+/=-]{8,}", rf"\1\2{HIDDEN}"),
        # --api-key VALUE, --hf-token=VALUE, also as items of a list: '--api-key', 'VALUE'
        (rf"(--[\w-]{{0,60}}(?i:{_NAMES})(?:=|\s+|['\"],\s*))(['\"]?)[^\s'\"-][^\s'\"]*", rf"\1\2{HIDDEN}"),
        # HF_TOKEN=value and PASSWORD: value, as programs print their environment
        (rf"(\b[A-Z][A-Z0-9_]{{0,60}}{_NAMES}['\"]?\s{{0,3}}[=:]\s{{0,3}})(['\"]?)[^\s'\",]+", rf"\1\2{HIDDEN}"),
    )
)


def masked(text: str) -> str:
    for shape, shown in _SHAPES:
        text = shape.sub(shown, text)
    return text


def masked_words(argv: list[str]) -> list[str]:
    """Mask a command line word by word, as the value of --api-key and the like may be a separate word."""
    return [
        HIDDEN if index and _names_a_secret(argv[index - 1]) and not word.startswith("-") else masked(word)
        for index, word in enumerate(argv)
    ]


def _names_a_secret(word: str) -> bool:
    return word.startswith("-") and "=" not in word and word.lower().endswith(("key", "token", "secret", "password"))


class MaskingFormatter(logging.Formatter):
    """Formats a record with another formatter and masks the whole line, traceback included."""

    def __init__(self, inner: logging.Formatter) -> None:
        super().__init__()
        self._inner = inner

    def format(self, record: logging.LogRecord) -> str:
        return masked(self._inner.format(record))
