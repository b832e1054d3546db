"""Stretches of a prompt's blocks with the same holders, summed into tokens per instance and tier."""

from collections.abc import Iterator, Sequence

from router.policy.held import named
from router.prefix.exact.holders import Masks

Tokens = tuple[int, int, int]  # on device, host, disk
Stretch = tuple[int, Masks]  # (end, holders)


def summed(stretches: Sequence[Stretch], block_size: int, names: Sequence[str]) -> dict[str, Tokens]:
    """Sum the stretches into tokens. `names` gives the instance of each bit of the masks."""
    found: dict[str, Tokens] = {}
    begin = 0
    for number, (end, (device, host, disk)) in enumerate(stretches):
        following = stretches[number + 1][1] if number + 1 < len(stretches) else (0, 0, 0)
        if not (host or disk or following[1] or following[2]) and not begin:
            # The usual case: all blocks are on the device, so only the ends of holders matter.
            found |= dict.fromkeys(named(device & ~following[0], names), (end * block_size, 0, 0))
            continue
        for tier, mask in enumerate((device, host, disk)):
            _add(found, named(mask, names), tier, (end - begin) * block_size)
        begin = end
    return found


def _add(found: dict[str, Tokens], names: Iterator[str], tier: int, tokens: int) -> None:
    for name in names:
        counted = list(found.get(name, (0, 0, 0)))
        counted[tier] += tokens
        found[name] = (counted[0], counted[1], counted[2])
