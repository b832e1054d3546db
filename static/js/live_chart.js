// A latency chart of a class's panel: the timeline, its reading, its sentence for screen readers, and its table.
import { table } from "./chart_table.js";
import { count, ms } from "./format.js";
import { Timeline } from "./timeline.js";
import { clock } from "./times.js";

const TABLE_ROWS = 60;

export class LatencyChart {
  constructor(figure, name, chosen) {
    this.name = name;
    this.key = figure.dataset.chart;
    this.canvas = figure.querySelector("canvas");
    this.details = figure.querySelector("details");
    const output = figure.querySelector("output");
    this.timeline = new Timeline(this.canvas, this.key, { read: (line) => { output.textContent = line; }, chosen });
    this.details.addEventListener("toggle", () => this.writeTable());
  }

  update(at, columns, events, from, to, slos) {
    this.timeline.update(at, columns, events, from, to, slos?.[this.key]);
    const newest = this.timeline.lines().map(({ name, values }) => `${name} ${ms(values.findLast((value) => value != null))}`).join(", ");
    const label = `${this.key.toUpperCase()} of ${this.name} requests over ${Math.round((to - from) / 60)} min: latest ${newest}`;
    if (this.canvas.getAttribute("aria-label") !== label) this.canvas.setAttribute("aria-label", label);
    this.writeTable();
  }

  writeTable() {
    const { at, columns, from, to } = this.timeline;
    if (!this.details.open || !at) return;
    const shown = at.map((_, i) => i).filter((i) => at[i] >= from && at[i] <= to).slice(-TABLE_ROWS).reverse();
    const cut = (values) => shown.map((i) => values[i]);
    const made = [{ title: "Time", values: cut(at).map(clock) }];
    for (const { name, values } of this.timeline.lines()) made.push({ title: name, number: true, values: cut(values).map(ms) });
    made.push({ title: "n", number: true, values: cut(columns?.n ?? []).map(count) });
    this.details.querySelector(".chart-table").replaceChildren(table(this.canvas.getAttribute("aria-label"), made));
  }
}
