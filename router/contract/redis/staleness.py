"""Ages beyond which a report no longer counts: all limits in one place, in seconds. Pure."""

SAMPLE_STALE_S = 3.0  # an older sample is shown as stale
SAMPLE_UNKNOWN_S = 5.0  # older loads are unknown, so the instance ranks last
SAMPLE_OFFLINE_S = 15.0  # an older one is shown as offline
WORKER_LATE_S = 3.0  # a longer silence of a control or node worker is late
WORKER_DOWN_S = 10.0  # a longer silence counts as down
STEP_LATE_S = 15.0  # a control worker's step without success for longer is late,
STEP_LATE_PERIODS = 3  # or after this many of its periods, if longer
FRAME_OLD_S = 3.0  # pages mark older frames
FRAME_GAP_S = 3.0  # longer pauses between frames are gaps in charts
ROUTER_GONE_S = 5.0  # a router without a report for longer counts as gone
ROUTER_DOWN_S = 15.0  # a router that neither writes nor answers for longer is down
PEER_GONE_S = 3.0  # a router silent for longer counts without requests at other routers
KV_EVENTS_STALE_S = 8.0  # exact index unused after a longer silence of KV events
NODE_GONE_S = 30.0  # a node silent for longer gets no new instances
