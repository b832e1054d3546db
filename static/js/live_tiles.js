// The grid of instances: one tile per id; only text and attributes change, tiles do not move.
import { age as ageText } from "./times.js";
import { count, percent } from "./format.js";
import { settings } from "./live_settings.js";


const ENDING = 8; // of a name, never cut: templates/live/tile.html
export class Tiles {
  constructor(grid, template) {
    this.grid = grid;
    this.template = template;
    this.tiles = new Map();
    for (const node of grid.children) this.tiles.set(node.dataset.id, parts(node));
  }

  // rows: [{id, status, reason, age_s, kv, running, waiting, hit_rate}] in their stable order
  update(rows) {
    const shown = rows.slice(0, settings.tilesShown);
    this.match(shown);
    for (const row of shown) this.write(this.tiles.get(row.id), row);
  }

  match(rows) {
    const same = rows.length === this.tiles.size && rows.every((row) => this.tiles.has(row.id));
    if (same) return;
    const nodes = rows.map((row) => this.tiles.get(row.id)?.node ?? this.make(row));
    this.grid.replaceChildren(...nodes);
    this.tiles = new Map(nodes.map((node) => [node.dataset.id, parts(node)]));
  }

  make(row) {
    const node = this.template.content.firstElementChild.cloneNode(true);
    node.dataset.id = row.id;
    node.href = `/fleet/instances/${encodeURIComponent(row.id)}/`;
    const [first, ending] = node.querySelector('[data-part="id"]').children;
    first.textContent = row.id.slice(0, -ENDING);
    ending.textContent = row.id.slice(-ENDING);
    return node;
  }

  write(tile, row) {
    this.status(tile, row.status);
    set(tile, "kv", percent(row.kv));
    set(tile, "running", count(row.running));
    set(tile, "waiting", count(row.waiting));
    set(tile, "hit", percent(row.hit_rate));
    attribute(tile.fill, "width", ((row.kv ?? 0) * 100).toFixed(1));
    attribute(tile.tick, "d", `M${Math.round((row.kv_limit ?? 1) * 100)} 0v6`);
    if (tile.node.title !== row.reason) tile.node.title = row.reason;
    this.age(tile, row.age_s, row.status);
  }

  status(tile, word) {
    if (tile.node.dataset.status === word) return;
    tile.node.dataset.status = word;
    tile.status.className = `status status--${word}`;
    tile.status.textContent = word;
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
