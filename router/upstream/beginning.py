"""The beginning of a stream, until its first content. Pure."""

from router.contract import answers
from router.contract.answers import AnswerError, Sign

LARGEST = 256 * 1024  # bytes; a longer beginning counts as content


class Beginning:
    """Reads events up to the first that holds content, an error or the end of the stream."""

    __slots__ = ("_rest", "_size", "error", "sign")

    def __init__(self) -> None:
        self.sign: Sign = "quiet"
        self.error: AnswerError | None = None
        self._rest = b""  # an unfinished event
        self._size = 0

    def feed(self, data: bytes) -> Sign:
        data = self._rest + data
        self._size += len(data)
        bare, crlf = data.rfind(b"\n\n"), data.rfind(b"\r\n\r\n")
        end = max(bare + 2 if bare >= 0 else 0, crlf + 4 if crlf >= 0 else 0)
        self._rest = data[end:]
        for payload in answers.events(data[:end]):
            self.sign, self.error = answers.sign(payload)
            if self.sign != "quiet":
                return self.sign
        if self._size > LARGEST:
            self.sign = "content"
        return self.sign
