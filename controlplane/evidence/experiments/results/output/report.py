"""Writes results as Markdown, as CSV for spreadsheets and as JUnit for CI. Pure."""

from collections.abc import Iterable, Mapping, Sequence
from xml.etree.ElementTree import Element, SubElement, tostring

from controlplane.common.csv_cell import csv_text
from controlplane.evidence.experiments.results.metrics import METRICS
from controlplane.evidence.experiments.results.output.effects import arm_title, effect_row, shown
from controlplane.evidence.experiments.results.records import COLUMNS, Record
from controlplane.evidence.experiments.results.summarize import levels
from controlplane.evidence.experiments.results.types import DifferenceRow, ExpectationRow, ExperimentResults
from controlplane.evidence.twin.expected_error import described

REPORTED = ("n", "ttft_p50_ms", "ttft_p90_ms", "ttft_p99_ms", "tpot_p50_ms", "e2e_p50_ms", "e2e_p90_ms", "hit_ratio")


def markdown(results: ExperimentResults, about: Mapping[str, str], baseline: str, pictures: Sequence[str] = ()) -> str:
    """Write the comparison as one document. `about` has the lines at its top, title → text; `pictures` are links to
    pictures."""
    lines = [f"# {_escape(results['experiment']['name'])}", ""]
    lines += [f"- {title}: {_escape(text)}" for title, text in about.items() if text]
    lines += [f"- Times: {results['time']}", ""]
    lines += _expectations(results)
    if results["partial"]:
        lines += ["**Partial results**: not every run ended.", ""]
    # Warnings come first, because the reader needs them to judge the rest.
    lines += _bullets("Warnings", results["warnings"])
    lines += [line for picture in pictures for line in (picture, "")]
    lines += _differing(results)
    for request_class in results["classes"]:
        lines += _class_table(results, request_class)
    lines += _differences(results, baseline)
    return "\n".join(lines).rstrip() + "\n"


def _differing(results: ExperimentResults) -> list[str]:
    """Describe the arms' changes to the policy and to the fleet."""
    lines = []
    differing = results["differing"]
    for title, settings in (("Policies", differing["policy"]), ("Fleets", differing["fleet"])):
        names = [arm["name"] for arm in results["arms"]]
        cells = [(f"{row['title']} ({row['path']})", *(row["values"][name] for name in names)) for row in settings]
        rows = [f"| {' | '.join(map(_escape, each))} |" for each in cells]
        if rows:
            head = f"| differs | {' | '.join(_escape(arm_title(name)) for name in names)} |"
            lines += [f"## {title}", "", head, "|---" * (len(names) + 1) + "|", *rows, ""]
    return lines


def _class_table(results: ExperimentResults, request_class: str) -> list[str]:
    metrics = [METRICS[key] for key in REPORTED]
    lines = [f"## Class {request_class}", "", "| arm | " + " | ".join(m.title for m in metrics) + " |"]
    lines.append("|---" * (len(metrics) + 1) + "|")
    best, found = results["best"].get(request_class, {}), levels(results, request_class)
    for arm in results["arms"]:
        cells = [
            shown(found[arm["name"], m.key], m.unit) + (" (best)" if best.get(m.key) == arm["name"] else "")
            for m in metrics
        ]
        lines.append(f"| {_escape(arm_title(arm['name']))} | " + " | ".join(cells) + " |")
    return [*lines, ""]


def _differences(results: ExperimentResults, baseline: str) -> list[str]:
    rows = [row for row in results["differences"] if row["baseline"] == baseline]
    if not rows:
        return []
    lines = [
        f"## Against {_escape(arm_title(baseline))}",
        "",
        "| arm | class | metric | difference | interval | n | verdict |",
    ]
    lines.append("|---" * 7 + "|")
    for row in rows:
        shown_row = effect_row(METRICS[row["metric"]], (row["reference"], None), row, compared_n(row))
        cells = (
            _escape(arm_title(row["arm"])),
            row["class"],
            shown_row.title,
            shown_row.difference,
            shown_row.interval,
            shown_row.n,
        )
        lines.append(f"| {' | '.join(map(str, cells))} | {shown_row.verdict} |")
    return [*lines, "", COMPARISONS_NOTE, ""]


def compared_n(row: DifferenceRow) -> str:
    """Format the number of compared requests: 1,204 (36 left out)."""
    left_out = row.get("left_out", 0)
    return shown(row["n"]) + (f" ({shown(left_out)} left out)" if left_out else "")


COMPARISONS_NOTE = (
    "Levels and differences are over the same requests, n: those that every arm was sent, with a known value. One "
    "without an answer counts as infinitely late. "
    "95 % intervals, widened by Holm's method for the number of arms compared with the same baseline, and for the "
    "number of metrics: those of the plot, and all others; where the difference itself falls on unanswered requests, "
    "only for the arms."
)


