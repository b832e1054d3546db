"""The parts of a frame that a share shows: numbers, known words and names, in sentences built from these. Pure. No text
of a person, an engine or an exception is passed on, and no link or other pool; `shape` lists the fields.
"""

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from typing import Any, TypeVar, cast

from controlplane.live.dashboard.frame import attention, banners
from controlplane.live.dashboard.frame.build import delivery_text
from controlplane.live.dashboard.frame.status import measured
from controlplane.live.dashboard.frame.types import AttentionItem, Columns, Frame, HistoryRow, ShownEvent
from controlplane.live.dashboard.kept_row import only
from controlplane.pages.delivery_pages.display.sentences import WORDS
from controlplane.pages.shares.kinds import WITHHELD
from controlplane.pages.shares.shape import FRAME
from controlplane.people.notices.events import EVENTS
from controlplane.people.notices.wordless import text_of
from controlplane.traffic.deliveries.states import State
from router.policy.types import CLASSES

Value = TypeVar("Value")
BY_POOL = ("pools", "classes", "totals", "slo", "policies", "scaling", "savings", "aliases", "tiers")
SOMEBODY = "a person"


# Lines of the ticker in a share: one sentence for each kind of event, about named things
SENTENCES = {
    "failed": "failed",
    "unreachable": "cannot be reached",
    "ready": "is ready again",
    "drain": "was asked to drain",
    "undrain": "was asked to serve again",
    "restart": "was asked to restart",
    "stop": "was asked to stop",
    "start": "was asked to start",
    "sleep": "was told to sleep",
    "wake": "was told to wake",
    "asleep": "sleeps",
    "awake": "is awake",
    "refused": "did not follow an order",
    "adapter": "holds another adapter",
    "calibration": "was measured",
    "create": "was added",
    "update": "has another configuration",
    "remove": "was removed",
    "scale": "was scaled",
    "complete": "completed its rollout",
    "halt": "halted its rollout",
    "resume": "resumed its rollout",
    "rollback": "went back to an earlier configuration",
    "source": "has other engines in its source",
    "source away": "has a source that does not answer",
    "source back": "has a source that answers again",
    "note": "has a new note",
}
NODE, ROUTER = "node", "router"


def sentence(event: ShownEvent, names: Collection[str]) -> str:
    """Return the sentence; empty for an event that a share does not show. `names` are the pools and instances that
    it shows."""
    kind, subject = event["kind"], event["subject"]
    if kind == NODE:
        return "a node came, went or changed"
    if kind == ROUTER:
        return "a router fell silent or reports again"
    if kind in EVENTS:
        return text_of(kind, subject)
    return f"{subject} {SENTENCES[kind]}" if kind in SENTENCES and subject in names else ""


def frame_of(frame: Frame, pool: str) -> Frame:
    """Return the frame in its shared form; `pool` is empty for all pools."""
    shown = _typed(frame)
    shown["events"] = [*_events(frame, shown)]
    shown["attention"] = [*_attention(frame, shown)]
    shown = _of_pool(shown, pool) if pool else shown
    shown["banners"] = banners.of(shown)
    return shown


def _typed(frame: Frame) -> Frame:
    """Return the fields of `shape`, and the texts derived from them."""
    shown = cast(Frame, FRAME(frame))
    nodes = _numbered("#", (*frame["nodes"]["name"], *filter(None, frame["instances"]["node"])))
    routers = _numbered("router ", frame["routers"]["id"])
    shown["nodes"]["name"] = [nodes[node] for node in frame["nodes"]["name"]]
    shown["routers"]["versions"] = [
        {pool: runs for pool, runs in versions.items() if pool in shown["pools"]}
        for versions in shown["routers"]["versions"]
    ]
    shown["routers"]["id"] = [routers[router] for router in frame["routers"]["id"]]
    shown["instances"]["node"] = [nodes.get(node, "") for node in frame["instances"]["node"]]
    shown["instances"] = _named_rows(shown)
    shown["instances"]["reason"] = [*_reasons(shown)]
    lines = cast(list[dict[str, Any]], shown["deliveries"])
    shown["deliveries"] = [_delivery(line, shown) for line in lines if line["state"]]
    for late in shown["health"]["late_steps"]:
        late["what"] = late["step"]
    return shown


def _numbered(noun: str, names: Iterable[str]) -> dict[str, str]:
    """Replace the names of hosts, which reveal how the fleet is built, by numbers."""
    return {host: f"{noun}{i}" for i, host in enumerate(sorted({*names}), 1)}


def _named_rows(shown: Frame) -> Columns:
    columns = shown["instances"]
    pairs = zip(columns["id"], columns["pool"], strict=True)
    return _rows(columns, [i for i, (row, pool) in enumerate(pairs) if row and pool in shown["pools"]])


