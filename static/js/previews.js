// The preview panel: scrolls into view at the start, keeps opened parts open, follows the draft, announces the result.
const SHOWN = "preview-state";
const fault = document.getElementById("preview-fault");
const said = document.getElementById("preview-said");
let folds = new Map();
let cancelled = false;
let starting = false;

// The draft has a new revision; the panel may show an earlier one.
function followDraft() {
  if (starting) return;
  const etag = document.querySelector("#draft-hidden [name=etag]").value;
  const panel = document.getElementById(SHOWN);
  if (panel.dataset.draft !== etag) htmx.trigger(panel, "refresh");
}

function isOurs(event) {
  return event.detail.target?.id === SHOWN;
}

// The panel reports failed refreshes (panels.js).
const pressed = (event) => isOurs(event) && event.detail.requestConfig.verb === "post";

function showProblem(text) {
  fault.textContent = text;
  fault.hidden = !text;
}

function remember() {
  const panel = document.getElementById(SHOWN);
  folds = new Map([...panel.querySelectorAll("details[id]")].map((each) => [each.id, each.open]));
  cancelled = document.activeElement?.id === "preview-cancel";
}

function restore() {
  const panel = document.getElementById(SHOWN);
  for (const [id, open] of folds) {
    const again = document.getElementById(id);
    if (again) again.open = open;
  }
  // The focused button disappeared with the running preview: move the focus to the result.
  if (cancelled && !document.getElementById("preview-cancel")) document.getElementById("preview-title").focus();
  if (said.textContent !== panel.dataset.said) said.textContent = panel.dataset.said;
}

function started(event) {
  if (event.target.id !== "preview-start") return;
  starting = true;
  const calm = matchMedia("(prefers-reduced-motion: reduce)").matches;
  document.getElementById("preview").scrollIntoView({ behavior: calm ? "instant" : "smooth", block: "start" });
}

// Otherwise htmx would send the autosave of the form to the URL of the last pressed button.
if (window.htmx) document.getElementById("preview-start")?.removeAttribute("formaction");
document.body.addEventListener("htmx:beforeRequest", started);
document.body.addEventListener("htmx:afterRequest", (event) => {
  if (event.target.id !== "preview-start") return;
  starting = false;
  followDraft();
});
document.body.addEventListener("htmx:beforeSwap", (event) => {
  if (!isOurs(event)) return;
  // A refresh that ends while a preview is started would replace the panel that receives the answer.
  if (starting && event.detail.requestConfig.verb === "get") event.detail.shouldSwap = false;
  else remember();
});
document.body.addEventListener("htmx:afterSettle", (event) => {
  if (event.target.id === "draft-state") followDraft();
  if (event.target.id !== SHOWN) return;
  showProblem("");
  restore();
});
document.body.addEventListener("htmx:sendError", (event) => {
  if (pressed(event)) showProblem("The server does not answer; nothing was started.");
});
document.body.addEventListener("htmx:responseError", (event) => {
  if (pressed(event)) showProblem(`The server answered with the error ${event.detail.xhr.status}; nothing was started.`);
});
