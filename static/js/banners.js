// One banner, for the worst problem. A screen reader announces it once, without its countdown.
const ORDER = ["panels", "signin", "signed-out", "connection", "redis", "database", "returned", "router", "control", "node", "silent-nodes"];
const region = document.getElementById("banners");
const problems = new Map();

function made(kind) {
  const banner = document.createElement("p");
  banner.dataset.kind = kind;
  banner.append(document.createElement("span"), document.createElement("span"));
  banner.lastChild.setAttribute("aria-hidden", "true");
  banner.lastChild.className = "number";
  region.replaceChildren(banner);
  return banner;
}

function draw() {
  const kind = ORDER.find((each) => problems.has(each));
  if (!kind) { region.replaceChildren(); return; }
  const { level, text, ticking } = problems.get(kind);
  const banner = region.querySelector(`[data-kind="${kind}"]`) ?? made(kind);
  banner.className = `banner banner--${level}`;
  if (banner.firstChild.textContent !== text) banner.firstChild.textContent = text;
  banner.lastChild.textContent = ticking;
}

export function toggle(wanted, kind, level, text, ticking = "") {
  if (!region) return;
  if (wanted) problems.set(kind, { level, text, ticking });
  else problems.delete(kind);
  draw();
}

// Current problems by name; the worst one is shown.
export const kinds = () => [...problems.keys()].toSorted();
