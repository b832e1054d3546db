// The filters of Requests: a heading sorts, and times are in the selected zone on the page, in UTC in the address.
import { fieldTime, timeOfField } from "./times.js";

const form = document.getElementById("filters");
const zoned = [...form.querySelectorAll("[data-zoned]")];
let moments = zoned.map(({ value }) => (value ? Date.parse(`${value}Z`) / 1000 : null));

function show() {
  zoned.forEach((field, i) => { field.value = moments[i] == null ? "" : fieldTime(moments[i]); });
}

form.addEventListener("input", () => { moments = zoned.map(({ value }) => (value ? timeOfField(value) : null)); });
document.addEventListener("weir:zone", show);
show();

const utc = (seconds) => new Date(seconds * 1000).toISOString().replace(".000Z", "Z");
document.addEventListener("htmx:configRequest", (event) => {
  if (event.detail.elt !== form) return;
  const { parameters } = event.detail;
  zoned.forEach(({ name }, i) => { if (moments[i] != null) parameters[name] = utc(moments[i]); });
  for (const name of Object.keys(parameters)) if (parameters[name] === "") delete parameters[name];
});

document.addEventListener("click", (event) => {
  const heading = event.target.closest("button[form='filters'][name='sort']");
  if (!heading) return;
  event.preventDefault();
  const sort = document.getElementById("f-sort"); // form.elements.sort also contains the headings
  sort.value = sort.value === heading.value ? "" : heading.value;
  form.requestSubmit();
});
