// The flow of requests: class → rule → instance, as wide as their requests/s; arcs of KV blocks from prefill to decode.
import { rem, shortened } from "./canvas.js";
import { table } from "./chart_table.js";
import { bytesPerSecond, rate } from "./format.js";

const SVG = "http://www.w3.org/2000/svg";
const WIDTH = 1080; // until it is known
const STACKED = 760; // below this width, a rate stands below its name
const NODE = 12;
const LABEL = NODE + 8;
const RATE = 85; // beside a name
const INSTANCE = 250; // for an instance's bar, name and rate
const GAP = 8;
const SPARE = 1.4; // maximum height of a column, in heights of its names
const MOST = 16; // shown instances of all pools; the others are combined under the name ""
const MOST_PREFILL = 8; // in addition, those that send them the most KV blocks
const NAMES = document.createElement("canvas").getContext("2d");
NAMES.font = "14px system-ui, sans-serif";

// Left edges of class, rule and instance and the room for their names; where arcs begin, and how wide they are.
// Without arcs the instances stand at the right edge.
function layout(width, arcs) {
  const stacked = width < STACKED;
  const wide = arcs ? 0.6 : 1 - INSTANCE / width;
  const columns = (stacked ? [0, 0.3, 0.63] : [0, wide / 2, wide]).map((share) => share * width);
  const arcFrom = arcs || stacked ? width - (stacked ? 26 : 140) : width;
  const spaces = [columns[1] - NODE, columns[2] - columns[1] - NODE, arcFrom - columns[2]];
  return { width, stacked, columns, spaces, arcFrom, row: stacked ? 38 : 26, bulge: stacked ? 32 : 70 };
}

export class Flow {
  // chosen: called with {kind, name} of a clicked node, or null when it is clicked again
  constructor(svg, chosen) {
    Object.assign(this, { svg, chosen, filter: null });
    new ResizeObserver(() => this.flow && this.update(this.flow, this.filter, this.others)).observe(svg);
    svg.addEventListener("click", (event) => this.press(event.target.closest("[data-kind]")));
    svg.addEventListener("keydown", (event) => {
      if (event.key === "Enter" || event.key === " ") { event.preventDefault(); this.press(event.target.closest("[data-kind]")); }
    });
  }

  press(node) {
    if (!node) return;
    const { kind, name } = node.dataset;
    const same = this.filter?.kind === kind && this.filter.name === name;
    this.chosen(same ? null : { kind, name });
  }

  update(flow, filter, others) {
    const width = Math.round(this.svg.getBoundingClientRect().width / rem()) || WIDTH;
    const key = JSON.stringify([flow, filter, width]);
    if (key === this.key) return;
    Object.assign(this, { key, flow, filter, others, layout: layout(width, flow.arcs.length > 0) });
    const focused = document.activeElement?.closest?.("[data-kind]")?.dataset;
    this.draw();
    if (focused && !this.svg.contains(document.activeElement)) this.svg.querySelector(`[data-kind="${focused.kind}"][data-name="${CSS.escape(focused.name)}"]`)?.focus();
  }

  draw() {
    const { row, width } = this.layout;
    const columns = [0, 1, 2].map((place) => sums(this.flow.links, place));
    const most = Math.max(...columns.map((nodes) => nodes.length));
    const height = Math.max(150, most * (row + GAP));
    const unit = Math.min(...columns.map((column) => perRate(column, height * SPARE, row)));
    const nodes = columns.map((column) => stack(column, height, unit, row));
    const needed = Math.max(height, ...nodes.flatMap((column) => [...column.values()].map((node) => node.bottom)));
    this.svg.setAttribute("viewBox", `0 0 ${width} ${needed}`);
    this.svg.setAttribute("aria-label", this.summary());
    this.svg.replaceChildren(...this.bands(nodes, unit), ...this.arcs(nodes[2]), ...nodes.flatMap((column, place) => [...column.values()].map((node) => this.node(node, place))));
  }

