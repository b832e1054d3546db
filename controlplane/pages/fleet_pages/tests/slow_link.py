"""A slow link: `python slow_link.py INTERFACE INTERFACE DELAY_MS` carries frames between the two interfaces.
It is for kernels without the module sch_netem. Offloading leaves frames unfinished (PACKET_VNET_HDR), and they are
passed on in that state.
"""

import collections
import select
import socket
import struct
import sys
import time

ETH_P_ALL = 0x0003
SOL_PACKET, PACKET_ADD_MEMBERSHIP, PACKET_VNET_HDR = 263, 1, 15
PACKET_MR_PROMISC, PACKET_OUTGOING = 1, 4
LARGEST = 10 + 65_550


def opened(interface: str) -> socket.socket:
    prepared = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.htons(ETH_P_ALL))
    prepared.setsockopt(SOL_PACKET, PACKET_VNET_HDR, 1)
    prepared.bind((interface, ETH_P_ALL))
    everything = struct.pack("iHH8s", socket.if_nametoindex(interface), PACKET_MR_PROMISC, 0, b"")
    prepared.setsockopt(SOL_PACKET, PACKET_ADD_MEMBERSHIP, everything)
    return prepared


def carry(one: socket.socket, other: socket.socket, delay_s: float) -> None:
    to = {one: other, other: one}
    under_way: collections.deque[tuple[float, socket.socket, bytes]] = collections.deque()
    while True:
        left = max(0.0, under_way[0][0] - time.monotonic()) if under_way else None
        for came in select.select([one, other], [], [], left)[0]:
            frame, address = came.recvfrom(LARGEST)
            if address[2] != PACKET_OUTGOING:  # not sent by us
                under_way.append((time.monotonic() + delay_s, to[came], frame))
        while under_way and under_way[0][0] <= time.monotonic():
            _, out, frame = under_way.popleft()
            out.send(frame)


if __name__ == "__main__":
    carry(opened(sys.argv[1]), opened(sys.argv[2]), float(sys.argv[3]) / 1000)
