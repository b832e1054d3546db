// A quantity over time on a canvas: its lines, its limit and events, readable by pointer or keyboard. Gaps stay gaps.
import { fit, fontPx, line, niceCeiling, niceFloor, scale, ticks, write } from "./canvas.js";
import { join, point } from "./crosshair.js";
import { count, ms } from "./format.js";
import { settings } from "./live_settings.js";
import { colour, seriesColour } from "./theme_colours.js";
import { clock, hourMinute } from "./times.js";

const LINES = [["p50", [], 0], ["p90", [7, 5], 1], ["p99", [2, 3], 3]];
// {write: a value as text, lines: (columns) => [{name, values, dash, ink, pale, band}], top: of the axis where it is fixed,
//  counted: whether a reading has the n of its column; log: whether the axis is logarithmic, same: a value that is always on the axis, drawn as a rule}
// hours: whether the axis has times: not where another chart above has them
// pale: by value, whether it rests on too few measurements; band: [lower, upper] values of an interval around the line
export const latency = (key) => ({
  write: ms, log: true,
  lines: (columns) => {
    const n = columns?.n ?? [];
    return LINES.map(([name, dash, ink]) => {
      const values = columns?.[`${key}_${name}`] ?? [];
      // A few measurements have no meaningful tail.
      const shown = name === "p50" ? values : values.map((value, i) => (n[i] >= settings.lowN ? value : null));
      return { name, values: shown, dash, ink };
    });
  },
});
const NEAR_PX = 6;
const CLICK_PX = 4;
const PALE = 0.4;
const BAND = 0.15;

// The points of a line without those that are pale, and the pale ones with the way to the next point.
export function split(points, pale = []) {
  return [points.map((point, i) => (pale[i] ? null : point)), points.map((point, i) => (pale[i] || pale[i - 1] ? point : null))];
}

// The points that no line joins to another one.
export const alone = (points) => points.filter((point, i) => point && !points[i - 1] && !points[i + 1]);

// The corners of a band from a lower line and an upper one, for each stretch where both are known.
export function bands(lower, upper) {
  const found = [];
  let begun = -1;
  for (let i = 0; i <= lower.length; i += 1) {
    const known = lower[i] && upper[i];
    if (known && begun < 0) begun = i;
    if (known || begun < 0) continue;
    found.push([...upper.slice(begun, i), ...lower.slice(begun, i).reverse()]);
    begun = -1;
  }
  return found;
}

export class Timeline {
  // title: what it shows, for screen readers; read: shows the text of a reading, and gets whether the cursor is its own;
  // chosen: called with [from, to] in Unix s when a range was drawn; opened: with the time of a press or of Enter
  constructor(canvas, quantity, { title = "", read = null, chosen = null, opened = null, hours = true } = {}) {
    Object.assign(this, { canvas, quantity, title, read, chosen, opened, hours, top: 0, low: 0, cursor: null, elsewhere: null, only: null });
    fit(canvas, () => this.draw());
    if (!read) return;
    this.listen();
    join(this);
  }

  // columns: what the quantity's lines are made of; limit: its SLO or limit, or undefined
  update(at, columns, events, from, to, limit) {
    Object.assign(this, { at, columns, events, from, to, limit });
    this.draw();
    const said = (value) => (value == null ? "unknown" : this.quantity.write(value));
    const latest = this.lines().map(({ name, values }) => `${name} ${said(values.findLast((value) => value != null))}`).join(", ");
    const label = `${this.title} over ${Math.round((to - from) / 60)} min: latest ${latest}`;
    if (this.title && this.canvas.getAttribute("aria-label") !== label) this.canvas.setAttribute("aria-label", label);
  }

  // at: the time under the pointer on another chart
  pointed(at) {
    if (at === this.elsewhere) return;
    this.elsewhere = at;
    if (at == null) this.read("", false);
    this.draw();
  }

  // name: of the line to draw alone, or null
  showOnly(name) {
    this.only = name;
    this.draw();
  }

  lines() { return this.quantity.lines(this.columns); }

  draw() {
    const { width, height } = this.canvas;
    if (!this.at || !width || !height) return;
    const context = this.canvas.getContext("2d");
    context.clearRect(0, 0, width, height);
    const lines = this.lines();
    this.rescale(lines);
    const size = fontPx(this.canvas) * scale();
    context.font = `${size}px system-ui, sans-serif`;
    const left = Math.max(...this.rules().map((value) => context.measureText(this.quantity.write(value)).width), size * 3) + size * 0.6;
    this.box = { left, right: width - size * 0.5, top: size * 0.8, bottom: height - size * (this.hours ? 1.7 : 0.7) };
    this.frame(context, size);
    for (const event of this.shownEvents()) this.mark(context, event, size);
    if (this.limit) line(context, [[this.box.left, this.y(this.limit)], [this.box.right, this.y(this.limit)]], colour("failed"), size / 8, [size, size / 3, size / 4, size / 3]); // as .legend-slo, like no line of data
    for (const each of lines) if (this.only == null || each.name === this.only) this.drawLine(context, each, size);
    this.drawCursor(context, size);
  }

