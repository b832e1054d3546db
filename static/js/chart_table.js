// The numbers of a chart as a table, for "view as table". columns: [{title, number, values: [text]}]
export function table(caption, columns) {
  const made = document.createElement("table");
  made.className = "table";
  made.createCaption().textContent = caption;
  const head = made.createTHead().insertRow();
  for (const column of columns) {
    const cell = document.createElement("th");
    cell.scope = "col";
    cell.textContent = column.title;
    if (column.number) cell.className = "number";
    head.append(cell);
  }
  const body = made.createTBody();
  for (let i = 0; i < (columns[0]?.values.length ?? 0); i++) {
    const row = body.insertRow();
    for (const column of columns) {
      const cell = row.insertCell();
      cell.textContent = column.values[i];
      if (column.number) cell.className = "number";
    }
  }
  return made;
}
