// The form of a custom range: times in the selected zone become Unix seconds in the URL.
import { dateAndClock, zone, zoneName } from "./times.js";

const LONGEST_S = 6 * 3600;

// "2026-11-22T14:02:10" of the field, as the selected zone means it.
const seconds = (text) => new Date(zone() ? `${text}Z` : text).getTime() / 1000;

function fieldValue(at) {
  const shift = zone() ? 0 : new Date(at * 1000).getTimezoneOffset() * 60;
  return new Date((at - shift) * 1000).toISOString().slice(0, 19);
}

export function customRange(form, bounds) {
  const [from, to] = [form.querySelector("#custom-from"), form.querySelector("#custom-to")];
  const hint = form.querySelector("#custom-hint");
  form.parentElement.addEventListener("toggle", () => {
    [from.value, to.value] = bounds().map(fieldValue);
    hint.textContent = `In ${zoneName()}, since ${dateAndClock(Date.now() / 1000 - LONGEST_S)}.`;
  });
  form.addEventListener("submit", (event) => {
    const [begin, end] = [seconds(from.value), seconds(to.value)];
    to.setCustomValidity(end - begin < 60 ? "The range must be at least a minute long." : "");
    if (!form.reportValidity()) { event.preventDefault(); return; }
    form.elements.from.value = String(Math.floor(begin));
    form.elements.to.value = String(Math.ceil(end));
  });
  for (const field of [from, to]) field.addEventListener("input", () => to.setCustomValidity(""));
}
