"""Ages beyond which a report no longer counts: all limits in one place, in seconds. Pure."""

SAMPLE_STALE_S = 3.0  # an older sample is shown as stale
SAMPLE_UNKNOWN_S = 5.0  # the load that an older one tells is not known any more: its instance ranks last
SAMPLE_OFFLINE_S = 15.0  # an older one is shown as offline
WORKER_LATE_S = 3.0  # a control worker or node worker that was silent longer is late
WORKER_DOWN_S = 10.0  # a longer silence counts as down
STEP_LATE_S = 15.0  # a step of the control worker that has not ended well for longer is late,
STEP_LATE_PERIODS = 3  # unless it is not due so often: then after so many of its periods
FRAME_OLD_S = 3.0  # a page that shows an older frame says so
FRAME_GAP_S = 3.0  # a longer gap between frames, one a second, is a gap in the charts
ROUTER_GONE_S = 5.0  # a router that has not written for longer counts as gone
ROUTER_DOWN_S = 15.0  # one that neither writes nor answers a request for longer is down
PEER_GONE_S = 3.0  # a router that other routers have not heard from for longer has no requests in flight
KV_EVENTS_STALE_S = 8.0  # without a sign of life from an engine's KV events for longer, its exact index is not used
NODE_GONE_S = 30.0  # a node that has not reported for longer is given no new instances
