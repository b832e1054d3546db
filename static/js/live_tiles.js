// The grid of instances: one tile per id; only text and attributes change, tiles do not move.
// A figure of templates/live/tile.html names a column of the frame and its format: data-part="kv" data-write="percent".
import { age as ageText } from "./times.js";
import { count, percent, significant, watts } from "./format.js";
import { settings } from "./live_settings.js";

export const SHOWN = matchMedia("(max-width: 44rem)").matches ? 48 : 128; // on a phone there are two columns
const ENDING = 8; // end of a name, which is never cut
const WRITE = { count, percent, significant, watts };

export class Tiles {
  constructor(grid, template) {
    this.grid = grid;
    this.template = template;
    this.tiles = new Map();
  }

  // rows: the columns of FrameInstance, in their stable order
  update(rows) {
    const shown = rows.slice(0, SHOWN);
    this.match(shown);
    for (const row of shown) this.write(this.tiles.get(row.id), row);
  }

  match(rows) {
    const same = rows.length === this.tiles.size && rows.every((row) => this.tiles.has(row.id));
    if (same) return;
    const tiles = rows.map((row) => this.tiles.get(row.id) ?? this.make(row));
    this.grid.replaceChildren(...tiles.map((tile) => tile.node));
    this.tiles = new Map(tiles.map((tile) => [tile.node.dataset.id, tile]));
  }

  make(row) {
    const node = this.template.content.firstElementChild.cloneNode(true);
    node.dataset.id = row.id;
    node.href = `/fleet/instances/${encodeURIComponent(row.id)}/`;
    const tile = { node, written: {} };
    for (const part of node.querySelectorAll("[data-part]")) tile[part.dataset.part] = part;
    const [first, ending] = tile.id.children;
    first.textContent = row.id.slice(0, -ENDING);
    ending.textContent = row.id.slice(-ENDING);
    tile.figures = [...node.querySelectorAll("[data-write]")].map((part) => [part.dataset.part, WRITE[part.dataset.write]]);
    return tile;
  }

  write(tile, row) {
    this.restateOne(tile, row);
    for (const [column, write] of tile.figures) set(tile, column, write(row[column]));
    attribute(tile.fill, "width", ((row.kv ?? 0) * 100).toFixed(1));
    attribute(tile.tick, "d", `M${Math.round((row.kv_limit ?? 1) * 100)} 0v6`);
    if (tile.node.title !== row.reason) tile.node.title = row.reason;
  }

  restateOne(tile, { status, age_s: seconds, last_known: lastKnown }) {
    if (tile.node.dataset.status !== status) {
      tile.node.dataset.status = status;
      tile.status.className = `status status--${status}`;
      tile.status.textContent = status;
    }
    tile.node.toggleAttribute("data-last-known", Boolean(lastKnown));
    tile.status.classList.toggle("last-known", Boolean(lastKnown));
    const old = seconds != null && seconds > settings.sampleStaleS;
    set(tile, "age", status === "unseen" ? "no sample" : old ? `${ageText(seconds)} ago` : "");
  }

  // Without new frames the tiles age: rows of live_frame.js, aged.
  restate(rows) {
    for (const row of rows) {
      const tile = this.tiles.get(row.id);
      if (tile) this.restateOne(tile, row);
    }
  }
}

function set(tile, part, text) {
  if (tile.written[part] === text) return;
  tile.written[part] = text;
  tile[part].textContent = text;
}

function attribute(node, name, value) {
  if (node.getAttribute(name) !== value) node.setAttribute(name, value);
}
