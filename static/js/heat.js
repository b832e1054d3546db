// The KV heat map: instance × time on a canvas, with a contour above the limit of each pool's policy, and with gaps.
import { fit, fontPx, line, scale, shortened, ticks, write } from "./canvas.js";
import { table } from "./chart_table.js";
import { join, point } from "./crosshair.js";
import { NO_DATA, cell, heatRows } from "./heat_data.js";
import { colour } from "./theme_colours.js";
import { clock, hourMinute } from "./times.js";

const TALLEST = 6; // rows of a few instances, in heights of their labels
const NAMES_SHARE = 0.3; // largest share of the width
const NAMES_SHARE_NARROW = 0.45; // instead, if that has no room for demo-105…111 (7)
const nameFont = (row, size) => `${row.broken ? 600 : 400} ${size}px system-ui, sans-serif`;
const SHAPES = { failed: "■", unreachable: "✕", offline: "✕", stale: "◌", saturated: "▲", loading: "◔", starting: "◔", draining: "◑", drained: "◑", stopping: "◑", stopped: "–", unseen: "○" };
// Cividis: even steps of lightness, distinguishable with every colour vision (Nuñez, Anderton, Renslow, 2018).
const STOPS = ["#00224e", "#123570", "#3b496c", "#575d6d", "#707173", "#8a8678", "#a59c74", "#c3b369", "#e1cc55", "#fee838"];
export const PALETTE = Array.from({ length: 101 }, (_, percent) => between(percent / 100 * (STOPS.length - 1)));

function between(place) {
  const low = Math.min(STOPS.length - 2, Math.floor(place));
  const part = (stop, at) => Number.parseInt(stop.slice(at, at + 2), 16);
  return [1, 3, 5].map((at) => Math.round(part(STOPS[low], at) + (part(STOPS[low + 1], at) - part(STOPS[low], at)) * (place - low)));
}

const OF_THE_DAY = { tick: hourMinute, moment: clock };

export class Heat {
  // most: rows beyond which neighbours are one, fewer where there is no room for their names; latest: write the newest cell of
  // each row beside it; times: of the axis and of a reading; read: shows the text of a reading; open: called with the
  // pressed row; drawn: called with the map when its rows may be others
  constructor(canvas, { most = 64, latest = false, times = OF_THE_DAY, read = null, open = null, drawn = null } = {}) {
    Object.assign(this, { canvas, most, latest, times, read, open, drawn, rows: [], cursor: null, elsewhere: null });
    this.cells = document.createElement("canvas");
    fit(canvas, () => this.draw());
    if (!read) return;
    this.listen();
    join(this);
  }

  // at: the time under the pointer on another chart
  pointed(at) {
    if (at === this.elsewhere) return;
    this.elsewhere = at;
    this.draw();
  }

  // The time of the cell under the pointer goes to the other charts.
  pass() { point(this.cursor && this.data.from + (this.first + this.cursor.column) * this.data.bin, this); }

  // instances: rows with their pool's kv_limit (a share); without one a row has no contour

  update(data, instances, from, to) {
    Object.assign(this, { data, instances, from, to });
    this.rows = heatRows(instances, this.most);
    this.draw();
  }

  draw() {
    const { width, height } = this.canvas;
    if (!this.data || !width || !height) return;
    const context = this.canvas.getContext("2d");
    context.clearRect(0, 0, width, height);
    if (!this.instances.length) return;
    const size = fontPx(this.canvas) * scale();
    context.font = `${size}px system-ui, sans-serif`;
    this.rows = this.named(Math.floor((height - size * 1.6 - 1) / size));
    this.drawn?.(this);
    const longest = Math.max(...this.rows.map((row) => {
      context.font = nameFont(row, size);
      return context.measureText(row.name).width;
    }));
    const left = Math.min(longest + size * 1.9, Math.max(width * NAMES_SHARE, Math.min(width * NAMES_SHARE_NARROW, size * 10)));
    this.box = { left, right: width - size * (this.latest ? 3.6 : 0.3), top: 1, bottom: height - size * 1.6 };
    this.layOut(size);
    this.first = Math.max(0, Math.floor((this.from - this.data.from) / this.data.bin));
    this.last = Math.min(this.data.columns - 1, Math.ceil((this.to - this.data.from) / this.data.bin) - 1);
    if (this.last < this.first) return;
    this.values = this.rows.map((row) => Array.from({ length: this.last - this.first + 1 }, (_, i) => cell(this.data, row, this.first + i)));
    this.paint(context);
    this.contour(context);
    this.labels(context, size);
    this.axis(context, size);
    this.drawCursor(context);
  }

