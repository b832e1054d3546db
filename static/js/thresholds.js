// Thresholds of a draft on recorded traffic: the classes of the newest requests, and the spread of other quantities.
import { table } from "./chart_table.js";
import { count } from "./format.js";
import { Plot, binned, logAxis, shareAxis, startOf, typed } from "./threshold_plot.js";

const CLASSES = ["warm", "medium", "heavy"];
const TINY = { tokens: 100, requests: 1, s: 0.01, ratio: 0.1 }; // below it an axis is nearly linear
const INPUTS = { heavy_new_tokens: "f-classes-heavy-new-tokens", warm_new_tokens: "f-classes-warm-new-tokens", warm_hit_share: "f-classes-warm-hit-share" };
const NAMES = { heavy_new_tokens: "heavy from", warm_new_tokens: "warm below", warm_hit_share: "warm above" };

const data = (figure) => JSON.parse(document.getElementById(figure.dataset.values).textContent);
const tell = (node, text) => { if (node.textContent !== text) node.textContent = text; };
const percent = (part, whole) => `${(part * 100 / whole).toFixed(1)} %`;

// The same as router/policy/rules/classify.py.
function classify([prompt, cached], at) {
  if (prompt - cached >= at.heavy_new_tokens) return "heavy";
  return cached > at.warm_hit_share * prompt || prompt - cached < at.warm_new_tokens ? "warm" : "medium";
}

// The same as controlplane/pages/receipts/class_shares.py.
function classSentence(before, after) {
  const share = (found, name) => percent(found.filter((one) => one === name).length, before.length);
  const parts = CLASSES.map((name) => {
    const [old, now] = [share(before, name), share(after, name)];
    return `${name} ${old === now ? now : `${old} → ${now}`}`;
  });
  const moved = after.filter((one, i) => one !== before[i]).length;
  const changes = moved ? `${count(moved)} of ${count(before.length)} requests change${moved === 1 ? "s" : ""} class` : "no request changes its class";
  return `${parts.join(", ")}: ${changes}.`;
}

// The same as controlplane/pages/receipts/spreads.py.
function spreadSentence({ values, live, unit }, draft) {
  const all = values.reduce((sum, [, n]) => sum + n, 0);
  const above = (limit) => percent(values.reduce((sum, [value, n]) => sum + (value > limit ? n : 0), 0), all);
  const number = (limit) => (Number.isInteger(limit) ? count(limit) : limit.toLocaleString("en-GB", { maximumSignificantDigits: 6 }));
  const text = (limit) => (["share", "ratio"].includes(unit) ? number(limit) : `${number(limit)} ${unit}`);
  const was = draft === live ? "" : `; live ${text(live)}: ${above(live)} above`;
  return `${above(draft)} above ${text(draft)}, of ${count(all)}${was}`;
}

// Draws now, and whenever an input changes.
function follow(inputs, figure, draw, columns) {
  const details = figure.querySelector("details");
  const tabulate = () => { if (details.open) figure.querySelector("[data-table]").replaceChildren(table(...columns())); };
  const both = () => { draw(); tabulate(); };
  details.addEventListener("toggle", tabulate);
  for (const input of inputs) for (const event of ["input", "change"]) input.addEventListener(event, both);
  draw();
}

const numbers = (title, values) => ({ title, number: true, values: values.map(String) });

function classes(figure) {
  const inputs = Object.fromEntries(Object.entries(INPUTS).map(([name, id]) => [name, document.getElementById(id)]));
  if (!Object.values(inputs).every(Boolean)) return;
  const { sizes, live } = data(figure);
  const line = (name, allowed) => ({ input: inputs[name], live: live[name], label: NAMES[name], allowed });
  const [heavy, warm] = [inputs.heavy_new_tokens, inputs.warm_new_tokens];
  const above = () => [typed(warm, live.warm_new_tokens) + Number(heavy.dataset.step), Infinity];
  const below = () => [-Infinity, typed(heavy, live.heavy_new_tokens) - Number(warm.dataset.step)];
  const newTokens = logAxis(Math.max(1000, ...sizes.map(([prompt]) => prompt)) * 1.3, 10);
  const plots = [
    [new Plot("New tokens", newTokens, [line("heavy_new_tokens", above), line("warm_new_tokens", below)], CLASSES, 186), ([prompt, cached]) => prompt - cached],
    [new Plot("Cached share of the prompt", shareAxis, [line("warm_hit_share")], CLASSES, 186), ([prompt, cached]) => (prompt ? cached / prompt : 0)],
  ];
  figure.querySelector("[data-plots]").append(...plots.map(([plot]) => plot.svg));
  const before = sizes.map((size) => classify(size, live));
  let bins = [];
  follow(Object.values(inputs), figure, () => {
    const at = Object.fromEntries(Object.entries(inputs).map(([name, input]) => [name, typed(input, live[name])]));
    const after = sizes.map((size) => classify(size, at));
    bins = plots.map(([plot, of]) => binned(plot.axis, sizes.map((size, i) => [of(size), after[i], 1])));
    plots.forEach(([plot], i) => plot.draw(bins[i]));
    tell(figure.querySelector("[data-sentence]"), classSentence(before, after));
  }, () => ["Requests by new tokens and class, under the draft", [
    numbers("New tokens from", bins[0].map((_, i) => newTokens.text(startOf(newTokens, i)))),
    ...CLASSES.map((name) => numbers(name, bins[0].map((bin) => bin[name] ?? 0))),
  ]]);
}

function spread(figure) {
  const recorded = data(figure);
  const { values, live, unit } = recorded;
  const input = document.getElementById(figure.dataset.input);
  const axis = unit === "share" ? shareAxis : logAxis(Math.max(live, typed(input, live), values.at(-1)[0]) * 1.3, TINY[unit]);
  const plot = new Plot("", axis, [{ input, live, label: "limit" }], ["below", "above"], 92);
  figure.querySelector("[data-plots]").append(plot.svg);
  let bins = [];
  follow([input], figure, () => {
    const limit = typed(input, live);
    bins = binned(axis, values.map(([value, n]) => [value, value > limit ? "above" : "below", n]));
    plot.draw(bins);
    tell(figure.querySelector("[data-sentence]"), spreadSentence(recorded, limit));
  }, () => [figure.querySelector("[data-what]").textContent, [
    numbers("From", bins.map((_, i) => axis.text(startOf(axis, i)))),
    numbers("Recorded", bins.map((bin) => (bin.below ?? 0) + (bin.above ?? 0))),
  ]]);
}

const figure = document.getElementById("class-shares");
if (figure) classes(figure);
for (const each of document.querySelectorAll(".spread[data-values]")) spread(each);