  bands(nodes, unit) {
    const { columns } = this.layout;
    const ends = new Map();
    const strip = (name, place, side, width) => {
      const key = `${place} ${side} ${name}`;
      const at = ends.get(key) ?? 0;
      ends.set(key, at + width);
      const node = nodes[place].get(name);
      return node.y + at + width / 2;
    };
    return this.flow.links.flatMap(([name, rule, instance, per_s]) => {
      const width = per_s * unit;
      const lit = this.lit([name, rule, instance]);
      const ys = [strip(name, 0, "out", width), strip(rule, 1, "in", width), strip(rule, 1, "out", width), strip(instance, 2, "in", width)];
      return [band(columns[0] + NODE, ys[0], columns[1], ys[1], width, name, lit), band(columns[1] + NODE, ys[2], columns[2], ys[3], width, name, lit)];
    });
  }

  lit(link) {
    if (!this.filter) return true;
    return link[["class", "rule", "instance"].indexOf(this.filter.kind)] === this.filter.name;
  }

  node({ name, y, high, per_s }, place) {
    const kind = ["class", "rule", "instance"][place];
    const group = make("g", { "data-kind": kind, "data-name": name, role: "button", tabindex: "0", class: "flow-node" });
    const pressed = this.filter?.kind === kind && this.filter.name === name;
    const shown = worded(kind, name) || this.others;
    group.setAttribute("aria-pressed", String(pressed));
    group.setAttribute("aria-label", `${kind} ${shown}, ${rate(per_s)}`);
    const { columns, spaces, row, stacked } = this.layout;
    const [x, middle] = [columns[place] + LABEL, y + high / 2];
    const bar = make("rect", { x: columns[place], y, width: NODE, height: Math.max(2, high), class: "flow-bar", ...(place === 0 ? { "data-class": name } : {}) });
    // The hit area is at least as high as a name.
    const area = make("rect", { x: columns[place], y: middle - Math.max(row, high) / 2, width: spaces[place], height: Math.max(row, high), class: "flow-area" });
    const label = make("text", { x, y: stacked ? middle - 8 : middle, class: "flow-name" });
    label.append(shortened(NAMES, shown, spaces[place] - LABEL - (stacked ? 0 : RATE)), " ", make("tspan", { class: "flow-rate", ...(stacked ? { x, dy: 16 } : {}) }, rate(per_s)));
    group.append(area, bar, label, make("title", {}, `${shown}: ${rate(per_s)}`));
    return group;
  }

  arcs(instances) {
    const { arcFrom: x, bulge, stacked } = this.layout;
    const widest = Math.max(1, ...this.flow.arcs.map((arc) => arc[3]));
    return this.flow.arcs.flatMap(([prefill, decode, per_s, bytes_s]) => {
      const [from, to] = [instances.get(prefill), instances.get(decode)];
      if (!from || !to) return [];
      const [y0, y1] = [from.y + from.high / 2, to.y + to.high / 2];
      const path = make("path", { d: `M${x} ${y0}C${x + bulge} ${y0} ${x + bulge} ${y1} ${x} ${y1}`, class: "flow-arc", "stroke-width": String(1 + 7 * bytes_s / widest) });
      path.append(make("title", {}, `${prefill} → ${decode}: ${bytesPerSecond(bytes_s)}, ${rate(per_s)}`));
      if (stacked) return [path];
      return [path, make("text", { x: x + bulge * 0.75 + 8, y: (y0 + y1) / 2, class: "flow-rate flow-arc-rate" }, bytesPerSecond(bytes_s))];
    });
  }

  summary() {
    const parts = sums(this.flow.links, 0).map(({ name, per_s }) => `${name} ${rate(per_s)}`);
    return parts.length ? `Requests by class, rule and instance: ${parts.join(", ")}` : "Requests by class, rule and instance: none in the last 60 s";
  }

