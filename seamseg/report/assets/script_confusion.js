// The confusion matrix on a canvas: rows are normalised; the pointer or the arrow keys tell the counts of a cell.

const matrix = { shown: [], cell: 0, left: 0, top: 0, at: null };

const rowTotal = (row) => report.confusion[row].reduce((sum, n) => sum + n, 0);

function occurring() {
  const all = report.classes.map((_, k) => k);
  if (byId("confusion-all").checked) return all;
  const found = all.filter((k) => report.confusion[k].some(Boolean) || report.confusion.some((row) => row[k]));
  return found.length ? found : all;
}

/** Name of a column; the last one holds pixels that were not predicted at all. */
const columnName = (column) => (column === report.classes.length ? "nothing" : report.classes[column].name);

function drawConfusion() {
  const canvas = byId("confusion-canvas");
  const rows = (matrix.shown = occurring());
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
    // the square root makes small confusions visible
    const strength = Math.sqrt(part(r, c) / most);
    context.fillStyle = css(ground.map((from, k) => Math.round(from + (heat[k] - from) * strength)));
    context.fillRect(left + x * cell, top + y * cell, cell - 1, cell - 1);
  }));
  context.font = `${Math.min(12, cell + 1)}px system-ui, sans-serif`;
  context.textBaseline = "middle";
  context.fillStyle = css(ink);
  context.textAlign = "right";
  rows.forEach((r, y) => context.fillText(report.classes[r].name, left - 6, top + (y + 0.5) * cell, left - 8));
  context.textAlign = "left";
  columns.forEach((c, x) => {
    context.save();
    context.translate(left + (x + 0.5) * cell, top - 6);
    context.rotate(-Math.PI / 2);
    context.fillStyle = css(c === report.classes.length ? soft : ink);
    context.fillText(columnName(c), 0, 0, top - 8);
    context.restore();
  });
  if (matrix.at) {
    context.strokeStyle = css(themeColour("worse"));
    context.lineWidth = 2;
    context.strokeRect(left + matrix.at.x * cell - 1, top + matrix.at.y * cell - 1, cell + 1, cell + 1);
  }
}

/** The words for a cell, as elements. */
function cellWords({ x, y }) {
  const row = matrix.shown[y];
  const column = x === matrix.shown.length ? report.classes.length : matrix.shown[x];
  const pixels = report.confusion[row][column];
  return [
    make("div", {}, make("span.what", {}, "truth"), report.classes[row].name),
    make("div", {}, make("span.what", {}, " predicted"), columnName(column)),
    make("div", {}, ` ${count(pixels)} pixels, ${percent(pixels / Math.max(1, rowTotal(row)), 2)} % of the row`),
  ];
}

function selectCell(at) {
  matrix.at = at;
  drawConfusion();
  byId("confusion-cell").textContent = cellWords(at).map((e) => e.textContent.trim().replace(/^(truth|predicted)/, "$1: ")).join(" · ");
}

/** Scroll the matrix and the window so that the chosen cell can be seen. */
function revealCell({ x, y }) {
  const scroll = byId("confusion-scroll");
  const left = matrix.left + x * matrix.cell;
  scroll.scrollLeft = Math.min(Math.max(scroll.scrollLeft, left + 3 * matrix.cell - scroll.clientWidth), left - matrix.left);
  const top = byId("confusion-canvas").getBoundingClientRect().top + matrix.top + y * matrix.cell;
  if (top < 70 || top > innerHeight - 40) scrollBy({ top: top - innerHeight / 2, behavior: "instant" });
}

function startConfusion() {
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
    showTooltip(event, ...cellWords({ x, y }));
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
  showLargest();
}

/** The twelve largest parts of a class that were taken for something else. */
function showLargest() {
  const found = [];
  report.confusion.forEach((row, r) => {
    const total = rowTotal(r);
    row.forEach((pixels, c) => { if (pixels && c !== r) found.push({ r, c, part: pixels / total }); });
  });
  found.sort((a, b) => b.part - a.part);
  const items = found.slice(0, 12).map(({ r, c, part }) =>
    make("li", { "--part": `${100 * part}%` }, swatch(css(report.classes[r].color)), `${report.classes[r].name} → ${columnName(c)}`, make("b", {}, `${percent(part)} %`)));
  byId("confusion-top").append(...(items.length ? items : [make("li", {}, "none")]));
}
