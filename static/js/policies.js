// The draft editor: arrow keys step values, rejected values are marked in place, leaving warns about unsaved text.
const form = document.getElementById("draft-form");
const RETRY_MS = 3000;
let unreachable = false;
let submitting = false;
let pressed = null; // the button that was pressed while nothing could be saved

function decimals(text) {
  return (text.split(".")[1] ?? "").length;
}

function step(event) {
  const input = event.target;
  if (!input.dataset?.step || !["ArrowUp", "ArrowDown"].includes(event.key)) return;
  const text = input.value.replace(/[,\s_]/g, ""); // 12,000
  const value = Number(text);
  if (text === "" || !Number.isFinite(value)) return;
  event.preventDefault();
  const size = Number(input.dataset.step) * (event.shiftKey ? 10 : 1) * (event.key === "ArrowUp" ? 1 : -1);
  input.value = (value + size).toFixed(Math.max(decimals(text), decimals(input.dataset.step)));
  input.dispatchEvent(new Event("input", { bubbles: true }));
  input.dispatchEvent(new Event("change", { bubbles: true }));
}

// Corrected fields are removed from the summary, which disappears with the last of them.
function shorten(errors) {
  const summary = document.getElementById("error-summary");
  for (const row of summary?.querySelectorAll("li") ?? []) if (!(row.dataset.field in errors) && (row.dataset.field || !Object.keys(errors).length)) row.remove();
  const left = summary?.querySelectorAll("li").length;
  if (left === 0) summary.remove();
  if (left) document.getElementById("summary").textContent = `Not saved: ${left} error${left === 1 ? "" : "s"} to fix. What you typed is kept.`;
}

function mark(errors) {
  shorten(errors);
  for (const input of form.querySelectorAll("[name][aria-describedby]")) {
    const text = errors[input.name] ?? "";
    const place = document.getElementById(`${input.id}-error`);
    place.textContent = text && text[0].toUpperCase() + text.slice(1);
    place.hidden = !text;
    if (text) input.setAttribute("aria-invalid", "true"); else input.removeAttribute("aria-invalid");
    if (text) input.closest("details")?.setAttribute("open", "");
  }
}

function answer() {
  const told = document.getElementById("draft-errors");
  return told ? JSON.parse(told.textContent) : null;
}

function saved() {
  unreachable = false;
  const told = answer();
  if (told) mark(told.errors);
  if (told?.kept) document.getElementById("error-summary")?.remove();
  const button = pressed;
  pressed = null;
  if (button) form.requestSubmit(button);
}

// Leaving for the sign-in page or for the browser's error page would lose what was typed, so the page first tries to save it again.
function submit(event) {
  submitting = !unreachable;
  if (submitting) return;
  event.preventDefault();
  pressed = event.submitter;
  htmx.trigger(form, "change");
}

// Read from the page, so the text "Not saved yet" and the warning on leaving always agree.
function wouldBeLost() {
  return !submitting && (unreachable || answer()?.kept === false);
}

function same(text, live) {
  const plain = text.replace(/[,\s_]/g, "");
  return text === live || (plain !== "" && live !== "" && Number(plain) === Number(live));
}

function markChanged(parameter) {
  const input = parameter.querySelector("[name]");
  parameter.toggleAttribute("data-changed", !same(input.value, parameter.dataset.live));
  const section = parameter.closest(".draft-section");
  const changes = document.querySelector(`.draft-index a[href="#${section.getAttribute("aria-labelledby")}"] [data-changes]`);
  changes.textContent = section.querySelectorAll("[data-changed]").length;
  changes.hidden = changes.textContent === "0";
}

// Search and "Changed only" open folded parts; without either, the parts are as before.
const folds = new Map();
const search = document.getElementById("draft-search");
const changedOnly = document.getElementById("draft-changed");

function matches(parameter, words) {
  const wanted = words.every((word) => parameter.dataset.words.includes(word));
  return wanted && (!changedOnly.checked || parameter.hasAttribute("data-changed"));
}

function filter() {
  const words = search.value.toLowerCase().split(/\s+/).filter(Boolean);
  const filtering = words.length > 0 || changedOnly.checked;
  const parameters = [...form.querySelectorAll(".parameter[data-words]")];
  for (const parameter of parameters) parameter.hidden = filtering && !matches(parameter, words);
  for (const fold of form.querySelectorAll(".parameters-folded")) {
    if (filtering && !folds.has(fold)) folds.set(fold, fold.open);
    fold.open = filtering || (folds.get(fold) ?? fold.open);
    fold.hidden = !fold.querySelector(".parameter:not([hidden])");
  }
  if (!filtering) folds.clear();
  for (const section of form.querySelectorAll(".draft-section")) section.hidden = !section.querySelector(".parameter[data-words]:not([hidden])");
  const found = parameters.filter((parameter) => !parameter.hidden).length;
  document.getElementById("draft-found").textContent = filtering ? `${found} of ${parameters.length} parameters` : "";
  form.classList.toggle("policy-form--filtered", filtering);
}

if (form) {
  document.getElementById("draft-filter").hidden = false;
  search.addEventListener("input", filter);
  changedOnly.addEventListener("change", filter);
  form.addEventListener("input", (event) => {
    const parameter = event.target.closest(".parameter[data-words]");
    if (parameter) markChanged(parameter);
  });
}
form?.addEventListener("keydown", step);
form?.addEventListener("submit", submit);
document.body.addEventListener("htmx:afterSettle", (event) => { if (event.target.id === "draft-state") saved(); });
document.body.addEventListener("htmx:oobAfterSwap", (event) => { if (event.detail.target.id === "draft-state") saved(); });
function notSaved(why) {
  unreachable = true;
  pressed = null;
  document.getElementById("draft-state").textContent = `Not saved: ${why}. What you typed is kept here.`;
}

document.body.addEventListener("htmx:sendError", () => notSaved("the server does not answer"));
form?.addEventListener("htmx:responseError", (event) => notSaved(`the server answered with the error ${event.detail.xhr.status}`));
document.addEventListener("weir:signed-out", () => notSaved("you are signed out"));
// When the server answers again, what was typed is saved without another change.
setInterval(() => { if (unreachable && form) htmx.trigger(form, "change"); }, RETRY_MS);
addEventListener("beforeunload", (event) => { if (wouldBeLost()) event.preventDefault(); });
document.querySelector("[data-focus]")?.focus();
