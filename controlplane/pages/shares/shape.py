"""The fields of a frame that a share shows, each with its kind. Other fields are not shown. Pure.
view.py converts names of nodes and routers, events and attention entries.
"""

from controlplane.live.dashboard.frame.status import ORDER
from controlplane.live.dashboard.frame.types import ALL_POOLS, LATENCIES, PoolTotals
from controlplane.pages.shares.kinds import (
    NUMBER,
    WITHHELD,
    by,
    fits,
    name,
    nothing,
    number,
    parts,
    record,
    rows,
    table,
    withheld,
    word,
)
from controlplane.people.notices.wordless import NAME
from controlplane.traffic.deliveries.states import State
from fleet.models import State as InstanceState
from router.policy.strategies import STRATEGIES, title_of
from router.policy.types import CLASSES

SIZE = rf"{NUMBER}\s(?:bytes?|[KMGTP]B)"
TIER = "|".join(
    (
        rf"{NUMBER} % hits",
        rf"{SIZE}/s read(?: at {SIZE}/s)?",
        rf"{SIZE}/s written",
        rf"{SIZE} to be written",
        rf"{NUMBER} drive writes a day",
    )
)
TIERS = rf"(?:host|disk|remote|LMCache) (?:{TIER})(?:, (?:{TIER}))*"
ALIAS = rf"(?:{NAME}|{NUMBER} others) {NUMBER} requests/s"
SAVING = rf"(?:\$ {NUMBER}|{NUMBER} GPU-hours) a day (?:less|more) than v\d+, n = {NUMBER}"
SIZES = r"\d+(?: \(\d+P\d+D\))?"
VERSION = r"v\d+"
STEP = rf"(?:shadow(?: of {NUMBER} %)?|canary {NUMBER} %|switchback(?: \d+ of \d+)?|everyone)(?:, live serves all)?"
BOUND = rf"(?:\?|{NUMBER})"
FIGURE = rf"(?:{'|'.join(CLASSES)})?(?: (?:TPOT|requests|errors|refusals))? ?{NUMBER}× \({BOUND}–{BOUND}×\)"

a_class = word(CLASSES)
each_class = by(a_class, number)
pool_or_all = fits(rf"{NAME}|\{ALL_POOLS}")

FIGURES = ("n", "rate", "errors", "client_errors", "refused", "cancelled", "hit_share", "window_s")
TOTALS = tuple(PoolTotals.__annotations__)
WINDOW = record(
    **dict.fromkeys(FIGURES, number),
    **{metric.key: rows(number) for metric in LATENCIES},
    **{metric.count: number for metric in LATENCIES},
)

FRAME = record(
    schema=number,
    at=number,
    built_by=word(("worker", "web")),
    pools=by(
        name,
        record(
            wanted=number,
            simulated=number,
            policy=name,
            changed_at=number,
            halted=withheld,
            slo=each_class,
            observed=number,
            at_zero=number,
            kv_limit=number,
        ),
    ),
    ephemeral_pools=number,
    counts=by(word(ORDER), number),
    kv_threshold=number,
    instances=table(
        id=name,
        pool=name,
        state=word(InstanceState.values),
        status=word(ORDER),
        reason=withheld,
        **dict.fromkeys(("age_s", "kv", "kv_blocks", "running", "waiting", "hit_rate", "tokens_s"), number),
        **dict.fromkeys(("matches", "last_known"), number),
        **dict.fromkeys(("gpu_use", "gpu_memory", "gpu_power_w", "gpu_simulated"), number),
    ),
    classes=by(pool_or_all, by(a_class, lambda window: window and WINDOW(window))),
    totals=by(
        pool_or_all,
        record(**dict.fromkeys(TOTALS, number)),
    ),
    slo=by(name, by(a_class, record(at=number, listed=number, turned_at=number))),
    routers=table(
        age_s=number, gone=number, versions=by(name, number), degraded=lambda reasons: [WITHHELD] if reasons else []
    ),
    nodes=table(silent_s=number, instances=number),
    policies=by(
        name,
        record(
            policy=name,
            version=number,
            published_at=number,
            strategy=word([title_of(strategy) for strategy in STRATEGIES]),
            routers=number,
            acknowledged=number,
        ),
    ),
    scaling=by(
        name,
        record(
            at=number,
            mode=word(("advisory", "automatic")),
            replicas=number,
            advised=number,
            size=fits(SIZES),
            advised_size=fits(SIZES),
            why=withheld,
        ),
    ),
    savings=by(name, record(text=fits(SAVING), title=nothing, href=nothing)),
    aliases=by(name, parts(", ", ALIAS)),
    tiers=by(name, parts("; ", TIERS)),
    deliveries=rows(
        record(
            delivery=number,
            policy=name,
            base=fits(VERSION),
            candidate=fits(VERSION),
            state=word(list(State)),
            step=fits(STEP),
            figure=fits(FIGURE),
            next_at=number,
            since=number,
            why=withheld,
            ended_by=withheld,
            pools=rows(name),
        )
    ),
    health=record(
        **dict.fromkeys(
            ("samples_age_s", "samples_expected", "control_age_s", "routers_alive", "routers_known", "routers_age_s"),
            number,
        ),
        gap=rows(number),
        owed=rows(word(("samples", "control", "routers", "nodes"))),
        unreadable=number,
        read_only=number,
        routers_state=word(("serving", "late", "down", "none")),
        late_steps=rows(record(step=name, age_s=number, every_s=number, error=withheld)),
    ),
)
