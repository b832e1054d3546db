// Reads a frame for the Live page and the wall; `pool` is the selected one, or empty for all.
import { BROKEN, place } from "./heat_data.js";
import { settings } from "./live_settings.js";

export const ALL_POOLS = "*"; // the key of sums over all pools

// The frame with its columns as lists; controlplane/live/dashboard/frame/types.py compresses those with few values.
export function unfolded(frame) {
  if (!frame) return frame;
  const rows = frame.instances.id.length;
  const lasting = ({ of, at }) => Array.from(at.padEnd(rows, at.at(-1)), (letter) => of[letter.charCodeAt(0) - 48]);
  const whole = (column) => (Array.isArray(column) ? column : lasting(column));
  return { ...frame, instances: Object.fromEntries(Object.entries(frame.instances).map(([name, column]) => [name, whole(column)])) };
}

export function instanceRows(frame, pool) {
  const columns = frame.instances;
  const row = (i) => Object.fromEntries(Object.keys(columns).map((key) => [key, columns[key][i]]));
  const made = columns.id.map((_, i) => ({ ...row(i), kv_limit: frame.pools[columns.pool[i]]?.kv_limit }));
  return pool ? made.filter((row) => row.pool === pool) : made;
}

export function poolOfClasses(frame, pool) {
  if (pool) return pool;
  const names = Object.keys(frame.pools);
  return names.length === 1 ? names[0] : ALL_POOLS;
}

// Failed instances come first, the others keep their order.
export const failuresFirst = (rows) => rows.toSorted((a, b) => BROKEN.has(b.status) - BROKEN.has(a.status));

// Whether an event or an entry of attention is shown for this pool.
export const concerns = (pool) => (item) => !pool || !item.pools?.length || item.pools.includes(pool);

// The rows `elapsed` seconds after their frame. An old frame says nothing new about an engine: its status is the last
// known one, and only the age grows.
export function asOf(rows, elapsed) {
  const old = elapsed > settings.frameOldS;
  return rows.map((row) => ({ ...row, age_s: row.age_s == null ? null : row.age_s + elapsed, last_known: old || row.last_known }));
}

// The instances that the chosen class, rule or instance of the flow concerns, or those of the chosen place.
export function filterRows(rows, filter, links) {
  if (!filter) return rows;
  if (filter.kind === "place") return rows.filter((row) => place(row) === filter.name);
  const column = ["class", "rule", "instance"].indexOf(filter.kind);
  const named = new Set(links.filter((link) => link[column] === filter.name).map((link) => link[2]));
  if (filter.kind === "instance") named.add(filter.name);
  if (!named.has("")) return rows.filter((row) => named.has(row.id));
  const shown = new Set(links.map((link) => link[2])); // the others have no names in the flow
  return rows.filter((row) => named.has(row.id) || !shown.has(row.id));
}

// SLOs by class and metric, in ms; for all pools, the limits on which all pools with an SLO agree. `asked`: those in the URL.
export function slosOf(frame, pool, asked) {
  const shown = Object.entries(frame.pools).filter(([name]) => !pool || name === pool).map(([, known]) => known.slo ?? {});
  return Object.fromEntries(settings.classes.map((name) => {
    const limits = new Set(shown.filter((slo) => name in slo).map((slo) => slo[name]));
    return [name, { ...(limits.size === 1 ? { ttft: [...limits][0] } : {}), ...asked }];
  }));
}

// Whether Needs attention lists the class: a miss stays listed until the SLO was met for a while.
export const isListed = (frame, pool, name) => Object.entries(frame.slo ?? {}).some(([key, classes]) => (!pool || key === pool) && Boolean(classes[name]?.listed));

// The outcome of most requests if few were served; empty if they were served, or there are only few.
function lost({ n, errors = 0, refused = 0, client_errors: theirs = 0 }) {
  if (errors + refused < settings.lowN || 2 * (errors + refused) <= n - theirs) return "";
  return errors >= refused ? "most fail" : "most are refused";
}

// The verdict on a class: its TTFT p90 compared with its SLO.
export function verdict(window, slo, listed = false) {
  if (!window) return "unknown"; // no router has reported the class
  if (!window.n && !window.rate) return "idle";
  const value = window.ttft?.[1];
  if (value == null || window.ttft_n < settings.lowN) return lost(window) || "too few requests";
  if (slo == null) return "no SLO";
  if (value > slo) return "SLO missed";
  return listed ? "SLO met again" : "SLO met";
}
