// The wall: the Live page for an unattended screen. It must recover from every failure without a user.
import { Feed } from "./feed.js";
import { FrameAges, ageOf } from "./frame_age.js";
import { count, counted, ms } from "./format.js";
import { Heat } from "./heat.js";
import { HeatData } from "./heat_data.js";
import { heatScale } from "./heat_scale.js";
import { asOf, instanceRows, isListed, poolOfClasses, slosOf, unfolded } from "./live_frame.js";
import { connectionBanner, frameBanners, redisBanner } from "./live_health.js";
import { attention, byId, classStrip, countDowns, counts, events, policies, shownEvents, text, totals, verdictsUnknown, viewAge } from "./live_panels.js";
import { settings } from "./live_settings.js";
import { Series } from "./series.js";
import { Timeline, latency } from "./timeline.js";
import { clock, zoneName } from "./times.js";
import { brief, wallState } from "./wall_state.js";

const CURSOR_MS = 3000;
const ATTENTION = 6;
const EVENTS = 3;
const read = (id) => JSON.parse(byId(id).textContent);
const snapshot = read("snapshot");

const ages = new FrameAges();
let frame = unfolded(snapshot.frame);
let stamp = frame && ages.ofPage(snapshot);
let drawn = stamp; // of the frame on the screen
const series = new Series(snapshot.history);
const heatData = new HeatData(snapshot.history?.heat);
const heat = new Heat(byId("heat"), { latest: true, drawn: tileNote });
const panels = [...document.querySelectorAll(".wall-class")].map((panel) => ({
  panel, name: panel.dataset.class, chart: new Timeline(panel.querySelector("canvas"), latency("ttft"), { hours: false }),
}));

function classPanel({ panel, name, chart }, window, slo) {
  const part = (key) => panel.querySelector(`[data-part="${key}"]`);
  classStrip(panel, window, slo, isListed(frame, settings.pool, name));
  text(part("errors"), count(window?.errors));
  text(part("refused"), count(window?.refused));
  text(part("client_errors"), count(window?.client_errors));
  text(part("p50"), ms(window?.ttft?.[0]));
  text(part("p99"), ms(window?.ttft?.[2]));
  text(part("n"), count(window?.ttft_n));
  const columns = series.classes[poolOfClasses(frame, settings.pool)]?.[name];
  chart.update(series.at, columns, shownEvents(frame), frame.at - series.seconds, frame.at, slo);
}

function tileNote({ instances, rows }) {
  const all = counted(instances.length, "instance");
  text(byId("tile-note"), rows.length < instances.length ? `${all} in ${counted(rows.length, "row")}, the highest of each` : all);
}

function instances(seconds) {
  const rows = asOf(instanceRows(frame, settings.pool), seconds);
  counts(rows);
  heat.update(heatData, rows, frame.at - series.seconds, frame.at);
  heatScale(byId("heat-scale"), byId("heat-limit"), rows.map((row) => row.kv_limit));
  const summary = heat.summary();
  if (byId("heat").getAttribute("aria-label") !== summary) byId("heat").setAttribute("aria-label", summary);
}

function render() {
  if (!frame) return;
  drawn = stamp;
  instances(0);
  policies({ ...frame, savings: {} }, settings.pool); // what a preview promises is nothing to read from afar
  attention(frame, ATTENTION, brief);
  events(frame, EVENTS);
  const windows = frame.classes[poolOfClasses(frame, settings.pool)] ?? {};
  const slos = slosOf(frame, settings.pool, settings.asked);
  totals(frame);
  for (const panel of panels) classPanel(panel, windows[panel.name], slos[panel.name]?.ttft);
  frameBanners(frame.banners);
  keepLines();
  if (settings.share) for (const link of document.querySelectorAll("main a[href]")) link.removeAttribute("href");
}

// A line that the head once needed stays, as what stands below would else move up and down with each change of state.
const LINES = [byId("counts"), byId("policies")];
function keepLines() {
  for (const node of LINES) {
    const { height } = node.getBoundingClientRect(); // offsetHeight would round it
    if (height > (Number.parseFloat(node.style.minHeight) || 0)) node.style.minHeight = `${height}px`;
  }
}
addEventListener("resize", () => { for (const node of LINES) node.style.minHeight = ""; });

let asked = false;
function renderSoon() {
  if (asked) return;
  asked = true;
  requestAnimationFrame(() => { asked = false; render(); tick(); });
}

function take(message) {
  redisBanner(message.type === "trouble" && message.what === "redis");
  if (!message.frame) return;
  stamp = ages.stamp(message);
  if (message.type === "snapshot") {
    series.load(message.history);
    heatData.load(message.history.heat);
  } else {
    series.push(message.frame);
    heatData.push(message.frame, settings.sampleStaleS);
  }
  frame = message.frame;
  renderSoon();
}

function tick() {
  const seconds = drawn ? ageOf(drawn) : null;
  const old = seconds == null || seconds > settings.frameOldS;
  const state = old ? "old" : "live";
  if (document.body.dataset.data !== state) document.body.dataset.data = state;
  text(byId("age-text"), viewAge(seconds));
  const whole = wallState(frame, settings.pool, seconds, panels.filter(({ panel }) => panel.dataset.verdict === "SLO missed").map(({ name }) => name));
  if (byId("state").dataset.level !== whole.level) byId("state").dataset.level = whole.level;
  text(byId("state-text"), whole.text);
  if (old && frame) { instances(seconds); verdictsUnknown(frame.at); keepLines(); }
  countDowns(!old);
  byId("clock").dateTime = new Date().toISOString();
  text(byId("clock"), `${clock(Date.now() / 1000)} ${zoneName()}`);
}

globalThis.weirFeed = new Feed(settings.seconds, {
  message: take,
  state(state, seconds) {
    connectionBanner(state, seconds, Boolean(settings.share));
    document.body.toggleAttribute("data-signin", state === "signin");
  },
}, settings.share ? location.pathname.split("/").at(-1) : "");

// The exit link appears on input; the cursor is hidden after a while.
let still = 0;
function moved() {
  document.body.dataset.moved = "1";
  clearTimeout(still);
  still = setTimeout(() => delete document.body.dataset.moved, CURSOR_MS);
}
for (const kind of ["pointermove", "pointerdown", "keydown"]) addEventListener(kind, moved);
addEventListener("keydown", (event) => { if (event.key === "Escape" && byId("leave")) location.assign(byId("leave").href); });
for (const event of ["weir:theme", "weir:zone"]) document.addEventListener(event, renderSoon);
addEventListener("resize", renderSoon);
setInterval(tick, 500);
render();
tick();
