// The gallery: filters and order of the images, and a card for each. Cards near the viewport are decoded and painted,
// the others are released.

const SORTS = {
  worst: { name: "worst PQ first", by: (image) => image.pq[0] ?? 2 },
  best: { name: "best PQ first", by: (image) => -(image.pq[0] ?? -1) },
  name: { name: "name" },
  misses: { name: "most errors first", by: (image) => -image.missed[0] - image.false[0] },
};
const CHANGES = {
  change: { name: "largest change first", by: (image) => -Math.abs(difference(image.pq) ?? -1) },
  lost: { name: "largest loss first", by: (image) => difference(image.pq) ?? 2 },
  gained: { name: "largest gain first", by: (image) => -(difference(image.pq) ?? -2) },
};
/** Number of what was found in an image without ground truth, of the chosen class or of all. */
function foundIn(image) {
  const category = byId("by-class").value;
  return image.classes[0].reduce((sum, [c, n]) => sum + (category === "" || c === Number(category) ? n : 0), 0);
}
const COUNTS = {
  name: SORTS.name,
  most: { name: "most first", by: (image) => -foundIn(image) },
  fewest: { name: "fewest first", by: foundIn },
};
const sorts = !scored ? COUNTS : paired ? { ...CHANGES, ...SORTS } : SORTS;
const numeric = new Intl.Collator("en", { numeric: true });

/** Numbers of the images that pass the filters, in the selected order. */
function filteredImages() {
  const [category, outcome, text] = [byId("by-class").value, Number(byId("by-outcome").value), byId("by-name").value.trim().toLowerCase()];
  const bitsOf = (image) => image.classes[0].filter(([c]) => category === "" || c === Number(category)).reduce((all, [, bits]) => all | bits, 0);
  const fits = (image) => {
    if (!image.name.toLowerCase().includes(text)) return false;
    if (category === "" && !outcome) return true;
    const bits = bitsOf(image);
    return outcome ? (bits & outcome) !== 0 : bits !== 0;
  };
  const { by } = sorts[byId("sort").value];
  const byName = (a, b) => numeric.compare(report.images[a].name, report.images[b].name);
  const found = report.images.map((_, k) => k).filter((k) => fits(report.images[k]));
  return found.sort((a, b) => (by ? by(report.images[a]) - by(report.images[b]) : 0) || byName(a, b));
}

function initFilters(changed) {
  for (const [key, { name }] of Object.entries(sorts)) byId("sort").append(make("option", { value: key }, name));
  const present = new Set(report.images.flatMap((image) => image.classes[0].map(([c]) => c)));
  report.classes.forEach((c, k) => { if (present.has(k)) byId("by-class").append(make("option", { value: k }, c.name)); });
  for (const id of ["sort", "by-class", "by-outcome"]) byId(id).addEventListener("change", changed);
  byId("by-name").addEventListener("input", changed);
  byId("reset").addEventListener("click", () => {
    byId("by-class").value = byId("by-name").value = "";
    byId("by-outcome").value = "0";
    changed();
  });
}

/** Show only images with this class, or all images if it is selected already. */
function selectClass(index) {
  const select = byId("by-class");
  const isSelected = select.value === String(index);
  if (!isSelected && ![...select.options].some((option) => option.value === String(index))) {
    select.append(make("option", { value: index }, report.classes[index].name));
  }
  select.value = isSelected ? "" : String(index);
  select.dispatchEvent(new Event("change"));
  if (!isSelected) byId("images").scrollIntoView();
}

const PRELOAD_MARGIN = "700px 0px";
const cards = [];
let order = [];
let view = VIEWS[0].key;

class Card {
  constructor(number) {
    const image = report.images[number];
    this.number = number;
    this.nearViewport = false;
    this.panels = report.titles.map((_, run) => new Panel(run));
    this.button = make("button.open", { type: "button", tabindex: "-1", "aria-label": `Enlarge ${image.name}` }, make("span.panels", {}, ...this.panels.map((p) => p.element)));
    this.button.addEventListener("click", () => { hideTooltip(); openViewer(number); });
    this.element = make("article.card", {}, cardHeader(image), this.button);
    this.element.dataset.number = number;
  }

