// The charts of a delivery over its looks: the difference of each comparison with its interval and limits, the candidate's
// share, and the levels of both arms.
import { UNKNOWN, ms, significant } from "./format.js";
import { Chart } from "./live_chart.js";
import { allEnded, opens } from "./requests_at.js";

const EVERY_MS = 5000; // as often as the judge looks
const LEAST_S = 60; // the shortest axis
const DIFFERENCE = "difference-";
const share = (value) => (value == null ? UNKNOWN : `${significant(value)} %`);
const times = (value) => (value == null ? UNKNOWN : `${value.toFixed(2)}×`);
const points = (value) => (value == null ? UNKNOWN : `${value > 0 ? "+" : ""}${significant(value).replace("-", "−")} points`);
const root = document.getElementById("delivery-charts");

function levels(metric) {
  const { candidate, control } = root.dataset;
  return {
    write: metric === "slow" ? share : ms, counted: true,
    lines: (columns) => [
      { name: candidate, values: columns?.candidate ?? [], pale: columns?.few ?? [], ink: 0, dash: [], band: columns && [columns.lower, columns.upper] },
      { name: control, values: columns?.control ?? [], pale: columns?.few ?? [], ink: 1, dash: [7, 5] },
      { name: "limit", values: columns?.limit ?? [], ink: "failed", dash: [2, 3] },
    ],
  };
}

// An unknown end of the interval is drawn beyond the axis.
const open = (values, ends, beyond) => values.map((value, i) => (value == null ? null : ends[i] ?? beyond));

function difference(metric) {
  const isRatio = metric !== "slow";
  return {
    write: isRatio ? times : points, counted: true, log: isRatio, same: isRatio ? 1 : 0,
    lines: (columns) => {
      const values = columns?.difference ?? [];
      const band = columns && [open(values, columns.from, -Infinity), open(values, columns.to, Infinity)];
      const lines = [
        { name: "difference", values, pale: columns?.few ?? [], ink: 0, dash: [], band },
        { name: "fails above", values: columns?.worse ?? [], ink: "failed", dash: [2, 3] },
      ];
      if (columns?.enough?.some((value) => value != null)) lines.push({ name: "enough below", values: columns.enough, ink: 2, dash: [7, 5] });
      return lines;
    },
  };
}

const exposure = {
  write: share, counted: true,
  lines: (columns) => [
    { name: "of the requests", values: columns?.actual ?? [], ink: 0, dash: [] },
    { name: "assigned", values: columns?.assigned ?? [], ink: 1, dash: [7, 5] },
  ],
};

function quantityOf({ chart, metric }) {
  if (chart === "exposure") return exposure;
  return chart.startsWith(DIFFERENCE) ? difference(metric) : levels(metric);
}

// The requests of both arms that a look has counted
function opensLook({ metric, chart }) {
  const classes = chart === "exposure" ? "" : chart.replace(DIFFERENCE, "").slice(metric.length + 1);
  return opens(() => ({ delivery: root.dataset.delivery, class: classes, sort: metric === "tpot" ? "tpot" : "ttft" }), allEnded);
}

const figures = root ? [...root.querySelectorAll("[data-chart]")] : [];
const charts = figures.map((figure) => new Chart(figure, figure.querySelector("figcaption").textContent.trim(), quantityOf(figure.dataset), null, opensLook(figure.dataset)));
let waits = 0;

async function ask() {
  const answer = await fetch(root.dataset.href).catch(() => null);
  if (!answer?.ok || answer.redirected) return;
  const { at, until, series, exposure: shares, events } = await answer.json();
  root.hidden = !at.length;
  const from = Math.min(at[0] ?? until, until - LEAST_S);
  for (const chart of charts) chart.update(at, chart.key === "exposure" ? shares : series[chart.key.replace(DIFFERENCE, "")], events, from, until);
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
