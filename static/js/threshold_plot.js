// A histogram with thresholds as lines: a line follows its input, and its input follows the line.
const SVG = "http://www.w3.org/2000/svg";
const [WIDTH, LEFT, RIGHT, BOTTOM] = [340, 8, 8, 24]; // about the width at which it is shown, so that text keeps its size
const LABEL = 13; // height of a line's label
const TITLE = 20;
const BINS = 36;

const clamp = (share) => Math.min(1, Math.max(0, share));

// The typed number; `live` if it is none.
export function typed(input, live) {
  const text = input.value.replace(/[,\s_]/g, "");
  return text !== "" && Number.isFinite(Number(text)) ? Number(text) : live;
}

export function make(tag, attributes, text = "") {
  const made = document.createElementNS(SVG, tag);
  for (const [name, value] of Object.entries(attributes)) made.setAttribute(name, value);
  if (text) made.textContent = text;
  return made;
}

// values: [[value, key, count]]; the bins from left to right, each {key: count}.
export function binned(axis, values) {
  const bins = Array.from({ length: BINS }, () => ({}));
  for (const [value, key, count] of values) {
    const bin = bins[Math.min(BINS - 1, Math.floor(clamp(axis.share(value)) * BINS))];
    bin[key] = (bin[key] ?? 0) + count;
  }
  return bins;
}

export const startOf = (axis, bin) => axis.value(bin / BINS);

// Equal steps of log(1 + value / tiny), which shows zero and values of different magnitude.
export function logAxis(largest, tiny) {
  const whole = Math.log1p(largest / tiny);
  const powers = [0];
  for (let power = tiny * 10; power < largest; power *= 10) powers.push(power);
  const every = Math.ceil(powers.length / 7);
  return {
    share: (value) => Math.log1p(Math.max(value, 0) / tiny) / whole,
    value: (share) => tiny * Math.expm1(share * whole),
    ticks: powers.filter((_, i) => i % every === 0),
    text: (value) => (value >= 1e6 ? `${+(value / 1e6).toPrecision(3)}M` : value >= 1000 ? `${+(value / 1000).toPrecision(3)}k` : `${+value.toPrecision(3)}`),
  };
}

export const shareAxis = {
  share: (value) => value, value: (share) => share, ticks: [0, 0.25, 0.5, 0.75, 1], text: (value) => `${Math.round(value * 100)} %`,
};

export class Plot {
  // axis: share(value), value(share), ticks, text(value); lines: [{input, live, label}]; keys: those of the bars, from the bottom;
  // allowed() of a line: the lowest and highest value to which it is dragged
  constructor(title, axis, lines, keys, height) {
    Object.assign(this, { axis, keys, height, top: (title ? TITLE : 4) + LABEL * lines.length });
    this.svg = make("svg", { viewBox: `0 0 ${WIDTH} ${height}`, role: "group", "aria-label": title || lines[0].label });
    this.bars = make("g", { "aria-hidden": "true" });
    this.svg.append(this.bars, this.scale(title));
    this.lines = lines.map((line, i) => this.line(line, i));
  }

  x(value) { return LEFT + clamp(this.axis.share(value)) * (WIDTH - LEFT - RIGHT); }

  scale(title) {
    const floor = this.height - BOTTOM;
    const group = make("g", { class: "plot-axis", "aria-hidden": "true" });
    group.append(make("line", { x1: LEFT, x2: WIDTH - RIGHT, y1: floor, y2: floor }), make("text", { x: LEFT, y: 12 }, title));
    for (const tick of this.axis.ticks) {
      const at = this.x(tick);
      group.append(make("text", { x: at, y: this.height - 8, "text-anchor": at < 20 ? "start" : at > WIDTH - 20 ? "end" : "middle" }, this.axis.text(tick)));
    }
    return group;
  }

  // A line that can be dragged or moved with the arrow keys, with the live value beside it.
  line({ input, live, label: name, allowed }, order) {
    const ends = { y1: this.top, y2: this.height - BOTTOM };
    const was = make("line", { class: "plot-live", ...ends });
    const group = make("g", { class: "plot-line", tabindex: "0", role: "slider", "aria-label": input.labels[0].textContent });
    const [own, hit, label] = [make("line", ends), make("rect", { width: 24, y: 0, height: this.height }), make("text", { y: this.top - 4 - LABEL * order })];
    group.append(own, hit, label);
    this.svg.append(was, group);
    group.addEventListener("pointerdown", (event) => this.drag(event, input, group, allowed));
    group.addEventListener("keydown", (event) => forward(event, input));
    return { input, live, name, order, was, group, own, hit, label };
  }

  drag(event, input, group, allowed = () => [-Infinity, Infinity]) {
    event.preventDefault();
    group.setPointerCapture(event.pointerId);
    group.focus();
    const move = (moved) => {
      const box = this.svg.getBoundingClientRect();
      const share = clamp(((moved.clientX - box.left) / box.width * WIDTH - LEFT) / (WIDTH - LEFT - RIGHT));
      put(input, this.axis.value(share), allowed());
    };
    const end = () => {
      group.removeEventListener("pointermove", move);
      input.dispatchEvent(new Event("change", { bubbles: true }));
    };
    group.addEventListener("pointermove", move);
    group.addEventListener("lostpointercapture", end, { once: true });
  }

  draw(bins) {
    const most = Math.max(1, ...bins.map((bin) => this.keys.reduce((sum, key) => sum + (bin[key] ?? 0), 0)));
    const width = (WIDTH - LEFT - RIGHT) / BINS;
    this.bars.replaceChildren(...bins.flatMap((bin, i) => {
      let floor = this.height - BOTTOM;
      return this.keys.filter((key) => bin[key]).map((key) => {
        const height = Math.max(1, bin[key] / most * (this.height - BOTTOM - this.top));
        floor -= height;
        return make("rect", { x: LEFT + i * width + 0.5, y: floor, width: width - 1, height, "data-key": key });
      });
    }));
    for (const line of this.lines) this.place(line, typed(line.input, line.live));
  }

  place({ live, name, order, was, group, own, hit, label }, value) {
    const at = this.x(value);
    for (const [one, position] of [[was, this.x(live)], [own, at]]) { one.setAttribute("x1", position); one.setAttribute("x2", position); }
    hit.setAttribute("x", at - 12);
    const right = order ? at < 110 : at < WIDTH - 110; // kept apart if there are two
    label.setAttribute("x", at + (right ? 4 : -4));
    label.setAttribute("text-anchor", right ? "start" : "end");
    label.textContent = `${name} ${this.axis.text(value)}`;
    group.setAttribute("aria-valuenow", value);
    group.setAttribute("aria-valuetext", label.textContent);
  }
}

function put(field, value, [low, high]) {
  const step = Number(field.dataset.step);
  const rounded = Math.min(high, Math.max(low, Math.round(value / step) * step));
  field.value = step < 1 ? rounded.toFixed((String(step).split(".")[1] ?? "").length) : String(rounded);
  field.dispatchEvent(new Event("input", { bubbles: true }));
}

// The arrow keys have the same effect on a line as in its input.
function forward(event, input) {
  const keys = { ArrowRight: "ArrowUp", ArrowUp: "ArrowUp", ArrowLeft: "ArrowDown", ArrowDown: "ArrowDown" };
  if (!keys[event.key]) return;
  event.preventDefault();
  input.dispatchEvent(new KeyboardEvent("keydown", { key: keys[event.key], shiftKey: event.shiftKey, bubbles: true }));
}
