// The grid of instances: one tile per id; only text and attributes change, tiles do not move.
import { age as ageText } from "./times.js";
import { count, percent } from "./format.js";
import { settings } from "./live_settings.js";
import { colour } from "./theme_colours.js";

const MANY = 24; // from here on tiles are small
const ROOMY_PX = 48; // a sparkline of this height also has space for the threshold

export class Tiles {
  constructor(grid, template) {
    this.grid = grid;
    this.template = template;
    this.tiles = new Map();
    for (const node of grid.children) this.tiles.set(node.dataset.id, parts(node));
    new ResizeObserver(() => this.sizeSparks()).observe(grid);
    document.addEventListener("weir:theme", () => this.drawSparks());
  }

  // rows: [{id, status, reason, age_s, kv, running, waiting, hit_rate}] in their stable order
  // threshold: the share of the KV cache from which an instance counts as saturated
  update(rows, sparks, threshold) {
    const shown = rows.slice(0, settings.tilesShown);
    this.rows = shown; // before match, which draws
    this.sparks = sparks;
    this.threshold = threshold;
    this.match(shown);
    for (const row of shown) this.write(this.tiles.get(row.id), row);
    this.drawSparks();
  }

  match(rows) {
    const same = rows.length === this.tiles.size && rows.every((row) => this.tiles.has(row.id));
    if (same) return;
    const nodes = rows.map((row) => this.tiles.get(row.id)?.node ?? this.make(row));
    this.grid.replaceChildren(...nodes);
    this.tiles = new Map(nodes.map((node) => [node.dataset.id, parts(node)]));
    this.grid.classList.toggle("tiles--many", rows.length > MANY);
    this.sizeSparks();
  }

  make(row) {
    const node = this.template.content.firstElementChild.cloneNode(true);
    node.dataset.id = row.id;
    node.href = `/fleet/instances/${encodeURIComponent(row.id)}/`;
    node.querySelector('[data-part="id"]').textContent = row.id;
    return node;
  }

  write(tile, row) {
    this.status(tile, row.status);
    set(tile, "kv", percent(row.kv));
    set(tile, "running", count(row.running));
    set(tile, "waiting", count(row.waiting));
    set(tile, "hit", percent(row.hit_rate));
    attribute(tile.fill, "width", ((row.kv ?? 0) * 100).toFixed(1));
    if (tile.node.title !== row.reason) tile.node.title = row.reason;
    this.age(tile, row.age_s, row.status);
  }

  status(tile, word) {
    if (tile.node.dataset.status === word) return;
    tile.node.dataset.status = word;
    tile.status.className = `status status--${word}`;
    (tile.word ?? tile.status).textContent = word;
  }

  age(tile, seconds, status) {
    let text = "";
    if (status === "unseen") text = "no sample";
    else if (seconds != null && seconds > settings.sampleStaleS) text = `${ageText(seconds)} ago`;
    set(tile, "age", text);
  }

  // Without new frames the tiles age: rows of live_frame.js, aged.
  restate(rows) {
    for (const row of rows.slice(0, settings.tilesShown)) {
      const tile = this.tiles.get(row.id);
      if (!tile) continue;
      this.status(tile, row.status);
      this.age(tile, row.age_s, row.status);
    }
  }

  sizeSparks() {
    const scale = globalThis.devicePixelRatio || 1;
    const boxes = [...this.tiles.values()].filter((tile) => tile.spark).map((tile) => [tile.spark, tile.spark.clientWidth, tile.spark.clientHeight]);
    for (const [canvas, width, height] of boxes) {
      canvas.width = Math.round(width * scale);
      canvas.height = Math.round(height * scale);
    }
    this.drawSparks();
  }

  drawSparks() {
    if (!this.sparks) return;
    const inks = { line: colour("series-1"), absent: colour("absent"), rule: colour("rule"), limit: colour("control") };
    for (const row of this.rows) {
      const tile = this.tiles.get(row.id);
      if (tile.spark) spark(tile.spark, this.sparks[row.id] ?? [], row.status === "stale" ? { ...inks, line: inks.absent } : inks, this.threshold);
    }
  }
}

function parts(node) {
  const found = { node, text: {} };
  for (const part of node.querySelectorAll("[data-part]")) {
    found[part.dataset.part] = part;
    found.text[part.dataset.part] = part.textContent;
  }
  return found;
}

function set(tile, part, text) {
  if (!tile[part] || tile.text[part] === text) return;
  tile.text[part] = text;
  tile[part].textContent = text;
}

function attribute(node, name, value) {
  if (node && node.getAttribute(name) !== value) node.setAttribute(name, value);
}

// A minute of KV use on a fixed 0–100 % scale with gaps, and the threshold where there is space.
function spark(canvas, values, inks, threshold) {
  const context = canvas.getContext("2d");
  const { width, height } = canvas;
  context.clearRect(0, 0, width, height);
  if (!width || values.length < 2) return;
  const scale = Math.max(1, Math.round(globalThis.devicePixelRatio || 1));
  const x = (i) => (i / (values.length - 1)) * (width - 2) + 1;
  const y = (value) => height - 2 - value * (height - 4);
  if (height > ROOMY_PX * scale) {
    stroke(context, [[0, y(0)], [width, y(0)]], inks.rule, scale);
    stroke(context, [[0, y(threshold)], [width, y(threshold)]], inks.limit, scale, [4 * scale, 4 * scale]);
  }
  for (const run of runs(values)) {
    const points = run.map(([i, value]) => [x(i), y(value)]);
    fill(context, points, y(0), inks.line);
    stroke(context, points, inks.line, scale * (height > ROOMY_PX * scale ? 2 : 1.25));
  }
}

// [[i, value], …] for each stretch without a gap.
function runs(values) {
  const found = [];
  values.forEach((value, i) => {
    if (value == null) return;
    if (i === 0 || values[i - 1] == null) found.push([]);
    found.at(-1).push([i, value]);
  });
  return found;
}

function stroke(context, points, ink, width, dash = []) {
  context.beginPath();
  for (const point of points) context.lineTo(...point);
  context.setLineDash(dash);
  context.lineWidth = width;
  context.strokeStyle = ink;
  context.stroke();
}

function fill(context, points, floor, ink) {
  context.beginPath();
  context.moveTo(points[0][0], floor);
  for (const point of points) context.lineTo(...point);
  context.lineTo(points.at(-1)[0], floor);
  context.globalAlpha = 0.16;
  context.fillStyle = ink;
  context.fill();
  context.globalAlpha = 1;
}
