// Sends the question, writes the answer as it arrives, and shows its receipt when it has ended.
import { count } from "./format.js";

const form = document.getElementById("ask");
const turns = document.getElementById("turns");
const failed = document.getElementById("failed");
const stop = document.getElementById("stop");
const beside = document.getElementById("receipt-beside");
const button = form.querySelector("[type=submit]");
const { prompt, history } = form.elements;
const LINES = "application/x-ndjson";
let asking = null;

function turn(role, text) {
  document.getElementById("no-turns")?.remove();
  const made = document.getElementById("turn").content.firstElementChild.cloneNode(true);
  made.className = `turn turn--${role}`;
  made.querySelector("h3").textContent = role === "user" ? "You" : "Answer";
  made.querySelector(".turn-text").textContent = text;
  turns.append(made);
  turns.scrollTop = turns.scrollHeight;
  return made;
}

function say(sentence) {
  failed.textContent = sentence;
  failed.hidden = !sentence;
}

const used = ({ prompt: asked, cached, output }) =>
  [[asked, "prompt tokens"], [cached, "of them cached"], [output, "written"]].filter(([n]) => n != null).map(([n, what]) => `${count(n)} ${what}`).join(", ");

// Each line of the answer as an object.
async function* lines(response) {
  const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
  let rest = "";
  for (;;) {
    const { done, value } = await reader.read();
    if (done) return;
    const found = (rest + value).split("\n");
    rest = found.pop();
    for (const line of found) yield JSON.parse(line);
  }
}

function write(made, text, isThought) {
  const last = made.lastPiece;
  if (last && last.isThought === isThought) last.node.append(text);
  else {
    const node = document.createElement("span");
    if (isThought) node.className = "turn-thought";
    node.append(text);
    made.querySelector(".turn-text").append(node);
    made.lastPiece = { node, isThought };
  }
  turns.scrollTop = turns.scrollHeight;
}

async function receive(response, made) {
  const answer = { text: "", request: "", failed: "" };
  for await (const said of lines(response)) {
    if (said.request) answer.request = said.request;
    if (said.text || said.thought) write(made, said.text ?? said.thought, !said.text);
    if (said.text) answer.text += said.text;
    if (said.usage) made.querySelector(".turn-use").textContent = used(said.usage);
    if (said.failed) answer.failed = said.failed;
  }
  return answer;
}

function ended(question, answer) {
  say(answer.failed);
  if (answer.request) globalThis.htmx?.ajax("GET", `/requests/${encodeURIComponent(answer.request)}/`, { target: beside, swap: "innerHTML" });
  if (answer.failed) { prompt.value ||= question; return; }
  const before = JSON.parse(history.value || "[]");
  history.value = JSON.stringify([...before, { role: "user", content: question }, { role: "assistant", content: answer.text }]);
}

async function ask() {
  const body = new FormData(form);
  const question = prompt.value;
  asking = new AbortController();
  say("");
  turn("user", question);
  const made = turn("assistant", "");
  prompt.value = "";
  try {
    const response = await fetch(form.action, { method: "POST", body, headers: { accept: LINES }, signal: asking.signal });
    if (response.redirected) throw new Error("You are signed out: sign in again in another tab, then ask again.");
    if (!(response.headers.get("content-type") ?? "").startsWith(LINES)) throw new Error(`The page was refused with ${response.status}: reload it, then ask again.`);
    ended(question, await receive(response, made));
  } catch (error) {
    ended(question, { failed: error.name === "AbortError" ? "Stopped." : error instanceof TypeError ? "The web process does not answer." : error.message });
  }
  asking = null;
  if (!made.querySelector(".turn-text").textContent) made.remove();
}

function show(busy) {
  turns.setAttribute("aria-busy", String(busy));
  button.disabled = busy;
  stop.hidden = !busy;
}

form.addEventListener("submit", (event) => {
  event.preventDefault();
  if (asking) return;
  show(true);
  ask().finally(() => { show(false); prompt.focus(); });
});
stop.addEventListener("click", () => asking?.abort());
prompt.addEventListener("keydown", (event) => {
  if (event.key === "Enter" && (event.ctrlKey || event.metaKey)) { event.preventDefault(); form.requestSubmit(); }
});
