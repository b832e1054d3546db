// The draft editor: arrow keys step values, rejected values are marked in place, leaving warns about unsaved text.
const form = document.getElementById("draft-form");
let unreachable = false;
let submitting = false;

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
  input.dispatchEvent(new Event("change", { bubbles: true }));
}

function mark(errors) {
  for (const input of form.querySelectorAll("[name][aria-describedby]")) {
    const text = errors[input.name] ?? "";
    const place = document.getElementById(`${input.id}-error`);
    place.textContent = text;
    place.hidden = !text;
    if (text) input.setAttribute("aria-invalid", "true"); else input.removeAttribute("aria-invalid");
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
}

// Read from the page, so the text "Not saved yet" and the warning on leaving always agree.
function wouldBeLost() {
  return !submitting && (unreachable || answer()?.kept === false);
}

form?.addEventListener("keydown", step);
form?.addEventListener("submit", () => { submitting = true; });
document.body.addEventListener("htmx:afterSettle", (event) => { if (event.target.id === "draft-state") saved(); });
document.body.addEventListener("htmx:oobAfterSwap", (event) => { if (event.detail.target.id === "draft-state") saved(); });
function notSaved(why) {
  unreachable = true;
  document.getElementById("draft-state").textContent = `Not saved: ${why}. What you typed is kept here.`;
}

document.body.addEventListener("htmx:sendError", () => notSaved("the server does not answer"));
form?.addEventListener("htmx:responseError", (event) => notSaved(`the server answered with the error ${event.detail.xhr.status}`));
document.addEventListener("weir:signed-out", () => notSaved("you are signed out"));
addEventListener("beforeunload", (event) => { if (wouldBeLost()) event.preventDefault(); });
document.querySelector("[data-focus]")?.focus();
