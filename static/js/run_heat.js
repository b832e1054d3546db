// KV usage of one run: instance × virtual time on a canvas, always from 0 to 100 %, so that maps of arms compare.
// Plotly's heat map sets inline styles, which the content security policy forbids.
import { colour } from "./theme_colours.js";

// Cividis: even steps of lightness, told apart with every colour vision (Nuñez, Anderton, Renslow, 2018).
const STOPS = ["#00224e", "#123570", "#3b496c", "#575d6d", "#707173", "#8a8678", "#a59c74", "#c3b369", "#e1cc55", "#fee838"];
const FONT = 11; // px
const FOOT = 20; // px of the time axis

export function cividis(share) {
  const place = Math.min(1, Math.max(0, share)) * (STOPS.length - 1);
  const low = Math.min(STOPS.length - 2, Math.floor(place));
  const part = (stop, at) => Number.parseInt(stop.slice(at, at + 2), 16);
  return [1, 3, 5].map((at) => Math.round(part(STOPS[low], at) + (part(STOPS[low + 1], at) - part(STOPS[low], at)) * (place - low)));
}

export class RunHeat {
  constructor(canvas, run) {
    Object.assign(this, { canvas, run, rows: run.instances.length });
    this.columns = Math.max(1, ...run.instances.map((one) => one.usage.length));
    this.high = Math.max(6, Math.min(18, 420 / this.rows)); // px of a row
    this.read = canvas.parentElement.querySelector("[data-kv-read]");
    canvas.addEventListener("pointermove", (event) => this.hover(event));
    canvas.addEventListener("pointerleave", () => { this.read.textContent = ""; });
  }

  draw() {
    const { canvas, rows, columns, high } = this;
    const scale = window.devicePixelRatio || 1;
    canvas.style.height = `${rows * high + FOOT}px`;
    canvas.width = Math.round(canvas.clientWidth * scale);
    canvas.height = Math.round((rows * high + FOOT) * scale);
    const context = canvas.getContext("2d");
    context.scale(scale, scale);
    context.font = `${FONT}px system-ui, sans-serif`;
    this.left = Math.min(canvas.clientWidth / 3, 8 + Math.max(...this.run.instances.map((one) => context.measureText(one.id).width)));
    const wide = (canvas.clientWidth - this.left) / columns;
    this.run.instances.forEach((one, row) => one.usage.forEach((share, column) => {
      context.fillStyle = `rgb(${cividis(share).join(" ")})`;
      context.fillRect(this.left + column * wide, row * high, wide + 0.5, high - 1);
    }));
    this.labels(context);
  }

  labels(context) {
    const { rows, columns, high, run } = this;
    context.fillStyle = colour("muted");
    context.textBaseline = "middle";
    const every = Math.ceil((FONT + 2) / high);
    run.instances.forEach((one, row) => { if (row % every === 0) context.fillText(one.id, 0, (row + 0.5) * high, this.left - 6); });
    const width = this.canvas.clientWidth - this.left;
    for (const [share, align] of [[0, "left"], [0.5, "center"], [1, "right"]]) {
      context.textAlign = align;
      context.fillText(`${Math.round(columns * run.bucket_s * share).toLocaleString("en-GB")} s`, this.left + width * share, rows * high + FOOT / 2);
    }
    context.textAlign = "left";
  }

  hover(event) {
    const box = this.canvas.getBoundingClientRect();
    const column = Math.floor(((event.clientX - box.left - this.left) / (box.width - this.left)) * this.columns);
    const one = this.run.instances[Math.floor((event.clientY - box.top) / this.high)];
    if (!one || column < 0) { this.read.textContent = ""; return; }
    const share = one.usage[column];
    const text = share === undefined ? "no data" : `${Math.round(share * 100)} %`;
    this.read.textContent = `${one.id}, ${(column * this.run.bucket_s).toLocaleString("en-GB")} s: ${text}`;
  }
}
