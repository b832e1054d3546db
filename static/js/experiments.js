// Experiments: ECDFs of one class, copying the command, the fields of a mode, focus on problems.
import { colour, draw, seriesColour, table } from "./chart.js";
import { Heat } from "./heat.js";
import { HeatData } from "./heat_data.js";
import { Parallel } from "./parallel.js";

const QUANTILES = [0.5, 0.9, 0.95, 0.99];
const HIDDEN = "hide";
const AXES = 8; // axes of the parallel coordinates: the first metrics of the comparison

// Hidden arms are in the URL: a link shows the same chart.
function hiddenArms() {
  return new Set(new URLSearchParams(location.search).getAll(HIDDEN));
}

function toggleArm(name) {
  const query = new URLSearchParams(location.search);
  const hidden = hiddenArms();
  query.delete(HIDDEN);
  hidden.has(name) ? hidden.delete(name) : hidden.add(name);
  for (const each of hidden) query.append(HIDDEN, each);
  history.replaceState(null, "", `?${query}${location.hash}`);
}

export function traceOf(arm, points, hidden) {
  const every = Math.max(1, Math.floor(points.ms.length / 12));
  return {
    type: "scatter", mode: "lines+markers", name: `${arm.sign} ${arm.title} (n = ${points.n.toLocaleString("en-GB")})`,
    x: points.ms, y: points.share.map((share) => share * 100), opacity: hidden ? 0.15 : 1,
    line: { color: seriesColour(arm.colour), width: 2, dash: arm.dash, shape: "hv" },
    marker: { symbol: arm.marker, size: points.ms.map((_, i) => (i % every ? 0 : 7)), color: seriesColour(arm.colour) },
    hovertemplate: `${arm.title}: %{y:.1f} % within %{x:,.3s} ms<extra></extra>`,
  };
}

// Draws the limit of the class as a vertical line.
function sloOf(limit) {
  if (!limit) return [];
  const line = { color: colour("failed"), width: 1.5, dash: "longdash" };
  return [{ type: "scatter", mode: "lines", name: `SLO ${limit.toLocaleString("en-GB")} ms`, x: [limit, limit], y: [0, 100], line, hoverinfo: "name" }];
}

export function atShare(points, share) {
  const i = points.share.findIndex((value) => value >= share);
  return i < 0 ? null : points.ms[i];
}

function quantileTable(title, data, key) {
  const number = (value) => (value == null ? "–" : value.toLocaleString("en-GB", { maximumSignificantDigits: 4 }));
  return table(`${title}, ms, ${data.time}`, [
    { title: "Arm", values: data.arms.map((arm) => `${arm.sign} ${arm.title}`) },
    { title: "Requests", number: true, values: data.arms.map((arm) => data.ecdf[key][arm.name].n.toLocaleString("en-GB")) },
    ...QUANTILES.map((share) => ({
      title: `p${share * 100}`, number: true, values: data.arms.map((arm) => number(atShare(data.ecdf[key][arm.name], share))),
    })),
  ]);
}

// A click on a line opens the requests of its arm around that time.
function opensRequests(node, latency, drawn, requestClass) {
  const behind = node.parentElement.parentElement.dataset.behind;
  if (!behind || !node.on) return;
  node.removeAllListeners("plotly_click");
  node.on("plotly_click", ({ points: [{ curveNumber, x }] }) => {
    const arm = drawn[curveNumber]?.name; // the curve after those of the arms is the line of the SLO
    if (arm) location.assign(`${behind}?${new URLSearchParams({ arm, class: requestClass, latency, ms: x })}`);
  });
}

