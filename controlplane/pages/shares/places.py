"""Limits the sockets of shares in a web process; a place is taken before a socket is accepted. A client is a stranger
until its first message names a share, and then a viewer. Both are limited, in total and per address, so that strangers
displace neither viewers nor pages.
"""

from collections import Counter


class Places:
    def __init__(self, most: int, of_one: int) -> None:
        self.most, self.of_one = most, of_one  # limits in total, and for one address
        self.taken: Counter[str] = Counter()  # by address

    def are_free(self, address: str) -> bool:
        return self.taken.total() < self.most and self.taken[address] < self.of_one

    def give_up(self, address: str) -> None:
        self.taken[address] -= 1
        self.taken += Counter()  # removes addresses without sockets


STRANGERS = Places(64, 16)
VIEWERS = Places(256, 128)


class Place:
    """The place of one socket."""

    def __init__(self, address: str) -> None:
        self.address, self._of = address, STRANGERS
        STRANGERS.taken[address] += 1

    def becomes_viewer(self) -> bool:
        """Become a viewer; return False if there is no capacity for another one."""
        if not VIEWERS.are_free(self.address):
            return False
        self.leave()
        self._of = VIEWERS
        VIEWERS.taken[self.address] += 1
        return True

    def leave(self) -> None:
        self._of.give_up(self.address)


def place_for(address: str) -> Place | None:
    """Take a place. Return None if there is no capacity. `address` is in the form returned by `network_of`."""
    return Place(address) if STRANGERS.are_free(address) and VIEWERS.are_free(address) else None
