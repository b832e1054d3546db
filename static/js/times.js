// The server writes <time datetime> in UTC; shown in the reader's zone, or UTC if selected, with the full time in the title.
export function zone() {
  try { return localStorage.getItem("weir-zone") === "utc" ? "UTC" : undefined; } catch { return undefined; }
}

export function setZone(name) {
  try { localStorage.setItem("weir-zone", name); } catch { /* kept for this page only */ }
}

export function zoneName() {
  return zone() ?? new Intl.DateTimeFormat().resolvedOptions().timeZone;
}

export function clock(seconds) {
  return new Date(seconds * 1000).toLocaleTimeString("en-GB", { timeZone: zone() });
}

export function dateAndClock(seconds) {
  return new Date(seconds * 1000).toLocaleString("en-GB", { timeZone: zone(), dateStyle: "medium", timeStyle: "medium" });
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
