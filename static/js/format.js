// Number format of all pages: three significant digits, a unit, "–" for unknown (never 0), nouns with their number.
// controlplane/live/dashboard/templatetags/figures.py and fleet/counted.py write the same.
export const UNKNOWN = "–";

const whole = new Intl.NumberFormat("en-GB", { maximumFractionDigits: 0 });

// `limit`: a value beside it, from which further digits distinguish it.
export function significant(value, limit = null) {
  if (value == null) return UNKNOWN;
  if (value === 0) return "0";
  const least = Math.min(3, Math.max(0, 2 - Math.floor(Math.log10(Math.abs(value)))));
  const apart = (digits) => Number(value.toFixed(digits)) !== Number(limit.toFixed(digits));
  const digits = limit == null || limit === value ? least : [0, 1, 2, 3].map((more) => least + more).find(apart) ?? least;
  return digits === 0 ? whole.format(value) : value.toFixed(digits).replace(/\.?0+$/, "");
}

export const count = (value) => (value == null ? UNKNOWN : whole.format(value));
export const counted = (number, noun) => `${count(number)} ${noun}${number === 1 ? "" : "s"}`;
export const percent = (share) => (share == null ? UNKNOWN : `${Math.round(share * 100)} %`);
export const watts = (value) => (value == null ? UNKNOWN : value < 1000 ? `${significant(value)} W` : `${significant(value / 1000)} kW`);
// Of the instances that report GPUs, which share is simulated.
export const simulated = (share) => (!share ? "" : Number(share) === 1 ? "simulated" : "partly simulated");
export const rate = (value) => (value == null ? UNKNOWN : `${significant(value)} req/s`);

export function ms(value, limit = null) {
  if (value == null) return UNKNOWN;
  const [scale, unit] = value < 1000 ? [1, "ms"] : [1000, "s"];
  return `${significant(value / scale, limit == null ? null : limit / scale)} ${unit}`;
}

// Decimal, as links and disks are rated: 1.2 GB/s.
export function bytesPerSecond(value) {
  if (value == null) return UNKNOWN;
  const units = ["B/s", "kB/s", "MB/s", "GB/s", "TB/s"];
  const step = value < 1 ? 0 : Math.min(units.length - 1, Math.floor(Math.log10(value) / 3));
  return `${significant(value / 1000 ** step)} ${units[step]}`;
}

// 4:10, 1:04:10, as controlplane/traffic/deliveries/timing/durations.py writes it.
export function countdown(seconds) {
  const left = Math.max(0, Math.round(seconds));
  const two = (number) => String(number).padStart(2, "0");
  const [hours, minutes] = [Math.floor(left / 3600), Math.floor(left / 60) % 60];
  return hours ? `${hours}:${two(minutes)}:${two(left % 60)}` : `${minutes}:${two(left % 60)}`;
}
