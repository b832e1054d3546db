// The flow of requests: class → rule → instance, as wide as their requests/s; arcs of KV blocks from prefill to decode.
import { table } from "./chart_table.js";
import { bytesPerSecond, rate } from "./format.js";

const SVG = "http://www.w3.org/2000/svg";
const WIDTH = 1080;
const COLUMNS = [0, 370, 720]; // left edges of class, rule, instance
const NODE = 12;
const ROW = 26; // least height for a name
const GAP = 8;
const ARC_FROM = 930;
const BULGE = 70;

export class Flow {
  // chosen: called with {kind, name} of a pressed node, or null when it is pressed again
  constructor(svg, chosen) {
    Object.assign(this, { svg, chosen, filter: null });
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
    const key = JSON.stringify([flow, filter]);
    if (key === this.key) return;
    Object.assign(this, { key, flow, filter, others });
    const focused = document.activeElement?.closest?.("[data-kind]")?.dataset;
    this.draw();
    if (focused && !this.svg.contains(document.activeElement)) this.svg.querySelector(`[data-kind="${focused.kind}"][data-name="${CSS.escape(focused.name)}"]`)?.focus();
  }

  draw() {
    const columns = [0, 1, 2].map((place) => sums(this.flow.links, place));
    const most = Math.max(...columns.map((nodes) => nodes.length));
    const height = Math.max(150, most * (ROW + GAP));
    const total = this.flow.links.reduce((sum, link) => sum + link[3], 0);
    const unit = total ? (height - most * GAP) / total : 0;
    const nodes = columns.map((column) => stack(column, height, unit));
    const needed = Math.max(height, ...nodes.flatMap((column) => [...column.values()].map((node) => node.bottom)));
    this.svg.setAttribute("viewBox", `0 0 ${WIDTH} ${needed}`);
    this.svg.setAttribute("aria-label", this.summary());
    this.svg.replaceChildren(...this.bands(nodes, unit), ...this.arcs(nodes[2]), ...nodes.flatMap((column, place) => [...column.values()].map((node) => this.node(node, place))));
  }

  bands(nodes, unit) {
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
      return [band(COLUMNS[0] + NODE, ys[0], COLUMNS[1], ys[1], width, name, lit), band(COLUMNS[1] + NODE, ys[2], COLUMNS[2], ys[3], width, name, lit)];
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
    const shown = name || this.others;
    group.setAttribute("aria-pressed", String(pressed));
    group.setAttribute("aria-label", `${kind} ${shown}, ${rate(per_s)}`);
    const bar = make("rect", { x: COLUMNS[place], y, width: NODE, height: Math.max(2, high), class: "flow-bar", ...(place === 0 ? { "data-class": name } : {}) });
    // The hit area is at least as high as a name.
    const area = make("rect", { x: COLUMNS[place], y: y + high / 2 - ROW / 2, width: 190, height: Math.max(ROW, high), class: "flow-area" });
    const label = make("text", { x: COLUMNS[place] + NODE + 8, y: y + high / 2, class: "flow-name" });
    label.append(shown.length > 22 ? `${shown.slice(0, 12)}…${shown.slice(-9)}` : shown, " ", make("tspan", { class: "flow-rate" }, rate(per_s)));
    group.append(area, bar, label, make("title", {}, `${shown}: ${rate(per_s)}`));
    return group;
  }

  arcs(instances) {
    const widest = Math.max(1, ...this.flow.arcs.map((arc) => arc[3]));
    return this.flow.arcs.flatMap(([prefill, decode, per_s, bytes_s]) => {
      const [from, to] = [instances.get(prefill), instances.get(decode)];
      if (!from || !to) return [];
      const [y0, y1] = [from.y + from.high / 2, to.y + to.high / 2];
      const x = ARC_FROM;
      const path = make("path", { d: `M${x} ${y0}C${x + BULGE} ${y0} ${x + BULGE} ${y1} ${x} ${y1}`, class: "flow-arc", "stroke-width": String(1 + 7 * bytes_s / widest) });
      path.append(make("title", {}, `${prefill} → ${decode}: ${bytesPerSecond(bytes_s)}, ${rate(per_s)}`));
      const label = make("text", { x: x + BULGE * 0.75 + 8, y: (y0 + y1) / 2, class: "flow-rate flow-arc-rate" }, bytesPerSecond(bytes_s));
      return [path, label];
    });
  }

  summary() {
    const parts = sums(this.flow.links, 0).map(({ name, per_s }) => `${name} ${rate(per_s)}`);
    return parts.length ? `Requests by class, rule and instance: ${parts.join(", ")}` : "Requests by class, rule and instance: none in the last 60 s";
  }

  asTable() {
    const { links, arcs } = this.flow;
    const tables = [table("Requests over 60 s", [
      { title: "Class", values: links.map((link) => link[0]) }, { title: "Rule", values: links.map((link) => link[1]) },
      { title: "Instance", values: links.map((link) => link[2] || this.others) }, { title: "Requests", number: true, values: links.map((link) => rate(link[3])) },
    ])];
    if (arcs.length) tables.push(table("KV transfers over 60 s", [
      { title: "Prefill", values: arcs.map((arc) => arc[0]) }, { title: "Decode", values: arcs.map((arc) => arc[1]) },
      { title: "Offloads", number: true, values: arcs.map((arc) => rate(arc[2])) }, { title: "KV", number: true, values: arcs.map((arc) => bytesPerSecond(arc[3])) },
    ]));
    return tables;
  }
}

function sums(links, place) {
  const found = new Map();
  for (const link of links) found.set(link[place], (found.get(link[place]) ?? 0) + link[3]);
  const made = [...found].map(([name, per_s]) => ({ name, per_s }));
  // Instances stay in the order of their names; what is wide today must not move tomorrow.
  return made.sort((a, b) => (a.name === "") - (b.name === "") || ORDER.indexOf(a.name) - ORDER.indexOf(b.name) || a.name.localeCompare(b.name, "en", { numeric: true }));
}
const ORDER = ["warm", "medium", "heavy"];

// Nodes of a column from the top, each at least as high as its name.
function stack(column, height, unit) {
  const heights = column.map(({ per_s }) => per_s * unit);
  const needed = heights.map((high) => Math.max(high, ROW));
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
