// Banners on every page: those that follow from a frame, and those about the page's own connection.
import { toggle } from "./banners.js";

// Every kind of controlplane/live/dashboard/frame/banners.py.
const OF_FRAMES = ["database", "returned", "router", "control", "node", "silent-nodes"];

export function frameBanners(banners = []) {
  const wanted = new Map(banners.map((banner) => [banner.kind, banner]));
  for (const kind of OF_FRAMES) {
    const { level, text, ago } = wanted.get(kind) ?? {};
    toggle(wanted.has(kind), kind, level, text, ago);
  }
}

export function connectionBanner(state, seconds, share = false) {
  toggle(state === "disconnected", "connection", "error", "Disconnected from the control plane: what is shown below is as it was last received. Routers go on without it.", `Retrying in ${seconds} s`);
  toggle(state === "signin", "signin", "error", share ? "This share has ended; the numbers below are the last ones received." : "Sign-in needed: this session has ended. Reload the page to sign in; the numbers below are the last ones received.");
}

export function redisBanner(down) {
  toggle(down, "redis", "error", "Redis is down: live state cannot be read. Routers keep serving with their current policy; this page recovers automatically.");
}
