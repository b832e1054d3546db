"""The sentences and tables of a preview, made from its JSON. Pure."""

import math
from collections import Counter
from dataclasses import dataclass, replace

from controlplane.common.figures import UNKNOWN, ms, seconds, significant, whole
from controlplane.evidence.experiments.results.metrics import MAIN, METRICS, Metric
from controlplane.evidence.experiments.results.output import forest
from controlplane.evidence.experiments.results.output.effects import (
    SIGNS,
    ComparedArm,
    ResultRow,
    cell,
    common_n,
    effect_row,
    result_row,
)
from controlplane.evidence.experiments.results.statistics import comparison, stats
from controlplane.evidence.experiments.results.statistics.comparison import known
from controlplane.evidence.experiments.results.statistics.stats import LOW_N
from controlplane.evidence.experiments.results.summarize import CLASSES
from controlplane.evidence.previews.analysis.saving import is_sure
from controlplane.evidence.previews.analysis.trust import OF_A_CLASS
from controlplane.evidence.previews.analysis.types import (
    ChangedDecisions,
    ClassEffect,
    CountPair,
    DecisionCount,
    Deviation,
    DraftEffect,
    MetricEffect,
    PlayedTrace,
    PreviewView,
    Saving,
    ValuePair,
)
from controlplane.evidence.twin.expected_error import described
from fleet.counted import counted as number_of
from fleet.counted import signed

DECLARED = ("ttft_p90_ms", "e2e_p50_ms")  # metrics chosen before any result is known
NO_METRICS: ClassEffect = {"n": 0, "metrics": []}
ACTIVE = ("queued", "running")
MOST_INSTANCES = 100  # rows of the table; the largest changes are shown
MILLION = 1_000_000


@dataclass(frozen=True, slots=True)
class ClassTable:
    name: str
    n: int  # number of requests of the class
    few: bool
    elsewhere: str  # share of the class's decisions that changed
    counts: tuple[tuple[str, int, str], ...]  # (sign, number of rows, verdict), for the heading
    rows: list[ResultRow]
    columns: tuple[ComparedArm, ...]


def sentence(result: DraftEffect) -> str:
    """Write the summary: changed decisions, the chosen latencies, refused requests."""
    return f"{'; '.join([_changed(result['changed']), *_latencies(result), *_refusals(result['refused'])])}."


def _changed(changed: ChangedDecisions) -> str:
    if not changed["decisions"]:
        return f"The draft would decide all {changed['of']:,} requests as the live version does"
    interval = f"95 % CI {_points(changed['low'])}–{_points(changed['high'])}"
    counts = f"{changed['decisions']:,} of {changed['of']:,} requests"
    return f"The draft would route {counts} differently ({share(changed['share'])}, {interval})"


def _latencies(result: DraftEffect) -> list[str]:
    """Describe the metrics chosen in advance, over all requests: a metric chosen afterwards would be the luckiest of
    many.
    """
    if not result["changed"]["decisions"]:
        return []
    found = [
        f"{METRICS[each['metric']].title} {pair(each['live'], each['draft'])}, {each['verdict']}"
        for each in of_all(result)["metrics"]
        if each["metric"] in DECLARED and each["verdict"] in ("better", "worse")
    ]
    declared = " or ".join(METRICS[name].title for name in DECLARED)
    return found or [f"no difference in {declared} that these requests can show"]


def of_all(result: DraftEffect) -> ClassEffect:
    """Return the effect on all requests; headline, plot and table share the intervals."""
    return corrected(result).get("all", NO_METRICS)


def corrected(result: DraftEffect) -> dict[str, ClassEffect]:
    """Return the classes, with intervals that hold jointly: over the metrics chosen in advance, and over all others. A
    request that moves changes all later ones, so with many separate metrics, some would be marked by chance.
    """
    rows = [(name, row["metric"]) for name, found in result["classes"].items() for row in found["metrics"]]
    declared = sum(_is_declared(*row) for row in rows)
    looks = {True: declared, False: len(rows) - declared}
    return {
        name: {
            **found,
            "metrics": [together(row, looks[_is_declared(name, row["metric"])]) for row in found["metrics"]],
        }
        for name, found in result["classes"].items()
    }


def _is_declared(name: str, metric: str) -> bool:
    return name == "all" and metric in DECLARED


def together(metric: MetricEffect, looks: int) -> MetricEffect:
    """Return the metric with an interval and a verdict that hold jointly for that many metrics."""
    if metric["difference"] is None or metric["verdict"] not in SIGNS:
        return metric
    (low, high), ratio = comparison.widened(metric, metric["difference"], looks)
    verdict = stats.verdict(low, high)
    wider: MetricEffect = {**metric, "low": known(low, 6), "high": known(high, 6), "verdict": verdict}
    if ratio is not None:
        wider["relative_low"], wider["relative_high"] = (known(end, 6) for end in ratio)
    return wider


