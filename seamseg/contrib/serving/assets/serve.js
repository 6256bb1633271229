// The page of the server: sends an image, paints its segments over it, and describes the one under the pointer.

const canvas = byId("canvas");
let image = null;
let highlighted = 0;
let request = null;

function setStatus(file, text, problem = false) {
  byId("status").replaceChildren(named(file.name), `: ${text}`);
  byId("status").classList.toggle("problem", problem);
}

/** Class, score and area of a segment. */
function describe({ score, area }) {
  const parts = [];
  if (score !== null) parts.push(`score ${score.toFixed(2)}`);
  if (area !== null) {
    const [width, height] = image.full;
    parts.push(`${count(Math.round(area))} px`, `${percent(area / (width * height))} %`);
  }
  return parts.join(" · ");
}

function repaint() {
  if (!image) return;
  const { map, segments } = image;
  const alpha = Number(byId("opacity").value);
  const photo = image.backgrounds[byId("background").value];
  paintLayers(canvas, { ...image, photo }, (out) => {
    const colours = Uint32Array.from([0, ...segments.map((s) => pixel(s.color, alpha))]);
    for (let k = 0; k < out.length; k++) out[k] = colours[map[k]];
    if (alpha) paintOutlines(out, map, [false, ...segments.map((s) => s.thing)], image.width);
    if (highlighted) paintHighlight(out, map, highlighted, image.width);
  });
}

/** Highlight the segment with this number, 0 for none, in the image and in the list. */
function highlight(number) {
  if (number === highlighted) return;
  highlighted = number;
  byId("segments").querySelectorAll(".segment").forEach((button, k) => button.classList.toggle("highlighted", k + 1 === number));
  repaint();
}

function listSegments() {
  const buttons = image.segments.map((segment, k) => {
    const button = make("button.segment", { type: "button" }, swatch(css(segment.color)), make("span", {}, named(segment.class)), make("small", {}, describe(segment)));
    for (const event of ["focus", "pointerenter"]) button.addEventListener(event, () => highlight(k + 1));
    for (const event of ["blur", "pointerleave"]) button.addEventListener(event, () => highlight(0));
    return make("li", {}, button);
  });
  byId("segments").replaceChildren(...buttons);
}

/** Offer the image and the maps of custom heads, if any, to be shown under the segments. */
function listBackgrounds() {
  const [select, names] = [byId("background"), Object.keys(image.backgrounds)];
  byId("backgrounds").hidden = names.length === 1;
  if (select.options.length !== names.length) select.replaceChildren(...names.map((name) => make("option", { value: name }, name)));
}

const ENDINGS = { "application/json": "json", "image/jpeg": "jpg", "image/png": "png", "application/octet-stream": "npy" };

/** Save the result of a file in a format, which the server computes anew. */
async function download(file, format) {
  try {
    const response = await fetch(`predict?format=${encodeURIComponent(format)}`, { method: "POST", body: file });
    if (!response.ok) throw new Error(await errorOf(response));
    const href = URL.createObjectURL(await response.blob());
    const name = `${file.name.replace(/\.[^.]*$/, "")}_${format}.${ENDINGS[response.headers.get("content-type")]}`;
    make("a", { href, download: name }).click();
    setTimeout(() => URL.revokeObjectURL(href), 60_000);
  } catch (error) {
    setStatus(file, error.message, true);
  }
}

function listDownloads(file) {
  const buttons = image.formats.map((format) => make("button", { type: "button", onclick: () => download(file, format) }, format));
  byId("downloads").replaceChildren("Download", ...buttons);
}

function point(event) {
  const at = image ? pixelAt(canvas, image, event.clientX, event.clientY) : null;
  const number = at === null ? 0 : image.map[at];
  highlight(number);
  if (!number) return hideTooltip();
  const segment = image.segments[number - 1];
  showTooltip(event, make("div", {}, swatch(css(segment.color)), named(segment.class)), make("div", {}, describe(segment)));
}

async function show(view) {
  const map = await decodeIndexMap(view.map, view.width, view.height, view.segments.length);
  const backgrounds = { photo: await decodePhoto(view.photo) };
  for (const [name, data] of Object.entries(view.maps)) backgrounds[name] = await decodePhoto(data);
  if (image) Object.values(image.backgrounds).forEach((bitmap) => bitmap.close());
  image = { ...view, map, backgrounds };
  highlighted = 0;
  listBackgrounds();
  listSegments();
  byId("result").hidden = false;
  repaint();
}

/** Hide the result of an earlier image. */
function clear() {
  if (image) Object.values(image.backgrounds).forEach((bitmap) => bitmap.close());
  image = null;
  hideTooltip();
  byId("result").hidden = true;
}

/** The error in a response, whoever sent it. */
async function errorOf(response) {
  const text = await response.text();
  try {
    return JSON.parse(text).error || text;
  } catch {
    return text || `status ${response.status}`;
  }
}

async function send(file) {
  // an image replaces the one before, whose request is dropped
  if (request) request.abort();
  const mine = (request = new AbortController());
  document.body.classList.add("busy");
  delete document.body.dataset.shown;
  setStatus(file, "waiting for the result");
  try {
    const start = performance.now();
    const response = await fetch("predict?format=view", { method: "POST", body: file, signal: mine.signal });
    if (!response.ok) throw new Error(await errorOf(response));
    await show(await response.json());
    listDownloads(file);
    const seconds = (performance.now() - start) / 1000;
    setStatus(file, `${image.full.join(" x ")}, ${plural(image.segments.length, "segment")}, ${seconds.toFixed(1)} s`);
    document.body.dataset.shown = file.name;
  } catch (error) {
    if (mine.signal.aborted) return;
    clear();
    setStatus(file, error.message, true);
    document.body.dataset.shown = "";
  } finally {
    if (request === mine) document.body.classList.remove("busy");
  }
}

function initDrop() {
  const drop = byId("drop");
  byId("file").addEventListener("change", (event) => event.target.files.length && send(event.target.files[0]));
  // a file that is dropped beside the field must not replace the page
  for (const name of ["dragover", "drop"]) document.addEventListener(name, (event) => event.preventDefault());
  for (const name of ["dragenter", "dragover"]) drop.addEventListener(name, () => drop.classList.add("over"));
  for (const name of ["dragleave", "drop"]) drop.addEventListener(name, () => drop.classList.remove("over"));
  document.addEventListener("drop", (event) => event.dataTransfer.files.length && send(event.dataTransfer.files[0]));
}

initDrop();
byId("opacity").addEventListener("input", repaint);
byId("background").addEventListener("change", repaint);
for (const name of ["pointermove", "pointerdown"]) canvas.addEventListener(name, point);
canvas.addEventListener("pointerleave", () => {
  hideTooltip();
  highlight(0);
});
document.documentElement.dataset.ready = "yes";
