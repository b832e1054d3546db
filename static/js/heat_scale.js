// The legend of the heat map: its palette from 0 to 100 %, with the limits of the shown pools' policies.
import { scale } from "./canvas.js";
import { PALETTE } from "./heat.js";
import { text } from "./live_panels.js";
import { colour } from "./theme_colours.js";

// limits: shares, of each row of the map
export function heatScale(canvas, words, limits) {
  const known = [...new Set(limits.filter((limit) => limit != null))].sort((a, b) => a - b);
  canvas.width = Math.round(canvas.clientWidth * scale());
  canvas.height = Math.round(canvas.clientHeight * scale());
  const context = canvas.getContext("2d");
  const step = canvas.width / PALETTE.length;
  PALETTE.forEach((ink, percent) => {
    context.fillStyle = `rgb(${ink.join(" ")})`;
    context.fillRect(percent * step, 0, Math.ceil(step), canvas.height);
  });
  context.fillStyle = colour("contour");
  for (const limit of known) context.fillRect(limit * canvas.width - scale(), 0, 2 * scale(), canvas.height);
  const ends = [...new Set([known[0], known.at(-1)])].filter((limit) => limit !== undefined);
  text(words, ends.length ? `> ${ends.map((limit) => Math.round(limit * 100)).join("–")} %` : "");
}
