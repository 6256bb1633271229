// Summary of all images: table of classes, histograms, confusion matrix.

// The table of classes sorts by any column and filters by name and kind; its buttons filter the images by class.

const classRows = [];

const KIND = { title: "Kind", value: (c) => (c.thing ? "thing" : "stuff"), cell: (c) => make("td", {}, c.thing ? "thing" : "stuff") };

function classColumns() {
  const columns = [
    { title: "Class", value: (c) => c.name.toLowerCase(), cell: nameCell },
    ...(scored ? [KIND] : []),
  ];
  for (const key of ["PQ", "SQ", "RQ", "IoU", "AP"]) {
    if (!report.classes.some((c) => c[key])) continue;
    const values = (c) => c[key] || [];
    columns.push({ title: key, number: true, value: (c) => values(c)[0], cell: (c) => fractionCell(values(c)[0]) });
    if (paired) columns.push({ title: `Δ ${key}`, number: true, value: (c) => difference(values(c)), cell: (c) => changeCell(difference(values(c))) });
  }
  const outcomes = [["TP", "matched segments"], ["FP", "false positives"], ["FN", "missed segments"]];
  for (const [key, help] of scored ? outcomes : [["Images", "images with the class"], ["Found", "in all images"]]) {
    columns.push({ title: key, help, number: true, count: true, value: (c) => c[key][0], cell: (c) => make("td.count", {}, count(c[key][0])) });
  }
  return columns;
}

function nameCell(c) {
  const press = () => selectClass(report.classes.indexOf(c));
  const button = make("button.name", { type: "button", "aria-pressed": "false", title: `show images with ${c.name}`, onclick: press }, c.name);
  return make("th", { scope: "row" }, swatch(css(c.color)), button);
}

function fractionCell(value) {
  if (!isNumber(value)) return make("td.none", {}, "–");
  return make("td.fraction", { "--part": `${100 * value}%` }, make("span", {}, percent(value)));
}

const changeCell = (value) => make("td", { class: `delta ${trend(value)}` }, signed(value));

