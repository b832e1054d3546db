"""Constants that Live and the wall share with the server. static/js draws both pages, at first from the frame in the
page."""

from controlplane.live.dashboard import history
from controlplane.live.dashboard.frame.latency import LATENCIES, PERCENTILES
from controlplane.live.dashboard.frame.slo import LOW_N
from router.contract.redis import staleness
from router.policy.types import CLASSES

CONSTANTS = {
    "classes": CLASSES,
    "latencies": [metric.key for metric in LATENCIES],
    "percentiles": list(PERCENTILES),
    "counts": history.COUNTS,
    "lowN": LOW_N,
    "sampleStaleS": staleness.SAMPLE_STALE_S,
    "sampleOfflineS": staleness.SAMPLE_OFFLINE_S,
    "workerDownS": staleness.WORKER_DOWN_S,
    "frameOldS": staleness.FRAME_OLD_S,
}
