// The Live page: the first frame is in the page, the others come from the socket; all of them are drawn here.
import { Chart, reads } from "./live_chart.js";
import { Feed } from "./feed.js";
import { FrameAges, ageOf } from "./frame_age.js";
import { Flow, busiest } from "./flow.js";
import { Heat } from "./heat.js";
import { HeatData, byStatus } from "./heat_data.js";
import { heatScale } from "./heat_scale.js";
import { asOf, failuresFirst, filterRows, instanceRows, isListed, poolOfClasses, slosOf, unfolded } from "./live_frame.js";
import { connectionBanner, frameBanners, redisBanner } from "./live_health.js";
import { attention, byId, classPanel, classStrip, countDowns, counts, events, policies, shownEvents, text, totals, verdictsUnknown, viewAge } from "./live_panels.js";
import { settings } from "./live_settings.js";
import { ended, opens } from "./requests_at.js";
import { SHOWN, Tiles } from "./live_tiles.js";
import { View } from "./live_view.js";
import { customRange } from "./live_custom.js";
import { Series } from "./series.js";
import { Timeline, latency } from "./timeline.js";
import { age } from "./times.js";
import { count, counted } from "./format.js";

const FLOW_EVERY_MS = 1900;
const read = (id) => JSON.parse(byId(id).textContent);
const snapshot = read("snapshot");

const ages = new FrameAges();
let frame = unfolded(snapshot.frame);
let stamp = frame && ages.ofPage(snapshot);
let drawn = stamp; // time of the frame on the screen
let newest = { frame, stamp };
let connection = "connecting";
let paused = null; // {since, behind} while the page is paused
let flowAt = 0;
let filter = filterInUrl();
const series = new Series(snapshot.history);
const heatData = new HeatData(snapshot.history?.heat);
const tiles = new Tiles(byId("tiles"), byId("tile-template"));
const view = new View(bounds, viewChanged);
const choose = ([from, to]) => view.choose(from, to);
// a point of TTFT or TPOT of a class opens its slowest requests first
const opensClass = (name, key) => opens(() => ({ pool: settings.pool, class: name, sort: key }), ended);
const strips = [...document.querySelectorAll(".class-strip")].map((panel) => ({
  panel, name: panel.dataset.strip,
  chart: new Timeline(panel.querySelector("canvas"), latency("ttft"), { title: `TTFT of ${panel.dataset.strip} requests`, read: reads(panel.querySelector("output")), chosen: choose, opened: opensClass(panel.dataset.strip, "ttft") }),
}));
const panels = [...document.querySelectorAll(".class-panel")].map((panel) => ({
  panel, name: panel.dataset.class,
  charts: [...panel.querySelectorAll(".live-chart")].map((figure) => new Chart(figure, `${figure.dataset.chart.toUpperCase()} of ${panel.dataset.class} requests`, latency(figure.dataset.chart), choose, opensClass(panel.dataset.class, figure.dataset.chart))),
}));
const heat = new Heat(byId("heat"), { read: reads(byId("heat-reading")), open: openRow });
const flow = new Flow(byId("flow"), (chosen) => { filter = chosen; keepFilter(); renderSoon(); });

function bounds() {
  if (settings.window) return settings.window;
  const to = frame?.at ?? Date.now() / 1000;
  return [to - series.seconds, to];
}

function viewChanged() {
  byId("back-to-live").hidden = !view.zoomed && !settings.window;
  renderCharts();
}

// ?filter=class:heavy, kept in the URL so that a colleague sees the same page.
function filterInUrl() {
  const [kind, name] = (new URLSearchParams(location.search).get("filter") ?? "").split(":");
  return ["class", "rule", "instance", "place"].includes(kind) && name ? { kind, name } : null;
}

function keepFilter() {
  const url = new URL(location.href);
  if (filter) url.searchParams.set("filter", `${filter.kind}:${filter.name}`);
  else url.searchParams.delete("filter");
  history.replaceState(null, "", url);
}

function openRow(row) {
  if (row.ids.length === 1) location.assign(`/fleet/instances/${encodeURIComponent(row.ids[0])}/`);
  else if (row.place) { filter = { kind: "place", name: row.place }; keepFilter(); renderSoon(); }
}