def _refusals(refused: CountPair) -> list[str]:
    if refused["live"] == refused["draft"]:
        return []
    return [f"refused requests {refused['live']:,} → {refused['draft']:,}"]


def plot(result: DraftEffect, title: str) -> str:
    """Draw the differences over all requests as a forest plot."""
    lines = [
        forest.line(METRICS[row["metric"]].title, row, row["live"])
        for row in of_all(result)["metrics"]
        if row["metric"] in MAIN and row["relative"] is not None and row["live"] is not None
    ]
    return forest.page_svg(lines, title, forest.NARROW)


def class_tables(result: DraftEffect) -> list[ClassTable]:
    changed = {"all": result["changed"], **result["changed"]["classes"]}
    classes = corrected(result)
    return [_class_table(name, classes[name], changed.get(name)) for name in CLASSES if name in classes]


def _class_table(name: str, found: ClassEffect, changed: DecisionCount | None) -> ClassTable:
    rows, common = common_n([_row(METRICS[each["metric"]], each) for each in found["metrics"]])
    effects = [cell.effect for row in rows for cell in row.cells if cell.effect]
    counted = Counter((effect.sign, effect.verdict) for effect in effects)
    order = (*SIGNS, "too few requests")
    counts = sorted(counted.items(), key=lambda item: order.index(item[0][1]) if item[0][1] in order else len(order))
    return ClassTable(
        name=name,
        n=found["n"],
        few=found["n"] < LOW_N,
        elsewhere=share(changed["decisions"] / changed["of"]) if changed and changed["of"] else UNKNOWN,
        counts=tuple((sign, count, verdict) for (sign, verdict), count in counts),
        rows=rows,
        columns=(ComparedArm("Live"), ComparedArm("Draft", common.get("Draft", ""))),
    )


def _row(metric: Metric, found: MetricEffect) -> ResultRow:
    live, draft = cell(metric, "Live", found["live"]), cell(metric, "Draft", found["draft"])
    effect = effect_row(metric, (found["live"], found["draft"]), found, found["n"])
    return result_row(metric, (live, replace(draft, n=whole(found["n"]), effect=effect)))


def pair(live: float | None, draft: float | None) -> str:
    """Format a pair of values: 820 → 640 ms; 980 ms → 1.02 s."""
    before, after = ms(live), ms(draft)
    number, _, unit = before.partition(" ")
    return f"{number if unit and after.endswith(f' {unit}') else before} → {after}"


def share(value: float | None) -> str:
    """Format a share with three significant digits: 12.4 %."""
    return UNKNOWN if value is None else f"{_points(value)} %"


def _points(value: float) -> str:
    return significant(value * 100)


@dataclass(frozen=True, slots=True)
class Affected:
    """The number of requests on each instance, largest change first."""

    rows: tuple[tuple[str, int, int, str], ...]  # (id, live, draft, difference)
    changed: int
    of: int


NOTHING_AFFECTED = Affected((), 0, 0)


def affected(result: DraftEffect) -> Affected:
    found = sorted(result["instances"], key=lambda each: (-abs(each["draft"] - each["live"]), each["id"]))
    rows = tuple(
        (each["id"], each["live"], each["draft"], _signed_count(each["draft"] - each["live"]))
        for each in found[:MOST_INSTANCES]
    )
    return Affected(rows, sum(each["live"] != each["draft"] for each in found), len(found))


def _signed_count(value: int) -> str:
    return signed(value, f"{abs(value):,}")


def deviation(found: Deviation | None) -> str:
    """Describe the difference between the twin's and the measured latencies."""
    if found is None:
        return "not compared: too few of these requests were measured on the fleet"
    title, way = found["metric"].removesuffix("_ms").upper(), "above" if found["relative"] > 0 else "below"
    values = f"{pair(found['measured'], found['twin'])}, n = {found['n']:,}"
    return f"the twin's {title} is {share(abs(found['relative']))} {way} what was measured ({values})"


@dataclass(frozen=True, slots=True)
class PreviewStatus:
    """The relation of a preview to the current draft and the current live version."""

    current: bool
    why: str  # empty if current


def status_of(
    preview: PreviewView, *, live: int, draft_revision: int | None, draft_sha256: str | None
) -> PreviewStatus:
    """Return the status. `draft_revision` is None if no draft is open."""
    reasons = []
    if preview["live_version"] != live:
        reasons.append(f"against v{preview['live_version']}, and v{live} is live now")
    if draft_revision is None:
        reasons.append(f"of revision {preview['draft_revision']} of a draft that is no longer open")
    elif preview["draft_sha256"] != draft_sha256:
        reasons.append(f"of revision {preview['draft_revision']}, and the draft is now revision {draft_revision}")
    return PreviewStatus(not reasons, "; ".join(reasons))


