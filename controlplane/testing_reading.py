"""The legibility of a page: its words, the text of screen readers, both themes, a narrow screen."""

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

from axe_playwright_python.sync_playwright import Axe  # type: ignore[import-untyped]
from playwright.sync_api import Page
from playwright.sync_api import TimeoutError as NotInTime

MOST_WORDS = 450  # on a page and its navigation, before a person opens anything; temporary banners do not count
ROWS_READ = 3  # rows read of a long table or list, as readers look up the rest
ROWS = "tbody > tr, .tile, .events > li, .attention > li, .topology-step li, .strip-policies > p, .timeline > li"
WORDS = """([rows, read]) => {
  const seen = (node) => node.checkVisibility({ visibilityProperty: true }) && node.getBoundingClientRect().width > 1
    && !node.closest('svg, canvas, script, style, option, .visually-hidden, #banners');
  const lookedUp = (node) => {
    const row = node?.closest(rows);
    if (!row) return false;
    const place = [...row.parentElement.children].filter((each) => each.matches(rows)).indexOf(row);
    return place >= read || lookedUp(row.parentElement);
  };
  const texts = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
  let words = 0;
  while (texts.nextNode()) {
    const { parentElement: parent, textContent } = texts.currentNode;
    if (seen(parent) && !lookedUp(parent)) words += (textContent.match(/[\\p{L}\\p{N}]\\S*/gu) ?? []).length;
  }
  return words;
}"""
SHIFTED = """() => new Promise((done) => {
  let sum = 0;
  const seen = new PerformanceObserver((list) => {
    for (const entry of list.getEntries()) if (!entry.hadRecentInput) sum += entry.value;
  });
  seen.observe({ type: "layout-shift", buffered: true });
  setTimeout(() => done(sum), 300);
})"""
NAMED = {"navigation", "region", "table", "image", "dialog", "listbox", "radiogroup"}
CONTROLS = {
    "button", "link", "textbox", "combobox", "checkbox", "radio", "slider", "spinbutton", "searchbox",
    "DisclosureTriangle", "tab", "switch", "option", "menuitem",
}  # fmt: skip
NATIVE = {"Date", "DateTime", "InputTime"}  # the browser draws the parts of such an input
ONE_OF_A_NAME = {"navigation", "region", "button", "DisclosureTriangle"}
SERIOUS = {"serious", "critical"}
OF_COLOURS = ("color-contrast", "link-in-text-block")  # rules of axe
NARROW = 320  # px
STILL = 0.01  # CLS below which a reader sees nothing move


@dataclass(frozen=True, slots=True)
class Heard:
    """A node of Chromium's accessibility tree at which a screen reader stops."""

    role: str
    name: str
    level: int | None = None  # heading level
    live: str = ""  # polite, assertive


def read_words(page: Page) -> int:
    """Return the words and numbers that a person sees: prose, labels, headings, and the first three rows of tables,
    tiles and events. Pictures, choices of a closed select and folded parts are left out."""
    return int(page.evaluate(WORDS, [ROWS, ROWS_READ]))


def shifted(page: Page) -> float:
    """Return the layout shift since the page was opened, as Chromium scores it (CLS), except after inputs."""
    return float(page.evaluate(SHIFTED))


def heard(page: Page) -> list[Heard]:
    """Return the page as a screen reader reads it."""
    session = page.context.new_cdp_session(page)
    nodes = {node["nodeId"]: node for node in session.send("Accessibility.getFullAXTree")["nodes"]}
    session.detach()
    return [_heard(node) for node in _in_order(nodes, next(iter(nodes))) if not node["ignored"]]


def _in_order(nodes: dict[str, Any], at: str) -> Iterator[Any]:
    yield nodes[at]
    if nodes[at]["role"]["value"] in NATIVE:
        return
    for child in nodes[at].get("childIds", ()):
        if child in nodes:
            yield from _in_order(nodes, child)


def _heard(node: Any) -> Heard:
    properties = {each["name"]: each["value"].get("value") for each in node.get("properties", ())}
    name = node.get("name", {}).get("value", "").strip()
    return Heard(node["role"]["value"], name, properties.get("level"), properties.get("live", ""))


def unreadable(page: Page) -> list[str]:
    """Return what makes the page hard to read: too many words and, for screen readers, a control, landmark, picture or
    table without a name, two of them with the same name, headings that skip a level, or messages that interrupt."""
    nodes = heard(page)
    levels = [node.level or 0 for node in nodes if node.role == "heading"]
    found = [f"{words} words"] if (words := read_words(page)) > MOST_WORDS else []
    found += [f"{node.role} without a name" for node in nodes if node.role in NAMED | CONTROLS and not node.name]
    names = Counter((node.role, node.name) for node in nodes if node.role in ONE_OF_A_NAME)
    found += [f"{count} times {role} {name!r}" for (role, name), count in names.items() if count > 1]
    if levels.count(1) != 1 or levels[:1] != [1]:
        found.append(f"headings begin with {levels[:1]}, {levels.count(1)} are of level 1")
    found += [f"heading {after} follows {before}" for before, after in pairwise(levels) if after > before + 1]
    if "main" not in {node.role for node in nodes}:
        found.append("no main landmark")
    urgent = [node for node in nodes if node.live == "assertive" and node.role != "alert"]
    return found + [f"{node.role} {node.name!r} interrupts" for node in urgent]


def by_axe(page: Page, context: str | None = None, *, minor: bool = True, rules: Sequence[str] = ()) -> list[str]:
    """Return the rules of axe that the page, or a part of it, breaks, and where; without `minor` only serious and
    critical ones."""
    options: dict[str, Any] = {"resultTypes": ["violations"]}
    if rules:
        options["runOnly"] = {"type": "rule", "values": [*rules]}
    axe = Axe("0") if page.evaluate("'axe' in globalThis") else Axe()  # the script is loaded once per page
    found = axe.run(page, context, options).response["violations"]
    return [
        f"{v['id']}: {[node['html'][:120] for node in v['nodes']][:3]}"
        for v in found
        if minor or v["impact"] in SERIOUS
    ]


def in_both_themes(page: Page, *, minor: bool = True) -> list[str]:
    """Check both themes. The light theme differs only in colours (static/css/tokens.css), so only their rules run
    again."""
    found = []
    for theme, rules in (("dark", ()), ("light", OF_COLOURS)):
        page.emulate_media(color_scheme=theme, reduced_motion="reduce")  # type: ignore[arg-type]
        found += [f"{theme}: {fault}" for fault in by_axe(page, minor=minor, rules=rules)]
    return found


def too_wide(page: Page) -> list[str]:
    """Return the parts that are too wide for a narrow screen; the page stays at that width."""
    page.set_viewport_size({"width": NARROW, "height": 700})
    try:
        page.wait_for_function(f"document.documentElement.scrollWidth <= {NARROW}", timeout=5_000)
    except NotInTime:
        return [f"{page.evaluate('document.documentElement.scrollWidth')} px wide on a screen of {NARROW}"]
    return []


def faults_of(page: Page) -> list[str]:
    """Return all faults of a page in its current state."""
    return unreadable(page) + in_both_themes(page, minor=False) + too_wide(page)
