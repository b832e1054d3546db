// Draws all charts with Plotly, loaded once, without uploads and inline code.
import { rem } from "./canvas.js";
import { colour } from "./theme_colours.js";

export { table } from "./chart_table.js";
export { colour, seriesColour } from "./theme_colours.js";

const CONFIG = {
  showSendToCloud: false, // the default button uploads the chart to Plotly's cloud
  plotlyServerURL: "",
  displaylogo: false,
  displayModeBar: false,
  responsive: true,
  doubleClick: "reset",
};

let loading = null;

// Plotly and its map library insert style sheets, which the content security policy forbids, unless the page has an
// element with their id.
const SHEETS = ["plotly.js-style-global", "9f215cf04c5486422605d13261cb87401f4e7763b6296af81e98efbc0130da53"];

function ownStyleSheet() {
  return Promise.all(SHEETS.filter((id) => !document.getElementById(id)).map((id, i) => {
    const link = document.createElement("link");
    link.id = id;
    link.className = "no-inline-styles";
    document.head.append(link);
    if (i > 0) return null;
    link.rel = "stylesheet";
    link.href = new URL("../css/chart.css", import.meta.url);
    return new Promise((resolve) => { link.onload = link.onerror = resolve; });
  }));
}

function plotlyScript() {
  return new Promise((resolve, reject) => {
    const script = document.createElement("script");
    script.src = new URL("../vendor/plotly.min.js", import.meta.url);
    script.onload = () => resolve(globalThis.Plotly);
    script.onerror = () => reject(new Error("the chart library could not be loaded"));
    document.head.append(script);
  });
}

export function plotly() {
  loading ??= ownStyleSheet().then(plotlyScript);
  return loading;
}

function axis(own) {
  return {
    color: colour("muted"), gridcolor: colour("rule"), linecolor: colour("rule"), zerolinecolor: colour("rule"),
    tickfont: { size: 11 * rem() }, automargin: true, fixedrange: false, ...own,
  };
}

export function layout(own = {}) {
  const { xaxis, yaxis, yaxis2, ...rest } = own;
  return {
    paper_bgcolor: "rgba(0,0,0,0)", plot_bgcolor: "rgba(0,0,0,0)",
    font: { family: "system-ui, sans-serif", size: 12 * rem(), color: colour("text") },
    margin: { l: 48 * rem(), r: 12, t: 8, b: 28 * rem() }, hovermode: "x unified", showlegend: true,
    legend: { orientation: "h", x: 0, y: 1.02, yanchor: "bottom", font: { size: 11 * rem() }, bgcolor: "rgba(0,0,0,0)" },
    hoverlabel: { bgcolor: colour("raised"), bordercolor: colour("control"), font: { color: colour("text"), size: 12 * rem() } },
    xaxis: axis(xaxis), yaxis: axis({ rangemode: "tozero", ...yaxis }), ...(yaxis2 ? { yaxis2: axis(yaxis2) } : {}), ...rest,
  };
}

// Draws or redraws. `config` may only add to the safe CONFIG: {staticPlot: true}.
export async function draw(node, traces, own = {}, config = {}) {
  const library = await plotly();
  if (!node.isConnected) return;
  await library.react(node, traces.map((trace) => ({ connectgaps: false, ...trace })), layout(own), { ...config, ...CONFIG });
  document.getElementById("js-plotly-tester")?.setAttribute("aria-hidden", "true"); // where it measures texts
}

export async function purge(node) {
  if (loading) (await loading).purge(node);
}
