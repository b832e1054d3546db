"""uvloop closes a transport one iteration of the loop before it calls connection_lost; the router may write in
between."""

from unittest.mock import Mock

import pytest

from router.http.client import IncomingRequest
from router.http.exchange import HttpExchange

WRITES = {
    "a part": lambda exchange: exchange.write(b"x"),
    "an event in its chunk": lambda exchange: exchange.write_chunk(b"1\r\nx\r\n"),
    "the end": lambda exchange: exchange.end(b"x"),
}


def exchange(*, closing):
    transport = Mock()
    transport.write.side_effect = RuntimeError("the handler is closed")
    transport.is_closing.return_value = closing
    return HttpExchange(IncomingRequest("/", b"", [], ""), Mock(), transport, Mock(write_paused=False), Mock())


@pytest.mark.parametrize("write", WRITES.values(), ids=WRITES)
def test_unread_bytes_of_a_client_that_left_are_not_an_error(write):
    assert not write(exchange(closing=True))


@pytest.mark.parametrize("write", WRITES.values(), ids=WRITES)
def test_an_open_connection_that_cannot_be_written_to_is_an_error(write):
    with pytest.raises(RuntimeError, match="the handler is closed"):
        write(exchange(closing=False))
