"""How long a transfer of KV blocks takes. Pure."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class TransferLink:
    """What an engine sends its blocks through.

    The published figures of Mooncake over RDMA are 9.7 GB/s while the sender is idle and about 3 while it computes.
    """

    setup_s: float  # of a transfer, however small
    idle_bytes_per_s: float  # while the sender computes nothing
    busy_bytes_per_s: float  # while it does

    def seconds(self, size: int, transfers: int, *, busy: bool) -> float:
        """Of one transfer of `size` bytes that shares the link with `transfers` - 1 others when it begins."""
        rate = self.busy_bytes_per_s if busy else self.idle_bytes_per_s
        return self.setup_s + size * max(transfers, 1) / rate
