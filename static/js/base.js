// What every page has: the theme button, menus that close, buttons that post once, times in the reader's zone.
import { localTimes } from "./times.js";

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

// A form that is on its way is not sent twice; the button keeps its label.
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

localTimes(document);
document.addEventListener("htmx:afterSettle", (event) => localTimes(event.target));
