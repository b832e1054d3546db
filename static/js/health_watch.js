// Polls which processes are silent, for pages that have no frame, so that every page has the banner.
import { toggle } from "./banners.js";
import { connectionBanner, frameBanners, redisBanner } from "./live_health.js";

const EVERY_S = 5;
const PATIENCE_MS = 10_000; // longer than a server waits for Redis
const path = document.getElementById("banners")?.dataset.watch;
let left = 0;
let asking = false;
let answered = true;

async function ask() {
  const answer = await fetch(path, { headers: { "HX-Request": "true" }, signal: AbortSignal.timeout(PATIENCE_MS) });
  if (answer.status === 204) { document.dispatchEvent(new CustomEvent("weir:signed-out")); return; }
  const { trouble, banners } = await answer.json();
  for (const kind of ["connection", "signed-out"]) toggle(false, kind);
  redisBanner(trouble === "redis");
  if (!trouble) frameBanners(banners);
}

async function check() {
  if (document.hidden || asking) return;
  if (left > 0) {
    if (!answered) connectionBanner("disconnected", left);
    left -= 1;
    return;
  }
  asking = true;
  try { await ask(); answered = true; } catch { answered = false; connectionBanner("disconnected", EVERY_S); }
  asking = false;
  left = EVERY_S - 1;
}

if (path && !document.getElementById("snapshot")) {
  setInterval(check, 1000);
  check();
}
