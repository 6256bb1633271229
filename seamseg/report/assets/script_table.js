// The table of classes: sorts by any column, filters by name and kind, and chooses the class of the pictures.

const classRows = [];

function classColumns() {
  const columns = [
    { title: "Class", value: (c) => c.name.toLowerCase(), cell: nameCell },
    { title: "Kind", value: (c) => (c.thing ? "thing" : "stuff"), cell: (c) => make("td", {}, c.thing ? "thing" : "stuff") },
  ];
  for (const key of ["PQ", "SQ", "RQ", "IoU", "AP"]) {
    if (!report.classes.some((c) => c[key])) continue;
    const values = (c) => c[key] || [];
    columns.push({ title: key, number: true, value: (c) => values(c)[0], cell: (c) => fractionCell(values(c)[0]) });
    if (paired) columns.push({ title: `Δ ${key}`, number: true, value: (c) => difference(values(c)), cell: (c) => changeCell(difference(values(c))) });
  }
  for (const [key, help] of [["TP", "segments found"], ["FP", "false predictions"], ["FN", "segments missed"]]) {
    columns.push({ title: key, help, number: true, count: true, value: (c) => c[key][0], cell: (c) => make("td.count", {}, count(c[key][0])) });
  }
  return columns;
}

function nameCell(c) {
  const press = () => chooseClass(report.classes.indexOf(c));
  const button = make("button.name", { type: "button", "aria-pressed": "false", title: `pictures with ${c.name}`, onclick: press }, c.name);
  return make("th", { scope: "row" }, swatch(css(c.color)), button);
}

function fractionCell(value) {
  if (!isNumber(value)) return make("td.none", {}, "–");
  return make("td.fraction", { "--part": `${100 * value}%` }, make("span", {}, percent(value)));
}

const changeCell = (value) => make("td", { class: `delta ${trend(value)}` }, signed(value));

function showTable() {
  const columns = classColumns();
  const heads = columns.map((column) => {
    const button = make("button", { type: "button", title: column.help || "sort" }, column.title);
    const head = make(column.count ? "th.count" : "th", { scope: "col", "aria-sort": "none" }, button);
    button.addEventListener("click", () => sortTable(columns, heads, heads.indexOf(head)));
    return head;
  });
  const body = make("tbody");
  for (const c of report.classes) {
    const row = make("tr", {}, ...columns.map((column) => column.cell(c)));
    classRows.push({ row, c });
    body.append(row);
  }
  byId("class-table").append(make("thead", {}, make("tr", {}, ...heads)), body);
  byId("class-filter").addEventListener("input", filterTable);
  byId("class-kind").addEventListener("change", filterTable);
  filterTable();
}

function sortTable(columns, heads, at) {
  const column = columns[at];
  const was = heads[at].getAttribute("aria-sort");
  // numbers begin with the largest, words with A
  const order = was === "none" ? (column.number ? "descending" : "ascending") : was === "ascending" ? "descending" : "ascending";
  heads.forEach((head, k) => head.setAttribute("aria-sort", k === at ? order : "none"));
  const sign = order === "ascending" ? 1 : -1;
  const missing = (value) => value === null || value === undefined;
  const sorted = [...classRows].sort((a, b) => {
    const [x, y] = [column.value(a.c), column.value(b.c)];
    if (missing(x) || missing(y)) return missing(x) - missing(y);
    return x < y ? -sign : x > y ? sign : 0;
  });
  byId("class-table").tBodies[0].append(...sorted.map(({ row }) => row));
}

function filterTable() {
  const word = byId("class-filter").value.trim().toLowerCase();
  const kind = byId("class-kind").value;
  let shown = 0;
  for (const { row, c } of classRows) {
    row.hidden = !(c.name.toLowerCase().includes(word) && (!kind || c.thing === (kind === "thing")));
    shown += !row.hidden;
  }
  byId("class-count").textContent = shown === classRows.length ? plural(shown, "class", "classes") : `${shown} of ${classRows.length} classes`;
}

/** Show which class the pictures are filtered by, -1 for none. */
function markClass(index) {
  classRows.forEach(({ row }, k) => row.querySelector(".name").setAttribute("aria-pressed", String(k === index)));
}
