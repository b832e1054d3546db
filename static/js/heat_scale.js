// The legend of the heat map: its palette from 0 to 100 %, with the threshold.
import { scale } from "./canvas.js";
import { PALETTE } from "./heat.js";
import { colour } from "./theme_colours.js";

export function heatScale(canvas, threshold) {
  if (!canvas) return;
  canvas.width = Math.round(canvas.clientWidth * scale());
  canvas.height = Math.round(canvas.clientHeight * scale());
  const context = canvas.getContext("2d");
  const step = canvas.width / PALETTE.length;
  PALETTE.forEach((ink, percent) => {
    context.fillStyle = `rgb(${ink.join(" ")})`;
    context.fillRect(percent * step, 0, Math.ceil(step), canvas.height);
  });
  context.fillStyle = colour("contour");
  context.fillRect(threshold * canvas.width - scale(), 0, 2 * scale(), canvas.height);
}
