// The wall: the Live page for an unattended screen. It must recover from every failure without a user.
import { Feed } from "./feed.js";
import { count, significant } from "./format.js";
import { aged, instanceRows, poolOfClasses } from "./live_frame.js";
import { connectionBanner, healthBanners, redisBanner } from "./live_health.js";
import { attention, byId, countDowns, counts, events, latencyLines, policies, shownEvents, text } from "./live_panels.js";
import { settings } from "./live_settings.js";
import { Tiles } from "./live_tiles.js";
import { Series } from "./series.js";
import { age, clock, zone, zoneName } from "./times.js";
import { Lines } from "./wall_lines.js";

const CURSOR_MS = 3000;
const ATTENTION = 6;
const EVENTS = 3;
const EMPTY_CELLS = 2; // penalty of a row with empty cells against a good shape
const read = (id) => JSON.parse(byId(id).textContent);
const snapshot = read("snapshot");

let frame = snapshot.frame;
let receivedAt = Date.now();
let ageAtReceipt = frame ? Math.max(0, snapshot.sent_at - frame.at) : 0;
const series = new Series(snapshot.history);
const grid = byId("tiles");
const tiles = new Tiles(grid, byId("tile-template"));
const panels = [...document.querySelectorAll(".wall-class")].map((panel) => ({
  panel, name: panel.dataset.class, lines: new Lines(panel.querySelector("canvas")),
}));

// The number of columns with the best tile shape for the text and few empty cells.
function columnsFor(number, width, height) {
  const wanted = number > 48 ? 1.25 : 1.6;
  let best = 1;
  let least = Infinity;
  for (let columns = 1; columns <= number; columns++) {
    const rows = Math.ceil(number / columns);
    const shape = Math.abs(Math.log((width / columns) / (height / rows) / wanted));
    const cost = shape + (EMPTY_CELLS * (columns * rows - number)) / number;
    if (cost < least) { least = cost; best = columns; }
  }
  return best;
}

function layOut(number) {
  const { clientWidth, clientHeight } = grid;
  const columns = columnsFor(number, clientWidth, Math.max(1, clientHeight));
  grid.style.setProperty("--columns", columns);
  const rem = Number.parseFloat(getComputedStyle(document.documentElement).fontSize);
  const high = clientHeight / Math.ceil(number / columns) / rem;
  const wide = clientWidth / columns / rem;
  grid.dataset.size = wide < 6.4 ? "tiny" : high < 7.2 || wide < 9.5 ? "small" : "large";
}

// Small tiles show only the number of an instance when all are of one pool.
function nameTiles(all) {
  const prefix = `${all[0]?.pool}-`;
  const shorten = grid.dataset.size !== "large" && all.every((row) => row.id.startsWith(prefix));
  for (const [id, tile] of tiles.tiles) text(tile.id, shorten ? id.slice(prefix.length) : id);
}

function classPanel({ panel, name, lines }, window) {
  const part = (key) => panel.querySelector(`[data-part="${key}"]`);
  text(part("rate"), significant(window?.rate));
  text(part("errors"), count(window?.errors));
  text(part("refused"), count(window?.refused));
  latencyLines(panel, window);
  lines.draw(series.at, series.classes[poolOfClasses(frame, settings.pool)]?.[name], shownEvents(frame), frame.at, series.seconds, settings.slo.ttft);
}

let laidOut = 0;
function render() {
  if (!frame) return;
  const all = instanceRows(frame, settings.pool);
  const shown = Math.min(all.length, settings.tilesShown);
  text(byId("tile-note"), all.length > settings.tilesShown ? `showing ${settings.tilesShown} of ${all.length}` : "");
  if (shown !== laidOut) { laidOut = shown; layOut(Math.max(1, shown)); }
  tiles.update(all, series.kv, frame.kv_threshold);
  nameTiles(all);
  counts(all);
  policies(frame, settings.pool);
  attention(frame, ATTENTION);
  events(frame, EVENTS);
  const windows = frame.classes[poolOfClasses(frame, settings.pool)] ?? {};
  for (const panel of panels) classPanel(panel, windows[panel.name]);
  healthBanners(frame);
}

let asked = false;
function renderSoon() {
  if (asked) return;
  asked = true;
  requestAnimationFrame(() => { asked = false; render(); tick(); });
}

function take(message) {
  redisBanner(message.type === "trouble" && message.what === "redis");
  if (!message.frame) return;
  ageAtReceipt = 0;
  if (message.type === "snapshot") { series.load(message.history); ageAtReceipt = Math.max(0, message.sent_at - message.frame.at); }
  else series.push(message.frame);
  frame = message.frame;
  receivedAt = Date.now();
  renderSoon();
}

function grow(seconds) {
  const rows = aged(instanceRows(frame, settings.pool), seconds, settings.sampleStaleS, settings.sampleOfflineS);
  tiles.restate(rows);
  counts(rows);
}

function tick() {
  const seconds = frame ? ageAtReceipt + (Date.now() - receivedAt) / 1000 : null;
  const old = seconds == null || seconds > settings.frameOldS;
  const state = old ? "old" : "live";
  if (document.body.dataset.data !== state) document.body.dataset.data = state;
  text(byId("age-text"), seconds == null ? "no data yet" : `updated ${age(seconds)} ago`);
  if (old && frame) grow(seconds);
  countDowns();
  text(byId("clock"), `${clock(Date.now() / 1000)} ${zone() ?? zoneName()}`);
}

globalThis.weirFeed = new Feed(settings.seconds, {
  message: take,
  state(state, seconds) {
    connectionBanner(state, seconds);
    document.body.toggleAttribute("data-signin", state === "signin");
  },
});

// The exit link appears on input; the cursor is hidden after a while.
let still = 0;
function moved() {
  document.body.dataset.moved = "1";
  clearTimeout(still);
  still = setTimeout(() => delete document.body.dataset.moved, CURSOR_MS);
}
for (const kind of ["pointermove", "pointerdown", "keydown"]) addEventListener(kind, moved);
addEventListener("keydown", (event) => { if (event.key === "Escape") location.assign(byId("leave").href); });
addEventListener("resize", () => { laidOut = 0; renderSoon(); });
document.addEventListener("weir:theme", renderSoon);
setInterval(tick, 500);
render();
tick();
