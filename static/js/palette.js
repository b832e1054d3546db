// The command palette (Ctrl K): the server searches, the keyboard selects.
import { counted } from "./format.js";

const SOON_MS = 120;
const dialog = document.getElementById("palette");
const query = document.getElementById("palette-query");
const list = document.getElementById("palette-found");
const note = document.getElementById("palette-note");
let chosen = 0;
let asked = 0;

function option(found, i) {
  const row = document.createElement("li");
  row.role = "option";
  row.id = `palette-${i}`;
  row.dataset.href = found.href;
  const icon = document.createElementNS("http://www.w3.org/2000/svg", "svg");
  icon.setAttribute("class", "icon");
  icon.setAttribute("aria-hidden", "true");
  const use = document.createElementNS("http://www.w3.org/2000/svg", "use");
  use.setAttribute("href", `${dialog.dataset.icons}#${found.icon}`);
  icon.append(use);
  const title = document.createElement("b");
  title.textContent = found.title;
  const detail = document.createElement("span");
  detail.className = "muted";
  detail.textContent = [found.kind, found.detail].filter(Boolean).join(" · ");
  row.append(icon, title, detail);
  return row;
}

function choose(i) {
  const rows = [...list.children];
  chosen = rows.length ? (i + rows.length) % rows.length : 0;
  rows.forEach((row, at) => row.setAttribute("aria-selected", String(at === chosen)));
  rows[chosen]?.scrollIntoView({ block: "nearest" });
  if (rows.length) query.setAttribute("aria-activedescendant", rows[chosen].id);
  else query.removeAttribute("aria-activedescendant");
}

async function find() {
  const mine = ++asked;
  try {
    const answer = await fetch(`/search?${new URLSearchParams({ q: query.value })}`, { headers: { accept: "application/json" } });
    if (!answer.ok || answer.redirected) throw new Error(String(answer.status));
    const { found } = await answer.json();
    if (mine !== asked) return;
    list.replaceChildren(...found.map(option));
    note.textContent = found.length ? counted(found.length, "result") : "Nothing found. A request is found by its whole id.";
    choose(0);
  } catch {
    if (mine === asked) note.textContent = "The search does not answer. Try again, or sign in again.";
  }
}

function open() {
  if (dialog.open) return;
  query.value = "";
  dialog.showModal();
  find();
}

let soon = 0;
if (dialog) {
  const button = document.getElementById("palette-open");
  if (button) { button.hidden = false; button.addEventListener("click", open); }
  document.addEventListener("keydown", (event) => {
    if ((event.ctrlKey || event.metaKey) && !event.shiftKey && !event.altKey && event.key.toLowerCase() === "k") { event.preventDefault(); open(); }
  });
  query.addEventListener("input", () => { clearTimeout(soon); soon = setTimeout(find, SOON_MS); });
  query.addEventListener("keydown", (event) => {
    const moves = { ArrowDown: 1, ArrowUp: -1 };
    if (event.key in moves) { event.preventDefault(); choose(chosen + moves[event.key]); }
    if (event.key === "Enter") { event.preventDefault(); const row = list.children[chosen]; if (row) location.assign(row.dataset.href); }
  });
  list.addEventListener("click", (event) => { const row = event.target.closest("[data-href]"); if (row) location.assign(row.dataset.href); });
  dialog.addEventListener("click", (event) => { if (event.target === dialog) dialog.close(); });
}
