// The pictures: a card an image. What is near the window is decoded and painted, what is far away is dropped again.

const NEAR = "700px 0px";
const cards = [];
let order = [];
let view = "prediction";

class Card {
  constructor(number) {
    const image = report.images[number];
    this.number = number;
    this.near = false;
    this.panels = report.titles.map((_, run) => new Panel(run));
    this.button = make("button.open", { type: "button", tabindex: "-1", "aria-label": `Enlarge ${image.name}` }, make("span.panels", {}, ...this.panels.map((p) => p.element)));
    this.button.addEventListener("click", () => { hideTooltip(); openViewer(number); });
    this.element = make("article.card", {}, cardHeader(image), this.button);
    this.element.dataset.number = number;
  }

  async load() {
    this.near = true;
    if (this.loading || this.picture) return;
    this.loading = true;
    try {
      const picture = await decodePicture(this.number);
      if (this.near) {
        this.picture = picture;
        this.repaint();
        this.element.classList.add("drawn");
      } else if (picture.photo) picture.photo.close();
    } catch (error) {
      this.element.append(make("p.problem", { role: "alert" }, `This picture cannot be shown: ${error.message}`));
    }
    this.loading = false;
    if (this.near && !this.picture && !this.element.querySelector(".problem")) this.load();
  }

  repaint() {
    if (this.picture) this.panels.forEach((panel) => panel.show(this.picture, view));
  }

  drop() {
    this.near = false;
    if (!this.picture) return;
    this.panels.forEach((panel) => panel.drop());
    if (this.picture.photo) this.picture.photo.close();
    this.picture = null;
    this.element.classList.remove("drawn");
  }
}

function cardHeader(image) {
  const facts = [];
  if (image.missed[0]) facts.push(`${image.missed[0]} missed`);
  if (image.false[0]) facts.push(`${image.false[0]} false`);
  const change = paired ? difference(image.pq) : null;
  return make("header", {}, make("h3", {}, image.name), make("span.soft", {}, facts.join(", ")), make("span.pq", {}, `PQ ${percent(image.pq[0])}`),
    paired ? make("span", { class: `delta ${trend(change)}` }, signed(change)) : null);
}

function startCards() {
  const watcher = new IntersectionObserver((entries) => {
    for (const { target, isIntersecting } of entries) {
      const card = cards[target.dataset.number];
      if (isIntersecting) card.load();
      else card.drop();
    }
  }, { rootMargin: NEAR });
  // all pictures get the same room, of the shape that most have: the page never jumps, the grid has no holes
  const shapes = report.images.map(({ size: [width, height] }) => width / height).sort((a, b) => a - b);
  byId("cards").style.setProperty("--shape", shapes[shapes.length >> 1] || 2);
  report.images.forEach((_, number) => {
    const card = new Card(number);
    cards.push(card);
    watcher.observe(card.element);
  });
  byId("cards").addEventListener("keydown", moveAmongCards);
  byId("cards").addEventListener("focusin", (event) => becomeTabStop(event.target));
  startViews(byId("views"));
  themeListeners.push(() => cards.forEach((card) => card.repaint()));
  arrangeCards();
}

function arrangeCards() {
  order = wantedImages();
  byId("cards").replaceChildren(...order.map((number) => cards[number].element));
  byId("no-cards").hidden = order.length > 0;
  const all = report.images.length;
  const left = all < report.total ? ` of ${count(report.total)} images (the ${paired ? "most changed" : "worst and the best"})` : "";
  byId("picture-count").textContent = order.length === all ? `${plural(all, "picture")}${left}` : `${count(order.length)} of ${plural(all, "picture")}`;
  markClass(byId("by-class").value === "" ? -1 : Number(byId("by-class").value));
  if (order.length) becomeTabStop(cards[order[0]].button);
}

/** Of all pictures one is a tab stop; the arrow keys go to the others. */
function becomeTabStop(button) {
  cards.forEach((card) => { card.button.tabIndex = card.button === button ? 0 : -1; });
}

function moveAmongCards(event) {
  const at = order.findIndex((number) => cards[number].button === event.target);
  const to = { ArrowLeft: at - 1, ArrowRight: at + 1, Home: 0, End: order.length - 1 }[event.key];
  if (at < 0 || to === undefined || to < 0 || to >= order.length) return;
  event.preventDefault();
  cards[order[to]].button.focus();
}

const viewListeners = [];

/** Buttons that choose what all pictures show. */
function startViews(group) {
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
