"""The report of a replay: Markdown, which is also readable in a terminal, and an HTML page that makes no network
requests. Pure."""

from collections.abc import Iterable, Iterator, Sequence
from html import escape

from controlplane.evidence.plan.replay import AS_IN_FILE, ArmResult, Felt, Replayed
from controlplane.evidence.twin.expected_error import described
from fleet.counted import counted

UNKNOWN = "–"
COLUMNS = ("policy", "requests", "unanswered", "TTFT p50", "p90", "p99", "TPOT p50", "p90", "E2E p50", "p90", "cached")
STYLE = (
    "body{font:15px/1.5 system-ui,sans-serif;max-width:70rem;margin:2rem auto;padding:0 1rem;color:#1c2530}"
    "table{border-collapse:collapse;margin:1rem 0}"
    "th,td{padding:.2rem .7rem;text-align:right;border-bottom:1px solid #ccd}"
    "th:first-child,td:first-child{text-align:left}figure{margin:1rem 0}text{font:13px system-ui,sans-serif}"
)
NO_NETWORK = "default-src 'none'; style-src 'unsafe-inline'; img-src data:"
BAR, LEFT, WIDE = 26, 220, 900  # row height, left end of the bars and width of a picture, px


def markdown(replayed: Replayed) -> str:
    parts = ["# What users would have felt", *_facts(replayed)]
    for prefixes, results in _by_prefixes(replayed.results):
        if prefixes != AS_IN_FILE:
            parts.append(f"## If {prefixes}")
        for name in _classes(results):
            parts.append(f"{'###' if prefixes != AS_IN_FILE else '##'} {name.capitalize()} requests")
            parts.append("\n".join(_table(results, name)))
        parts.append(_cost(results))
    return "\n\n".join(part for part in parts if part) + "\n"


def html(replayed: Replayed) -> str:
    body = ["<h1>What users would have felt</h1>", *(f"<p>{escape(text)}</p>" for text in _facts(replayed))]
    for prefixes, results in _by_prefixes(replayed.results):
        if prefixes != AS_IN_FILE:
            body.append(f"<h2>If {escape(prefixes)}</h2>")
        for name in _classes(results):
            body.append(f"<h3>{escape(name.capitalize())} requests</h3>")
            body += (_picture(results, name, title, field) for title, field in (("TTFT", "ttft"), ("E2E", "e2e")))
            body.append(_html_table(results, name))
        body.append(f"<p>{escape(_cost(results))}</p>")
    head = (
        f'<meta charset="utf-8"><meta http-equiv="Content-Security-Policy" content="{NO_NETWORK}">'
        f"<title>What users would have felt</title><style>{STYLE}</style>"
    )
    return f'<!doctype html><html lang="en"><head>{head}</head><body>{"".join(body)}</body></html>\n'


def _facts(replayed: Replayed) -> list[str]:
    fleet, trace = replayed.fleet, replayed.trace
    engines = len(fleet.twin.instances)
    cost = f", ${fleet.per_hour:,.2f} an hour" if fleet.per_hour is not None else ""
    played = (
        f"{len(trace.requests):,} of {counted(replayed.given, 'request')} ({trace.format}, paced by {trace.pacing})"
    )
    where = f"{counted(engines, 'engine')}, {counted(fleet.gpus, 'GPU')}{cost}; {fleet.about}"
    facts = [
        f"Simulated: no engine was started. {played} on {where}.",
        f"Expected error: {described(fleet.expected)}.",
        fleet.assumed,
    ]
    if trace.left_out:
        facts.append(f"The file has {trace.left_out:,} further requests without an answer or its length.")
    if (too_long := replayed.given - replayed.fitting) > 0:
        facts.append(
            f"Left out: {counted(too_long, 'request')} of the file that {'do' if too_long > 1 else 'does'} not fit "
            f"{replayed.window:,} tokens, or whose session was cut there."
        )
    if any(result.prefixes != AS_IN_FILE for result in replayed.results):
        facts.append(
            "The file tells no prefixes, so what caches save cannot be known: it is bounded by two plays, in which "
            "nothing is shared and in which everything is."
        )
    doubts = dict.fromkeys(text for result in replayed.results for text in result.doubts)
    return [text for text in (*facts, *(f"Caution: {text}." for text in (*fleet.cautions, *doubts))) if text]


