// A chart with its parts: the timeline, its reading, its sentence for screen readers, and its table.
import { table } from "./chart_table.js";
import { count } from "./format.js";
import { Timeline } from "./timeline.js";
import { clock } from "./times.js";

const TABLE_ROWS = 60;

// own: the reading of the chart in use, the only one that is read aloud
export const reads = (output) => (line, own = true) => {
  output.setAttribute("aria-live", own ? "polite" : "off");
  output.textContent = line;
};

export class Chart {
  // title: "TTFT of warm requests"
  constructor(figure, title, quantity, chosen = null, opened = null) {
    this.key = figure.dataset.chart;
    this.canvas = figure.querySelector("canvas");
    this.details = figure.querySelector("details");
    const output = figure.querySelector("output");
    this.timeline = new Timeline(this.canvas, quantity, { title, read: reads(output), chosen, opened });
    figure.addEventListener("weir:series", ({ detail }) => this.timeline.showOnly(detail));
    this.details.addEventListener("toggle", () => this.writeTable());
  }

  update(at, columns, events, from, to, limit) {
    this.timeline.update(at, columns, events, from, to, limit);
    this.writeTable();
  }

  writeTable() {
    const { at, columns, from, to } = this.timeline;
    if (!this.details.open || !at) return;
    const shown = at.map((_, i) => i).filter((i) => at[i] >= from && at[i] <= to).slice(-TABLE_ROWS).reverse();
    const cut = (values) => shown.map((i) => values[i]);
    const made = [{ title: "Time", values: cut(at).map(clock) }];
    for (const { name, values } of this.timeline.lines()) made.push({ title: name, number: true, values: cut(values).map((value) => this.timeline.quantity.write(value)) });
    if (columns?.n) made.push({ title: "n", number: true, values: cut(columns.n).map(count) });
    this.details.querySelector(".chart-table").replaceChildren(table(this.canvas.getAttribute("aria-label"), made));
  }
}
