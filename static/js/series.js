// Chart data: columns over a range, one point per bin; a gap between frames is a point without values.
import { settings } from "./live_settings.js";

const { counts, latencies, percentiles } = settings;
const KEYS = [...counts, ...latencies.flatMap((key) => percentiles.map((name) => `${key}_${name}`))];

function values(window) {
  return [...counts.map((key) => window[key]), ...latencies.flatMap((key) => window[key])];
}

export class Series {
  constructor(history) { this.load(history); }

  load(history) {
    this.bin = history?.bin_s ?? 1;
    this.gap = history?.gap_s ?? 3;
    this.seconds = history?.seconds ?? 300;
    this.at = [...(history?.at ?? [])];
    this.classes = history?.classes ?? {};
  }

  push(frame) {
    const at = Math.floor(frame.at / this.bin) * this.bin;
    const last = this.at.length ? this.at[this.at.length - 1] : null;
    if (last !== null && at < last) return; // an older frame than the snapshot
    if (last !== null && at - last > Math.max(this.gap, this.bin)) this.append(last + this.bin);
    if (last !== at) this.append(at);
    this.fill(frame.classes);
    this.forget(frame.at - this.seconds);
  }

  append(at) {
    this.at.push(at);
    for (const pool of Object.values(this.classes)) {
      for (const columns of Object.values(pool)) for (const key of KEYS) columns[key].push(null);
    }
  }

  fill(classes) {
    const end = this.at.length - 1;
    const pools = Object.entries(classes);
    if (pools.length === 1) pools.push(["*", pools[0][1]]); // series of all pools, in case a second pool appears
    for (const [pool, windows] of pools) {
      for (const [name, window] of Object.entries(windows)) {
        if (!window) continue;
        const columns = this.columns(pool, name);
        values(window).forEach((value, i) => { columns[KEYS[i]][end] = value; });
      }
    }
  }

  columns(pool, name) {
    const known = (this.classes[pool] ??= {});
    return (known[name] ??= Object.fromEntries(KEYS.map((key) => [key, new Array(this.at.length).fill(null)])));
  }

  forget(before) {
    const kept = this.at.findIndex((at) => at >= before);
    if (kept <= 0) return;
    this.at.splice(0, kept);
    for (const pool of Object.values(this.classes)) {
      for (const columns of Object.values(pool)) for (const key of KEYS) columns[key].splice(0, kept);
    }
  }
}
