"""A ZMQ socket on the event loop: `take` gets each message, a few per loop iteration so other tasks can run."""

import asyncio
import time
from collections.abc import Callable

import zmq
from zmq.utils.monitor import parse_monitor_message

SLICE_S = 0.002  # time limit of one batch of reads

HIGH_WATER_MARK = 10_000  # messages; a dropped one shows as a gap and is requested again
HEARTBEAT_MS = 1_000
SILENCE_MS = 3_000  # the connection is closed without an answer to heartbeats


class ZmqSubscription:
    """Open until `close`. `gone` is called when an established connection is lost."""

    def __init__(
        self,
        context: "zmq.Context[zmq.Socket[bytes]]",
        kind: int,
        endpoint: str,
        take: Callable[[list[bytes]], None],
        gone: Callable[[], None],
    ) -> None:
        self._loop = asyncio.get_running_loop()
        self._take = take
        self._gone = gone
        self._again: asyncio.Handle | None = None
        self.connected = False
        self._socket = context.socket(kind)
        self._socket.linger = 0
        self._socket.set_hwm(HIGH_WATER_MARK)
        self._socket.setsockopt(zmq.HEARTBEAT_IVL, HEARTBEAT_MS)
        self._socket.setsockopt(zmq.HEARTBEAT_TIMEOUT, SILENCE_MS)
        if "[" in endpoint:
            self._socket.setsockopt(zmq.IPV6, 1)
        self._monitor = self._socket.get_monitor_socket(zmq.EVENT_HANDSHAKE_SUCCEEDED | zmq.EVENT_DISCONNECTED)
        self._monitor.linger = 0
        try:
            self._socket.connect(endpoint)
        except zmq.ZMQError:
            self._close_sockets()
            raise
        self._loop.add_reader(self._socket.fileno(), self._read)
        self._loop.add_reader(self._monitor.fileno(), self._watch)
        self._loop.call_soon(self.look)

    def look(self) -> None:
        """Poll for messages: ZMQ's file descriptors are edge-triggered, and any ZMQ call may consume the edge."""
        self._watch()
        self._read()

    def subscribe(self, topic: str) -> None:
        self._socket.subscribe(topic.encode())

    def send(self, frames: list[bytes]) -> None:
        try:
            self._socket.send_multipart(frames, zmq.NOBLOCK)
        except zmq.Again:
            return  # not connected: the caller's wait times out
        self._later()  # sending may have consumed the signal of a new message

    def close(self) -> None:
        if self._socket.closed:
            return
        if self._again is not None:
            self._again.cancel()
        self._loop.remove_reader(self._socket.fileno())
        self._loop.remove_reader(self._monitor.fileno())
        self._close_sockets()

    def _close_sockets(self) -> None:
        self._socket.disable_monitor()
        self._monitor.close()
        self._socket.close()

    def _read(self) -> None:
        """Read until nothing is left: the file descriptor does not signal remaining messages again."""
        until = time.perf_counter() + SLICE_S
        while not self._socket.closed:
            try:
                message = self._socket.recv_multipart(zmq.NOBLOCK)
            except zmq.Again:
                return
            self._take(message)
            if time.perf_counter() > until:
                self._later()
                return

    def _later(self) -> None:
        if self._again is None and not self._socket.closed:
            self._again = self._loop.call_soon(self._read_again)

    def _read_again(self) -> None:
        self._again = None
        self._read()

    def _watch(self) -> None:
        while not self._socket.closed:
            try:
                message = self._monitor.recv_multipart(zmq.NOBLOCK)
            except zmq.Again:
                return
            event = parse_monitor_message(message)["event"]
            was, self.connected = self.connected, event == zmq.EVENT_HANDSHAKE_SUCCEEDED
            if was and not self.connected:
                self._gone()
                return
