"""docs/figures.md says for every figure of a page where other tools find it: its metric, and its field in REST."""

import json
import re
from collections.abc import Iterator
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

CODE = Path(__file__).resolve().parents[2]
TEMPLATES = CODE / "templates"
DOCUMENT = (CODE / "docs" / "figures.md").read_text()
METRICS = set(re.findall(r"^\| `(weir_[a-z_]+)`", "".join(
    (CODE / "docs" / name).read_text() for name in ("monitoring.md", "router.md")
), re.MULTILINE))  # fmt: skip
OPENAPI: dict[str, Any] = json.loads((CODE / "docs" / "openapi.json").read_text())
VOID = {"br", "hr", "img", "input", "link", "meta", "path", "rect"}
FORMATTED = re.compile(
    r"\|(?:whole|percent|percent_of|signed_percent|ms|seconds|significant|intcomma|floatformat|filesizeformat|size|duration|cell)\b|\|stringformat:'[.]"
)
TEXTS = """
API key; Action; Actor; Acts for; Address; Allowed; Approved; Arms; Asked for; At the engines; Before; Breaks first;
By; Caveats; Cells; Changes; Class; Command; Compared; Created; Created by; Delivery; Desired state;
Document of; Draft; Endpoint; Engine; Epoch; Event; Events; Falls back to; Family; Format; Formats; Formula; From;
GPU; GPUs; Homes; Host; Image; Instance; KV events; Kind; Labels; Layout; Limits; Live for; Live now; Live
version; Measured; Mine; Model; Needs; New; Next; Node; Now and next, or outcome; Old; Outcome; Owner;
Per; Pid; Pod; Pod on; Policies; Policy; Pool; Pool and model; Pools; Ports; Prefix; Previewed; Product; Proposed;
Published; Reaches; Reason; Repeats; Replaced; Replicas; Resets; Restores; Result; Role; Router; Rule; Runs; SHA-256;
Same id before; Scale; Scopes; Seeds; Served by; Session; Shadow; Shows; Started; Started by; Started from; State;
Status; Strategy; Subject; System; Text; Theirs; Time, actor, reason; Times; Trace; Traffic; Twin; URL;
Verdict; Versions; What changed; What it does; What it means; Who; Why; Why deliver it again; Rules bypassed;
…; … …, required
"""  # labels of cells and terms that show no figure
NAMED_BY = ("data-total", "data-part")  # the figures that scripts write


class Figures(HTMLParser):
    """The figures of a template: headings of numeric columns, terms with numbers, charts, and, as `code`, names of
    numbers in sentences or written by scripts."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[tuple[str, dict[str, str]]] = []
        self.term = ""
        self.head = ""
        self.found: dict[str, None] = {}
        self.texts: dict[str, None] = {}  # texts of cells that show something else
        self.heads, self.unnamed = 0, 0  # numeric columns; numbers of a row without a data-label
        self.headless: list[str] = []  # such numbers, if they exceed the table's columns

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given = {name: value or "" for name, value in attrs}
        self.open.append((tag, given))
        is_number = "number" in given.get("class", "").split()
        self.heads = 0 if tag == "table" else self.heads
        self.unnamed = 0 if tag == "tr" else self.unnamed
        if tag == "td" and is_number:
            self._add(given.get("data-label", ""))
            self.unnamed += "data-label" not in given
        if tag == "dt":
            self.term = ""
        if tag == "dd" and is_number:
            self._add(self.term)
        if given.get("role") == "img":
            self._add(re.split("[:;,]", re.sub(r"{{.*?}}", "…", given.get("aria-label", "")))[0])
        if is_number or tag in ("b", "td") or "data-total" in given or (tag == "strong" and self._within("figure")):
            self._add(*(f"`{given[name]}`" for name in NAMED_BY if name in given))
        if tag in VOID:
            self.open.pop()

    def handle_endtag(self, tag: str) -> None:
        while self.open and self.open[-1][0] != tag:
            self.open.pop()
        if tag == "th" and self._in_head():
            self._add(self.head)
            self.head = ""
            self.heads += 1
        if tag == "tr" and self.unnamed > self.heads:
            self.headless.append(f"{self.unnamed} numbers in a row, {self.heads} columns of numbers")
        self.open[-1:] = []

    def handle_data(self, data: str) -> None:
        tags = [tag for tag, _ in self.open]
        if "dt" in tags:
            self.term += data
        if self._in_head():
            self.head += data
        elif "dd" in tags and FORMATTED.search(data):
            self._add(self.term)
        elif {"dd", "td"} & set(tags) and "{{" in data:
            self._add_text(data)
        elif not {"dd", "td", "dt"} & set(tags):
            self._add_formatted(data)

    def _add_text(self, data: str) -> None:
        tag, given = next(one for one in reversed(self.open) if one[0] in ("dd", "td"))
        if "number" in given.get("class", "").split():
            return
        name = self.term if tag == "dd" else given.get("data-label", "")
        self.texts[_words(name)] = None
        if not name:
            self._add_formatted(data)

    def _add_formatted(self, data: str) -> None:
        for expression in re.findall(r"{{(.*?)}}", data):
            if FORMATTED.search(expression):
                self._add(f"`{expression.partition('|')[0].strip().rpartition('.')[2]}`")

    def _in_head(self) -> bool:
        """Return whether the parser is within the heading of a numeric column."""
        return any(tag == "th" and given.get("scope") == "col" and "number" in given.get("class", "").split()
                   for tag, given in self.open)  # fmt: skip

    def _within(self, name: str) -> bool:
        return any(name in given.get("class", "").split() for _, given in self.open)

    def _add(self, *texts: str) -> None:
        for text in texts:
            if words := _words(text):
                self.found[words] = None


def _words(text: str) -> str:
    return re.sub(r"\s+", " ", re.sub(r"{%.*?%}", "", re.sub(r"{{.*?}}", "…", text))).strip()


def parsed(template: Path) -> Figures:
    parser = Figures()
    text = re.sub(r"{#.*?#}", "", template.read_text())
    parser.feed(re.sub(r"{[{%].*?[%}]}", lambda tag: tag[0].replace('"', "'"), text))
    return parser


def figures(template: Path) -> set[str]:
    return set(parsed(template).found)


def sections() -> dict[str, list[list[str]]]:
    """Return the rows of each section's table by its templates, which the comment below the heading names."""
    found = {}
    for part in DOCUMENT.split("\n## ")[1:]:
        templates = re.search(r"<!-- (.*?) -->", part)
        assert templates is not None, part[:40]
        rows = re.findall(r"^\| (?!figure \||---)(.*) \|$", part, re.MULTILINE)
        found[templates[1]] = [re.split(r" +\| +", row) for row in rows]
    return found


