"""What goes wrong with an engine.

UpstreamError
├── ConnectFailed      there is no connection: nothing was sent
├── FirstByteTimeout   connected, but no byte of the answer's body within the limit
├── AnswerStalled      the answer had begun, and then nothing came for as long as the limit
├── HostSilent         the host acknowledges nothing any more: it is off or cut off
├── ProtocolError      what came back is not HTTP/1.1, or its head is too large
└── ConnectionBroken   the engine closed the connection before the answer was whole
"""


class UpstreamError(Exception):
    """The engine did not answer as it should; the message is in words."""

    code = "upstream_failed"  # for the client, docs/router.md lists them


class ConnectFailed(UpstreamError):
    pass


class FirstByteTimeout(UpstreamError):
    code = "upstream_timeout"


class AnswerStalled(UpstreamError):
    code = "upstream_timeout"


class HostSilent(UpstreamError):
    pass


class ProtocolError(UpstreamError):
    pass


class ConnectionBroken(UpstreamError):
    pass