function initTable() {
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
  // first click: numbers descending, text ascending
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

/** Mark the class by which the images are filtered, -1 for none. */
function markSelectedClass(index) {
  classRows.forEach(({ row }, k) => row.querySelector(".name").setAttribute("aria-pressed", String(k === index)));
}

// Histograms as SVG: stacked bars with lines on top.

const CHART = { width: 420, height: 220, left: 40, right: 10, top: 8, bottom: 34 };

/**
 * Create a chart. `series`: [{name, style, values}], stacked; `lines`: [{name, style, values}] as fractions of the
 * height, with `counts` if they represent counts; `ticks`: [[bin edge, text]]; `label(k)`: text of a bin; `highest`:
 * lower bound of the top of the axis; `of`: a name to add to the title.
 */
function chart({ title, of = null, note, axis, series, lines = [], ticks, label, highest = 1 }) {
  const bins = series[0].values.length;
  const totals = Array.from({ length: bins }, (_, k) => (series.every((s) => s.values[k] === null) ? null : series.reduce((sum, s) => sum + s.values[k], 0)));
  highest = Math.max(highest, ...totals);
  const wide = (CHART.width - CHART.left - CHART.right) / Math.max(1, bins);
  const high = CHART.height - CHART.top - CHART.bottom;
  const ground = CHART.top + high;
  const svg = draw("svg", { viewBox: `0 0 ${CHART.width} ${CHART.height}`, role: "img", "aria-label": `${title}. ${totals.map((t, k) => `${label(k)}: ${t ?? "–"}`).join("; ")}` });
  for (const part of [0, 0.5, 1]) {
    const y = ground - part * high;
    svg.append(draw("line", { class: "axis", x1: CHART.left, x2: CHART.width - CHART.right, y1: y, y2: y }));
    if (part !== 0.5 || Number.isInteger(highest * part)) svg.append(draw("text", { x: CHART.left - 6, y: y + 4, "text-anchor": "end" }, count(highest * part)));
  }
  for (let k = 0; k < bins; k++) {
    let y = ground;
    const shares = [...series.map((s) => [s.name, count(s.values[k])]), ...lines.map((l) => [l.name, l.counts ? count(l.counts[k]) : `${percent(l.values[k])} %`])];
    for (const s of series) {
      const size = (s.values[k] / highest) * high;
      if (!(size > 0)) continue;
      y -= size;
      const bar = draw("rect", { class: s.style, x: CHART.left + k * wide + 1, y, width: Math.max(1, wide - 2), height: size, rx: 1.5 });
      bar.addEventListener("pointermove", (event) => showTooltip(event, make("div", {}, label(k)), ...shares.map(([name, text]) => make("div", {}, named(name), `: ${text}`))));
      bar.addEventListener("pointerleave", hideTooltip);
      svg.append(bar);
    }
  }
  for (const { style, values } of lines) {
    const points = values.map((value, k) => (isNumber(value) ? `${CHART.left + (k + 0.5) * wide},${ground - value * high}` : null)).filter(Boolean);
    svg.append(draw("polyline", { class: style, points: points.join(" ") }));
    if (points.length === 1) svg.append(draw("circle", { class: style, cx: points[0].split(",")[0], cy: points[0].split(",")[1], r: 4 }));
  }
  for (const [edge, text] of ticks) svg.append(draw("text", { x: CHART.left + edge * wide, y: ground + 15, "text-anchor": "middle" }, text));
  svg.append(draw("text", { x: (CHART.left + CHART.width - CHART.right) / 2, y: CHART.height - 2, "text-anchor": "middle" }, axis));
  const keys = [...series, ...lines].map((s) => make("li", {}, legendSwatch(s), named(s.name)));
  return make("figure.chart", {}, make("h3", {}, title, ...(of ? [": ", named(of)] : [])), make("ul.key", {}, ...keys), svg, note ? make("p.hint", {}, note) : null);
}

function legendSwatch({ style }) {
  const fills = { "fill-accent": "accent", "fill-right": "right", "fill-missed": "missed", "fill-false": "false" };
  return make("i", { "--swatch": `var(--${fills[style] || (style === "line-other" ? "soft" : "ink")})` });
}

const fractionTicks = [[0, "0"], [5, "25"], [10, "50"], [15, "75"], [20, "100"]];
const fractionLabel = (k) => `${5 * k} to ${5 * (k + 1)} %`;

function initCharts() {
  const [first, other] = report.histograms;
  const recall = (h) => h.area_matched.map((n, k) => (n + h.area_missed[k] ? n / (n + h.area_missed[k]) : null));
  const scored = first.score_matched.some(Boolean) || first.score_false.some(Boolean);
  const highest = Math.max(1, ...first.pq, ...(paired ? other.pq : []));
  const charts = [
    chart({
      title: "Images by PQ", axis: "PQ of the image in percent", ticks: fractionTicks, label: fractionLabel,
      series: [{ name: paired ? report.titles[0] : "images", style: "fill-accent", values: first.pq }],
      lines: paired ? [{ name: report.titles[1], style: "line-other", values: other.pq.map((n) => n / highest), counts: other.pq }] : [],
      highest,
    }),
    chart({
      title: "Segments by area", axis: "area of the segment in pixels", label: (k) => `${count(2 ** (first.area_from + k))} to ${count(2 ** (first.area_from + k + 1))} pixels`,
      ticks: first.area_matched.map((_, k) => [k, 2 ** (first.area_from + k)]).filter(([k]) => k % 3 === 0).map(([k, n]) => [k, n >= 1048576 ? `${n / 1048576}M` : n >= 1024 ? `${n / 1024}k` : n]),
      series: [{ name: "matched", style: "fill-right", values: first.area_matched }, { name: "missed", style: "fill-missed", values: first.area_missed }],
      lines: [{ name: "recall", style: "line-ink", values: recall(first) },
        ...(paired && other.area_from === first.area_from && other.area_matched.length === first.area_matched.length ? [{ name: `recall of ${report.titles[1]}`, style: "line-other", values: recall(other) }] : [])],
    }),
  ];
  if (scored) {
    charts.push(chart({
      title: "Predictions by score", axis: "score in percent", ticks: fractionTicks, label: fractionLabel,
      note: first.unscored ? `${plural(first.unscored, "prediction")} without a score are not shown.` : "",
      series: [{ name: "matched", style: "fill-right", values: first.score_matched }, { name: "false positive", style: "fill-false", values: first.score_false }],
    }));
  } else {
    charts.push(make("figure.chart", {}, make("h3", {}, "Predictions by score"), make("p.hint", {}, "The predictions have no scores.")));
  }
  byId("charts").append(...charts);
}

// The training, if the run has its numbers: a line for each run, loss and PQ by epoch.

function trainingLine(run) {
  const clock = [Math.floor(run.seconds / 3600), Math.floor(run.seconds / 60) % 60, Math.floor(run.seconds % 60)];
  const parts = [plural(run.epochs.length, "epoch"), plural(run.steps, "step"), `${clock.map((n, k) => (k ? String(n).padStart(2, "0") : n)).join(":")} with validations`];
  if (isNumber(run.images_per_second)) parts.push(`${run.images_per_second.toFixed(1)} images/s`);
  if (isNumber(run.memory_gib)) parts.push(`peak memory ${run.memory_gib.toFixed(1)} GiB`);
  return parts.join(" · ");
}

/** Three digits of a number; null stays. */
const rounded = (value) => (isNumber(value) ? Number(value.toPrecision(3)) : null);

/** The next number above with one digit, as the top of an axis. */
function axisTop(value) {
  const unit = 10 ** Math.floor(Math.log10(value > 0 ? value : 1));
  return rounded(Math.ceil((value > 0 ? value : 1) / unit) * unit);
}

function initTraining() {
  const runs = report.training.map((run, k) => ({ run, title: report.titles[k] })).filter(({ run }) => run);
  if (!runs.length) return;
  document.querySelectorAll('[href="#training"], [aria-labelledby="training"]').forEach((element) => { element.hidden = false; });
  byId("training-lines").append(...runs.map(({ run, title }) => make("p.hint", {}, ...(paired ? [named(title), ": "] : []), trainingLine(run))));
  const highest = axisTop(Math.max(...runs.flatMap(({ run }) => run.loss.filter(isNumber)), 0));
  for (const { run, title } of runs) {
    const step = Math.ceil(run.epochs.length / 8);
    const validated = run.PQ.some(isNumber);
    byId("training-charts").append(chart({
      title: validated ? "Loss and PQ" : "Loss", of: paired ? title : null, axis: "epoch", label: (k) => `epoch ${run.epochs[k]}`,
      ticks: run.epochs.map((epoch, k) => [k + 0.5, epoch]).filter((_, k) => (k + 1) % step === 0),
      series: [{ name: "mean loss", style: "fill-accent", values: run.loss.map(rounded) }],
      lines: validated ? [{ name: "PQ of validations, 0 to 100 %", style: "line-ink", values: run.PQ }] : [],
      highest,
    }));
  }
}

// The confusion matrix on a canvas: rows are normalised; the pointer or the arrow keys select a cell and show its count.

const matrix = { shown: [], cell: 0, left: 0, top: 0, at: null };

const rowTotal = (row) => report.confusion[row].reduce((sum, n) => sum + n, 0);

function shownClasses() {
  const all = report.classes.map((_, k) => k);
  if (byId("confusion-all").checked) return all;
  const found = all.filter((k) => report.confusion[k].some(Boolean) || report.confusion.some((row) => row[k]));
  return found.length ? found : all;
}

/** Name of a column; the last one holds pixels that were predicted void. */
const columnName = (column) => (column === report.classes.length ? "void" : report.classes[column].name);

/** Name of a column on the canvas, which is squeezed to fit: of a long one nothing could be read. */
function shortName(column) {
  const name = columnName(column);
  return name.length > 60 ? `${name.slice(0, 59)}…` : name;
}

function drawConfusion() {
  const canvas = byId("confusion-canvas");
  const rows = (matrix.shown = shownClasses());
  const columns = [...rows, report.classes.length];
  const context = canvas.getContext("2d");
  const room = Math.max(320, Math.min(document.querySelector("main").clientWidth - 360, 1000));
  const longest = Math.max(...rows.map((k) => report.classes[k].name.length), 7);
  matrix.left = matrix.top = Math.min(150, 14 + 6.4 * longest);
  matrix.cell = Math.max(10, Math.min(30, Math.floor((room - matrix.left) / columns.length)));
  const { cell, left, top } = matrix;
  const [width, height] = [left + cell * columns.length + 6, top + cell * rows.length + 6];
  const density = devicePixelRatio || 1;
  canvas.width = Math.ceil(width * density);
  canvas.height = Math.ceil(height * density);
  canvas.style.width = `${width}px`;
  canvas.style.height = `${height}px`;
  context.setTransform(density, 0, 0, density, 0, 0);
  const [heat, ground, ink, soft] = ["heat", "raised", "ink", "soft"].map(themeColour);
  const errorsOnly = byId("confusion-errors").checked;
  const part = (r, c) => (errorsOnly && r === c ? 0 : report.confusion[r][c] / Math.max(1, rowTotal(r)));
  const most = errorsOnly ? Math.max(1e-9, ...rows.flatMap((r) => columns.map((c) => part(r, c)))) : 1;
  rows.forEach((r, y) => columns.forEach((c, x) => {
    // square root: small confusions stay visible
    const strength = Math.sqrt(part(r, c) / most);
    context.fillStyle = css(ground.map((from, k) => Math.round(from + (heat[k] - from) * strength)));
    context.fillRect(left + x * cell, top + y * cell, cell - 1, cell - 1);
  }));
  context.font = `${Math.min(12, cell + 1)}px system-ui, sans-serif`;
  context.textBaseline = "middle";
  context.fillStyle = css(ink);
  context.textAlign = "right";
  rows.forEach((r, y) => context.fillText(shortName(r), left - 6, top + (y + 0.5) * cell, left - 8));
  context.textAlign = "left";
  columns.forEach((c, x) => {
    context.save();
    context.translate(left + (x + 0.5) * cell, top - 6);
    context.rotate(-Math.PI / 2);
    context.fillStyle = css(c === report.classes.length ? soft : ink);
    context.fillText(shortName(c), 0, 0, top - 8);
    context.restore();
  });
  if (matrix.at) {
    context.strokeStyle = css(themeColour("worse"));
    context.lineWidth = 2;
    context.strokeRect(left + matrix.at.x * cell - 1, top + matrix.at.y * cell - 1, cell + 1, cell + 1);
  }
}

/** Names of the two classes of a cell, and its count. */
function cellParts({ x, y }) {
  const row = matrix.shown[y];
  const column = x === matrix.shown.length ? report.classes.length : matrix.shown[x];
  const pixels = report.confusion[row][column];
  return [named(report.classes[row].name), named(columnName(column)), `${count(pixels)} pixels, ${percent(pixels / Math.max(1, rowTotal(row)), 2)} % of the row`];
}

function selectCell(at) {
  matrix.at = at;
  drawConfusion();
  const [truth, predicted, text] = cellParts(at);
  byId("confusion-cell").replaceChildren("truth: ", truth, " · predicted: ", predicted, ` · ${text}`);
}

/** Scroll the matrix and the window until the selected cell is visible. */
function revealCell({ x, y }) {
  const scroll = byId("confusion-scroll");
  const left = matrix.left + x * matrix.cell;
  scroll.scrollLeft = Math.min(Math.max(scroll.scrollLeft, left + 3 * matrix.cell - scroll.clientWidth), left - matrix.left);
  const top = byId("confusion-canvas").getBoundingClientRect().top + matrix.top + y * matrix.cell;
  if (top < 70 || top > innerHeight - 40) scrollBy({ top: top - innerHeight / 2, behavior: "instant" });
}

function initConfusion() {
  const canvas = byId("confusion-canvas");
  const redraw = () => { matrix.at = null; drawConfusion(); };
  byId("confusion-errors").addEventListener("change", redraw);
  byId("confusion-all").addEventListener("change", redraw);
  addEventListener("resize", drawConfusion);
  themeListeners.push(drawConfusion);
  canvas.addEventListener("pointermove", (event) => {
    const x = Math.floor((event.offsetX - matrix.left) / matrix.cell);
    const y = Math.floor((event.offsetY - matrix.top) / matrix.cell);
    if (x < 0 || y < 0 || x > matrix.shown.length || y >= matrix.shown.length) return hideTooltip();
    if (!matrix.at || matrix.at.x !== x || matrix.at.y !== y) selectCell({ x, y });
    const [truth, predicted, text] = cellParts({ x, y });
    showTooltip(event, make("div", {}, make("span.what", {}, "truth"), truth), make("div", {}, make("span.what", {}, "predicted"), predicted), make("div", {}, text));
  });
  canvas.addEventListener("pointerleave", hideTooltip);
  canvas.addEventListener("keydown", (event) => {
    const step = { ArrowLeft: [-1, 0], ArrowRight: [1, 0], ArrowUp: [0, -1], ArrowDown: [0, 1] }[event.key];
    if (!step) return;
    event.preventDefault();
    const { x, y } = matrix.at || { x: -step[0], y: -step[1] };
    const clamp = (value, most) => Math.max(0, Math.min(most, value));
    selectCell({ x: clamp(x + step[0], matrix.shown.length), y: clamp(y + step[1], matrix.shown.length - 1) });
    revealCell(matrix.at);
  });
  drawConfusion();
  listLargestConfusions();
}

/** List the twelve largest confusions, as fractions of the true class. */
function listLargestConfusions() {
  const found = [];
  report.confusion.forEach((row, r) => {
    const total = rowTotal(r);
    row.forEach((pixels, c) => { if (pixels && c !== r) found.push({ r, c, part: pixels / total }); });
  });
  found.sort((a, b) => b.part - a.part);
  const items = found.slice(0, 12).map(({ r, c, part }) =>
    make("li", { "--part": `${100 * part}%` }, swatch(css(report.classes[r].color)), make("span", {}, named(report.classes[r].name), " → ", named(columnName(c))), make("b", {}, `${percent(part)} %`)));
  byId("confusion-top").append(...(items.length ? items : [make("li", {}, "none")]));
}
