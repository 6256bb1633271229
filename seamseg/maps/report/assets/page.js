// Theme, title and headline numbers; then everything is initialised.

// Light, dark, or that of the system; canvases are redrawn by listeners.

const themes = ["auto", "light", "dark"];
const themeListeners = [];

function setTheme(name) {
  if (name === "auto") delete document.documentElement.dataset.theme;
  else document.documentElement.dataset.theme = name;
  byId("theme").textContent = `Theme: ${name}`;
  themeListeners.forEach((listener) => listener());
}

function initTheme() {
  let current = "auto";
  byId("theme").addEventListener("click", () => {
    current = themes[(themes.indexOf(current) + 1) % themes.length];
    setTheme(current);
  });
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => setTheme(current));
}

// Title and headline numbers, with the differences if two runs are compared.

function initHeadline() {
  byId("title").append(named(report.titles[0]));
  if (paired) byId("title").append(make("span.other", {}, " vs. ", named(report.titles[1])));
  const things = report.classes.filter((c) => c.thing).length;
  const images = paired && report.n_images[0] !== report.n_images[1] ? report.n_images.map(count).join(" and ") : count(report.n_images[0]);
  const unpaired = report.unpaired ? ` · ${plural(report.unpaired, "image")} in only one of the runs` : "";
  const failed = report.failed ? ` (${report.failed.map(count).join(" and ")} failed)` : "";
  const classes = scored ? `${things} thing classes, ${report.classes.length - things} stuff classes` : plural(report.classes.length, "class", "classes");
  byId("subtitle").textContent = `${images} image${report.n_images[0] === 1 ? "" : "s"}${failed} · ${classes}${unpaired}`;
  report.headline.forEach(({ name, values }, k) => {
    const box = make(k === 0 ? "div.figure.main" : "div.figure", {}, make("dt", {}, name), make("dd", {}, percent(values[0])));
    if (paired) {
      const change = difference(values);
      const parts = [make("span", { class: `delta ${trend(change)}` }, signed(change)), make("span.before", {}, ` from ${percent(values[1])}`)];
      box.lastChild.after(make("div", {}, ...parts));
    }
    box.append(make("div.meter", { "--part": `${100 * (values[0] || 0)}%` }));
    byId("figures").append(box);
  });
}

document.body.classList.toggle("paired", paired);
document.body.classList.toggle("unscored", !scored);
const notes = [];
if (ending.without_photo) notes.push(`${plural(ending.without_photo, "image")} missing or unreadable: drawn on grey.`);
if (!paired) notes.push(`Click an image to enlarge it and list its ${scored ? "segments" : "classes"}.`);
byId("image-note").textContent = notes.join(" ");
initTheme();
initHeadline();
initTable();
if (scored) {
  initCharts();
  initConfusion();
}
initTraining();
fillLegend(byId("legend"));
fillLegend(byId("viewer-legend"));
initFilters(updateCards);
initCards();
initViewer();
setView(view);
document.documentElement.dataset.ready = "yes";
