// Class thresholds on the distribution of the newest requests: lines move with their inputs, and inputs with their lines.
import { table } from "./chart_table.js";
import { count } from "./format.js";

const CLASSES = ["warm", "medium", "heavy"];
const SVG = "http://www.w3.org/2000/svg";
const [WIDTH, HEIGHT, LEFT, RIGHT, TOP, BOTTOM] = [480, 186, 8, 8, 42, 24];
const BINS = 36;
const SMALLEST = 10; // tokens: the left end of the axis

const figure = document.getElementById("class-shares");
const { sizes, live } = figure ? JSON.parse(document.getElementById("class-sizes").textContent) : {};

const INPUTS = { heavy_new_tokens: "f-classes-heavy-new-tokens", warm_new_tokens: "f-classes-warm-new-tokens", warm_hit_share: "f-classes-warm-hit-share" };
const input = (name) => document.getElementById(INPUTS[name]);

// As router/policy/rules/classify.py.
function classify([prompt, cached], at) {
  if (prompt - cached >= at.heavy_new_tokens) return "heavy";
  return cached > at.warm_hit_share * prompt || prompt - cached < at.warm_new_tokens ? "warm" : "medium";
}

// What was typed, as far as it is a number; the live value otherwise.
function thresholds() {
  return Object.fromEntries(Object.keys(INPUTS).map((name) => {
    const text = input(name)?.value.replace(/[,\s_]/g, "") ?? "";
    return [name, text !== "" && Number.isFinite(Number(text)) ? Number(text) : live[name]];
  }));
}

function make(tag, attributes, text = "") {
  const made = document.createElementNS(SVG, tag);
  for (const [name, value] of Object.entries(attributes)) made.setAttribute(name, value);
  if (text) made.textContent = text;
  return made;
}

const largest = Math.max(1000, ...(sizes ?? []).map(([prompt]) => prompt)) * 1.3;
const log = {
  title: "New tokens", thresholds: ["warm_new_tokens", "heavy_new_tokens"], unit: "tokens",
  of: ([prompt, cached]) => prompt - cached,
  share: (value) => Math.log(Math.max(value, SMALLEST) / SMALLEST) / Math.log(largest / SMALLEST),
  value: (share) => SMALLEST * (largest / SMALLEST) ** share,
  ticks: [10, 100, 1_000, 10_000, 100_000, 1_000_000].filter((tick) => tick < largest),
  text: (value) => (value >= 1e6 ? `${value / 1e6}M` : value >= 1000 ? `${+(value / 1000).toPrecision(3)}k` : `${Math.round(value)}`),
};
const linear = {
  title: "Cached share of the prompt", thresholds: ["warm_hit_share"], unit: "",
  of: ([prompt, cached]) => (prompt ? cached / prompt : 0),
  share: (value) => value, value: (share) => share, ticks: [0, 0.25, 0.5, 0.75, 1],
  text: (value) => `${Math.round(value * 100)} %`,
};
const NAMES = { heavy_new_tokens: "heavy from", warm_new_tokens: "warm below", warm_hit_share: "warm above" };

const clamp = (share) => Math.min(1, Math.max(0, share));
const x = (axis, value) => LEFT + clamp(axis.share(value)) * (WIDTH - LEFT - RIGHT);

function binned(axis, classes) {
  const bins = Array.from({ length: BINS }, () => ({ warm: 0, medium: 0, heavy: 0 }));
  sizes.forEach((size, i) => { bins[Math.min(BINS - 1, Math.floor(clamp(axis.share(axis.of(size))) * BINS))][classes[i]] += 1; });
  return bins;
}

class Plot {
  constructor(axis) {
    this.axis = axis;
    this.svg = make("svg", { viewBox: `0 0 ${WIDTH} ${HEIGHT}`, role: "group", "aria-label": axis.title });
    this.bars = make("g", { "aria-hidden": "true" });
    this.svg.append(this.bars, this.scale());
    this.lines = axis.thresholds.map((name) => this.line(name));
  }

  scale() {
    const group = make("g", { class: "class-shares-axis", "aria-hidden": "true" });
    group.append(make("line", { x1: LEFT, x2: WIDTH - RIGHT, y1: HEIGHT - BOTTOM, y2: HEIGHT - BOTTOM }));
    group.append(make("text", { x: LEFT, y: 12 }, this.axis.title));
    for (const tick of this.axis.ticks) {
      const at = x(this.axis, tick);
      group.append(make("text", { x: at, y: HEIGHT - 8, "text-anchor": at < 20 ? "start" : at > WIDTH - 20 ? "end" : "middle" }, this.axis.text(tick)));
    }
    return group;
  }

  // A line that is dragged, or moved by the arrow keys, and the live one beside it.
  line(name) {
    const was = make("line", { class: "class-shares-live", y1: TOP, y2: HEIGHT - BOTTOM });
    const group = make("g", { class: "class-shares-line", tabindex: "0", role: "slider", "aria-label": input(name)?.labels[0]?.textContent ?? name });
    const [own, hit, label] = [make("line", { y1: TOP, y2: HEIGHT - BOTTOM }), make("rect", { width: 24, y: 0, height: HEIGHT }), make("text", { y: name === "heavy_new_tokens" ? TOP - 4 : TOP - 17 })];
    group.append(own, hit, label);
    this.svg.append(was, group);
    group.addEventListener("pointerdown", (event) => this.drag(event, name, group));
    group.addEventListener("keydown", (event) => forward(event, name));
    return { name, was, group, own, hit, label };
  }

