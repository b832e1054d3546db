// The charts of a delivery: both arms of each comparison over its looks, with the guard's limit.
import { UNKNOWN, ms, significant } from "./format.js";
import { Chart } from "./live_chart.js";
import { opens } from "./requests_at.js";

const EVERY_MS = 5000; // as often as the judge looks
const LEAST_S = 60; // the shortest axis
const share = (value) => (value == null ? UNKNOWN : `${significant(value)} %`);
const root = document.getElementById("delivery-charts");

function quantityOf({ metric }) {
  const { candidate, control } = root.dataset;
  return {
    write: metric === "slow" ? share : ms,
    lines: (columns) => [
      { name: candidate, values: columns?.candidate ?? [], pale: columns?.few ?? [], ink: 0, dash: [], band: columns && [columns.lower, columns.upper] },
      { name: control, values: columns?.control ?? [], pale: columns?.few ?? [], ink: 1, dash: [7, 5] },
      { name: "limit", values: columns?.limit ?? [], ink: "failed", dash: [2, 3] },
    ],
  };
}

// The requests of both arms that a look had seen
function opensLook({ metric, chart }) {
  return opens(() => ({ delivery: root.dataset.delivery, class: chart.slice(metric.length + 1), sort: metric === "tpot" ? "tpot" : "ttft" }), null);
}

const figures = root ? [...root.querySelectorAll("[data-chart]")] : [];
const charts = figures.map((figure) => new Chart(figure, figure.querySelector("figcaption").textContent.trim(), quantityOf(figure.dataset), null, opensLook(figure.dataset)));
let waits = 0;

async function ask() {
  const answer = await fetch(root.dataset.href).catch(() => null);
  if (!answer?.ok || answer.redirected) return;
  const { at, until, series, events } = await answer.json();
  root.hidden = !at.length;
  const from = Math.min(at[0] ?? until, until - LEAST_S);
  for (const chart of charts) chart.update(at, series[chart.key], events, from, until);
}

async function again() {
  clearTimeout(waits);
  if (!document.hidden) await ask();
  if (root.dataset.open) waits = setTimeout(again, EVERY_MS);
}

if (charts.length) {
  for (const kind of ["weir:theme", "weir:zone", "visibilitychange"]) document.addEventListener(kind, again);
  again();
}
