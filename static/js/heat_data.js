// KV usage of each instance over time, one byte a cell; the server sends the matrix once, frames fill its last columns.
export const NO_DATA = 255;

const percentOf = (share) => Math.min(100, Math.max(0, Math.round(share * 100)));

export class HeatData {
  constructor(sent) { this.load(sent); }

  load(sent) {
    this.bin = sent?.bin_s ?? 2;
    this.columns = sent?.columns ?? 1;
    this.from = sent?.from ?? 0;
    this.lines = new Map();
    const bytes = Uint8Array.from(atob(sent?.cells ?? ""), (letter) => letter.charCodeAt(0));
    (sent?.ids ?? []).forEach((id, i) => this.lines.set(id, bytes.slice(i * this.columns, (i + 1) * this.columns)));
  }

  // KV usage as shares over time from 0: [[id, [share]]].
  static of(bin, usage) {
    const made = new HeatData({ bin_s: bin, columns: Math.max(1, ...usage.map(([, shares]) => shares.length)) });
    for (const [id, shares] of usage) {
      const line = new Uint8Array(made.columns).fill(NO_DATA);
      shares.forEach((share, i) => { if (share != null) line[i] = percentOf(share); });
      made.lines.set(id, line);
    }
    return made;
  }

  get to() { return this.from + this.columns * this.bin; }

  // A sample older than `staleS` does not count.
  push(frame, staleS) {
    const { id, kv, age_s } = frame.instances;
    const late = Math.floor((frame.at - this.to) / this.bin) + 1;
    if (late > 0) this.shift(late);
    const column = Math.floor((frame.at - this.from) / this.bin);
    if (column < 0) return; // older than everything shown
    id.forEach((name, i) => {
      let line = this.lines.get(name);
      if (!line) this.lines.set(name, (line = new Uint8Array(this.columns).fill(NO_DATA)));
      if (kv[i] == null || age_s[i] == null || age_s[i] > staleS) return;
      const percent = percentOf(kv[i]);
      line[column] = line[column] === NO_DATA ? percent : Math.max(line[column], percent);
    });
    if (this.lines.size > id.length * 2) this.forget(new Set(id));
  }

  shift(by) {
    this.from += by * this.bin;
    for (const line of this.lines.values()) {
      line.copyWithin(0, Math.min(by, this.columns));
      line.fill(NO_DATA, Math.max(0, this.columns - by));
    }
  }

  forget(kept) {
    for (const name of this.lines.keys()) if (!kept.has(name)) this.lines.delete(name);
  }
}

// Rows of the map: failed instances come first, in a row each. Beyond `most` rows several instances share one, those with the
// worst status first.
export const BROKEN = new Set(["failed", "unreachable", "offline", "stale"]);
export function heatRows(instances, most) {
  const broken = instances.filter((row) => BROKEN.has(row.status)).slice(0, Math.ceil(most / 4));
  const named = new Set(broken.map((row) => row.id));
  const others = divided(instances.filter((row) => !named.has(row.id)), Math.max(1, most - broken.length));
  return [...broken.map((row) => rowOf([row])), ...others].toSorted((a, b) => b.broken - a.broken);
}

export const place = (row) => (row.node ? `${row.pool} on ${row.node}` : row.pool);

function rowOf(rows, name = groupName(rows)) {
  const [first] = rows;
  return {
    ids: rows.map((row) => row.id),
    name,
    place: rows.every((row) => place(row) === place(first)) ? place(first) : "",
    status: byStatus(rows)[0].status,
    lastKnown: rows.every((row) => row.last_known),
    limit: first.kv_limit ?? null,
    broken: rows.length === 1 && BROKEN.has(first.status),
  };
}

// demo-0…16 (17)
function groupName(rows) {
  const [first, last] = [rows[0].id, rows.at(-1).id];
  if (rows.length === 1) return first;
  const stem = first.replace(/\d+$/, "");
  return `${first}…${last.startsWith(stem) ? last.slice(stem.length) : last} (${rows.length})`;
}

// A row for each pool on each node, if pools have several and all fit; otherwise neighbours of a pool share a row.
function divided(rows, most) {
  if (rows.length <= most) return rows.map((row) => rowOf([row]));
  const [pools, places] = [(row) => row.pool, place].map((by) => Object.entries(Object.groupBy(rows, by)));
  if (places.length > pools.length && places.length <= most) {
    return byStatus(places.map(([name, all]) => rowOf(all, `${name} (${all.length})`)));
  }
  let size = Math.ceil(rows.length / most);
  const needed = () => pools.reduce((sum, [, all]) => sum + Math.ceil(all.length / size), 0);
  while (needed() > most && size < rows.length) size += 1;
  return byStatus(groups(rows, size).map((part) => rowOf(part)));
}

function groups(rows, size) {
  const found = [];
  for (const row of rows) {
    const last = found.at(-1);
    if (last && last.length < size && last[0].pool === row.pool) last.push(row);
    else found.push([row]);
  }
  return found;
}

// Worst first, as in controlplane/live/dashboard/frame/status.py.
export const ORDER = ["failed", "unreachable", "offline", "stale", "saturated", "unseen", "starting", "loading", "draining", "drained", "stopping", "stopped", "ready"];
export const byStatus = (rows) => rows.toSorted((a, b) => ORDER.indexOf(a.status) - ORDER.indexOf(b.status));

// The highest cell of a group in one column.
export function cell(data, row, column) {
  let highest = NO_DATA;
  for (const id of row.ids) {
    const value = data.lines.get(id)?.[column] ?? NO_DATA;
    if (value !== NO_DATA && (highest === NO_DATA || value > highest)) highest = value;
  }
  return highest;
}
