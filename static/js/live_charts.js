// TTFT and TPOT of each class over time: three lines, event marks, an optional SLO line, and a table of the same data.
import { colour, draw, seriesColour, table } from "./chart.js";
import { count, ms } from "./format.js";
import { settings } from "./live_settings.js";
import { clock, zone } from "./times.js";

const LINES = [["p50", "solid", 0], ["p90", "dash", 1], ["p99", "dot", 3]];
const TABLE_ROWS = 60;

// Plotly shows dates unchanged: local wall-clock time, or UTC if selected.
function wallClock(seconds) {
  const shift = zone() === "UTC" ? 0 : new Date(seconds * 1000).getTimezoneOffset() * 60;
  return new Date((seconds - shift) * 1000).toISOString().slice(0, 23).replace("T", " ");
}

function niceCeiling(value) {
  const step = 10 ** Math.floor(Math.log10(value));
  return [1, 2, 3, 5, 10].map((factor) => factor * step).find((top) => top >= value);
}

// A long event becomes a few short lines, so that its tooltip stays beside its mark.
const LINE = 44;
const LINES_SHOWN = 4;
export function wrapped(text) {
  const lines = [""];
  for (const word of text.replaceAll("<", "&lt;").split(/\s+/)) {
    const last = lines.at(-1);
    if (last && last.length + word.length >= LINE) lines.push(word);
    else lines[lines.length - 1] = last ? `${last} ${word}` : word;
  }
  if (lines.length > LINES_SHOWN) lines.splice(LINES_SHOWN - 1, Infinity, `${lines[LINES_SHOWN - 1]} …`);
  return lines.join("<br>");
}

export class LiveChart {
  constructor(panel, key, slo) {
    this.panel = panel;
    this.key = key;
    this.slo = slo;
    this.node = panel.querySelector(`[data-chart="${key}"]`);
    this.details = this.node.parentElement.querySelector("details");
    this.details.addEventListener("toggle", () => this.writeTable());
    this.top = 0;
    this.own = {}; // ranges zoomed by the reader: {x, y}
    this.node.addEventListener("weir:drawn", () => this.watch(), { once: true });
  }

  watch() {
    const tell = () => this.node.dispatchEvent(new CustomEvent("weir:zoom", { bubbles: true }));
    this.node.on("plotly_relayout", (change) => {
      for (const axis of ["x", "y"]) {
        const range = [change[`${axis}axis.range[0]`], change[`${axis}axis.range[1]`]];
        if (range[0] !== undefined) this.own[axis] = range;
      }
      tell();
    });
    this.node.on("plotly_doubleclick", () => { this.backToLive(); tell(); });
  }

  get zoomed() { return Boolean(this.own.x || this.own.y); }

  backToLive() {
    this.own = {};
    if (this.at) this.redraw().catch(console.error);
  }

  // columns: those of the class in Series; null when unknown
  update(at, columns, events, now, seconds) {
    Object.assign(this, { at, columns, events, now, seconds });
    if (this.details.open) this.writeTable();
    return this.redraw();
  }

  lines() {
    const n = this.columns?.n ?? [];
    return LINES.map(([name, dash, ink]) => {
      const values = this.columns?.[`${this.key}_${name}`] ?? [];
      // A few measurements have no meaningful tail.
      const shown = name === "p50" ? values : values.map((value, i) => (n[i] >= settings.lowN ? value : null));
      return { name, values: shown, dash, ink };
    });
  }

  async redraw() {
    const lines = this.lines();
    const x = this.at.map(wallClock);
    const layout = this.layout(lines);
    const traces = lines.map(({ name, values, dash, ink }) => ({
      type: "scatter", mode: "lines", name, x, y: values.map((value) => (value == null ? null : value / this.unit)), line: { color: seriesColour(ink), width: 1.75, dash },
      hovertemplate: `${name} %{customdata}<extra></extra>`, customdata: values.map(ms),
    }));
    traces.push(this.marks());
    const note = this.node.querySelector(".chart-note");
    await draw(this.node, traces, layout, { scrollZoom: false });
    note?.remove();
    this.node.dispatchEvent(new CustomEvent("weir:drawn"));
    this.summarise(lines);
  }

  marks() {
    const shown = this.events.filter((event) => event.at > this.now - this.seconds);
    return {
      type: "scatter", mode: "markers", name: "events", yaxis: "y2", x: shown.map((event) => wallClock(event.at)), y: shown.map(() => 1),
      marker: { symbol: "triangle-down", size: 9, color: colour("text") }, text: shown.map((event) => wrapped(event.text)),
      hovertemplate: "%{text}<extra></extra>", showlegend: false, cliponaxis: false,
    };
  }

  layout(lines) {
    const highest = Math.max(1, this.slo ?? 0, ...lines.flatMap(({ values }) => values.filter((value) => value != null)));
    // The axis changes only when data exceed it or shrink to a quarter of it.
    if (highest > this.top || highest < this.top / 4) this.top = niceCeiling(highest * 1.05);
    this.unit = this.top >= 2000 ? 1000 : 1; // ms per tick: a long axis is in seconds
    const dotted = (at) => ({ type: "line", xref: "x", yref: "paper", x0: wallClock(at), x1: wallClock(at), y0: 0, y1: 1, line: { color: colour("control"), width: 1, dash: "dot" } });
    const shapes = this.events.filter((event) => event.at > this.now - this.seconds).map((event) => dotted(event.at));
    if (this.slo) shapes.push({ type: "line", xref: "paper", x0: 0, x1: 1, y0: this.slo / this.unit, y1: this.slo / this.unit, line: { color: colour("failed"), width: 1.5, dash: "longdash" } });
    return {
      height: 184, margin: { l: 60, r: 10, t: 6, b: 22 }, shapes,
      xaxis: { type: "date", range: this.own.x ?? [wallClock(this.now - this.seconds), wallClock(this.now)], hoverformat: "%H:%M:%S", tickformat: "%H:%M", nticks: 5, showgrid: false, automargin: false },
      yaxis: { range: this.own.y ?? [0, this.top / this.unit], ticksuffix: this.unit === 1 ? " ms" : " s", nticks: 5, automargin: false, tickformat: ",.3~r" },
      yaxis2: { overlaying: "y", range: [0, 1], visible: false, fixedrange: true },
      legend: { orientation: "h", x: 0, y: 1, yanchor: "bottom", font: { size: 11 } },
    };
  }

  summarise(lines) {
    const newest = lines.map(({ name, values }) => `${name} ${ms(values.findLast((value) => value != null))}`).join(", ");
    const label = `${this.key.toUpperCase()} of ${this.panel.dataset.class} requests over the last ${this.seconds / 60} minutes: now ${newest}`;
    if (this.node.getAttribute("aria-label") !== label) this.node.setAttribute("aria-label", label);
  }

  writeTable() {
    if (!this.details.open || !this.at) return;
    const from = Math.max(0, this.at.length - TABLE_ROWS);
    const cut = (values) => values.slice(from).reverse();
    const columns = [{ title: "Time", values: cut(this.at).map(clock) }];
    for (const { name, values } of this.lines()) columns.push({ title: name, number: true, values: cut(values).map(ms) });
    columns.push({ title: "n", number: true, values: cut(this.columns?.n ?? []).map(count) });
    this.details.querySelector(".chart-table").replaceChildren(table(this.node.getAttribute("aria-label"), columns));
  }
}