  // At most as many rows as have room for a name each; instances of different pools are never one row.
  named(room) {
    let most = Math.min(this.most, Math.max(1, room));
    let rows = heatRows(this.instances, most);
    while (rows.length > room && most > 1) rows = heatRows(this.instances, --most);
    return rows;
  }

  // Failed instances keep the height of their name, however many rows there are.
  layOut(size) {
    const room = this.box.bottom - this.box.top;
    this.broken = this.rows.filter((row) => row.broken).length;
    const even = room / this.rows.length;
    const others = this.rows.length - this.broken;
    const wide = this.broken ? Math.max(even, Math.min(size * 1.4, (room - others * size) / this.broken)) : 0;
    this.high = Math.min(size * TALLEST, others ? (room - wide * this.broken) / others : even);
    this.brokenHigh = Math.min(size * TALLEST, wide);
    this.box.bottom = this.box.top + this.brokenHigh * this.broken + this.high * others;
  }

  height(row) { return row < this.broken ? this.brokenHigh : this.high; }

  x(column) { return this.box.left + (column / (this.last - this.first + 1)) * (this.box.right - this.box.left); }

  y(row) {
    const broken = Math.min(row, this.broken);
    return this.box.top + broken * this.brokenHigh + (row - broken) * this.high;
  }

  // One pixel a cell, then scaled: thousands of cells cost one copy. A gap stays the striped ground.
  paint(context) {
    const [columns, rows] = [this.last - this.first + 1, this.rows.length];
    this.stripes(context);
    Object.assign(this.cells, { width: columns, height: rows });
    const image = new ImageData(columns, rows);
    this.values.forEach((line, row) => line.forEach((percent, column) => {
      if (percent === NO_DATA) return;
      image.data.set(PALETTE[percent], (row * columns + column) * 4);
      image.data[(row * columns + column) * 4 + 3] = 255;
    }));
    this.cells.getContext("2d").putImageData(image, 0, 0);
    context.imageSmoothingEnabled = false;
    const width = this.box.right - this.box.left;
    for (const [from, to] of [[0, this.broken], [this.broken, rows]]) {
      if (to > from) context.drawImage(this.cells, 0, from, columns, to - from, this.box.left, this.y(from), width, this.y(to) - this.y(from));
    }
    if (this.high > 8 * scale()) for (let row = 1; row < rows; row++) line(context, [[this.box.left, this.y(row)], [this.box.right, this.y(row)]], colour("panel"), scale());
  }

  stripes(context) {
    const { left, right, top, bottom } = this.box;
    context.save();
    context.beginPath();
    context.rect(left, top, right - left, bottom - top);
    context.clip();
    context.fillStyle = colour("raised");
    context.fillRect(left, top, right - left, bottom - top);
    const step = 8 * scale();
    for (let x = left - (bottom - top); x < right; x += step) line(context, [[x, bottom], [x + bottom - top, top]], colour("rule"), scale());
    context.restore();
  }

  isAbove(row, value) { return value !== NO_DATA && this.rows[row].limit != null && value > this.rows[row].limit * 100; }

