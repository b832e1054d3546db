// The strip, the lists and the class tables: text updated in place.
import { age, clock, dateAndClock } from "./times.js";
import { UNKNOWN, count, countdown, ms, percent, significant, simulated, watts } from "./format.js";
import { ORDER } from "./heat_data.js";
import { ALL_POOLS, concerns, verdict } from "./live_frame.js";
import { settings } from "./live_settings.js";

// Statuses in which an instance is as configured if its record says that. Others: unknown, or still on the way.
const CERTAIN = new Set(["ready", "saturated", "draining", "drained", "stopped"]);
// Verdicts on a class, with the status that each is drawn as.
const VERDICTS = { unknown: "unseen", "no SLO": "unseen", idle: "unseen", "too few requests": "unseen", "most fail": "failed", "most are refused": "failed", "SLO met": "ready", "SLO met again": "saturated", "SLO missed": "failed" };

export const byId = (id) => document.getElementById(id);

export function text(node, value) {
  if (node && node.textContent !== value) node.textContent = value;
}

function element(name, content = "", className = "") {
  const node = document.createElement(name);
  if (className) node.className = className;
  node.append(content);
  return node;
}

function timeNode(seconds) {
  const node = element("time", clock(seconds));
  node.dateTime = new Date(seconds * 1000).toISOString();
  node.title = dateAndClock(seconds);
  node.dataset.format = "clock"; // for localTimes of base.js
  return node;
}

// Rebuilt only when its content changes, so a list under the pointer stays.
function renew(list, key, build) {
  if (!list || list.dataset.key === key) return;
  list.dataset.key = key;
  list.replaceChildren(...build());
}

// The age of the frame on the screen.
export function viewAge(seconds) {
  if (seconds == null) return "no data yet";
  return seconds > settings.frameOldS ? `data ${age(seconds)} old` : `updated ${age(seconds)} ago`;
}

// A status as counted and drawn: a last known one keeps its text, in grey.
const LAST_KNOWN = ", last known";

export function counts(rows) {
  const numbers = {};
  for (const row of rows) {
    const words = row.status + (row.last_known ? LAST_KNOWN : "");
    numbers[words] = (numbers[words] ?? 0) + 1;
  }
  const place = ([words]) => ORDER.indexOf(words.replace(LAST_KNOWN, ""));
  renew(byId("counts"), JSON.stringify(numbers), () => Object.entries(numbers).toSorted((a, b) => place(a) - place(b)).map(([words, number]) => {
    const label = element("span", "", `status status--${words.replace(LAST_KNOWN, " last-known")}`);
    label.append(element("b", count(number), "number"), ` ${words}`);
    return element("li", label);
  }));
  const certain = (row) => row.matches && CERTAIN.has(row.status) && !row.last_known;
  text(byId("wanted"), `${count(rows.filter(certain).length)} of ${count(rows.length)}`);
}

export function policies(frame, pool) {
  const shown = Object.entries(frame.policies).filter(([name]) => !pool || name === pool);
  const pools = shown.map(([name]) => frame.pools[name] ?? {});
  const deliveries = frame.deliveries ?? [];
  const savings = frame.savings ?? {};
  const tiers = frame.tiers ?? {};
  const aliases = frame.aliases ?? {};
  renew(byId("policies"), JSON.stringify([shown, pools.map((each) => [each.simulated, each.observed]), deliveries, Object.keys(savings), Object.keys(aliases), Object.keys(tiers)]), () => shown.flatMap(([name, policy], i) => {
    const line = element("p");
    if (pools[i].observed) return [observedLine(name)];
    const link = element("a", `${policy.policy} v${policy.version}`);
    link.href = `/policies/${encodeURIComponent(policy.policy)}/`;
    if (policy.published_at) link.title = `published ${dateAndClock(policy.published_at)}`;
    line.append(element("span", name, "muted"), " ", ...(pools[i].simulated ? [element("span", "simulated engines", "badge"), " "] : []), link, " ",
      element("span", `${policy.strategy ?? ""}, ${policy.acknowledged}/${policy.routers} routers`, "muted"));
    if (settings.mayRollBack && policy.version > 1) line.append(" ", rollBack(policy));
    return [line, ...(savings[name] ? [savingLine(name, savings[name])] : []), ...(aliases[name] ? [wordsLine("aliases", name, "Models", aliases[name], "/models/")] : []), ...(tiers[name] ? [wordsLine("tiers", name, "KV tiers", tiers[name], `/fleet/pools/${encodeURIComponent(name)}/`)] : []), ...deliveries.filter((each) => each.pools.includes(name)).map((each) => deliveryLine(each, frame.at))];
  }));
  // In place: the amount follows the load, and a link under the pointer stays.
  for (const [kind, words] of [["aliases", aliases], ["tiers", tiers]]) {
    for (const node of document.querySelectorAll(`[data-${kind}]`)) if (words[node.dataset[kind]]) text(node.querySelector("a"), words[node.dataset[kind]]);
  }
  for (const node of document.querySelectorAll("[data-saving]")) {
    const saving = savings[node.dataset.saving];
    if (!saving) continue;
    const link = node.querySelector("a");
    text(link, saving.text);
    link.title = saving.title;
  }
}

// No policy decides on requests that do not pass through the routers.
function observedLine(pool) {
  const line = element("p");
  const link = element("a", pool);
  link.href = `/fleet/pools/${encodeURIComponent(pool)}/`;
  line.append(link, " ", element("span", "observed only", "status status--draining"));
  return line;
}

// $12 a day less than v3 (8 to 16), n = 2,000
function savingLine(pool, saving) {
  const line = element("p");
  line.dataset.saving = pool;
  const link = element("a", saving.text);
  link.href = saving.href;
  line.append(element("span", "simulated", "badge"), " ", link);
  return line;
}