def test_every_figure_of_a_page_has_a_row_and_every_row_is_shown() -> None:
    wrong = []
    told: set[str] = set()
    for names, rows in sections().items():
        shown: set[str] = set().union(*(figures(TEMPLATES / f"{name}.html") for name in names.split()))
        listed = {figure for row in rows for figure in row[0].split("; ")}
        wrong += [f"{names}: {figure} has no row" for figure in sorted(shown - listed)]
        wrong += [f"{names}: {figure} is not on the page" for figure in sorted(listed - shown)]
        told |= set(names.split())
    others = {str(path.relative_to(TEMPLATES).with_suffix("")): path for path in TEMPLATES.rglob("*.html")}
    wrong += [f"{name} is under no heading: {figures(path)}" for name, path in others.items()
              if name not in told and figures(path)]  # fmt: skip
    assert wrong == []


def test_a_cell_contains_a_number_or_one_of_the_known_texts() -> None:
    """Text formatted by a view counts as a figure only if its cell has the class `number`."""
    known = set(_words(TEXTS).split("; "))
    shown = {}
    for path in TEMPLATES.rglob("*.html"):
        page = parsed(path)
        shown |= {text: path.name for text in page.texts if text and text not in page.found}
    assert [f"{name}: {text} is no number" for text, name in shown.items() if text not in known] == []
    assert known - shown.keys() == set()


def test_a_number_is_named_by_its_cell_or_by_its_column() -> None:
    found = {path.name: parsed(path).headless for path in TEMPLATES.rglob("*.html")}
    assert {name: numbers for name, numbers in found.items() if numbers} == {}


def test_a_new_figure_is_found_wherever_it_is(tmp_path: Path) -> None:
    page = tmp_path / "page.html"
    page.write_text(
        '<table><thead><tr><th scope="col" class="number">Lost</th></tr></thead>'
        '<tr><td class="number" data-label="Kept">{{ a }}</td><td>{{ row.share|percent }}</td></tr></table>'
        '<table><tr><td class="number">{{ b }}</td></tr></table>'
        "<dl><dt>Age of {{ name }}</dt><dd>{{ row.age_s|seconds }}</dd></dl>"
        '<p>{{ row.left|whole }} left, {{ name }}</p><b data-part="rate"></b>'
        '<canvas role="img" aria-label="KV"></canvas>'
    )
    assert figures(page) == {"Lost", "Kept", "`share`", "Age of …", "`left`", "`rate`", "KV"}
    assert parsed(page).headless == ["1 numbers in a row, 0 columns of numbers"]


def test_metrics_and_fields_of_figures_exist() -> None:
    wrong = []
    for rows in sections().values():
        for figure, metric, rest in rows:
            names = re.findall(r"`(.*?)`", metric)
            wrong += [f"{figure}: no metric {name}" for name in names if name not in METRICS]
            if rest.startswith("none: "):
                continue
            wrong += [f"{figure}: no field"] if not (places := list(fields(rest))) else []
            wrong += [f"{figure}: {path} has no {name}" for path, name in places if not has(path, name)]
    assert wrong == []


def fields(cell: str) -> Iterator[tuple[str, str]]:
    """Return (path, field); fields after a path belong to it."""
    path = ""
    for word in re.findall(r"`(.*?)`", cell):
        path = word if word.startswith("/") else path
        if word != path:
            yield path, word


def has(path: str, field: str) -> bool:
    """Return whether the answer of `GET /api/v1<path>` may contain the field; an object without a schema may contain
    any."""
    operation = OPENAPI["paths"].get(f"/api/v1{path}", {}).get("get")
    if operation is None:
        return False
    schema = resolved(operation["responses"]["200"]["content"]["application/json"]["schema"])
    for name in field.split("."):
        if "properties" not in schema:
            return schema.get("type") == "object" or not schema
        if name not in schema["properties"]:
            return False
        schema = resolved(schema["properties"][name])
    return True


def resolved(schema: dict[str, Any]) -> dict[str, Any]:
    """Return the schema without references; of a list, the schema of its rows."""
    while True:
        if "$ref" in schema:
            schema = OPENAPI["components"]["schemas"][schema["$ref"].rpartition("/")[2]]
        elif "anyOf" in schema:
            schema = next(one for one in schema["anyOf"] if one.get("type") != "null")
        elif schema.get("type") == "array":
            schema = schema.get("items", {})
        else:
            return schema