  // Around everything above its limit.
  contour(context) {
    const above = (row, column) => { const value = this.values[row]?.[column]; return value !== undefined && this.isAbove(row, value); };
    context.beginPath();
    this.values.forEach((values, row) => values.forEach((_, column) => {
      if (!above(row, column)) return;
      const [x0, x1, y0, y1] = [this.x(column), this.x(column + 1), this.y(row), this.y(row + 1)];
      if (!above(row, column - 1)) { context.moveTo(x0, y0); context.lineTo(x0, y1); }
      if (!above(row, column + 1)) { context.moveTo(x1, y0); context.lineTo(x1, y1); }
      if (!above(row - 1, column)) { context.moveTo(x0, y0); context.lineTo(x1, y0); }
      if (!above(row + 1, column)) { context.moveTo(x0, y1); context.lineTo(x1, y1); }
    }));
    context.strokeStyle = colour("contour");
    context.lineWidth = 1.5 * scale();
    context.stroke();
  }

  labels(context, size) {
    this.rows.forEach((row, i) => {
      const marked = row.status in SHAPES;
      const y = this.y(i) + this.height(i) / 2;
      const shown = Math.min(size, this.height(i));
      if (marked) write(context, SHAPES[row.status], size * 0.1, y, { ink: colour(tone(row.status)), size: shown });
      context.font = nameFont(row, shown);
      const name = shortened(context, row.name, this.box.left - size * 1.7);
      write(context, name, size * 1.25, y, { ink: colour(row.broken ? "text" : "muted"), size: shown, weight: row.broken ? 600 : 400 });
      if (row.broken) this.writeStatus(context, row.status, y, shown);
      if (this.latest) this.writeLatest(context, i, y, shown);
    });
    if (this.broken) line(context, [[this.box.left, this.y(this.broken)], [this.box.right, this.y(this.broken)]], colour("text"), scale());
  }

  // On a separate background, as cells are as dark as the text.
  writeStatus(context, status, y, size) {
    context.font = `700 ${size}px system-ui, sans-serif`;
    context.fillStyle = colour("panel");
    context.fillRect(this.box.left, y - size * 0.6, context.measureText(status).width + size, size * 1.2);
    write(context, status, this.box.left + size * 0.5, y, { ink: colour("failed"), size, weight: 700 });
  }

  writeLatest(context, i, y, size) {
    const value = this.values[i].at(-1) ?? NO_DATA;
    const above = this.isAbove(i, value);
    const text = value === NO_DATA ? "–" : `${value} %`;
    write(context, text, this.canvas.width, y, { ink: colour(above ? "saturated" : "text"), size, align: "end", weight: above ? 700 : 400 });
  }

  axis(context, size) {
    for (const at of ticks(this.from, this.to, Math.max(2, (this.box.right - this.box.left) / (size * 7)), this.times.steps)) {
      const x = this.x((at - this.data.from) / this.data.bin - this.first);
      if (x > this.box.left + size && x < this.box.right - size) write(context, this.times.tick(at), x, this.box.bottom + size * 0.9, { ink: colour("muted"), size, align: "center" });
    }
  }

  drawCursor(context) {
    if (!this.cursor && this.elsewhere >= this.from && this.elsewhere <= this.to) {
      const x = this.x((this.elsewhere - this.data.from) / this.data.bin - this.first);
      line(context, [[x, this.box.top], [x, this.box.bottom]], colour("panel"), 3 * scale());
      line(context, [[x, this.box.top], [x, this.box.bottom]], colour("text"), scale());
    }
    if (!this.cursor) return;
    const { row, column } = this.cursor;
    if (row >= this.rows.length || column > this.last - this.first) { this.cursor = null; return; }
    context.strokeStyle = colour("text");
    context.lineWidth = 2 * scale();
    context.strokeRect(this.x(column), this.y(row), this.x(1) - this.x(0), this.height(row));
    this.read(this.reading());
  }