// KV tiers host 34 % hits, 2.1 GB/s read at 18.1 GB/s
// Models support-bot 2.1 requests/s
function wordsLine(kind, pool, title, words, href) {
  const line = element("p");
  line.dataset[kind] = pool;
  const link = element("a", words);
  link.href = href;
  line.append(element("span", title, "muted"), " ", link);
  return line;
}

function rollBack(policy) {
  const link = element("a", "Roll back", "button button--small");
  link.href = `/policies/${encodeURIComponent(policy.policy)}/rollback`;
  return link;
}

// v43 → v44 canary 25 % · heavy × 1.04 (0.97–1.12) · 4:10
function deliveryLine(delivery, at) {
  const line = element("p", "", "delivery-line");
  line.dataset.state = delivery.state;
  const link = element("a", delivery.text);
  link.href = `/deliveries/${delivery.delivery}/`;
  if (delivery.why) link.title = delivery.why;
  line.append(link);
  if (delivery.next_at != null) {
    const left = element("span", "", "number");
    left.dataset.endsAt = String(performance.now() + (delivery.next_at - at) * 1000);
    line.append(" · ", left);
    countDown(left);
  }
  return line;
}

function countDown(node) {
  text(node, countdown((Number(node.dataset.endsAt) - performance.now()) / 1000));
}

// `known`: whether the frame is new enough to continue its countdown.
export function countDowns(known) {
  for (const node of document.querySelectorAll(".delivery-line [data-ends-at]")) {
    if (known) countDown(node);
    else text(node, UNKNOWN);
  }
}

const WRITE = { running: count, waiting: count, gpu_use: percent, gpu_memory: percent, gpu_power_w: watts };

export function totals(frame) {
  const found = frame.totals?.[settings.pool || ALL_POOLS] ?? {};
  for (const node of document.querySelectorAll("[data-total]")) {
    const key = node.dataset.total;
    text(node, (WRITE[key] ?? significant)(found[key]));
    if (node.dataset.known != null && found[key] != null) node.closest("p").hidden = false; // and stays, as nothing may move
  }
  const source = simulated(found.gpu_simulated);
  for (const node of document.querySelectorAll("[data-simulated]")) text(node, source && node.dataset.simulated + source);
}

export const shownEvents = (frame) => frame.events.filter(concerns(settings.pool));

// words: the part of a reason that this page shows
export function attention(frame, limit = 50, words = (reason) => reason) {
  const items = frame.attention.filter(concerns(settings.pool)).slice(0, limit);
  renew(byId("attention"), JSON.stringify(items), () => (items.length ? items.map((item) => attentionItem(item, words)) : [element("li", "Nothing needs attention", "attention-none")]));
  byId("attention-checked").replaceChildren("checked ", timeNode(frame.at));
}

function attentionItem(item, words) {
  const node = element("li");
  node.dataset.severity = item.severity;
  const link = element("a", item.subject);
  link.href = item.href;
  const since = element("span", "since ", "muted small");
  since.append(timeNode(item.since));
  node.append(link, element("span", words(item.reason)), since);
  return node;
}

export function events(frame, limit = 30) {
  const items = shownEvents(frame).slice(0, limit);
  renew(byId("events"), JSON.stringify(items.map((event) => [event.at, event.text])), () => (items.length ? items.map((event) => {
    const node = element("li");
    node.append(timeNode(event.at), element("span", event.text));
    return node;
  }) : [element("li", "No events yet", "muted")]));
}

// A verdict on old data is removed. The next frame renders it again.
export function verdictsUnknown(at) {
  const words = `unknown since ${clock(at)}`;
  for (const node of document.querySelectorAll('[data-part="verdict"]')) {
    node.className = "status status--unseen";
    text(node, words);
    node.closest("[data-verdict]")?.setAttribute("data-verdict", "unknown");
  }
  text(byId("wanted"), byId("wanted")?.textContent.replace(/^[\d,]+/, "–"));
  if (document.querySelector("#attention .attention-none")) renew(byId("attention"), words, () => [element("li", words, "muted")]);
}

// The TTFT of one class in a few numbers, with its SLO.
export function classStrip(panel, window, slo, listed) {
  const part = (name) => panel.querySelector(`[data-part="${name}"]`);
  const word = verdict(window, slo, listed);
  if (part("verdict").textContent !== word) {
    part("verdict").className = `status status--${VERDICTS[word]}`;
    text(part("verdict"), word);
  }
  panel.dataset.verdict = word;
  text(part("p90"), ms(window?.ttft?.[1], slo));
  text(part("slo"), slo == null ? "" : `SLO ${ms(slo)}`);
  text(part("rate"), significant(window?.rate));
}

export function classPanel(panel, window, means) {
  const part = (name) => panel.querySelector(`[data-part="${name}"]`);
  text(part("rate"), significant(window?.rate));
  text(part("errors"), count(window?.errors));
  text(part("client_errors"), count(window?.client_errors));
  text(part("refused"), count(window?.refused));
  text(part("refused-why"), window?.refused_why ?? "");
  text(part("means"), means ?? "");
  text(part("hit"), percent(window?.hit_share));
  latencyLines(panel, window);
}

export function latencyLines(panel, window) {
  for (const line of panel.querySelectorAll("[data-line]")) {
    const key = line.dataset.line;
    const n = window?.[`${key}_n`];
    const few = n != null && n < settings.lowN;
    line.classList.toggle("few", few);
    line.querySelectorAll('[data-part="value"]').forEach((cell, i) => text(cell, ms(window?.[key]?.[i])));
    text(line.querySelector('[data-part="n"]'), `${count(n)}${few ? " (few)" : ""}`);
  }
}
