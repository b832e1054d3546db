// Refreshes the live part of a fleet page every two seconds, unless paused, hidden, with an open menu or selected text.
const EVERY_MS = 2000;
const moving = document.getElementById("moving");
const button = document.getElementById("fleet-pause");
const age = document.getElementById("fleet-age");
let checkedAt = Date.now();
let failed = false;

const paused = () => button.getAttribute("aria-pressed") === "true";
const reading = () => {
  const selection = getSelection();
  const open = moving.querySelector("details.menu[open]");
  return Boolean(open || (selection && !selection.isCollapsed && moving.contains(selection.anchorNode)));
};

function showAge() {
  const seconds = Math.round((Date.now() - checkedAt) / 1000);
  const since = `${seconds} s ago`;
  age.textContent = failed ? `no answer from the server, last updated ${since}` : `${paused() ? "paused, " : ""}updated ${since}`;
}

function tick() {
  if (!paused() && !document.hidden && !reading() && window.htmx) window.htmx.trigger(moving, "fleet:refresh");
  showAge();
}

if (moving && button) {
  button.addEventListener("click", () => {
    button.setAttribute("aria-pressed", String(!paused()));
    button.textContent = paused() ? "Resume" : "Pause";
    tick();
  });
  // Keep the scroll position of a log, or follow its end.
  let scrolled = null;
  moving.addEventListener("htmx:beforeSwap", (event) => {
    const log = moving.querySelector(".log");
    scrolled = log && { top: log.scrollTop, atEnd: log.scrollTop + log.clientHeight >= log.scrollHeight - 4 };
    // Do not swap in another page, such as a sign-in form or an error.
    if (event.detail.xhr.status !== 200 || new URL(event.detail.xhr.responseURL).pathname !== location.pathname) event.detail.shouldSwap = false;
  });
  moving.addEventListener("htmx:afterSwap", () => {
    checkedAt = Date.now();
    failed = false;
    const log = moving.querySelector(".log");
    if (log) log.scrollTop = !scrolled || scrolled.atEnd ? log.scrollHeight : scrolled.top;
    showAge();
  });
  for (const name of ["htmx:sendError", "htmx:responseError"]) moving.addEventListener(name, () => { failed = true; showAge(); });
  const log = moving.querySelector(".log");
  if (log) log.scrollTop = log.scrollHeight;
  setInterval(tick, EVERY_MS);
  setInterval(showAge, 1000);
  showAge();
}
