// The charts on the page of an instance, a pool, a node or an API key: polled, and drawn like those of Live.
import { UNKNOWN, ms, significant } from "./format.js";
import { Chart } from "./live_chart.js";
import { arrived, ended, opens, underWay } from "./requests_at.js";

const EVERY_MS = 2000;
const root = document.getElementById("charts");
const { of, name, href } = root.dataset;
const percent = (value) => (value == null ? UNKNOWN : `${Math.round(value)} %`);
const line = (title, key, ink = 0, dash = []) => ({ title, key, ink, dash });
const drawn = (lines, write, top, log = false) => ({
  write, top, log, lines: (columns) => lines.map(({ title, key, ink, dash }) => ({ name: title, values: columns?.[key] ?? [], ink, dash })),
});
const QUANTITIES = {
  kv: drawn(of === "instance" ? [line("KV usage", "kv")] : [line("mean", "kv"), line("highest", "kv_highest", 1, [7, 5])], percent, 100),
  running: drawn([line("running", "running")], significant),
  waiting: drawn([line("waiting", "waiting")], significant),
  hits: drawn([line("hits", "hits")], percent, 100),
  requests: drawn([line("served", "served"), line("refused", "refused", 1, [7, 5]), line("client errors", "client_errors", 2, [4, 3]), line("failed", "failed", 3, [2, 3])], significant),
  tokens: drawn([line("prompt", "prompt"), line("output", "output", 1, [7, 5])], significant),
  ttft: drawn([line("warm", "warm"), line("medium", "medium", 2, [7, 5]), line("heavy", "heavy", 1, [2, 3])], ms, undefined, true),
};
let bin = 0; // seconds of a point
const behind = (at) => arrived(at, bin);
const BEHIND = { ttft: ended, requests: behind, tokens: behind };
const opened = (key) => (of === "node" ? null : opens(() => ({ [of]: name, sort: "ttft" }), BEHIND[key] ?? underWay));
const charts = [...root.querySelectorAll("[data-chart]")].map((figure) => ({
  figure, chart: new Chart(figure, `${figure.querySelector("figcaption span").textContent} of ${name}`, QUANTITIES[figure.dataset.chart], null, opened(figure.dataset.chart)),
}));
let seconds = Number(root.dataset.seconds);
let waits = 0;

const percents = (shares) => shares.map((share) => (share == null ? null : share * 100));

function draw({ at, until, bin_s, load, ttft, kv_limit, limits, events }) {
  bin = bin_s;
  const shares = ["kv", "kv_highest", "hits"].filter((key) => key in load);
  const columns = { ...load, ...ttft, ...Object.fromEntries(shares.map((key) => [key, percents(load[key])])) };
  const drawnLimits = limits ?? { kv: kv_limit == null ? null : kv_limit * 100 };
  for (const { figure, chart } of charts) {
    chart.update(at, columns, events ?? [], until - seconds, until, drawnLimits[chart.key] ?? undefined);
    const lines = chart.timeline.lines();
    const none = lines.every(({ values }) => values.every((value) => value == null));
    // The sample of an instance is beside its charts, with its age; the last point of a chart is a mean of some seconds.
    const alone = of !== "instance" && lines.length === 1;
    figure.querySelector('[data-part="latest"]').textContent = none ? "no data" : alone ? chart.timeline.quantity.write(lines[0].values.at(-1)) : "";
  }
}

const paused = () => document.hidden || document.getElementById("fleet-pause")?.getAttribute("aria-pressed") === "true";

async function ask() {
  const asked = seconds;
  const answer = await fetch(`${href}?${new URLSearchParams({ of, name, range: asked })}`).catch(() => null);
  const good = Boolean(answer?.ok && !answer.redirected);
  root.dataset.state = good ? "live" : "stale";
  if (!good) return EVERY_MS;
  const found = await answer.json();
  if (asked === seconds) draw(found);
  return Math.max(EVERY_MS, found.bin_s * 1000);
}

async function again() {
  clearTimeout(waits);
  const wait = paused() ? EVERY_MS : await ask();
  clearTimeout(waits);
  waits = setTimeout(again, wait);
}

for (const link of root.querySelectorAll("[data-range]")) {
  link.addEventListener("click", (event) => {
    event.preventDefault();
    for (const other of root.querySelectorAll("[data-range]")) other.removeAttribute("aria-current");
    link.setAttribute("aria-current", "true");
    history.replaceState(null, "", link.href);
    seconds = Number(link.dataset.range);
    ask();
  });
}
for (const kind of ["weir:theme", "weir:zone", "visibilitychange"]) document.addEventListener(kind, again);
again();
