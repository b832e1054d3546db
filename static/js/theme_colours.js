// The tokens of css/tokens.css as colours for canvas and charts, in the current theme.
const probe = document.createElement("span");
let known = {};
document.addEventListener("weir:theme", () => { known = {}; });

export function colour(token) {
  if (known[token]) return known[token];
  if (!probe.isConnected) { probe.hidden = true; document.body.append(probe); }
  probe.style.setProperty("color", `var(--${token})`);
  known[token] = getComputedStyle(probe).color;
  return known[token];
}

export const seriesColour = (index) => colour(`series-${(index % 6) + 1}`);
