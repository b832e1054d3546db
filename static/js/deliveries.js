// The page of a delivery: refreshes the live part, counts down in between, keeps opened parts open, announces changes.
import { UNKNOWN, countdown } from "./format.js";

const EVERY_MS = 2000;
const SHOWN = "delivery-live";
const announcer = document.getElementById("delivery-said");
const stale = document.getElementById("delivery-stale");
let folds = new Map();

function endOf(node) {
  node.dataset.endsAt ??= String(performance.now() + Number(node.dataset.countdown) * 1000);
  return Number(node.dataset.endsAt);
}

function count() {
  for (const node of document.querySelectorAll("[data-countdown]")) {
    const text = stale && !stale.hidden ? UNKNOWN : countdown((endOf(node) - performance.now()) / 1000);
    if (node.textContent !== text) node.textContent = text;
  }
}

function reading() {
  const selection = getSelection();
  return Boolean(selection && !selection.isCollapsed && document.getElementById(SHOWN)?.contains(selection.anchorNode));
}

function refresh() {
  const live = document.getElementById(SHOWN);
  if (live && !document.hidden && !reading() && window.htmx) window.htmx.trigger(live, "delivery:refresh");
}

function announce() {
  const said = document.getElementById(SHOWN)?.dataset.said ?? "";
  if (announcer && announcer.textContent !== said) announcer.textContent = said;
}

const ours = (event) => event.detail.target?.id === SHOWN;

document.body.addEventListener("htmx:beforeSwap", (event) => {
  if (!ours(event)) return;
  // A sign-in form or an error is not swapped in.
  if (event.detail.xhr.status !== 200 || !event.detail.xhr.responseText.includes(`id="${SHOWN}"`)) event.detail.shouldSwap = false;
  folds = new Map([...document.querySelectorAll(`#${SHOWN} details[id]`)].map((each) => [each.id, each.open]));
});
document.body.addEventListener("htmx:afterSettle", () => {
  for (const [id, open] of folds) {
    const again = document.getElementById(id);
    if (again) again.open = open;
  }
  count();
  announce();
});

for (const name of ["htmx:sendError", "htmx:responseError"]) document.body.addEventListener(name, () => { if (stale) stale.hidden = false; });
document.body.addEventListener("htmx:afterSwap", () => { if (stale) stale.hidden = true; });

if (document.getElementById(SHOWN)) {
  setInterval(refresh, EVERY_MS);
  setInterval(count, 250);
  announce();
}
// The lines about a plan describe the plan that the server has read, not what was typed since.
document.querySelector(".plan-form")?.addEventListener("input", ({ target }) => {
  const part = target.closest("details[id]")?.id;
  for (const line of document.querySelectorAll(`[data-says~="${part}"]`)) line.textContent = "changed: press Check against traffic to see it again";
});
document.querySelector("[data-focus]")?.focus();
