// A click on a series in a legend shows it alone, another click shows all: figures of <button data-series> and of parts
// with the class of their series, or of lines on a canvas (live_chart.js).
document.addEventListener("click", ({ target }) => {
  const button = target.closest?.("button[data-series]");
  if (!button) return;
  const figure = button.closest("figure");
  const alone = button.getAttribute("aria-pressed") === "true" ? null : button.dataset.series;
  for (const each of figure.querySelectorAll("button[data-series]")) each.setAttribute("aria-pressed", String(each.dataset.series === alone));
  for (const part of figure.querySelectorAll("[data-part-of]")) part.classList.toggle("dimmed", alone != null && part.dataset.partOf !== alone);
  figure.dispatchEvent(new CustomEvent("weir:series", { detail: alone }));
});
