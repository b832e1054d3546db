// From a point of a chart to the requests behind it: those that arrived in the window that ends there, slowest first.
const WINDOW_S = 60;
const utc = (seconds) => new Date(Math.round(seconds) * 1000).toISOString().replace(".000Z", "Z");

// filters: of the page Requests, such as pool and class; those without a value are left out. windowS: null for all before
export function requestsAt(at, filters, windowS = WINDOW_S) {
  const wanted = { ...filters, since: windowS && utc(at - windowS), until: utc(at + 1) };
  return `/requests/?${new URLSearchParams(Object.entries(wanted).filter(([, value]) => value))}`;
}

export const opens = (filters, windowS) => (at) => location.assign(requestsAt(at, filters(), windowS));