def _reasons(shown: Frame) -> Iterator[str]:
    columns = shown["instances"]
    rows = zip(*(columns[key] for key in ("pool", "status", "age_s", "kv", "waiting", "reason")), strict=True)
    unheard = columns.get("last_known") or [False] * len(columns["id"])  # missing in frames of an earlier release
    for (pool, status, age_s, kv, waiting, reason), last_known in zip(rows, unheard, strict=True):
        limit = shown["pools"][pool]["kv_limit"]
        yield measured(status, age_s, kv, waiting, limit, last_known=last_known) or reason


def _delivery(line: Mapping[str, Any], shown: Frame) -> Any:
    word, ended_by = WORDS[State(line["state"])][0], SOMEBODY if line["ended_by"] else ""
    whole = {**line, "pools": _known(line["pools"], shown), "word": word, "ended_by": ended_by}
    return {**whole, "text": delivery_text(whole)}


def _known(pools: Iterable[str], shown: Frame) -> list[str]:
    return [pool for pool in pools if pool in shown["pools"]]


def _events(frame: Frame, shown: Frame) -> Iterator[ShownEvent]:
    names = {*shown["pools"], *shown["instances"]["id"]}
    for event in frame["events"]:
        text, pools = sentence(event, names), event["pools"]
        if text and shown["pools"].keys() >= {*pools}:
            yield {"at": event["at"], "kind": event["kind"], "subject": "", "text": text, "actor": "", "pools": pools}


def _attention(frame: Frame, shown: Frame) -> Iterator[AttentionItem]:
    """Yield the listed entries, worded again by the rules from the values that are shown."""
    columns = {**shown["instances"], "waiting_avg": shown["instances"]["waiting"]}  # published frames lack the average
    plain = cast(Frame, {**shown, "instances": columns})
    reasons = {(item["rule"], item["subject"]): item["reason"] for item in attention.find(frame["at"], plain, None)}
    subjects = _subjects(frame, shown)
    known = {*subjects.values()}
    for item in frame["attention"]:
        rule, subject = item["rule"], subjects.get(item["subject"], item["subject"])
        reason = reasons.get((rule, subject))
        if rule in attention.RULES:
            yield {
                "rule": rule,
                "severity": item["severity"],
                "subject": subject if subject in known or reason is not None else WITHHELD,
                "reason": rule.replace("_", " ") if reason is None else reason,
                "href": "",
                "pools": _known(item["pools"], shown),
                "since": item["since"],
            }


def _subjects(frame: Frame, shown: Frame) -> dict[str, str]:
    """Return the subject of each attention entry, by its name in the frame."""
    late_steps = zip(frame["health"]["late_steps"], shown["health"]["late_steps"], strict=True)
    steps = {late["what"]: kept["what"] for late, kept in late_steps}
    nodes = dict(_pairs(frame["nodes"], shown["nodes"], "name"))
    routers = dict(_pairs(frame["routers"], shown["routers"], "id"))
    own = (*shown["pools"], *shown["instances"]["id"])
    return dict(zip(own, own, strict=True)) | steps | nodes | routers


def _pairs(before: Mapping[str, Any], after: Mapping[str, Any], key: str) -> Iterable[tuple[Any, Any]]:
    return zip(before[key], after[key], strict=True)


def _of_pool(shown: Frame, pool: str) -> Frame:
    """Leave out lists that may name other pools, and entries about several pools."""
    places = [i for i, found in enumerate(shown["instances"]["pool"]) if found == pool]
    instances = _rows(shown["instances"], places)
    own = {key: _one(cast(dict[str, Any], shown)[key], pool) for key in BY_POOL}
    lists = {
        key: [item for item in cast(dict[str, Any], shown)[key] if item["pools"] == [pool]]
        for key in ("deliveries", "events", "attention")
    }
    rest = {
        "ephemeral_pools": 0,
        "counts": {word: instances["status"].count(word) for word in shown["counts"]},
        "instances": instances,
        "routers": _rows(shown["routers"], []),
        "nodes": _rows(shown["nodes"], []),
        "health": {**shown["health"], "late_steps": []},
    }
    return cast(Frame, {**shown, **own, **lists, **rest})


def history_of(rows: Iterable[HistoryRow], frame: Frame) -> list[HistoryRow]:
    """Return the rows, limited to the pools and instances of the frame that the share shows."""
    pools, ids = frame["classes"].keys(), set(frame["instances"]["id"])
    shown: list[HistoryRow] = []
    for row in rows:
        names, kv = only(row, ids)
        classes = {pool: _classes(figures) for pool, figures in row["classes"].items() if pool in pools}
        shown.append({"at": row["at"], "classes": classes, "ids": names, "kv": kv})
    return shown


def _classes(figures: Mapping[str, Value]) -> dict[str, Value]:
    return {found: figures[found] for found in figures if found in CLASSES}


def _one(by_pool: Mapping[str, Value], pool: str) -> dict[str, Value]:
    return {pool: by_pool[pool]} if pool in by_pool else {}


def _rows(columns: Columns, places: Sequence[int]) -> Columns:
    return {key: [column[i] for i in places] for key, column in columns.items()}