def _by_prefixes(results: Sequence[ArmResult]) -> Iterator[tuple[str, list[ArmResult]]]:
    for prefixes in dict.fromkeys(result.prefixes for result in results):
        yield prefixes, [result for result in results if result.prefixes == prefixes]


def _classes(results: Sequence[ArmResult]) -> Iterable[str]:
    return results[0].classes if results else ()


def _table(results: Sequence[ArmResult], name: str) -> Iterator[str]:
    rows = [_columns(results), *(_cells(result, result.classes[name]) for result in results)]
    rows = [tuple(cell.replace("|", "\\|") for cell in row) for row in rows]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for number, row in enumerate(rows):
        cells = (row[0].ljust(widths[0]), *(cell.rjust(width) for cell, width in zip(row[1:], widths[1:], strict=True)))
        yield f"| {' | '.join(cells)} |"
        if not number:
            yield f"|{'|'.join('-' * (width + 2) for width in widths)}|"


def _html_table(results: Sequence[ArmResult], name: str) -> str:
    head = "".join(f"<th>{escape(text)}</th>" for text in _columns(results))
    rows = (_cells(result, result.classes[name]) for result in results)
    body = "".join(f"<tr>{''.join(f'<td>{escape(cell)}</td>' for cell in row)}</tr>" for row in rows)
    return f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"


def _columns(results: Sequence[ArmResult]) -> tuple[str, ...]:
    has_limits = any(felt.within is not None for result in results for felt in result.classes.values())
    return (*COLUMNS, "within SLO") if has_limits else COLUMNS


def _cells(result: ArmResult, felt: Felt) -> tuple[str, ...]:
    cells = (
        f"{result.arm.name}{' (Weir)' if result.arm.is_weir else ''}",
        f"{felt.n:,}",
        f"{felt.unanswered:,}",
        *map(_seconds, (felt.ttft_p50, felt.ttft_p90, felt.ttft_p99)),
        *((UNKNOWN if value is None else f"{value * 1000:,.1f} ms") for value in (felt.tpot_p50, felt.tpot_p90)),
        *map(_seconds, (felt.e2e_p50, felt.e2e_p90)),
        f"{felt.cached:.1%}",
    )
    if len(_columns([result])) == len(COLUMNS):
        return cells
    return (*cells, UNKNOWN if felt.within is None else f"{felt.within:.1%}")


def _seconds(value: float | None) -> str:
    return UNKNOWN if value is None else f"{value:,.2f} s"


def _cost(results: Sequence[ArmResult]) -> str:
    known = [f"{one.arm.name} ${one.per_million:,.3f}" for one in results if one.per_million is not None]
    return f"A million output tokens cost: {', '.join(known)}." if known else ""


def _picture(results: Sequence[ArmResult], name: str, title: str, field: str) -> str:
    """Draw bars from the median to the p90 of each policy."""
    spans = [(one, *(getattr(one.classes[name], f"{field}_{key}") for key in ("p50", "p90"))) for one in results]
    most = max((high for *_, high in spans if high is not None), default=0.0)
    if not most:
        return ""
    scale, height = (WIDE - LEFT - 90) / most, BAR * (len(spans) + 1)
    parts = [f'<text x="0" y="16">{escape(title)}, median to p90</text>']
    for row, (one, low, high) in enumerate(spans, start=1):
        y = row * BAR
        parts.append(f'<text x="0" y="{y + 16}">{escape(one.arm.name)}</text>')
        if low is not None and high is not None:
            begin, width = LEFT + low * scale, max(2.0, (high - low) * scale)
            colour = "#00694a" if one.arm.is_weir else "#8a96a3"
            parts.append(f'<rect x="{begin:.1f}" y="{y + 4}" width="{width:.1f}" height="14" fill="{colour}"/>')
            parts.append(f'<text x="{begin + width + 6:.1f}" y="{y + 16}">{high:,.2f} s</text>')
    label = escape(f"{title} of {name} requests by policy")
    drawing = f'<svg role="img" aria-label="{label}" viewBox="0 0 {WIDE} {height}" width="{WIDE}" height="{height}">'
    return f"<figure>{drawing}{''.join(parts)}</svg></figure>"