  drag(event, name, group) {
    event.preventDefault();
    group.setPointerCapture(event.pointerId);
    group.focus();
    const move = (moved) => {
      const box = this.svg.getBoundingClientRect();
      const share = clamp(((moved.clientX - box.left) / box.width * WIDTH - LEFT) / (WIDTH - LEFT - RIGHT));
      put(name, this.axis.value(share), "input");
    };
    const end = () => {
      group.removeEventListener("pointermove", move);
      input(name).dispatchEvent(new Event("change", { bubbles: true }));
    };
    group.addEventListener("pointermove", move);
    group.addEventListener("lostpointercapture", end, { once: true });
  }

  draw(at, classes) {
    const bins = binned(this.axis, classes);
    const most = Math.max(1, ...bins.map((bin) => bin.warm + bin.medium + bin.heavy));
    const width = (WIDTH - LEFT - RIGHT) / BINS;
    this.bars.replaceChildren(...bins.flatMap((bin, i) => {
      let floor = HEIGHT - BOTTOM;
      return CLASSES.filter((name) => bin[name]).map((name) => {
        const height = bin[name] / most * (HEIGHT - BOTTOM - TOP);
        floor -= height;
        return make("rect", { x: LEFT + i * width + 0.5, y: floor, width: width - 1, height, "data-class": name });
      });
    }));
    for (const line of this.lines) this.place(line, at[line.name]);
  }

  place({ name, was, group, own, hit, label }, value) {
    const at = x(this.axis, value);
    for (const [one, position] of [[was, x(this.axis, live[name])], [own, at]]) { one.setAttribute("x1", position); one.setAttribute("x2", position); }
    hit.setAttribute("x", at - 12);
    const right = name === "heavy_new_tokens" ? at < WIDTH - 110 : at < 110; // apart, where both have a line
    label.setAttribute("x", at + (right ? 4 : -4));
    label.setAttribute("text-anchor", right ? "start" : "end");
    label.textContent = `${NAMES[name]} ${this.axis.text(value)}`;
    group.setAttribute("aria-valuenow", value);
    group.setAttribute("aria-valuetext", label.textContent);
  }
}

function put(name, value, event) {
  const field = input(name);
  const step = Number(field.dataset.step);
  const rounded = Math.round(value / step) * step;
  field.value = step < 1 ? rounded.toFixed((String(step).split(".")[1] ?? "").length) : String(rounded);
  field.dispatchEvent(new Event(event, { bubbles: true }));
}

// The arrow keys do on a line what they do in its input.
function forward(event, name) {
  const keys = { ArrowRight: "ArrowUp", ArrowUp: "ArrowUp", ArrowLeft: "ArrowDown", ArrowDown: "ArrowDown" };
  if (!keys[event.key]) return;
  event.preventDefault();
  input(name).dispatchEvent(new KeyboardEvent("keydown", { key: keys[event.key], shiftKey: event.shiftKey, bubbles: true }));
}

// As controlplane/receipts/class_shares.py.
function sentence(before, after) {
  const share = (found, name) => `${(found.filter((one) => one === name).length * 100 / sizes.length).toFixed(1)} %`;
  const parts = CLASSES.map((name) => {
    const [old, now] = [share(before, name), share(after, name)];
    return `${name} ${old === now ? now : `${old} → ${now}`}`;
  });
  const moved = after.filter((one, i) => one !== before[i]).length;
  const changes = moved ? `${count(moved)} request${moved === 1 ? "" : "s"} of ${count(sizes.length)} change class` : "no request changes its class";
  return `${parts.join(", ")}: ${changes}.`;
}

function start() {
  const plots = [log, linear].map((axis) => new Plot(axis));
  figure.querySelector("[data-plots]").append(...plots.map((plot) => plot.svg));
  const before = sizes.map((size) => classify(size, live));
  const details = figure.querySelector("details");
  let after = before;
  const tabulate = () => {
    if (!details.open) return;
    const bins = binned(log, after);
    const column = (title, values) => ({ title, number: true, values: values.map(String) });
    figure.querySelector("[data-table]").replaceChildren(table("Requests by new tokens and class, under the draft", [
      column("New tokens from", bins.map((_, i) => log.text(log.value(i / BINS)))),
      ...CLASSES.map((name) => column(name, bins.map((bin) => bin[name]))),
    ]));
  };
  const draw = () => {
    const at = thresholds();
    after = sizes.map((size) => classify(size, at));
    for (const plot of plots) plot.draw(at, after);
    const text = sentence(before, after);
    const told = figure.querySelector("[data-sentence]");
    if (told.textContent !== text) told.textContent = text;
    tabulate();
  };
  details.addEventListener("toggle", tabulate);
  for (const name of Object.keys(INPUTS)) for (const event of ["input", "change"]) input(name)?.addEventListener(event, draw);
  draw();
}

if (figure && Object.keys(INPUTS).every((name) => input(name))) start();
