// One image large, with the list of its segments; the arrow keys go to the next one.

const viewer = { at: 0, panels: [], picture: null, turn: 0 };

function openViewer(number) {
  viewer.at = Math.max(0, order.indexOf(number));
  byId("viewer").showModal();
  showInViewer();
}

async function showInViewer() {
  const number = order[viewer.at];
  const turn = ++viewer.turn;
  const image = report.images[number];
  const change = paired ? ` (${signed(difference(image.pq))})` : "";
  byId("viewer-title").textContent = image.name;
  byId("viewer-place").textContent = `${viewer.at + 1} of ${order.length} · PQ ${percent(image.pq[0])}${change}`;
  const picture = await decodePicture(number);
  // meanwhile another image may have been asked for
  if (turn !== viewer.turn || !byId("viewer").open) return picture.photo && picture.photo.close();
  forgetViewed();
  viewer.picture = picture;
  const side = byId("viewer-side");
  side.replaceChildren();
  viewer.panels.forEach((panel, run) => {
    panel.show(picture, view);
    const box = make("div");
    listSegments(box, picture.sides[run], paired ? report.titles[run] : null, (lit) => panel.light(lit));
    side.append(box);
  });
  side.scrollTop = 0;
  byId("viewer").dataset.shown = number;
}

function forgetViewed() {
  viewer.panels.forEach((panel) => panel.drop());
  if (viewer.picture && viewer.picture.photo) viewer.picture.photo.close();
  viewer.picture = null;
}

/** Mark in the list what is under the pointer. */
function markListed(run, lit) {
  const box = byId("viewer-side").children[run];
  if (!box) return;
  for (const button of box.querySelectorAll(".segment")) button.classList.toggle("lit", lit !== null && button.dataset.segment === `${lit.map} ${lit.index}`);
}

function turnPage(step) {
  viewer.at = (viewer.at + step + order.length) % order.length;
  hideTooltip();
  showInViewer();
}

function startViewer() {
  const dialog = byId("viewer");
  viewer.panels = report.titles.map((_, run) => new Panel(run, (lit) => markListed(run, lit)));
  byId("viewer-pictures").append(...viewer.panels.map((panel) => panel.element));
  startViews(byId("viewer-views"));
  const repaint = () => viewer.picture && viewer.panels.forEach((panel) => panel.show(viewer.picture, view));
  viewListeners.push(repaint);
  themeListeners.push(repaint);
  byId("previous").addEventListener("click", () => turnPage(-1));
  byId("next").addEventListener("click", () => turnPage(1));
  byId("close").addEventListener("click", () => dialog.close());
  dialog.addEventListener("click", (event) => { if (event.target === dialog) dialog.close(); });
  dialog.addEventListener("keydown", (event) => {
    if (event.altKey || event.ctrlKey || event.metaKey) return;
    if (event.key === "ArrowLeft") turnPage(-1);
    else if (event.key === "ArrowRight") turnPage(1);
    else if (event.key >= "1" && event.key <= String(VIEWS.length)) setView(VIEWS[event.key - 1].key);
    else return;
    event.preventDefault();
  });
  dialog.addEventListener("close", () => {
    viewer.turn++;
    hideTooltip();
    forgetViewed();
    delete dialog.dataset.shown;
    document.body.append(tooltip);
    const card = cards[order[viewer.at]];
    if (card) card.button.focus();
  });
}
