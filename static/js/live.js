// The Live page: the first frame is in the page, the others come from the socket; the page waits for neither.
import { Feed } from "./feed.js";
import { LiveChart } from "./live_charts.js";
import { aged, instanceRows, poolOfClasses } from "./live_frame.js";
import { connectionBanner, healthBanners, redisBanner } from "./live_health.js";
import { attention, byId, classPanel, countDowns, counts, events, policies, shownEvents, text, totals } from "./live_panels.js";
import { settings } from "./live_settings.js";
import { Tiles } from "./live_tiles.js";
import { Series } from "./series.js";
import { age, clock, setZone, zone, zoneName } from "./times.js";
import { count } from "./format.js";

const CHART_EVERY_MS = 1900;
const read = (id) => JSON.parse(byId(id).textContent);
const snapshot = read("snapshot");

let frame = snapshot.frame;
let receivedAt = Date.now();
let ageAtReceipt = frame ? Math.max(0, snapshot.sent_at - frame.at) : 0;
let connection = "connecting";
let paused = null; // {since, behind} while the page is paused
let drawnAt = 0;
let newest = frame;
const series = new Series(snapshot.history);
const tiles = new Tiles(byId("tiles"), byId("tile-template"));
const charts = [...document.querySelectorAll(".class-panel")].map((panel) => ({
  panel, name: panel.dataset.class, lines: settings.latencies.map((key) => new LiveChart(panel, key, settings.slo[key])),
}));

const dataAge = () => (frame ? ageAtReceipt + (Date.now() - receivedAt) / 1000 : null);

function render() {
  if (!frame || document.hidden) return;
  const shown = instanceRows(frame, settings.pool);
  byId("no-frame")?.remove();
  byId("no-redis")?.remove();
  byId("no-tiles").hidden = shown.length > 0;
  text(byId("tile-note"), shown.length > settings.tilesShown ? `showing ${settings.tilesShown} of ${shown.length}` : count(shown.length));
  tiles.update(shown, series.kv, frame.kv_threshold);
  counts(shown);
  policies(frame, settings.pool);
  totals(shown);
  attention(frame);
  events(frame);
  const windows = frame.classes[poolOfClasses(frame, settings.pool)] ?? {};
  const means = frame.policies[poolOfClasses(frame, settings.pool)]?.means ?? {};
  for (const { panel, name } of charts) classPanel(panel, windows[name], means[name]);
  healthBanners(frame);
}

function renderCharts(force = false) {
  if (!frame || document.hidden || (!force && Date.now() - drawnAt < Math.max(CHART_EVERY_MS, series.bin * 1000))) return;
  drawnAt = Date.now();
  const classes = series.classes[poolOfClasses(frame, settings.pool)] ?? {};
  for (const { name, lines } of charts) {
    for (const chart of lines) chart.update(series.at, classes[name], shownEvents(frame), frame.at, series.seconds).catch(console.error);
  }
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
  if (message.type === "snapshot") {
    if (message.frame) { frame = message.frame; series.load(message.history); ageAtReceipt = Math.max(0, message.sent_at - frame.at); }
    receivedAt = Date.now();
    drawnAt = 0;
  } else {
    if (paused) paused.behind += 1;
    series.push(message.frame);
    if (!paused) { frame = message.frame; ageAtReceipt = 0; receivedAt = Date.now(); }
  }
  if (!paused) renderSoon();
  newest = message.frame ?? newest;
}

function grow(seconds) {
  const rows = aged(instanceRows(frame, settings.pool), seconds, settings.sampleStaleS, settings.sampleOfflineS);
  tiles.restate(rows);
  counts(rows);
}

function tick() {
  const seconds = dataAge();
  const old = seconds == null || seconds > settings.frameOldS;
  const state = paused ? "paused" : old ? "old" : "live";
  if (document.body.dataset.data !== state) document.body.dataset.data = state;
  if (paused) {
    const held = Math.floor((Date.now() - paused.since) / 1000);
    const clockText = `${String(Math.floor(held / 60)).padStart(2, "0")}:${String(held % 60).padStart(2, "0")}`;
    text(byId("age-text"), `paused ${clockText} – ${paused.behind} frames behind`);
  } else {
    text(byId("age-text"), seconds == null ? "no data yet" : `updated ${age(seconds)} ago`);
    if (old && frame) grow(seconds);
  }
  countDowns();
  text(byId("clock"), `${clock(Date.now() / 1000)} ${zone() ?? zoneName()}`);
}

function pause() {
  paused = paused ? null : { since: Date.now(), behind: 0 };
  byId("pause").setAttribute("aria-pressed", String(Boolean(paused)));
  text(byId("pause"), paused ? "Resume" : "Pause");
  if (!paused && newest) { frame = newest; ageAtReceipt = 0; receivedAt = Date.now(); drawnAt = 0; renderSoon(); }
  tick();
}

function nameZone() { text(byId("zone"), zone() ? "Use local time" : "Use UTC"); }

const feed = new Feed(settings.seconds, {
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
    event.preventDefault();
    for (const other of document.querySelectorAll("[data-range]")) other.removeAttribute("aria-current");
    link.setAttribute("aria-current", "true");
    history.replaceState(null, "", link.href);
    for (const other of document.querySelectorAll('[aria-label="Pool"] a')) {
      const url = new URL(other.href);
      url.searchParams.set("range", link.dataset.range);
      other.href = url;
    }
    for (const chart of allCharts) chart.own = {};
    nameZoom();
    settings.seconds = Number(link.dataset.range);
    feed.ask(settings.seconds);
  });
}
const allCharts = charts.flatMap(({ lines }) => lines);
const nameZoom = () => { byId("back-to-live").hidden = !allCharts.some((chart) => chart.zoomed); };
document.addEventListener("weir:zoom", nameZoom);
byId("back-to-live").addEventListener("click", () => {
  for (const chart of allCharts) if (chart.zoomed) chart.backToLive();
  nameZoom();
  byId("pause").focus();
});
byId("pause").addEventListener("click", pause);
byId("zone").addEventListener("click", () => { setZone(zone() ? "local" : "utc"); nameZone(); drawnAt = 0; for (const id of ["attention", "events"]) delete byId(id).dataset.key; renderSoon(); });
document.addEventListener("weir:theme", () => renderCharts(true));
document.addEventListener("visibilitychange", renderSoon);
setInterval(tick, 500);
nameZone();
render();
renderCharts(true);
tick();
