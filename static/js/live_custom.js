// The form of a custom range: times in the selected zone become Unix seconds in the URL.
import { dateAndClock, fieldTime, timeOfField, zoneName } from "./times.js";

const LONGEST_S = 6 * 3600;

export function customRange(form, bounds) {
  const [from, to] = [form.querySelector("#custom-from"), form.querySelector("#custom-to")];
  const hint = form.querySelector("#custom-hint");
  form.parentElement.addEventListener("toggle", () => {
    [from.value, to.value] = bounds().map(fieldTime);
    hint.textContent = `In ${zoneName()}, since ${dateAndClock(Date.now() / 1000 - LONGEST_S)}.`;
  });
  form.addEventListener("submit", (event) => {
    const [begin, end] = [timeOfField(from.value), timeOfField(to.value)];
    to.setCustomValidity(end - begin < 60 ? "The range must be at least a minute long." : "");
    if (!form.reportValidity()) { event.preventDefault(); return; }
    form.elements.from.value = String(Math.floor(begin));
    form.elements.to.value = String(Math.ceil(end));
  });
  for (const field of [from, to]) field.addEventListener("input", () => to.setCustomValidity(""));
}