  async load() {
    this.nearViewport = true;
    if (this.loading || this.image) return;
    this.loading = true;
    try {
      const decoded = await decodeImage(this.number);
      if (this.nearViewport) {
        this.image = decoded;
        this.repaint();
        this.element.classList.add("drawn");
      } else closeImage(decoded);
    } catch (error) {
      this.element.append(make("p.problem", { role: "alert" }, `This image cannot be shown: ${error.message}`));
    }
    this.loading = false;
    if (this.nearViewport && !this.image && !this.element.querySelector(".problem")) this.load();
  }

  repaint() {
    if (this.image) this.panels.forEach((panel) => panel.show(this.image, view));
  }

  release() {
    this.nearViewport = false;
    if (!this.image) return;
    this.panels.forEach((panel) => panel.release());
    closeImage(this.image);
    this.image = null;
    this.element.classList.remove("drawn");
  }
}

function cardHeader(image) {
  if (!scored) return make("header", {}, make("h3", {}, named(image.name)), make("span.soft", {}, classCounts(image).join(", ")));
  const errors = [];
  if (image.missed[0]) errors.push(`${image.missed[0]} missed`);
  if (image.false[0]) errors.push(`${image.false[0]} false`);
  const change = paired ? difference(image.pq) : null;
  return make("header", {}, make("h3", {}, named(image.name)), make("span.soft", {}, errors.join(", ")), make("span.pq", {}, `PQ ${percent(image.pq[0])}`),
    paired ? make("span", { class: `delta ${trend(change)}` }, signed(change)) : null);
}

const classCounts = (image) => image.classes[0].map(([c, n]) => `${report.classes[c].name} ${count(n)}`);

function initCards() {
  const observer = new IntersectionObserver((entries) => {
    for (const { target, isIntersecting } of entries) {
      const card = cards[target.dataset.number];
      if (isIntersecting) card.load();
      else card.release();
    }
  }, { rootMargin: PRELOAD_MARGIN });
  // all cards have the median aspect ratio: no layout shifts while images load, no gaps in the grid
  const shapes = report.images.map(({ size: [width, height] }) => width / height).sort((a, b) => a - b);
  byId("cards").style.setProperty("--shape", shapes[shapes.length >> 1] || 2);
  report.images.forEach((_, number) => {
    const card = new Card(number);
    cards.push(card);
    observer.observe(card.element);
  });
  byId("cards").addEventListener("keydown", moveBetweenCards);
  byId("cards").addEventListener("focusin", (event) => setTabStop(event.target));
  initViews(byId("views"));
  themeListeners.push(() => cards.forEach((card) => card.repaint()));
  updateCards();
}

function updateCards() {
  order = filteredImages();
  byId("cards").replaceChildren(...order.map((number) => cards[number].element));
  byId("no-cards").hidden = order.length > 0;
  const all = report.images.length;
  const selection = all < report.total ? ` of ${count(report.total)} (${!scored ? "most and fewest" : paired ? "largest changes" : "worst and best"})` : "";
  byId("image-count").textContent = order.length === all ? `${plural(all, "image")}${selection}` : `${count(order.length)} of ${plural(all, "image")}`;
  markSelectedClass(byId("by-class").value === "" ? -1 : Number(byId("by-class").value));
  if (order.length) setTabStop(cards[order[0]].button);
}

/** Make one card the tab stop of the gallery; the arrow keys move between cards. */
function setTabStop(button) {
  cards.forEach((card) => { card.button.tabIndex = card.button === button ? 0 : -1; });
}

function moveBetweenCards(event) {
  const at = order.findIndex((number) => cards[number].button === event.target);
  const to = { ArrowLeft: at - 1, ArrowRight: at + 1, Home: 0, End: order.length - 1 }[event.key];
  if (at < 0 || to === undefined || to < 0 || to >= order.length) return;
  event.preventDefault();
  cards[order[to]].button.focus();
}

const viewListeners = [];

/** Add the buttons that select the view of all images. */
function initViews(group) {
  VIEWS.forEach(({ key, name }) => {
    const button = make("button", { type: "button", "aria-pressed": String(key === view), onclick: () => setView(key) }, name);
    viewListeners.push(() => button.setAttribute("aria-pressed", String(key === view)));
    group.append(button);
  });
}

function setView(key) {
  view = key;
  cards.forEach((card) => card.repaint());
  for (const id of ["legend", "viewer-legend"]) byId(id).hidden = view !== "errors";
  viewListeners.forEach((listener) => listener());
}
