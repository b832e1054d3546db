// Code shared by the canvas charts: size in device pixels, lines with gaps, text.
export const scale = () => globalThis.devicePixelRatio || 1;

export const fontPx = (element) => Number.parseFloat(getComputedStyle(element).fontSize);
export const rem = () => fontPx(document.documentElement) / 16; // text of the page, in sizes of ordinary text

// Calls `drawn` whenever the canvas has a new size; false while it has none.
export function fit(canvas, drawn) {
  const size = () => {
    canvas.width = Math.round(canvas.clientWidth * scale());
    canvas.height = Math.round(canvas.clientHeight * scale());
    drawn();
  };
  new ResizeObserver(size).observe(canvas);
}

// points: [x, y] or null; a null breaks the line.
export function line(context, points, ink, width, dash = []) {
  context.beginPath();
  let drawing = false;
  for (const point of points) {
    if (!point) { drawing = false; continue; }
    if (drawing) context.lineTo(...point);
    else context.moveTo(...point);
    drawing = true;
  }
  context.setLineDash(dash);
  context.lineWidth = width;
  context.strokeStyle = ink;
  context.stroke();
  context.setLineDash([]);
}

export function write(context, text, x, y, { ink, size, align = "start", baseline = "middle", weight = 400 }) {
  context.font = `${weight} ${size}px system-ui, sans-serif`;
  context.textAlign = align;
  context.textBaseline = baseline;
  context.fillStyle = ink;
  context.fillText(text, x, y);
}

// demo-…-17: names differ at their end.
const ENDING = 16; // -70b-105…111 (7)
export function shortened(context, text, width) {
  if (context.measureText(text).width <= width) return text;
  for (let kept = text.length - 1; kept > 2; kept--) {
    const head = Math.min(Math.ceil(kept / 2), Math.max(1, kept - ENDING));
    const short = `${text.slice(0, head)}…${text.slice(text.length - (kept - head))}`;
    if (context.measureText(short).width <= width) return short;
  }
  return text.slice(0, 1);
}

export function niceCeiling(value) {
  const step = 10 ** Math.floor(Math.log10(value));
  return [1, 2, 3, 5, 10].map((factor) => factor * step).find((top) => top >= value);
}

export function niceFloor(value) {
  const step = 10 ** Math.floor(Math.log10(value));
  return [5, 3, 2, 1].map((factor) => factor * step).find((low) => low <= value) ?? step;
}

// Round times between two others, at most `most`: [s].
const STEPS = [60, 120, 300, 600, 900, 1800, 3600, 7200];
export function ticks(from, to, most, steps = STEPS) {
  const step = steps.find((seconds) => (to - from) / seconds <= most) ?? steps.at(-1);
  const found = [];
  for (let at = Math.ceil(from / step) * step; at <= to; at += step) found.push(at);
  return found;
}
