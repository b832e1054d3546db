// Banners for missing processes: the problem, and the functions that still work.
import { toggle } from "./banners.js";
import { settings } from "./live_settings.js";
import { age } from "./times.js";

const ROUTERS = {
  late: ["warning", "No router reports. Requests may still be served; the numbers below are old."],
  down: ["error", "The router is down: requests are not being served."],
  none: ["error", "No router is running: requests are not being served."],
};

export function healthBanners(frame) {
  const health = frame.health;
  const owed = new Set(health.owed ?? []); // who is not judged yet: nobody could be heard for a while
  const away = health.gap ? health.gap[1] - health.gap[0] : 0;
  toggle(owed.size > 0 && away > settings.workerDownS, "returned", "warning", `Live state was away for ${age(away)} and is back: not everybody has reported again. What is grey is as last known.`);
  const control = health.control_age_s;
  toggle(!owed.has("control") && (control == null || control > settings.workerDownS), "control", "warning",
    control == null ? "The control worker has not run: nothing is started, stopped or replaced. Running instances are still used and shown."
      : "The control worker is down: nothing is started, stopped or replaced. Running instances are still used and shown.",
    control == null ? "" : `last seen ${age(control)} ago`);
  const sampled = health.samples_age_s;
  const silent = !owed.has("samples") && health.samples_expected > 0 && (sampled == null || sampled > settings.workerDownS);
  toggle(silent, "node", "warning", "The node worker is down: no instance is being sampled, so the numbers below are old. Requests are still routed.",
    sampled == null ? "" : `last sample ${age(sampled)} ago`);
  const nodes = frame.nodes ?? { name: [] };
  const missed = nodes.name.map((name, i) => ({ name, seconds: nodes.silent_s[i], there: nodes.instances[i] })).filter((node) => node.seconds != null && node.there);
  toggle(missed.length > 0 && !silent, "silent-nodes", "warning",
    missed.map((node) => `Node ${node.name} does not report: the numbers of its ${node.there} instance${node.there === 1 ? "" : "s"} are old.`).join(" "),
    missed.map((node) => `last report ${age(node.seconds)} ago`).join(", "));
  routerBanner(health, Object.keys(frame.pools).length > 0);
}

function routerBanner(health, pools) {
  const [level, text] = ROUTERS[health.routers_state] ?? [];
  toggle(pools && text !== undefined, "router", level, text, health.routers_age_s == null ? "" : `last report ${age(health.routers_age_s)} ago`);
}

export function connectionBanner(state, seconds) {
  toggle(state === "disconnected", "connection", "error", "Disconnected from the control plane: the numbers below are the last ones received. Routers go on without it.", `Retrying in ${seconds} s`);
  toggle(state === "signin", "signin", "error", settings.share ? "This share has ended; the numbers below are the last ones received." : "Sign-in needed: this session has ended. Reload the page to sign in; the numbers below are the last ones received.");
}

export function redisBanner(down) {
  toggle(down, "redis", "error", "Redis is down: live state cannot be read. Routers keep serving with their current policy; this page recovers automatically.");
}
