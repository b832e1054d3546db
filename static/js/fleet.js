// Fleet pages refresh their moving part every two seconds, unless paused, hidden, or the reader is selecting text in it.
const EVERY_MS = 2000;
const moving = document.getElementById("moving");
const button = document.getElementById("fleet-pause");
const age = document.getElementById("fleet-age");
let checkedAt = Date.now();
let failed = false;

const paused = () => button.getAttribute("aria-pressed") === "true";
const reading = () => {
  const selection = getSelection();
  return Boolean(selection && !selection.isCollapsed && moving.contains(selection.anchorNode));
};

function tell() {
  const seconds = Math.round((Date.now() - checkedAt) / 1000);
  const words = `${seconds} s ago`;
  age.textContent = failed ? `no answer from the server, last updated ${words}` : `${paused() ? "paused, " : ""}updated ${words}`;
}

function tick() {
  if (!paused() && !document.hidden && !reading() && window.htmx) window.htmx.trigger(moving, "fleet:refresh");
  tell();
}

if (moving && button) {
  button.hidden = false;
  button.addEventListener("click", () => {
    button.setAttribute("aria-pressed", String(!paused()));
    button.textContent = paused() ? "Resume" : "Pause";
    tick();
  });
  // A log that the reader has scrolled stays where it is; one at its end follows.
  let scrolled = null;
  moving.addEventListener("htmx:beforeSwap", (event) => {
    const log = moving.querySelector(".log");
    scrolled = log && { top: log.scrollTop, atEnd: log.scrollTop + log.clientHeight >= log.scrollHeight - 4 };
    // A page other than ours (a sign-in form, an error) is not put into this one.
    if (event.detail.xhr.status !== 200 || event.detail.xhr.responseURL !== location.href.split("#")[0]) event.detail.shouldSwap = false;
  });
  moving.addEventListener("htmx:afterSwap", () => {
    checkedAt = Date.now();
    failed = false;
    const log = moving.querySelector(".log");
    if (log) log.scrollTop = !scrolled || scrolled.atEnd ? log.scrollHeight : scrolled.top;
    tell();
  });
  for (const name of ["htmx:sendError", "htmx:responseError"]) moving.addEventListener(name, () => { failed = true; tell(); });
  const log = moving.querySelector(".log");
  if (log) log.scrollTop = log.scrollHeight;
  setInterval(tick, EVERY_MS);
  setInterval(tell, 1000);
  tell();
}
