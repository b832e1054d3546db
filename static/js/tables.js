// Tools of the tables inside [data-tools]: sort by a heading, filter the rows, and save what is shown as CSV or JSON.
// data-axis="columns": the headings of the rows sort the columns. Rows without data-main, where some have it, are shown on request.
const SCALES = { ms: 0.001, s: 1, min: 60, h: 3600, "%": 0.01, k: 1e3, M: 1e6 };

// The text of a cell, with blanks between neighbouring elements.
function textOf(cell) {
  const words = [];
  const walker = document.createTreeWalker(cell, NodeFilter.SHOW_TEXT);
  while (walker.nextNode()) words.push(walker.currentNode.textContent);
  return words.join(" ").replace(/\s+/g, " ").trim();
}

// Numbers are compared by size whatever their unit, times as instants, everything else as text.
function keyOf(cell) {
  const moment = cell.querySelector("time[datetime]");
  if (moment) return Date.parse(moment.dateTime);
  if (cell.dataset.value) return Number(cell.dataset.value);
  const text = textOf(cell);
  const found = /^v?([+−-]?[\d,]*\.?\d+)\s*(ms|s|min|h|%|k|M)?\b/.exec(text);
  return found ? Number(found[1].replaceAll(",", "").replace("−", "-")) * (SCALES[found[2]] ?? 1) : text.toLowerCase();
}

function compare(a, b) {
  if (typeof a === typeof b) return a < b ? -1 : Number(a > b);
  return typeof a === "number" ? -1 : 1; // a dash is sorted last
}

function csv(rows) {
  const quoted = (text) => (/[",\n]/.test(text) ? `"${text.replaceAll('"', '""')}"` : text);
  return rows.map((row) => row.map(quoted).join(",")).join("\r\n");
}

function save(name, type, content) {
  const link = document.createElement("a");
  link.href = URL.createObjectURL(new Blob([content], { type }));
  link.download = name;
  link.click();
  setTimeout(() => URL.revokeObjectURL(link.href), 1000);
}

class Tools {
  constructor(root) {
    this.root = root;
    this.sorted = null; // {table, place, down}: its number, and that of the column or row
    this.words = [];
    this.all = !root.querySelector("tr[data-main]");
    root.before(this.bar());
    document.addEventListener("htmx:afterSwap", (event) => { if (event.target === root || root.contains(event.target)) this.apply(); });
    this.apply();
  }

  bar() {
    const bar = document.createElement("div");
    bar.className = "row table-tools";
    const [field, label, input] = ["div", "label", "input"].map((tag) => document.createElement(tag));
    field.className = "field field--inline";
    input.id = label.htmlFor = `${this.root.dataset.tools}-filter`;
    input.type = "search";
    input.autocomplete = "off";
    label.textContent = "Filter";
    input.addEventListener("input", () => { this.words = input.value.toLowerCase().split(/\s+/).filter(Boolean); this.apply(); });
    field.append(label, input);
    this.found = document.createElement("span");
    this.found.className = "small muted";
    this.found.setAttribute("role", "status");
    const more = this.button(`All ${this.root.querySelectorAll("tbody tr").length} rows`, () => { this.all = true; more.remove(); this.apply(); });
    bar.append(field, this.found, ...(this.all ? [] : [more]), this.button("CSV as shown", () => this.save("csv", "text/csv", csv(this.shown()))), this.button("JSON as shown", () => this.save("json", "application/json", this.json())));
    return bar;
  }

  button(text, pressed) {
    const made = document.createElement("button");
    Object.assign(made, { type: "button", className: "button button--small", textContent: text });
    made.addEventListener("click", pressed);
    return made;
  }

  save(ending, type, content) { save(`${this.root.dataset.tools}.${ending}`, type, content); }

  get tables() { return [...this.root.querySelectorAll("table")]; }

  apply() {
    this.tables.forEach((table, number) => { this.offer(table, number); this.sort(table, number); });
    const rows = this.tables.flatMap((table) => [...table.tBodies].flatMap((body) => [...body.rows]));
    const every = this.all || this.words.length > 0;
    for (const row of rows) row.hidden = !(every || "main" in row.dataset) || !this.words.every((word) => row.textContent.toLowerCase().includes(word));
    const text = this.words.length ? `${rows.filter((row) => !row.hidden).length} of ${rows.length} rows` : "";
    if (this.found.textContent !== text) this.found.textContent = text;
  }

  headings(table) {
    return this.root.dataset.axis === "columns" ? [...table.tBodies[0].rows].map((row) => row.cells[0]) : [...table.tHead.rows[0].cells];
  }

  offer(table, number) {
    this.headings(table).forEach((heading, place) => {
      let button = heading.querySelector(".table-sort");
      if (!button && textOf(heading) && !heading.querySelector(".visually-hidden")) {
        button = this.button("", () => this.choose(number, place));
        button.className = "table-sort";
        button.append(...heading.childNodes);
        heading.append(button);
      }
      const on = this.sorted?.table === number && this.sorted.place === place;
      if (on) heading.setAttribute("aria-sort", this.sorted.down ? "descending" : "ascending");
      else heading.removeAttribute("aria-sort");
    });
  }

  choose(table, place) {
    const again = this.sorted?.table === table && this.sorted.place === place;
    this.sorted = again && this.sorted.down ? null : { table, place, down: again };
    this.apply();
  }

  // The order of the server, if nothing is chosen.
  sort(table, number) {
    const rows = [...table.tBodies[0].rows];
    rows.forEach((row, i) => { row.dataset.place ??= String(i); });
    const chosen = this.sorted?.table === number ? this.sorted : null;
    if (this.root.dataset.axis === "columns") { this.sortColumns([...table.tHead.rows, ...rows], chosen && rows.find((row) => row.dataset.place === String(chosen.place)), chosen); return; }
    const key = (row) => (chosen ? keyOf(row.cells[chosen.place]) : Number(row.dataset.place));
    this.order(rows, key, chosen).forEach((row) => table.tBodies[0].append(row));
  }

  sortColumns(rows, by, chosen) {
    for (const row of rows) [...row.cells].forEach((cell, i) => { cell.dataset.place ??= String(i); });
    const places = by ? this.order([...by.cells].slice(1), keyOf, chosen).map((cell) => cell.dataset.place) : null;
    for (const row of rows) {
      const place = (cell) => (places ? places.indexOf(cell.dataset.place) : Number(cell.dataset.place));
      row.append(...[...row.cells].slice(1).sort((a, b) => place(a) - place(b)));
    }
  }

  order(items, key, chosen) {
    const direction = chosen?.down ? -1 : 1;
    return items.map((item) => [key(item), item]).sort(([a], [b]) => direction * compare(a, b)).map(([, item]) => item);
  }

  // Headings and rows as shown.
  shown() {
    return this.tables.flatMap((table) => [...table.rows].filter((row) => !row.hidden).map((row) => [...row.cells].map(textOf)));
  }

  json() {
    return JSON.stringify(this.tables.flatMap((table) => {
      const titles = [...table.tHead.rows[0].cells].map(textOf);
      return [...table.tBodies[0].rows].filter((row) => !row.hidden).map((row) => Object.fromEntries([...row.cells].map((cell, i) => [titles[i], textOf(cell)])));
    }), null, 2);
  }
}

for (const root of document.querySelectorAll("[data-tools]")) if (root.querySelector("table")) new Tools(root);
