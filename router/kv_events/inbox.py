"""A ZMQ socket on the event loop: `take` returns one message at a time, in turns with other sockets (turns.py).
Messages are taken from ZMQ as soon as they arrive, because its queues are bounded by number, not by bytes. An engine is
disconnected if more than WAITING_BYTES wait for its turns, or if a message has more than MOST_FRAMES: ZMQ limits the
size of frames, not their number.
"""

import asyncio
import time
from collections import deque
from collections.abc import Callable

import zmq
from zmq.utils.monitor import parse_monitor_message

from router.kv_events.turns import SharedTurns

LARGEST = 4 * 1024 * 1024  # bytes of a frame; ZMQ disconnects the sender of a larger one. 131,072 tokens take 1.6 MB
MOST_FRAMES = 8
TAKEN_AT_ONCE = 1000  # messages
TAKEN_BYTES = 16 * 1024 * 1024
WAITING_BYTES = 256 * 1024 * 1024
MESSAGE_BYTES = 256  # overhead of a message, in bytes, on top of its frames
HIGH_WATER_MARK = 10_000  # messages; a dropped message shows as a gap and is requested again
HEARTBEAT_MS = 1_000
SILENCE_MS = 3_000  # time without heartbeat answers before the connection is closed


class ZmqSubscription:
    """A subscription, open until `close`. `gone` is called when an established connection is lost."""

    def __init__(
        self,
        context: "zmq.Context[zmq.Socket[bytes]]",
        kind: int,
        endpoint: str,
        take: Callable[[list[bytes]], None],
        gone: Callable[[], None],
        turns: SharedTurns,
    ) -> None:
        self._loop = asyncio.get_running_loop()
        self._turns = turns
        self._is_asking = False  # True while waiting for a turn
        self._take = take
        self._gone = gone
        self._again: asyncio.Handle | None = None
        self._waiting: deque[tuple[list[bytes], int]] = deque()  # messages and their sizes
        self._waiting_bytes = 0
        self.cut_off = ""  # why reading ended: a fault in its KV events
        self.connected = False
        self._socket = context.socket(kind)
        self._socket.linger = 0
        self._socket.set_hwm(HIGH_WATER_MARK)
        self._socket.setsockopt(zmq.MAXMSGSIZE, LARGEST)
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
            return  # not connected; the caller's wait will time out
        self._loop.call_soon(self._read)  # sending may have consumed the signal of a new message

    def close(self) -> None:
        self._forget()
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
        pausing = self._again is not None
        self._fetch()
        if not pausing:
            self._ask()

    def _ask(self) -> None:
        if self._waiting and not self._is_asking:
            self._is_asking = True
            self._turns.ask(self)

    def _fetch(self) -> None:
        """Take all messages from ZMQ, whose file descriptor does not signal remaining ones again."""
        limit = self._waiting_bytes + TAKEN_BYTES
        for _ in range(TAKEN_AT_ONCE):
            if self._socket.closed or self.cut_off or self._waiting_bytes > limit:
                break
            try:
                frames = self._message()
            except zmq.Again:
                return
            size = sum(map(len, frames)) + MESSAGE_BYTES
            self._waiting.append((frames, size))
            self._waiting_bytes += size
            if len(frames) > MOST_FRAMES:
                self._cut(f"have messages of more than {MOST_FRAMES} frames")
            elif self._waiting_bytes > WAITING_BYTES:
                self._cut("came faster than they could be read")
        self._later()

    def _message(self) -> list[bytes]:
        """Return the next message, or only its first frames if it has too many."""
        frames = [self._socket.recv(zmq.NOBLOCK)]
        while len(frames) <= MOST_FRAMES and self._socket.getsockopt(zmq.RCVMORE):
            frames.append(self._socket.recv(zmq.NOBLOCK))
        return frames

    def _cut(self, why: str) -> None:
        self.cut_off = why
        self._forget()
        self._gone()

    def work(self, until: float) -> None:
        self._is_asking = False
        while self._waiting and not self._socket.closed:
            frames, size = self._waiting.popleft()
            self._waiting_bytes -= size
            self._take(frames)
            if time.perf_counter() > until:
                self._later()
                return

    def _later(self) -> None:
        if self._again is None and not self._socket.closed:
            self._again = self._loop.call_later(self._turns.pause_s, self._read_again)

    def _read_again(self) -> None:
        self._again = None
        self._read()

    def _forget(self) -> None:
        self._waiting.clear()
        self._waiting_bytes = 0

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