  // "demo-3 · 14:02:10 · KV usage 87 %", "… · no data"
  reading() {
    const { row, column } = this.cursor;
    const { name, ids, status, lastKnown } = this.rows[row];
    const value = this.values[row][column];
    const usage = value === NO_DATA ? "no data" : `${ids.length > 1 ? "highest " : ""}KV usage ${value} %`;
    return [name, this.times.moment(this.data.from + (this.first + column) * this.data.bin), usage, ...(lastKnown ? [`last known ${status}`] : ["ready", "ended"].includes(status) ? [] : [`now ${status}`])].join(" · ");
  }

  listen() {
    const place = (event) => {
      const box = this.canvas.getBoundingClientRect();
      const column = Math.floor((((event.clientX - box.left) * scale() - this.box.left) / (this.box.right - this.box.left)) * (this.last - this.first + 1));
      const y = (event.clientY - box.top) * scale();
      const row = this.rows.findLastIndex((_, i) => this.y(i) <= y);
      return { row: bounded(row, this.rows.length - 1), column: bounded(column, this.last - this.first) };
    };
    this.canvas.addEventListener("pointermove", (event) => { if (this.values) { this.cursor = place(event); this.draw(); this.pass(); } });
    this.canvas.addEventListener("click", (event) => { if (this.values && this.open) this.open(this.rows[place(event).row]); });
    this.canvas.addEventListener("keydown", (event) => this.pressed(event));
    for (const kind of ["pointerleave", "blur"]) this.canvas.addEventListener(kind, () => { this.cursor = null; this.read(""); this.draw(); this.pass(); });
  }

  pressed(event) {
    const moves = { ArrowLeft: [0, -1], ArrowRight: [0, 1], ArrowUp: [-1, 0], ArrowDown: [1, 0] };
    if (!this.values || !(event.key in moves || (event.key === "Enter" && this.cursor && this.open))) return;
    event.preventDefault();
    if (event.key === "Enter") { this.open(this.rows[this.cursor.row]); return; }
    const { row, column } = this.cursor ?? { row: -moves[event.key][0], column: this.last - this.first - moves[event.key][1] };
    this.cursor = { row: bounded(row + moves[event.key][0], this.rows.length - 1), column: bounded(column + moves[event.key][1], this.last - this.first) };
    this.draw();
    this.pass();
  }

  // One sentence for a screen reader.
  summary() {
    const latest = this.values?.map((line) => line.findLast((value) => value !== NO_DATA) ?? NO_DATA) ?? [];
    const newest = latest.filter((value) => value !== NO_DATA);
    if (!newest.length) return "KV usage by instance over time: no data";
    const above = latest.filter((value, row) => this.isAbove(row, value)).length;
    return `KV usage by instance over time: now ${Math.min(...newest)} to ${Math.max(...newest)} %, ${above} above the limit of the policy`;
  }

  asTable() {
    const known = this.values.map((line) => line.filter((value) => value !== NO_DATA));
    const percent = (pick) => known.map((line) => (line.length ? `${Math.round(pick(line))} %` : "–"));
    return table(this.summary(), [
      { title: "Instance", values: this.rows.map((row) => row.name) },
      { title: "Status", values: this.rows.map((row) => row.status) },
      { title: "Latest", number: true, values: percent((line) => line.at(-1)) },
      { title: "Lowest", number: true, values: percent((line) => Math.min(...line)) },
      { title: "Mean", number: true, values: percent((line) => line.reduce((sum, value) => sum + value, 0) / line.length) },
      { title: "Highest", number: true, values: percent((line) => Math.max(...line)) },
      { title: "Time without data", number: true, values: known.map((line, i) => `${Math.round((1 - line.length / this.values[i].length) * 100)} %`) },
    ]);
  }
}

const bounded = (value, most) => Math.min(most, Math.max(0, value));
const tone = (status) => ({ failed: "failed", unreachable: "failed", saturated: "saturated", draining: "draining", drained: "draining", stopping: "draining", loading: "loading", starting: "loading" })[status] ?? "absent";
