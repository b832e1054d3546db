// Arms across metrics: an axis for each row of the comparison, a line for each arm. Up is better; an axis can be reversed.
import { significant } from "./format.js";
import { make } from "./threshold_plot.js";

const [WIDTH, HEIGHT, TOP, BOTTOM, SIDE] = [900, 260, 24, 24, 60];

class Axis {
  constructor(row) {
    this.title = row.dataset.title;
    this.flipped = row.dataset.better === "lower";
    this.values = new Map([...row.querySelectorAll("td[data-value]")].filter((cell) => cell.dataset.value).map((cell) => [cell.dataset.arm, [Number(cell.dataset.value), cell.querySelector(".number").textContent]]));
    const ordered = [...this.values.values()].filter(([value]) => Number.isFinite(value)).sort(([a], [b]) => a - b);
    [this.low, this.lowest] = ordered[0] ?? [];
    [this.high, this.highest] = ordered.at(-1) ?? [];
    this.limits = [null, null];
  }

  y(value) {
    const share = this.high > this.low ? (value - this.low) / (this.high - this.low) : 0.5;
    return TOP + (this.flipped ? share : 1 - share) * (HEIGHT - TOP - BOTTOM);
  }

  takes(arm) {
    const [value] = this.values.get(arm) ?? [];
    const [low, high] = this.limits;
    return value === undefined || ((low == null || value >= low) && (high == null || value <= high));
  }
}

export class Parallel {
  // looks: [{name, sign, colour}], as in the table
  constructor(figure, rows, looks) {
    Object.assign(this, { figure, looks, axes: rows.map((row) => new Axis(row)).filter((axis) => axis.values.size > 1) });
    this.svg = make("svg", { viewBox: `0 0 ${WIDTH} ${HEIGHT}`, role: "img", "aria-label": "Arms across metrics; the comparison above has the numbers" });
    figure.querySelector("[data-plot]").replaceChildren(this.svg);
    figure.querySelector("[data-axes]").replaceChildren(...this.axes.map((axis) => this.controls(axis)));
    figure.hidden = this.axes.length < 2;
    this.draw();
  }

  // Reversing an axis and setting its limits without a pointer, in place of a brush.
  controls(axis) {
    const row = document.createElement("fieldset");
    row.className = "row parallel-axis";
    const legend = document.createElement("legend");
    legend.textContent = axis.title;
    const turn = document.createElement("button");
    Object.assign(turn, { type: "button", className: "button button--small", textContent: "Turn" });
    turn.setAttribute("aria-label", `Turn the axis ${axis.title}`);
    turn.setAttribute("aria-pressed", String(axis.flipped));
    turn.addEventListener("click", () => { axis.flipped = !axis.flipped; turn.setAttribute("aria-pressed", String(axis.flipped)); this.draw(); });
    row.append(legend, turn, ...["from", "to"].map((name, i) => this.limit(axis, name, i)));
    return row;
  }

  limit(axis, name, i) {
    const label = document.createElement("label");
    const input = document.createElement("input");
    Object.assign(input, { type: "number", step: "any", placeholder: significant(i ? axis.high : axis.low) });
    input.addEventListener("input", () => { axis.limits[i] = input.value === "" ? null : Number(input.value); this.draw(); });
    label.append(`${name} `, input);
    return label;
  }

  x(i) { return SIDE + i * (WIDTH - 2 * SIDE) / Math.max(1, this.axes.length - 1); }

  draw() {
    const drawn = this.axes.flatMap((axis, i) => [
      make("line", { class: "parallel-line", x1: this.x(i), x2: this.x(i), y1: TOP, y2: HEIGHT - BOTTOM }),
      make("text", { x: this.x(i), y: HEIGHT - 6, "text-anchor": "middle" }, axis.title),
      make("text", { x: this.x(i), y: 14, "text-anchor": "middle" }, axis.flipped ? axis.lowest : axis.highest),
    ]);
    this.svg.replaceChildren(...drawn, ...this.looks.flatMap((look) => this.arm(look)));
  }

  arm({ name, sign, colour }) {
    const points = this.axes.flatMap((axis, i) => (axis.values.has(name) ? [[this.x(i), axis.y(axis.values.get(name)[0])]] : []));
    const out = this.axes.some((axis) => !axis.takes(name));
    const group = make("g", { class: `arm-${colour + 1}${out ? " parallel-out" : ""}`, "data-arm": name });
    group.append(make("polyline", { points: points.map((point) => point.join(",")).join(" ") }), ...points.map(([x, y]) => make("text", { x, y: y + 5, "text-anchor": "middle" }, sign)));
    return group;
  }
}
