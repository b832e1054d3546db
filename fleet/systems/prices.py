"""Hourly prices of serving hardware, and the cost of a million tokens.

The defaults are those of arXiv 2605.03375 (Tutti), equation of cost: an H100, host memory, NVMe drives.
"""

from dataclasses import dataclass

from fleet.kinds.options.option import option


@dataclass(frozen=True)
class Prices:
    gpu_hour: float = option(5.0, "GPU-hour", "Price of one GPU for an hour.", unit="$", range=(0, 1_000))
    dram_gb_hour: float = option(
        0.0088, "GB-hour of host memory", "Price of 1 GB for an hour.", unit="$", range=(0, 10)
    )
    ssd_gb_hour: float = option(0.000082, "GB-hour of SSD", "Price of 1 GB for an hour.", unit="$", range=(0, 10))

    def per_hour(self, gpus: float, dram_gb: float = 0.0, ssd_gb: float = 0.0) -> float:
        return self.gpu_hour * gpus + self.dram_gb_hour * dram_gb + self.ssd_gb_hour * ssd_gb


def per_million(dollars_per_hour: float, tokens_per_s: float) -> float | None:
    """Return the dollars per million tokens; None without tokens."""
    return dollars_per_hour / (tokens_per_s * 3600) * 1e6 if tokens_per_s > 0 else None