const flows = () => {
  const shown = Object.entries(frame.flow ?? {}).filter(([name]) => !settings.pool || name === settings.pool).map(([, flow]) => flow);
  return { links: shown.flatMap(({ links }) => links), arcs: shown.flatMap(({ arcs }) => arcs), instances: shown.reduce((sum, { instances }) => sum + instances, 0) };
};

function render() {
  if (!frame || document.hidden) return;
  drawn = stamp;
  const all = instanceRows(frame, settings.pool);
  const shown = filterRows(all, filter, flows().links);
  byId("no-frame")?.remove();
  byId("no-redis")?.remove();
  byId("no-tiles").hidden = all.length > 0;
  text(byId("tile-note"), shown.length > SHOWN ? `${SHOWN} with the worst status, of ${count(shown.length)}; a row of KV usage opens its own` : counted(shown.length, "instance"));
  tiles.update(shown.length > SHOWN ? byStatus(shown) : failuresFirst(shown));
  counts(all);
  policies(frame, settings.pool);
  const pool = poolOfClasses(frame, settings.pool);
  const windows = frame.classes[pool] ?? {};
  totals(frame);
  attention(frame);
  events(frame);
  const means = frame.policies[pool]?.means ?? {};
  const slos = slosOf(frame, settings.pool, settings.asked);
  for (const { panel, name } of strips) { classStrip(panel, windows[name], slos[name]?.ttft, isListed(frame, settings.pool, name)); dim(panel, name); }
  for (const { panel, name } of panels) { classPanel(panel, windows[name], means[name]); dim(panel, name); }
  byId("unfilter").hidden = !filter;
  if (filter) text(byId("unfilter"), `Only ${filter.kind === "place" ? "" : `${filter.kind} `}${filter.name} ×`);
  frameBanners(frame.banners);
}

const ofFlow = () => (filter?.kind === "place" ? null : filter);

const dim = (panel, name) => panel.classList.toggle("dim", filter?.kind === "class" && filter.name !== name);

function renderCharts() {
  if (!frame || document.hidden) return;
  const [from, to] = view.range;
  const classes = series.classes[poolOfClasses(frame, settings.pool)] ?? {};
  const slos = slosOf(frame, settings.pool, settings.asked);
  const marks = shownEvents(frame);
  for (const { name, chart } of strips) chart.update(series.at, classes[name], marks, from, to, slos[name]?.ttft);
  for (const { name, charts } of panels) for (const chart of charts) chart.update(series.at, classes[name], marks, from, to, slos[name]?.[chart.key]);
  const rows = filterRows(asOf(instanceRows(frame, settings.pool), ageOf(drawn)), filter, flows().links);
  heat.update(heatData, rows, from, to);
  heatScale(byId("heat-scale"), byId("heat-limit"), rows.map((row) => row.kv_limit));
  text(byId("heat-note"), heat.rows.length < rows.length ? `${counted(rows.length, "instance")} in ${counted(heat.rows.length, "row")}, the highest of each` : counted(rows.length, "instance"));
  nameHeat();
  if (Date.now() - flowAt > FLOW_EVERY_MS || flow.filter !== ofFlow()) renderFlow();
}

function nameHeat() {
  const summary = heat.summary();
  if (byId("heat").getAttribute("aria-label") !== summary) byId("heat").setAttribute("aria-label", summary);
  if (byId("heat-table").open) byId("heat-table").querySelector(".chart-table").replaceChildren(heat.asTable());
}

function renderFlow() {
  flowAt = Date.now();
  const all = flows();
  const shown = busiest(all);
  byId("no-flow").hidden = shown.links.length > 0;
  byId("flow").parentElement.hidden = shown.links.length === 0;
  const hidden = all.instances - new Set(shown.links.map((link) => link[2]).filter(Boolean)).size;
  flow.update(shown, ofFlow(), counted(hidden, "other instance"));
  if (byId("flow-table").open) byId("flow-table").querySelector(".chart-table").replaceChildren(...flow.asTable());
}

let asked = false;
function renderSoon() {
  if (asked) return;
  asked = true;
  requestAnimationFrame(() => { asked = false; render(); renderCharts(); tick(); });
}

