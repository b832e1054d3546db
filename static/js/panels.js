// The state of a panel, said the same way on all pages: a word of the status vocabulary, a sentence, and how the
// content looks. This script also handles the parts that htmx refreshes. ?panels=STATE shows every panel of this one page in a
// state, for tests and designers; it changes only how the page looks.
import { toggle } from "./banners.js";

// texts, and whether they replace the content
const STATES = {
  loading: ["loading", "The first data are on their way.", true],
  live: ["live", "Updates arrive as they happen."],
  paused: ["paused", "Updates are held until you resume."],
  stale: ["stale", "Not updated for more than 3 s; the last values stay."],
  offline: ["offline", "The server does not answer; the last values stay."],
  never: ["unseen", "Nothing has been recorded yet.", true],
  empty: ["unseen", "Nothing matches the filter. Clear it to see everything.", true],
  partial: ["partial", "Some sources do not report: the values are of the others."],
  error: ["error", "This panel could not be updated; the last values stay."],
  forbidden: ["refused", "Your role does not include this. An administrator can change it under Users.", true],
  finished: ["completed", "Finished: the values no longer change."],
};
const PANELS = ".panel, .wall section";
const asked = new URLSearchParams(location.search).get("panels");
const forced = Object.hasOwn(STATES, asked ?? "") ? asked : null;

function noteOf(panel) {
  const known = panel.querySelector(":scope > .panel-state");
  if (known) return known;
  const note = document.createElement("p");
  note.className = "panel-state";
  const button = document.createElement("button");
  button.type = "button";
  button.className = "button button--small";
  button.textContent = "Try again";
  note.append(document.createElement("span"), " ", document.createElement("span"), " ", button);
  const head = panel.querySelector(":scope > header");
  if (head) head.after(note);
  else panel.prepend(note);
  return note;
}

// `sentence`: instead of the usual one; `again`: what a button of the panel does.
function say(panel, state, sentence, again) {
  const [word, usual, replaces] = STATES[state];
  const note = noteOf(panel);
  const [label, text, button] = note.children;
  button.hidden = !again;
  button.onclick = again ?? null;
  panel.dataset.state = state;
  panel.toggleAttribute("data-replaced", Boolean(replaces));
  panel.setAttribute("aria-busy", String(state === "loading"));
  label.className = `status status--${word}`;
  label.textContent = state;
  text.textContent = sentence ?? usual;
}

function clear(panel) {
  delete panel.dataset.state;
  panel.removeAttribute("data-replaced");
  panel.removeAttribute("aria-busy");
  panel.querySelector(":scope > .panel-state")?.remove();
}

// The panel of a refreshed part; pages that refresh several report the state once themselves.
const around = (part) => part?.closest?.(PANELS);

export function setState(part, state, sentence, again) {
  if (!forced && around(part)) say(around(part), state, sentence, again);
}

export function clearState(part) {
  if (!forced && around(part)?.dataset.state) clear(around(part));
}

// A part that refreshes periodically recovers by itself; one that is loaded once, or by its reader, recovers by a button.
const repeats = (part) => /every |:refresh/.test(part.getAttribute("hx-trigger"));

function failed(part, state, sentence) {
  if (repeats(part)) setState(part, state, `${sentence} Trying again.`);
  else setState(part, state, sentence, () => htmx.ajax("GET", part.getAttribute("hx-get"), { source: part }));
}

function follow() {
  document.addEventListener("htmx:sendError", ({ detail: { elt, requestConfig } }) => {
    if (requestConfig?.verb === "get") failed(elt, "offline", STATES.offline[1]);
  });
  document.addEventListener("htmx:responseError", ({ detail: { elt, requestConfig, xhr } }) => {
    if (requestConfig?.verb !== "get") return;
    if (xhr.status === 403) return setState(elt, "forbidden");
    const request = xhr.getResponseHeader("x-request-id");
    const quote = request ? ` Quote the request ${request}.` : "";
    failed(elt, "error", `The server answered with the error ${xhr.status}; the last values stay.${quote}`);
  });
  document.addEventListener("weir:signed-out", ({ target }) => {
    if (target.hasAttribute?.("hx-get") && !repeats(target)) failed(target, "error", "You are signed out.");
  });
  document.addEventListener("htmx:afterSwap", (event) => clearState(event.target));
  for (const part of document.querySelectorAll('.panel[hx-trigger="load"]')) setState(part, "loading");
}

if (forced) {
  for (const panel of document.querySelectorAll(PANELS)) say(panel, forced);
  document.addEventListener("htmx:afterSettle", () => { for (const panel of document.querySelectorAll(PANELS)) say(panel, forced); });
  toggle(true, "panels", "warning", `Every panel of this page is shown as “${forced}”, because its address ends in panels=${forced}. Nothing else is affected.`);
} else {
  follow();
}
