// The pictures of a system: lines, bars and stacked bars from the answer that the page carries.
import { draw, seriesColour } from "./chart.js";

const DASHES = ["solid", "dash", "dot", "dashdot", "longdash", "longdashdot"];
const MARKERS = ["circle", "square", "diamond", "triangle-up", "cross", "x"];

function named(axis) {
  return axis.unit ? `${axis.title}, ${axis.unit}` : axis.title;
}

function traceOf(chart, series, index) {
  const colour = seriesColour(index);
  const common = { name: series.name, x: series.x, y: series.y, hovertemplate: `${series.name}: %{y:,.3~s} ${chart.y.unit}<extra></extra>` };
  if (chart.kind !== "line") return { ...common, type: "bar", marker: { color: colour } };
  const few = series.x.length <= 24;
  return {
    ...common, type: "scatter", mode: few && !series.dashed ? "lines+markers" : "lines",
    line: { color: colour, width: 2, dash: series.dashed ? "dash" : DASHES[index % DASHES.length] },
    marker: { color: colour, symbol: MARKERS[index % MARKERS.length], size: 6 },
  };
}

function axisOf(axis, texts) {
  return { title: { text: named(axis) }, type: axis.log ? "log" : texts ? "category" : "linear" };
}

async function drawOne(node, chart) {
  const note = node.querySelector(".chart-note");
  const texts = chart.series.some((series) => series.x.some((x) => typeof x === "string"));
  try {
    await draw(node, chart.series.map((series, index) => traceOf(chart, series, index)), {
      height: 320, barmode: chart.kind === "stacked" ? "stack" : "group", margin: { l: 56, r: 12, t: 8, b: 44 },
      xaxis: axisOf(chart.x, texts), yaxis: axisOf(chart.y, false), showlegend: chart.series.length > 1,
    });
    note?.remove();
  } catch (error) {
    if (note) note.textContent = `${error.message}; the numbers are in the table.`;
  }
}

const source = document.getElementById("system-charts");
if (source) {
  const charts = JSON.parse(source.textContent);
  const drawAll = () => document.querySelectorAll("[data-chart]").forEach((node) => drawOne(node, charts[Number(node.dataset.chart)]));
  drawAll();
  document.addEventListener("weir:theme", drawAll);
}
