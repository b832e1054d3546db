// Reads a frame for the Live page and the wall; `pool` is the selected one, or empty for all.

export function instanceRows(frame, pool) {
  const columns = frame.instances;
  const made = columns.id.map((_, i) => Object.fromEntries(Object.keys(columns).map((key) => [key, columns[key][i]])));
  return pool ? made.filter((row) => row.pool === pool) : made;
}

export function poolOfClasses(frame, pool) {
  if (pool) return pool;
  const names = Object.keys(frame.pools);
  return names.length === 1 ? names[0] : "*";
}

// Whether an event or an entry of attention is shown for this pool.
export const concerns = (pool) => (item) => !pool || !item.pools?.length || item.pools.includes(pool);

// The rows as they are `elapsed` seconds after their frame: without new samples, statuses age.
const AGEING = new Set(["ready", "saturated", "draining", "stale"]);
export function aged(rows, elapsed, staleS, offlineS) {
  return rows.map((row) => {
    const age = row.age_s == null ? null : row.age_s + elapsed;
    if (age == null || age <= staleS || !AGEING.has(row.status)) return row;
    return { ...row, age_s: age, status: age > offlineS ? "offline" : "stale" };
  });
}
