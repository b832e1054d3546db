// TTFT of one class on a canvas: p50, p90, p99, SLO and events; cheap enough for a screen that runs for months.
import { ms } from "./format.js";
import { settings } from "./live_settings.js";
import { colour, seriesColour } from "./theme_colours.js";

const LINES = [["ttft_p50", [], 0], ["ttft_p90", [7, 5], 1], ["ttft_p99", [2, 3], 3]];

export class Lines {
  constructor(canvas) {
    this.canvas = canvas;
    this.top = 0;
    new ResizeObserver(() => this.size()).observe(canvas);
  }

  size() {
    const scale = globalThis.devicePixelRatio || 1;
    this.canvas.width = Math.round(this.canvas.clientWidth * scale);
    this.canvas.height = Math.round(this.canvas.clientHeight * scale);
    if (this.last) this.draw(...this.last);
  }

  draw(at, columns, events, now, seconds, slo) {
    this.last = [at, columns, events, now, seconds, slo];
    const { width, height } = this.canvas;
    const context = this.canvas.getContext("2d");
    context.clearRect(0, 0, width, height);
    if (!width || !height) return;
    const font = Number.parseFloat(getComputedStyle(document.documentElement).fontSize) * (globalThis.devicePixelRatio || 1);
    const shown = this.shown(columns);
    this.scale(shown, slo);
    context.font = fontOf(font);
    const box = { left: Math.max(context.measureText(ms(this.top)).width, font * 3) + font * 0.6, right: width - 2, top: font * 0.55, bottom: height - font * 0.35 };
    const x = (time) => box.left + ((time - (now - seconds)) / seconds) * (box.right - box.left);
    const y = (value) => box.bottom - (value / this.top) * (box.bottom - box.top);
    this.frame(context, box, font, y);
    this.marks(context, box, font, x, events.filter((event) => event.at > now - seconds));
    if (slo) line(context, [[box.left, y(slo)], [box.right, y(slo)]], colour("failed"), [12, 6], font / 9);
    for (const { values, dash, ink } of shown) {
      line(context, values.map((value, i) => (value == null ? null : [x(at[i]), y(value)])), seriesColour(ink), dash.map((part) => part * font / 14), font / 7);
    }
  }

  shown(columns) {
    const n = columns?.n ?? [];
    return LINES.map(([key, dash, ink]) => ({
      dash, ink, values: (columns?.[key] ?? []).map((value, i) => (key === "ttft_p50" || n[i] >= settings.lowN ? value : null)),
    }));
  }

  scale(shown, slo) {
    const highest = Math.max(1, slo ?? 0, ...shown.flatMap(({ values }) => values.filter((value) => value != null)));
    if (highest > this.top || highest < this.top / 4) {
      const step = 10 ** Math.floor(Math.log10(highest * 1.05));
      this.top = [1, 2, 3, 5, 10].map((factor) => factor * step).find((top) => top >= highest * 1.05);
    }
  }

  frame(context, box, font, y) {
    context.textAlign = "end";
    context.textBaseline = "middle";
    for (const value of [0, this.top]) {
      context.fillStyle = colour("muted");
      context.fillText(value === 0 ? "0" : ms(value), box.left - font * 0.4, y(value));
      line(context, [[box.left, y(value)], [box.right, y(value)]], colour("rule"), [], 1);
    }
  }

  marks(context, box, font, x, events) {
    for (const event of events) line(context, [[x(event.at), box.top], [x(event.at), box.bottom]], colour("control"), [2, 4], font / 10);
  }
}

const fontOf = (size) => `${size}px system-ui, sans-serif`;

// points: [x, y] or null; a null breaks the line.
function line(context, points, ink, dash, width) {
  context.beginPath();
  let drawing = false;
  for (const point of points) {
    if (!point) { drawing = false; continue; }
    if (drawing) context.lineTo(...point);
    else context.moveTo(...point);
    drawing = true;
  }
  context.setLineDash(dash);
  context.lineWidth = width;
  context.strokeStyle = ink;
  context.stroke();
  context.setLineDash([]);
}
