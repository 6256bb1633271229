// The viewer: one enlarged image with the list of its segments, which makes them accessible by keyboard; the arrow keys
// move to other images.

const OUTCOME_NAMES = { matched: "matched", missed: "missed", false: "false positive", forgiven: "forgiven", crowd: "crowd" };
const GROUPS = [
  { title: "Missed", map: "truth", outcome: "missed" },
  { title: "False positives", map: "prediction", outcome: "false" },
  { title: "Matched", map: "prediction", outcome: "matched" },
  { title: "Forgiven: mostly on void or crowd", map: "prediction", outcome: "forgiven" },
  { title: "Crowds, not counted", map: "truth", outcome: "crowd" },
];

/** Fill `box` with the segments of a run; calls `highlight` with the one in focus or under the pointer, or null. */
function listSegments(box, result, title, highlight) {
  const parts = title === null ? [] : [make("h3.run", {}, named(title))];
  for (const { title: heading, map, outcome } of GROUPS) {
    const found = result[map].map((segment, index) => ({ segment, index })).filter(({ segment }) => segment && segment.outcome === outcome);
    if (!found.length) continue;
    found.sort((a, b) => b.segment.area - a.segment.area);
    parts.push(make("h3", {}, `${heading} (${found.length})`), make("ul.segments", {}, ...found.map(({ segment, index }) => make("li", {}, segmentButton(segment, { map, index }, highlight)))));
  }
  if (parts.length === (title === null ? 0 : 1)) parts.push(make("p.soft", {}, "No segments."));
  box.append(...parts);
}

function segmentButton(segment, highlighted, highlight) {
  const { name, color } = report.classes[segment.category];
  const button = make("button.segment", { type: "button" }, swatch(css(color)), make("span", {}, named(name)),
    make("span", { class: `outcome ${segment.outcome}` }, OUTCOME_NAMES[segment.outcome] || segment.outcome), make("small", {}, describeSegment(segment)));
  button.dataset.segment = `${highlighted.map} ${highlighted.index}`;
  for (const event of ["focus", "pointerenter"]) button.addEventListener(event, () => highlight(highlighted));
  for (const event of ["blur", "pointerleave"]) button.addEventListener(event, () => highlight(null));
  return button;
}

const viewer = { at: 0, panels: [], image: null, request: 0 };

function openViewer(number) {
  viewer.at = Math.max(0, order.indexOf(number));
  byId("viewer").showModal();
  showCurrent();
}

async function showCurrent() {
  const number = order[viewer.at];
  const request = ++viewer.request;
  const image = report.images[number];
  const score = scored ? ` · PQ ${percent(image.pq[0])}` : "";
  const change = paired ? ` (${signed(difference(image.pq))})` : "";
  byId("viewer-title").replaceChildren(named(image.name));
  byId("viewer-position").textContent = `${viewer.at + 1} of ${order.length}${score}${change}`;
  const decoded = await decodeImage(number);
  // another image may have been requested while this one was decoded
  if (request !== viewer.request || !byId("viewer").open) return closeImage(decoded);
  releaseImage();
  viewer.image = decoded;
  const list = byId("viewer-segments");
  list.replaceChildren();
  viewer.panels.forEach((panel, run) => {
    panel.show(decoded, view);
    const box = make("div");
    if (!scored) box.append(make("ul.segments", {}, ...classCounts(image).map((text) => make("li", {}, named(text)))));
    else listSegments(box, decoded.results[run], paired ? report.titles[run] : null, (highlighted) => panel.highlight(highlighted));
    list.append(box);
  });
  list.scrollTop = 0;
  byId("viewer").dataset.shown = number;
}

function releaseImage() {
  viewer.panels.forEach((panel) => panel.release());
  if (viewer.image) closeImage(viewer.image);
  viewer.image = null;
}

/** Mark the segment under the pointer in the list. */
function markInList(run, highlighted) {
  const box = byId("viewer-segments").children[run];
  if (!box) return;
  for (const button of box.querySelectorAll(".segment")) button.classList.toggle("highlighted", highlighted !== null && button.dataset.segment === `${highlighted.map} ${highlighted.index}`);
}

function showNext(step) {
  viewer.at = (viewer.at + step + order.length) % order.length;
  hideTooltip();
  showCurrent();
}

function initViewer() {
  const dialog = byId("viewer");
  viewer.panels = report.titles.map((_, run) => new Panel(run, (highlighted) => markInList(run, highlighted)));
  byId("viewer-images").append(...viewer.panels.map((panel) => panel.element));
  initViews(byId("viewer-views"));
  const repaint = () => viewer.image && viewer.panels.forEach((panel) => panel.show(viewer.image, view));
  viewListeners.push(repaint);
  themeListeners.push(repaint);
  byId("previous").addEventListener("click", () => showNext(-1));
  byId("next").addEventListener("click", () => showNext(1));
  byId("close").addEventListener("click", () => dialog.close());
  dialog.addEventListener("click", (event) => { if (event.target === dialog) dialog.close(); });
  dialog.addEventListener("keydown", (event) => {
    if (event.altKey || event.ctrlKey || event.metaKey) return;
    if (event.key === "ArrowLeft") showNext(-1);
    else if (event.key === "ArrowRight") showNext(1);
    else if (VIEWS[event.key - 1]) setView(VIEWS[event.key - 1].key);
    else return;
    event.preventDefault();
  });
  dialog.addEventListener("close", () => {
    viewer.request++;
    hideTooltip();
    releaseImage();
    delete dialog.dataset.shown;
    document.body.append(tooltip);
    const card = cards[order[viewer.at]];
    if (card) card.button.focus();
  });
}
