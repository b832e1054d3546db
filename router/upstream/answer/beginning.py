"""The beginning of a stream, until its first content. Pure."""

import re

from router.contract.answer import answers
from router.contract.answer.answers import Sign
from router.contract.answer.said import AnswerError

_END = re.compile(rb"\n\r?\n")
NO_EVENTS = "the stream has no events in UTF-8"
# Bytes; a longer event counts as content. A response's events repeat its instructions and tools
LARGEST = 2 * 1024 * 1024


class Beginning:
    """Reads events up to the first one with content, an error or the end of the stream."""

    __slots__ = ("_rest", "error", "quiet", "sign")

    def __init__(self) -> None:
        self.sign: Sign = "quiet"
        self.error: AnswerError | None = None
        self.quiet = 0  # events before the content
        self._rest = bytearray()  # unfinished event

    def feed(self, data: bytes) -> Sign:
        held: bytes | bytearray = data
        start = seen = 0
        if self._rest:
            seen = max(0, len(self._rest) - 2)
            self._rest += data
            held = self._rest
        while self.sign == "quiet" and (end := _END.search(held, max(start, seen))) is not None:
            if payload := answers.payload(bytes(held[start : end.start()])):
                self.sign, self.error = answers.sign(payload)
                self.quiet += self.sign == "quiet"
                if self.sign == "end" and not answers.may_be_all(payload):
                    self.sign, self.error = "error", AnswerError(answers.NO_CONTENT)
            start = end.end()
        if self.sign != "quiet":
            self._rest = bytearray()
        elif start or held is data:
            self._rest = bytearray(held[start:])
        if len(self._rest) > LARGEST:
            self._judge_large()
        return self.sign

    def _judge_large(self) -> None:
        """Treat a large event as content, and other data as a failure."""
        if self._rest.find(b"data:") >= 0:
            self.sign = "content"
        else:
            self.sign, self.error = "error", AnswerError(NO_EVENTS)