@dataclass(frozen=True, slots=True)
class ShownPreview:
    """The texts of a preview; texts about its result are empty until there is one."""

    active: bool
    done: str  # text for the progress bar, without thousands separators
    total: str
    progress: str
    said: str  # text that a screen reader announces when the status changes
    line: str
    status: PreviewStatus
    doubts: tuple[str, ...]  # reasons not to rely on the preview
    gaps: tuple[str, ...]  # classes with too few requests
    first: str = ""  # scope of the first result; empty if the texts cover every request
    sentence: str = ""
    refused: str = ""
    hit_share: str = ""
    kv_usage: str = ""
    saving: str = ""
    forest: str = ""  # SVG
    tables: tuple[ClassTable, ...] = ()
    affected: Affected = NOTHING_AFFECTED
    deviation: str = ""
    expected: str = ""


def shown(preview: PreviewView, status: PreviewStatus) -> ShownPreview:
    progress = _progress(preview)
    result = preview["result"] or preview["first_result"]
    first = _first(preview["trace"], result) if result and not preview["result"] else ""
    summary = sentence(result) if result else ""
    doubts = tuple(each["text"] for each in preview["trust"] if each["code"] != OF_A_CLASS)
    active = preview["status"] in ACTIVE
    warned = f"{number_of(len(doubts), 'caveat')}." if result and doubts else ""
    base = ShownPreview(
        active=active,
        done=str(preview["done"]),
        total=str(max(preview["total"], 1)),
        progress=progress,
        said=" ".join(filter(None, [f"Preview {preview['status']}.", warned, first, summary or preview["cause"]])),
        line=" ".join(filter(None, [first, summary])) or (progress if active else preview["cause"]),
        status=status,
        doubts=doubts,
        gaps=tuple(each["text"] for each in preview["trust"] if each["code"] == OF_A_CLASS),
    )
    if not result:
        return base
    return replace(
        base,
        first=first,
        sentence=summary,
        refused=f"{result['refused']['live']:,} → {result['refused']['draft']:,}",
        hit_share=shares(result["hit_share"]),
        kv_usage=shares(result["kv_usage"]),
        saving=saving(result["saving"]),
        forest=plot(result, f"Draft against v{preview['live_version']}, all requests"),
        tables=tuple(class_tables(result)),
        affected=affected(result),
        deviation=deviation(preview["twin"]["deviation"]),
        expected="" if first else described(preview["twin"]["expected"]),
    )


def saving(found: Saving | None) -> str:
    """Describe a saving: 3.2 million prompt tokens less to compute (2.1 to 4.3), 0.4 GPU-hours, $2.1. Figures whose
    interval includes zero are left out."""
    if not found:
        return UNKNOWN
    if not is_sure(found):
        return "no difference that these requests can show"
    word = "more" if found["new_tokens"] < 0 else "less"
    tokens, dollars = abs(found["new_tokens"]), found["dollars"]
    count = f"{tokens:,.0f}" if tokens < MILLION else f"{significant(tokens / MILLION)} million"
    parts = [
        f"{count} prompt tokens {word} to compute ({_range(found)})",
        f"{significant(abs(found['gpu_hours']))} GPU-hours",
        *([] if dollars is None else [f"${significant(abs(dollars))}"]),
    ]
    return ", ".join(parts)


def _range(found: Saving) -> str:
    """Format the interval of the tokens: 2.1 to 4.3 million."""
    ends = sorted(abs(each) for each in (found["low"], found["high"]) if each is not None)
    return f"{significant(ends[0] / MILLION)} to {significant(ends[1] / MILLION)} million"


def _progress(preview: PreviewView) -> str:
    if preview["status"] == "queued":
        return "waiting for a worker"
    left = "" if preview["left_s"] is None else f", {seconds(math.ceil(preview['left_s']))} left"
    return f"{preview['done']:,} of {preview['total']:,} simulated requests{left}"


def _first(trace: PlayedTrace, result: DraftEffect) -> str:
    """Label a first result; the requests of a canary come last."""
    count = of_all(result)["n"]
    if trace["played"] is not None and count >= trace["played"]:
        return f"First answer, from all {count:,} requests, without the canary of the draft."
    return f"First answer, from the first {count:,} of {trace['played']:,} requests."


def shares(pair: ValuePair) -> str:
    """Format a pair of shares: 54.2 → 58.1 %."""
    before, after = share(pair["live"]), share(pair["draft"])
    return f"{before.removesuffix(' %') if after.endswith('%') else before} → {after}"
