// The state of the wall in one sentence, to be read from across the room: what is wrong first, or that nothing is.
import { concerns } from "./live_frame.js";
import { settings } from "./live_settings.js";
import { clock } from "./times.js";

const LEVELS = { 3: "trouble", 2: "look" }; // by severity of the worst entry of attention
const MOST = 90; // characters of a cause
const LED = /^[a-z ]{1,20}: /; // by the word of a state: "failed: …" goes on a name

// The cause without figures in brackets, what follows from it, the request by which it was noticed, and the log of what
// was killed.
export function brief(reason) {
  const cause = reason.replaceAll(/ \([^)]*\)/g, "").replace(/( was killed by .*?): its log ends with: .*/, "$1").split(/; |: (?:GET|POST) /)[0];
  return cause.length > MOST ? `${cause.slice(0, MOST - 1).trimEnd()}…` : cause;
}

// `seconds`: the age of the picture; null: there is none. `missed`: classes that miss their SLO in it; attention lists only misses that last.
export function wallState(frame, pool, seconds, missed = []) {
  if (!frame) return { level: "unknown", text: "Not known yet" };
  if (seconds > settings.frameOldS) return { level: "unknown", text: `Not known since ${clock(frame.at)}` };
  if (Object.keys(frame.pools).length === 0) return { level: "unknown", text: "No pool is declared" };
  const items = frame.attention.filter(concerns(pool));
  const [worst] = items;
  const level = LEVELS[worst?.severity];
  if (!level && missed.length) return { level: "look", text: `${missed.join(" and ")} requests miss their SLO` };
  if (!level) return { level: "well", text: frame.health.owed?.length ? "Nothing is wrong; not everybody has reported yet" : "All is well" };
  const others = items.filter((item) => item.severity > 1).length - 1;
  const joint = LED.test(worst.reason) ? " " : ": ";
  return { level, text: `${worst.subject}${joint}${brief(worst.reason)}${others ? `, and ${others} more` : ""}` };
}