  drawLine(context, { values, dash, ink, pale, band }, size) {
    const shade = typeof ink === "string" ? colour(ink) : seriesColour(ink);
    const places = (column) => column.map((value, i) => this.point(i, value));
    const inside = (column) => places(column.map((value) => (value == null ? null : Math.min(Math.max(value, this.low), this.top))));
    if (band?.[0]) for (const corners of bands(...band.map(inside))) this.fill(context, corners, shade, size);
    split(places(values), pale).forEach((points, at) => {
      context.globalAlpha = at ? PALE : 1;
      line(context, points, shade, size / 6.5, dash.map((part) => part * size / 14));
      for (const point of alone(points)) this.dot(context, point, shade, size);
    });
    context.globalAlpha = 1;
  }

  // A band over one look is as wide as a dot.
  fill(context, corners, shade, size) {
    context.globalAlpha = BAND;
    context.fillStyle = shade;
    if (corners.length === 2) context.fillRect(corners[0][0] - size / 3, corners[0][1], size / 1.5, corners[1][1] - corners[0][1]);
    else {
      context.beginPath();
      corners.forEach(([x, y], i) => (i ? context.lineTo(x, y) : context.moveTo(x, y)));
      context.fill();
    }
    context.globalAlpha = 1;
  }

  dot(context, [x, y], shade, size) {
    context.beginPath();
    context.arc(x, y, size / 4, 0, 2 * Math.PI);
    context.fillStyle = shade;
    context.fill();
  }

  x(at) { return this.box.left + ((at - this.from) / (this.to - this.from)) * (this.box.right - this.box.left); }

  y(value) { return this.box.bottom - this.share(value) * (this.box.bottom - this.box.top); }

  // Where on the axis: 0 at its foot, 1 at its top.
  share(value) {
    if (!this.quantity.log) return (value - this.low) / (this.top - this.low);
    return Math.log(Math.max(value, this.low) / this.low) / Math.log(this.top / this.low);
  }

  point(i, value) {
    const at = this.at[i];
    return value == null || at < this.from || at > this.to ? null : [this.x(at), this.y(value)];
  }

  shownEvents() { return this.events.filter((event) => event.at > this.from && event.at <= this.to); }

  // The axis changes only when data exceed it or need less than a quarter of it.
  rescale(lines) {
    const { top, log, same } = this.quantity;
    if (top) { this.top = top; return; }
    const always = [this.limit, same].filter((value) => value != null);
    let [lowest, highest] = [Math.min(...always), Math.max(...always)];
    for (const { values } of lines) {
      values.forEach((value, i) => {
        if (value == null || !Number.isFinite(value) || this.at[i] < this.from || this.at[i] > this.to || (log && value <= 0)) return;
        highest = Math.max(highest, value);
        lowest = Math.min(lowest, value);
      });
    }
    if (log) this.rescaleLog(lowest, highest);
    else {
      highest = Math.max(same == null ? 1 : same, highest);
      if (!this.top || highest > this.top || highest < this.top / 4) this.top = niceCeiling(highest * 1.05 || 1);
      if (same != null && (lowest < this.low || lowest > this.low / 4)) this.low = lowest < 0 ? -niceCeiling(-lowest * 1.05) : 0;
    }
  }

  rescaleLog(lowest, highest) {
    if (lowest > highest) [lowest, highest] = [1, 10];
    if (highest > this.top || highest < this.top / 4) this.top = niceCeiling(highest * 1.05);
    if (!this.low || lowest < this.low || lowest > this.low * 10) this.low = niceFloor(lowest * 0.95);
    if (this.top < this.low * 2) this.top = niceCeiling(this.low * 2);
  }

  // The values at which the axis has a rule.
  rules() {
    if (!this.quantity.log) return this.low < 0 ? [this.low, 0, this.top] : [0, this.top / 2, this.top];
    const decades = Math.log10(this.top / this.low);
    const inside = [];
    for (let step = 10 ** Math.floor(Math.log10(this.low)); step < this.top; step *= 10) {
      for (const factor of decades > 3 ? [1] : [1, 2, 5]) if (factor * step > this.low * 1.3 && factor * step < this.top / 1.3) inside.push(factor * step);
    }
    const most = decades > 1 ? 2 : 3;
    const every = Math.ceil(inside.length / most) || 1;
    const some = this.quantity.same == null ? inside.filter((_, i) => i % every === Math.floor(every / 2)) : [this.quantity.same];
    return [this.low, ...some, this.top];
  }

  frame(context, size) {
    const { left, right, top, bottom } = this.box;
    const style = { ink: colour("muted"), size };
    const rules = this.rules();
    const apart = (value, other) => Math.abs(this.y(value) - this.y(other)) > size * 1.2;
    rules.forEach((value, i) => {
      const outer = i === 0 ? bottom - top > size * 1.2 : i === rules.length - 1;
      const hasRoom = outer || (bottom - top > size * 5 && apart(value, rules[i - 1]) && apart(value, rules.at(-1)));
      line(context, [[left, this.y(value)], [right, this.y(value)]], colour(value === this.quantity.same ? "text" : "rule"), scale());
      if (hasRoom) write(context, value === 0 && this.quantity.same == null ? "0" : this.quantity.write(value), left - size * 0.4, this.y(value), { ...style, align: "end" });
    });
    for (const at of this.hours ? ticks(this.from, this.to, Math.max(2, (right - left) / (size * 7))) : []) {
      const x = this.x(at);
      if (x > left + size && x < right - size) write(context, hourMinute(at), x, bottom + size * 0.9, { ...style, align: "center" });
    }
  }