  asTable() {
    const { links, arcs } = this.flow;
    const tables = [table("Requests over 60 s", [
      { title: "Class", values: links.map((link) => link[0]) }, { title: "Rule", values: links.map((link) => worded("rule", link[1])) },
      { title: "Instance", values: links.map((link) => link[2] || this.others) }, { title: "Requests", number: true, values: links.map((link) => rate(link[3])) },
    ])];
    if (arcs.length) tables.push(table("KV transfers over 60 s", [
      { title: "Prefill", values: arcs.map((arc) => arc[0]) }, { title: "Decode", values: arcs.map((arc) => arc[1]) },
      { title: "Offloads", number: true, values: arcs.map((arc) => rate(arc[2])) }, { title: "KV", number: true, values: arcs.map((arc) => bytesPerSecond(arc[3])) },
    ]));
    return tables;
  }
}

// The flow with the instances of the most requests, so that its height stays that of a screen.
export function busiest({ links, arcs }) {
  const names = sums(links, 2).filter(({ name }) => name);
  const kept = new Set(names.toSorted((a, b) => b.per_s - a.per_s).slice(0, MOST).map(({ name }) => name));
  const sent = arcs.filter(([, decode]) => kept.has(decode)).toSorted((a, b) => b[3] - a[3]);
  for (const [prefill] of sent.slice(0, MOST_PREFILL)) kept.add(prefill);
  const merged = new Map();
  for (const [name, rule, instance, per_s] of links) {
    const link = [name, rule, kept.has(instance) ? instance : ""];
    const key = link.join(" ");
    merged.set(key, [...link, per_s + (merged.get(key)?.[3] ?? 0)]);
  }
  return { links: [...merged.values()], arcs: arcs.filter(([prefill, decode]) => kept.has(prefill) && kept.has(decode)) };
}

function sums(links, place) {
  const found = new Map();
  for (const link of links) found.set(link[place], (found.get(link[place]) ?? 0) + link[3]);
  const made = [...found].map(([name, per_s]) => ({ name, per_s }));
  // Instances stay in the order of their names; their places must not change with their load.
  return made.sort((a, b) => (a.name === "") - (b.name === "") || ORDER.indexOf(a.name) - ORDER.indexOf(b.name) || a.name.localeCompare(b.name, "en", { numeric: true }));
}
const ORDER = ["warm", "medium", "heavy"];

// A rule is an identifier such as least_decode; instances keep their names.
function worded(kind, name) { return kind === "rule" ? name.replaceAll("_", " ") : name; }

// px of each request/s, so that a column is not higher than `height` where narrow nodes are as high as their names.
function perRate(column, height, row) {
  let [room, rest] = [height - column.length * GAP, column.reduce((sum, node) => sum + node.per_s, 0)];
  for (const { per_s } of column.toSorted((a, b) => a.per_s - b.per_s)) {
    if (per_s * room >= row * rest) break;
    room -= row;
    rest -= per_s;
  }
  return rest > 0 ? room / rest : 0;
}

// Nodes of a column from the top, each at least as high as its name.
function stack(column, height, unit, row) {
  const heights = column.map(({ per_s }) => per_s * unit);
  const needed = heights.map((high) => Math.max(high, row));
  const spare = Math.max(0, height - needed.reduce((sum, high) => sum + high + GAP, 0)) / column.length;
  let y = 0;
  return new Map(column.map((node, i) => {
    const slot = needed[i] + spare + GAP;
    const made = { ...node, high: heights[i], y: y + (slot - heights[i]) / 2 };
    y += slot;
    return [node.name, { ...made, bottom: y }];
  }));
}

function band(x0, y0, x1, y1, width, name, lit) {
  const middle = (x0 + x1) / 2;
  return make("path", { d: `M${x0} ${y0}C${middle} ${y0} ${middle} ${y1} ${x1} ${y1}`, class: `flow-band${lit ? "" : " flow-band--dim"}`, "data-class": name, "stroke-width": String(Math.max(1, width)) });
}

function make(name, attributes, text) {
  const node = document.createElementNS(SVG, name);
  for (const [key, value] of Object.entries(attributes)) node.setAttribute(key, value);
  if (text) node.append(text);
  return node;
}
