"""Ages beyond which a report no longer counts, in seconds: the only place for such limits. Pure."""

SAMPLE_STALE_S = 3.0  # an older sample is shown as stale
SAMPLE_UNKNOWN_S = 5.0  # instances whose load is older than this rank last, as their load is unknown
SAMPLE_OFFLINE_S = 15.0  # a sample older than this is shown as offline
WORKER_LATE_S = 3.0  # a control or node worker is late after this long without a report
WORKER_DOWN_S = 10.0  # a worker counts as down after this long without a report
STEP_LATE_S = 15.0  # a control worker's step is late after this long without success,
STEP_LATE_PERIODS = 3  # or after this many of its periods, if longer
FRAME_OLD_S = 3.0  # pages mark frames older than this
FRAME_GAP_S = 3.0  # longer pauses between frames are drawn as gaps in charts
ROUTER_GONE_S = 5.0  # a router counts as gone after this long without a report
ROUTER_DOWN_S = 15.0  # a router counts as down after this long without a write or an answer
PEER_GONE_S = 3.0  # other routers ignore the load of a router that is silent for longer
KV_EVENTS_STALE_S = 8.0  # the exact index is not used after this long without KV events
NODE_GONE_S = 30.0  # a node gets no new instances after this long without a report


def is_recent(sample_age_s: float | None) -> bool:
    """Return whether sums, limits and decisions may use a sample of this age; None without a sample."""
    return sample_age_s is not None and sample_age_s <= SAMPLE_OFFLINE_S
