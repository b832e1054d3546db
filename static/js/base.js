// Shared by all pages: the theme button, closing menus, forms that post once, times in the reader's zone.
import { toggle } from "./banners.js";
import "./health_watch.js";
import "./legend.js";
import "./palette.js";
import "./panels.js";
import { localTimes, setZone, zone, zoneName } from "./times.js";

const root = document.documentElement;

function shownTheme() {
  return root.dataset.theme ?? (matchMedia("(prefers-color-scheme: light)").matches ? "light" : "dark");
}

function toggleTheme() {
  root.dataset.theme = shownTheme() === "dark" ? "light" : "dark";
  try { localStorage.setItem("weir-theme", root.dataset.theme); } catch { /* kept for this page only */ }
  nameThemeButton();
  document.dispatchEvent(new CustomEvent("weir:theme"));
}

function nameThemeButton() {
  const button = document.querySelector("[data-theme-toggle]");
  if (button) button.setAttribute("aria-label", shownTheme() === "dark" ? "Use the light theme" : "Use the dark theme");
}

function closeMenus(except) {
  for (const menu of document.querySelectorAll("details.menu[open]")) if (menu !== except) menu.open = false;
}

document.querySelector("[data-theme-toggle]")?.addEventListener("click", toggleTheme);
nameThemeButton();
matchMedia("(prefers-color-scheme: light)").addEventListener("change", () => document.dispatchEvent(new CustomEvent("weir:theme")));

document.addEventListener("click", (event) => closeMenus(event.target.closest("details.menu")));
document.addEventListener("keydown", (event) => {
  if (event.key !== "Escape") return;
  const open = document.querySelector("details.menu[open]");
  if (open) { open.open = false; open.querySelector("summary").focus(); }
});

// A submitted form is not sent twice; the button keeps its label.
document.addEventListener("submit", (event) => {
  const form = event.target;
  if (form.method !== "post" || event.defaultPrevented) return;
  if (form.dataset.sent) { event.preventDefault(); return; }
  form.dataset.sent = "1";
  event.submitter?.setAttribute("aria-busy", "true");
});
addEventListener("pageshow", () => {
  for (const form of document.querySelectorAll("form[data-sent]")) delete form.dataset.sent;
  for (const button of document.querySelectorAll("button[aria-busy]")) button.removeAttribute("aria-busy");
});

// The session has ended: the page keeps the typed text until the user signs in again in another tab.
document.addEventListener("weir:signed-out", () => {
  toggle(true, "signed-out", "error", "You are signed out: this page is not saved or updated. Sign in again in another tab, then continue here.");
});
document.addEventListener("htmx:afterSwap", () => toggle(false, "signed-out"));

// A new sign-in changes the CSRF token; an open page can read the new one only from the cookie.
function csrfToken() {
  return /(?:^|; )csrftoken=([^;]+)/.exec(document.cookie)?.[1];
}
document.addEventListener("htmx:configRequest", (event) => {
  const token = csrfToken();
  if (token) event.detail.headers["X-CSRFToken"] = token;
});
document.addEventListener("submit", (event) => {
  const field = event.target.elements.csrfmiddlewaretoken;
  const token = csrfToken();
  if (field && token) field.value = token;
}, true);

// Local | UTC: one switch for all times of all pages.
const zones = document.querySelectorAll("[data-zone]");
function nameZone() {
  for (const button of zones) button.setAttribute("aria-pressed", String((button.dataset.zone === "utc") === Boolean(zone())));
  const group = zones[0]?.parentElement;
  if (group) { group.hidden = false; group.title = `Times are in ${zoneName()}`; }
}
for (const button of zones) button.addEventListener("click", () => setZone(button.dataset.zone));
document.addEventListener("weir:zone", () => { nameZone(); localTimes(document); });
nameZone();

document.querySelector("[data-focus-still]")?.focus({ preventScroll: true }); // autofocus scrolls

localTimes(document);
for (const name of ["htmx:afterSettle", "htmx:oobAfterSwap"]) document.addEventListener(name, (event) => localTimes(event.target));