function take(message) {
  if (message.type === "trouble") { redisBanner(message.what === "redis"); return; }
  redisBanner(false);
  if (!message.frame) return;
  newest = { frame: message.frame, stamp: ages.stamp(message) };
  if (message.type === "snapshot") {
    if (!settings.window) { series.load(message.history); heatData.load(message.history.heat); }
  } else {
    if (paused) paused.behind += 1;
    if (!settings.window) { series.push(message.frame); heatData.push(message.frame, settings.sampleStaleS); }
  }
  if (!paused || message.type === "snapshot") ({ frame, stamp } = newest);
  if (paused) frameBanners(newest.frame.banners); // a pause holds the figures, not the news of what is down
  else renderSoon();
}

function grow(seconds) {
  const rows = asOf(instanceRows(frame, settings.pool), seconds);
  tiles.restate(rows);
  counts(rows);
}

function tick() {
  const seconds = drawn ? ageOf(drawn) : null;
  const old = seconds == null || seconds > settings.frameOldS;
  const state = paused ? "paused" : old ? "old" : "live";
  if (document.body.dataset.data !== state) document.body.dataset.data = state;
  if (paused) {
    const held = Math.floor((Date.now() - paused.since) / 1000);
    const clockText = `${String(Math.floor(held / 60)).padStart(2, "0")}:${String(held % 60).padStart(2, "0")}`;
    text(byId("age-text"), `paused ${clockText} – ${counted(paused.behind, "frame")} behind`);
  } else {
    text(byId("age-text"), viewAge(seconds));
    if (old && frame) { grow(seconds); verdictsUnknown(frame.at); }
  }
  if (!paused) countDowns(!old);
}

function pause() {
  paused = paused ? null : { since: Date.now(), behind: 0 };
  byId("pause").setAttribute("aria-pressed", String(Boolean(paused)));
  text(byId("pause"), paused ? "Resume" : "Pause");
  if (!paused && newest.frame) { ({ frame, stamp } = newest); renderSoon(); }
  tick();
}

const feed = new Feed(settings.window ? 300 : settings.seconds, {
  message: take,
  state(state, seconds) {
    if (state !== connection && connection !== "connecting") text(byId("announcer"), state === "live" ? "Live updates have resumed" : "Live updates have stopped");
    connection = state;
    connectionBanner(state, seconds);
  },
});

// A new range needs no page load: the socket sends its history, and the URL keeps it.
for (const link of document.querySelectorAll("[data-range]")) {
  link.addEventListener("click", (event) => {
    if (settings.window) return; // its link leaves the custom range
    event.preventDefault();
    for (const other of document.querySelectorAll("[data-range]")) other.removeAttribute("aria-current");
    link.setAttribute("aria-current", "true");
    history.replaceState(null, "", link.href);
    keepFilter();
    for (const other of document.querySelectorAll('[aria-label="Pool"] a')) {
      const url = new URL(other.href);
      url.searchParams.set("range", link.dataset.range);
      other.href = url;
    }
    settings.seconds = Number(link.dataset.range);
    view.reset();
    feed.ask(settings.seconds);
  });
}
for (const button of document.querySelectorAll("[data-zoom]")) button.addEventListener("click", () => view[button.dataset.zoom]());
byId("back-to-live").addEventListener("click", () => {
  if (settings.window && !view.zoomed) { location.assign(document.querySelector("[data-range]").href); return; }
  view.reset();
  byId("pause").focus();
});
byId("unfilter").addEventListener("click", () => { filter = null; keepFilter(); renderSoon(); byId("pause").focus(); });
byId("pause").addEventListener("click", pause);
for (const id of ["heat-table", "flow-table"]) byId(id).addEventListener("toggle", () => { nameHeat(); renderFlow(); });
customRange(byId("custom-form"), bounds);
document.addEventListener("weir:zone", () => { for (const id of ["attention", "events"]) delete byId(id).dataset.key; renderSoon(); });
document.addEventListener("weir:theme", renderSoon);
document.addEventListener("visibilitychange", renderSoon);
setInterval(tick, 500);
render();
viewChanged();
tick();
