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
