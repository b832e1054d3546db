"""Metric families of deliveries and notices, from the database: the state of open deliveries, the outcome of others."""

from collections.abc import Callable, Iterator

from django.db.models import Count, Min, Q
from prometheus_client.core import CounterMetricFamily, Metric

from controlplane.doors.telemetry.families import gauge
from controlplane.people.notices.models import Channel, Status
from controlplane.traffic.deliveries import selectors
from controlplane.traffic.deliveries.judge.findings import LookFacts
from controlplane.traffic.deliveries.judging import WATCHED
from controlplane.traffic.deliveries.models import Delivery, Look
from controlplane.traffic.deliveries.plan.types import COMPARISONS, COUNTS
from controlplane.traffic.deliveries.states import CLOSED
from controlplane.traffic.policies.models import Policy
from router.contract.values.reading import read_value

GUARD = ("policy", "pool", "metric", "class")
COMPARED = (*COMPARISONS, *COUNTS)  # the other metrics concern one arm, or the sizes of both
BOUNDS = ("lower", "estimate", "upper")
ARMS = ("candidate", "control")


def of_deliveries(now: float) -> Iterator[Metric]:
    rows = [(row, row.looks.first()) for row in selectors.open_deliveries()]
    for name, text, value in _figures(now):
        yield gauge(name, text, ("policy",), [((row.policy.name,), value(row)) for row, _ in rows])
    state = [((row.policy.name, row.state), 1.0) for row, _ in rows]
    yield gauge("weir_delivery_state", "1 for the state of the open delivery", ("policy", "state"), state)
    yield from _of_looks(rows, now)
    yield _ended()


def _figures(now: float) -> tuple[tuple[str, str, Callable[[Delivery], float]], ...]:
    def age_s(row: Delivery) -> float:
        return max(0.0, now - row.state_at.timestamp())

    return (
        ("weir_delivery_candidate", "Version of the open delivery's candidate", lambda row: row.candidate.number),
        ("weir_delivery_step", "Step of the open delivery, from 1", lambda row: row.step + 1),
        ("weir_delivery_share", "Share of the requests that the candidate decides, 0 to 1", lambda row: row.share),
        ("weir_delivery_shadow_share", "Share of the requests decided in shadow, 0 to 1", lambda row: row.shadow),
        ("weir_delivery_state_seconds", "Time since the delivery entered its state", age_s),
    )


def _of_looks(rows: list[tuple[Delivery, Look | None]], now: float) -> Iterator[Metric]:
    watched = [(row, look) for row, look in rows if row.state in WATCHED]
    ages = [((row.policy.name,), _look_age_s(row, look, now)) for row, look in watched]
    text = "Time since the judge last looked at a running delivery"
    yield gauge("weir_delivery_look_age_seconds", text, ("policy",), ages)
    took = [
        ((row.policy.name,), read_value(look.facts, LookFacts).ms / 1000)
        for row, look in watched
        if look and look.facts
    ]
    yield gauge("weir_delivery_look_seconds", "Duration of the latest look", ("policy",), took)
    found = [(row, finding) for row, look in watched if look for finding in look.found]
    differences: dict[tuple[str, ...], float | None] = {}
    verdicts, requests = {}, {}
    for row, finding in found:
        key = (row.policy.name, finding.pool, finding.metric, finding.request_class)
        verdicts[(*key, finding.verdict)] = 1.0
        if finding.metric in COMPARED:
            differences |= {(*key, bound): getattr(finding, bound) for bound in BOUNDS}
        for arm, n in zip(ARMS, finding.n, strict=True):
            requests[(*key, arm)] = n
    text = "Candidate against control, by guard, with the bounds of its interval"
    yield gauge("weir_delivery_difference", text, (*GUARD, "bound"), differences.items())
    yield gauge("weir_delivery_verdict", "1 for the latest verdict of a guard", (*GUARD, "verdict"), verdicts.items())
    text = "Requests, or sessions with errors counted, that a guard compares"
    yield gauge("weir_delivery_requests", text, (*GUARD, "arm"), requests.items())


def _look_age_s(row: Delivery, look: Look | None, now: float) -> float:
    """Return the age of the last look or, before the first look, the time that the delivery has spent in its state."""
    since = max(row.state_at, look.at) if look else row.state_at
    return max(0.0, now - since.timestamp())


def _ended() -> Metric:
    """Return the metric including zeros, so that the first delivery shows as an increase."""
    text = "Deliveries that ended, by how"
    family = CounterMetricFamily("weir_delivery_ended", text, labels=("policy", "state"))
    rows = Delivery.objects.order_by().values_list("policy__name", "state").annotate(Count("pk"))
    counted = {(name, state): count for name, state, count in rows}
    for name in Policy.objects.order_by("name").values_list("name", flat=True):
        for state in sorted(CLOSED):
            family.add_metric((name, str(state)), counted.get((name, state), 0))
    return family


def of_notices(now: float) -> Iterator[Metric]:
    waiting, given_up = Q(notices__status=Status.WAITING), Q(notices__status=Status.GIVEN_UP)
    rows = Channel.objects.order_by("name").annotate(
        waiting=Count("notices", filter=waiting),
        lost=Count("notices", filter=given_up),
        oldest=Min("notices__at", filter=waiting),
    )
    found = list(rows.values_list("name", "waiting", "lost", "oldest"))
    channel = ("channel",)
    waits = [((name,), count) for name, count, _, _ in found]
    yield gauge("weir_notices_waiting", "Notices that a channel has not been sent yet", channel, waits)
    lost = [((name,), count) for name, _, count, _ in found]
    yield gauge("weir_notices_given_up", "Notices of the last 30 days that were abandoned", channel, lost)
    ages = [((name,), max(0.0, now - oldest.timestamp()) if oldest else 0.0) for name, _, _, oldest in found]
    yield gauge("weir_notices_oldest_seconds", "Age of the oldest notice that waits", channel, ages)
