// Runs before the first paint (a classic script in <head>). Theme: from the URL, else the saved choice, else the system's.
(() => {
  const asked = new URLSearchParams(location.search).get("theme");
  let kept = null;
  try { kept = localStorage.getItem("weir-theme"); } catch { /* storage is switched off */ }
  const theme = ["dark", "light"].includes(asked) ? asked : kept;
  if (["dark", "light"].includes(theme)) document.documentElement.dataset.theme = theme;
})();
