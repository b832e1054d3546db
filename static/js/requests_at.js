// From a point of a chart to the requests behind it.
const WINDOW_S = 60; // window of the percentiles
const utc = (seconds) => new Date(Math.round(seconds) * 1000).toISOString().replace(".000Z", "Z");

// The requests for which a point stands: those that ended in its window, that were under way in it, that arrived
// in its bin, or all that had ended.
export const ended = (at) => ({ ended_since: at - WINDOW_S, ended_until: at + 1 });
export const underWay = (at) => ({ until: at + 1, ended_since: at - WINDOW_S });
export const arrived = (at, seconds) => ({ since: at - seconds, until: at });
export const allEnded = (at) => ({ ended_until: at + 1 });

// filters: those of the page Requests, such as pool and class; those without a value are left out
export const opens = (filters, which) => (at) => {
  const wanted = Object.entries(filters()).filter(([, value]) => value);
  const times = Object.entries(which(at)).map(([name, seconds]) => [name, utc(seconds)]);
  location.assign(`/requests/?${new URLSearchParams([...wanted, ...times])}`);
};