  mark(context, event, size) {
    const x = this.x(event.at);
    line(context, [[x, this.box.top], [x, this.box.bottom]], colour("control"), scale(), [2, 4]);
    context.beginPath();
    context.moveTo(x - size * 0.35, this.box.top - size * 0.7);
    context.lineTo(x + size * 0.35, this.box.top - size * 0.7);
    context.lineTo(x, this.box.top - size * 0.1);
    context.fillStyle = colour("text");
    context.fill();
  }

  drawCursor(context, size) {
    if (this.range) {
      const [a, b] = this.range.map((at) => this.x(at));
      context.globalAlpha = 0.18;
      context.fillStyle = colour("accent");
      context.fillRect(Math.min(a, b), this.box.top, Math.abs(b - a), this.box.bottom - this.box.top);
      context.globalAlpha = 1;
    }
    const at = this.cursor ?? this.elsewhere;
    if (at == null || at < this.from || at > this.to) return;
    line(context, [[this.x(at), this.box.top], [this.x(at), this.box.bottom]], colour(this.cursor == null ? "muted" : "text"), scale());
    if (this.read) this.read(this.reading(at), this.cursor != null);
  }

  // "14:02:10 · p50 820 ms · p90 1.2 s · p99 –", "14:02:10 · no data"; with the event at the cursor.
  reading(time) {
    const i = this.nearest(time);
    const known = i >= 0 && this.lines().some(({ values }) => values[i] != null);
    const values = known ? this.lines().map(({ name, values: line }) => `${name} ${this.quantity.write(line[i])}`) : ["no data"];
    const event = this.shownEvents().find((each) => Math.abs(this.x(each.at) - this.x(time)) < NEAR_PX * scale());
    const n = known && this.quantity.counted ? this.columns?.n?.[i] : null;
    return [clock(time), ...values, ...(n == null ? [] : [`n ${count(n)}`]), ...(event ? [event.text] : [])].join(" · ");
  }

  nearest(time) {
    let best = -1;
    this.at.forEach((at, i) => { if (best < 0 || Math.abs(at - time) < Math.abs(this.at[best] - time)) best = i; });
    return best >= 0 && Math.abs(this.at[best] - time) <= Math.max(settings.frameOldS, this.step()) ? best : -1;
  }

  step() { return Math.max(1, (this.to - this.from) / 300, this.at.length > 1 ? this.at[1] - this.at[0] : 0); }

  listen() {
    const time = (event) => {
      const x = (event.clientX - this.canvas.getBoundingClientRect().left) * scale();
      const share = (x - this.box.left) / (this.box.right - this.box.left);
      return this.from + Math.min(1, Math.max(0, share)) * (this.to - this.from);
    };
    let begun = null;
    this.canvas.toggleAttribute("data-opens", Boolean(this.opened));
    this.canvas.addEventListener("pointermove", (event) => {
      if (!this.box) return;
      this.cursor = time(event);
      this.range = begun == null || !this.chosen ? null : [begun.at, this.cursor];
      this.draw();
      point(this.cursor, this);
    });
    this.canvas.addEventListener("pointerdown", (event) => { if ((this.chosen || this.opened) && this.box && event.button === 0) begun = { at: time(event), x: event.clientX }; });
    this.canvas.addEventListener("pointerleave", () => { if (begun == null) this.clear(); });
    addEventListener("pointerup", (event) => {
      if (begun == null) return;
      const range = [begun.at, time(event)].sort((a, b) => a - b);
      if (Math.abs(event.clientX - begun.x) > CLICK_PX) this.chosen?.(range);
      else if (event.target === this.canvas) this.opened?.(begun.at);
      begun = null;
      this.range = null;
      this.draw();
    });
    this.canvas.addEventListener("keydown", (event) => this.pressed(event));
    this.canvas.addEventListener("blur", () => this.clear());
  }

  pressed(event) {
    const moves = { ArrowLeft: -1, ArrowRight: 1, PageUp: -10, PageDown: 10 };
    if (event.key in moves) this.cursor = Math.min(this.to, Math.max(this.from, (this.cursor ?? this.to) + moves[event.key] * this.step()));
    else if (event.key === "Home" || event.key === "End") this.cursor = event.key === "Home" ? this.from : this.to;
    else if (event.key === "Enter" && this.opened && this.cursor != null) return this.opened(this.cursor);
    else return;
    event.preventDefault();
    this.draw();
    point(this.cursor, this);
  }

  clear() {
    this.cursor = null;
    this.range = null;
    this.read("", true);
    this.draw();
    point(null, this);
  }
}
