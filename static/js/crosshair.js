// The time under the pointer, shown by every chart of the page, with its values at that time.
const charts = new Set();
let asked = false;
let shown = null;

// chart: an object with {canvas, pointed(at)}; at: Unix s, or null
export function join(chart) { charts.add(chart); }

export function point(at, from) {
  shown = { at, from };
  if (asked) return;
  asked = true;
  requestAnimationFrame(() => {
    asked = false;
    for (const chart of charts) {
      if (!chart.canvas.isConnected) charts.delete(chart);
      else if (chart !== shown.from) chart.pointed(shown.at);
    }
  });
}
