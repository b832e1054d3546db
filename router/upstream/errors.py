"""Failures of a request to an engine.

UpstreamError
├── ConnectFailed      there is no connection: nothing was sent
│   ├── RouterExhausted  because this process or its host can open no more: no fault of the engine
│   └── KeyMissing       because this process cannot read the key of the engine: no fault of the engine
├── FirstByteTimeout   connected, but no byte of the response body, or no content of a stream, within the limit
├── AnswerStalled      the response had begun, and then nothing came within the limit
├── HostSilent         the host no longer acknowledges TCP segments
├── ProtocolError      the response is not HTTP/1.1, or its head is too large
└── ConnectionBroken   the engine closed the connection before the response was whole
"""


class UpstreamError(Exception):
    code = "upstream_failed"  # code for the client, listed in docs/router.md
    status = 502  # and its status


class ConnectFailed(UpstreamError):
    pass


class RouterExhausted(ConnectFailed):
    code = "router_exhausted"
    status = 503


class KeyMissing(ConnectFailed):
    code = "no_instance_ready"
    status = 503


class FirstByteTimeout(UpstreamError):
    code = "upstream_timeout"
    status = 504


class AnswerStalled(UpstreamError):
    code = "upstream_timeout"
    status = 504


class HostSilent(UpstreamError):
    pass


class ProtocolError(UpstreamError):
    pass


class ConnectionBroken(UpstreamError):
    pass