def _expectations(results: ExperimentResults) -> list[str]:
    lines = _bullets("Expectations", map(sentence, results["expectations"]))
    return [f"**Verdict: {results['verdict']}**", "", *lines] if lines else []


def sentence(row: ExpectationRow) -> str:
    """Describe an expectation and its result."""
    subject = f"{row['verdict']}: {METRICS[row['metric']].title} of class {row['class']} under {arm_title(row['arm'])}"
    return f"{subject} {_found(row)}; expected: {row['limits']}{_decided_by(row)}"


def _found(row: ExpectationRow) -> str:
    relative = bool(row["relative_to"])
    number, unit = (row["ratio"], "") if relative else (row["value"], METRICS[row["metric"]].unit)
    if number is None:
        return "is unknown, or falls on unanswered requests"
    limits = [float(word) for word in row["limits"].partition(" × ")[0].split() if word not in LIMIT_WORDS]

    def said(value: float) -> str:
        return shown(value, unit, min(limits, key=lambda limit: abs(limit - value), default=None))

    text = f"is {said(number)}" + (f" × {arm_title(row['relative_to'])}" if relative else "")
    if row["low"] is None or row["high"] is None or row["level"] is None:
        return text
    return f"{text} ({row['level'] * 100:.4g} % interval: {said(row['low'])} to {said(row['high'])})"


LIMIT_WORDS = ("at", "least", "most", "and")  # words in ExpectationRow.limits


def _decided_by(row: ExpectationRow) -> str:
    if row["verdict"] != "inconclusive":
        return ""
    if row["needed_n"] is None:
        return "; more requests would not decide it"
    return f"; about {shown(row['needed_n'])} requests would decide it, there are {shown(row['n'] or 0)}"


def _bullets(title: str, items: Iterable[str]) -> list[str]:
    listed = [f"- {_escape(item)}" for item in items]
    return [f"## {title}", "", *listed, ""] if listed else []


def _escape(text: str) -> str:
    return text.replace("|", "\\|").replace("\n", " ")


def requests_csv(mode: str, runs: Iterable[tuple[str, int, Sequence[Record]]]) -> str:
    """Write a row for each request; an unknown value is an empty cell. `runs` has (arm, seed, records)."""
    rows = (
        (arm, seed, mode, *(getattr(record, name) for name in COLUMNS))
        for arm, seed, records in runs
        for record in records
    )
    return csv_text(("arm", "seed", "mode", *COLUMNS), rows, exact=True)


def junit(results: ExperimentResults) -> str:
    """Write a test case for each run and for each expectation. An inconclusive expectation counts as skipped, because
    it has neither passed nor failed."""
    suite = Element("testsuite", name=_xml_text(results["experiment"]["name"]))
    _properties(suite, results)
    for arm in results["arms"]:
        for run in arm["runs"]:
            case = SubElement(suite, "testcase", classname="runs", name=_xml_text(f"{arm['name']}, seed {run['seed']}"))
            if run["status"] != "done":
                SubElement(case, "error", message=_xml_text(f"{run['status']}: {run['cause']}"))
    for row in results["expectations"]:
        name = f"{row['arm']}: {row['class']} {row['metric']} {row['limits']}"
        case = SubElement(suite, "testcase", classname="expectations", name=_xml_text(name))
        if row["verdict"] != "pass":
            SubElement(case, JUNIT[row["verdict"]], message=_xml_text(sentence(row)))
    counts = (("tests", ""), ("failures", "/failure"), ("errors", "/error"), ("skipped", "/skipped"))
    suite.attrib |= {name: str(len(suite.findall(f"testcase{found}"))) for name, found in counts}
    return '<?xml version="1.0" encoding="UTF-8"?>\n' + tostring(suite, encoding="unicode") + "\n"


JUNIT = {"fail": "failure", "inconclusive": "skipped"}


def _properties(suite: Element, results: ExperimentResults) -> None:
    """Add the mode, and for a simulation its engine model."""
    named = [("mode", results["mode"]), ("verdict", results["verdict"])]
    if (twin := results["twin"]) is not None:
        named += [("twin", twin["about"]), ("expected error", described(twin["expected"]))]
        named += [("caution", text) for text in twin["cautions"]]
    properties = SubElement(suite, "properties")
    for name, value in named:
        if value:
            SubElement(properties, "property", name=name, value=_xml_text(value))


def _xml_text(text: str) -> str:
    """Remove control characters that XML 1.0 does not allow."""
    return "".join(c if c >= " " or c in "\t\n" else "�" for c in text)