async function drawAll(data) {
  const hidden = hiddenArms();
  for (const node of document.querySelectorAll("[data-ecdf]")) {
    const key = node.dataset.ecdf;
    const drawn = data.arms.filter((arm) => data.ecdf[key][arm.name].n > 0);
    const note = node.querySelector(".chart-note");
    try {
      const lines = drawn.map((arm) => traceOf(arm, data.ecdf[key][arm.name], hidden.has(arm.name)));
      await draw(node, [...lines, ...sloOf(data.slo[`${key}_ms`])], {
        hovermode: "closest", height: 300,
        xaxis: { type: "log", title: { text: "ms" } }, yaxis: { range: [0, 101], ticksuffix: " %" },
      });
      note?.remove();
      opensRequests(node, key, drawn, data.class);
    } catch (error) {
      if (note) note.textContent = `${error.message}; the numbers are in the table.`;
    }
    const place = node.parentElement.querySelector(".chart-table");
    place.replaceChildren(quantileTable(node.previousElementSibling.textContent, data, key));
  }
}

function toggles(data) {
  const row = document.querySelector("[data-toggles]");
  row.hidden = false;
  row.replaceChildren(...data.arms.map((arm) => {
    const button = document.createElement("button");
    button.type = "button";
    button.className = "button button--small";
    button.textContent = `${arm.sign} ${arm.title}`;
    button.setAttribute("aria-pressed", String(!hiddenArms().has(arm.name)));
    button.addEventListener("click", () => {
      toggleArm(arm.name);
      button.setAttribute("aria-pressed", String(!hiddenArms().has(arm.name)));
      drawAll(data);
    });
    return button;
  }));
}

function offerCopying(root) {
  for (const button of root.querySelectorAll("[data-copy]")) {
    if (!navigator.clipboard) continue;
    button.hidden = false;
    button.addEventListener("click", async () => {
      await navigator.clipboard.writeText(document.getElementById(button.dataset.copy).textContent);
      button.parentElement.querySelector("[data-copied]").textContent = "copied";
    });
  }
}

// Modes in virtual time have no time scale. A disabled input is not sent and keeps its value for the other modes.
function followMode(mode, scale) {
  const follow = () => { scale.disabled = !("scalesTime" in mode.selectedOptions[0].dataset); };
  mode.addEventListener("change", follow);
  follow();
}

// KV usage or GPU use of one run: instance or GPU × seconds of the run, always from 0 to 100 %, so that maps of arms can be compared.
const virtual = (at) => `${Math.round(at).toLocaleString("en-GB")} s`;
const VIRTUAL = { tick: virtual, moment: virtual, steps: [10, 30, 60, 120, 300, 600, 1800, 3600, 7200, 86400] };
const ROWS_PX = 420;

function runMap(canvas, run) {
  const data = HeatData.of(run.bucket_s, run.instances.map((one) => [one.id, one.usage]));
  canvas.style.height = `${run.instances.length * Math.max(6, Math.min(18, ROWS_PX / run.instances.length)) + 20}px`;
  const output = canvas.parentElement.querySelector("[data-kv-read]");
  const map = new Heat(canvas, { most: run.instances.length, times: VIRTUAL, read: (text) => { output.textContent = text; } });
  map.update(data, run.instances.map(({ id }) => ({ id, status: "ended" })), 0, data.to);
  return map;
}

const source = document.getElementById("ecdf-data");
if (source) {
  const data = JSON.parse(source.textContent);
  toggles(data);
  drawAll(data);
  const parallel = document.getElementById("parallel");
  if (parallel) new Parallel(parallel, [...document.querySelectorAll("tr[data-title]")].slice(0, AXES), data.arms);
  document.addEventListener("weir:theme", () => drawAll(data));
}
for (const id of ["kv", "gpu"]) {
  const usage = document.getElementById(`${id}-data`);
  if (!usage) continue;
  const runs = JSON.parse(usage.textContent);
  const maps = [...document.querySelectorAll(`#${id} canvas[data-kv]`)].map((canvas, i) => runMap(canvas, runs[i]));
  document.addEventListener("weir:theme", () => maps.forEach((map) => map.draw()));
}
const mode = document.getElementById("f-mode");
if (mode) followMode(mode, document.getElementById("f-time_scale"));
offerCopying(document);
document.addEventListener("htmx:afterSwap", (event) => offerCopying(event.target));
document.querySelector("[data-focus]")?.focus();
