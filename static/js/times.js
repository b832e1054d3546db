// The server writes <time datetime> in UTC; pages show the reader's zone, or UTC if selected, with the full time in the title.
export function zone() {
  try { return localStorage.getItem("weir-zone") === "utc" ? "UTC" : undefined; } catch { return undefined; }
}

export function setZone(name) {
  try { localStorage.setItem("weir-zone", name); } catch { /* kept for this page only */ }
  document.dispatchEvent(new CustomEvent("weir:zone"));
}

export function zoneName() {
  return zone() ?? new Intl.DateTimeFormat().resolvedOptions().timeZone;
}

// Formatters are dear to make, and pages write times each second.
const made = new Map();
function formatter(options) {
  const key = `${zone()} ${JSON.stringify(options)}`;
  if (!made.has(key)) made.set(key, new Intl.DateTimeFormat("en-GB", { timeZone: zone(), ...options }));
  return made.get(key);
}
const write = (seconds, options) => formatter(options).format(new Date(seconds * 1000));

export const clock = (seconds) => write(seconds, { timeStyle: "medium" });
export const hourMinute = (seconds) => write(seconds, { timeStyle: "short" });
export const dateAndClock = (seconds) => write(seconds, { dateStyle: "medium", timeStyle: "medium" });

// A field of date and time, "2026-11-22T14:02:10", is in the selected zone.
export const timeOfField = (text) => new Date(zone() ? `${text}Z` : text).getTime() / 1000;

export function fieldTime(seconds) {
  const shift = zone() ? 0 : new Date(seconds * 1000).getTimezoneOffset() * 60;
  return new Date((seconds - shift) * 1000).toISOString().slice(0, 19);
}

export function age(seconds) {
  if (seconds == null) return "never";
  if (seconds < 10) return `${Math.max(0, seconds).toFixed(1)} s`;
  if (seconds < 120) return `${Math.round(seconds)} s`;
  if (seconds < 7200) return `${Math.round(seconds / 60)} min`;
  if (seconds < 172800) return `${Math.round(seconds / 3600)} h`;
  return `${Math.round(seconds / 86400)} d`;
}

export function localTimes(within) {
  for (const node of within.querySelectorAll("time[datetime]")) {
    const at = Date.parse(node.getAttribute("datetime")) / 1000;
    if (Number.isNaN(at)) continue;
    node.title = `${dateAndClock(at)} (${zoneName()})`;
    if (node.dataset.format === "clock") node.textContent = clock(at);
    else if (node.dataset.format !== "keep") node.textContent = dateAndClock(at);
  }
}
