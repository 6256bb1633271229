// Images on canvases: the type of error of each pixel, painting, and the panel that reacts to the pointer.

const ERROR_TYPES = [
  { name: "not counted", help: "void or crowd in the ground truth", color: "void", alpha: 165 },
  { name: "right", help: "the two segments match", color: "right", alpha: 70 },
  { name: "wrong class", help: "the two segments are of different classes", color: "wrong-class", alpha: 205 },
  { name: "wrong segment", help: "the class is right, the segments do not match", color: "wrong-segment", alpha: 190 },
  { name: "missed", help: "a segment of the ground truth without a match", color: "missed", alpha: 205 },
  { name: "false positive", help: "a predicted segment without a match", color: "false", alpha: 210 },
];
const [IGNORED, RIGHT, WRONG_CLASS, WRONG_SEGMENT, MISSED, FALSE_POSITIVE] = ERROR_TYPES.keys();

/** Index into ERROR_TYPES of a pixel, from the indices of its two segments. */
function errorType(result, truthIndex, predictionIndex) {
  const truth = result.truth[truthIndex];
  const prediction = result.prediction[predictionIndex];
  if (!truth || truth.outcome === "crowd") return prediction && prediction.outcome === "false" ? FALSE_POSITIVE : IGNORED;
  if (!prediction) return MISSED;
  if (prediction.outcome === "matched" && prediction.partner === truthIndex) return RIGHT;
  // if one of the two segments has its match elsewhere, the error is that of the other one
  if (truth.outcome === "missed" && prediction.outcome === "matched") return MISSED;
  if (truth.outcome === "matched" && prediction.outcome === "false") return FALSE_POSITIVE;
  return truth.category === prediction.category ? WRONG_SEGMENT : WRONG_CLASS;
}

function fillLegend(list) {
  list.replaceChildren(...ERROR_TYPES.slice(1).concat(ERROR_TYPES[0]).map((v) => make("li", { title: v.help }, swatch(`var(--${v.color})`), v.name)));
}

// Painting: the image, and over it the segments of a map or the errors, with outlines.

const VIEWS = !scored ? [{ key: "photo", name: "Overlay" }] : [
  { key: "prediction", name: "Prediction" },
  { key: "truth", name: "Ground truth" },
  { key: "errors", name: "Errors" },
  { key: "photo", name: "Image" },
  ...report.maps.map((name) => ({ key: name, name, isMap: true })),
];
const isMap = (view) => VIEWS.some(({ key, isMap }) => isMap && key === view);

/** Pixel value of each segment of a map, entry 0 for void. */
function segmentColours(segments) {
  return Uint32Array.from(segments, (s) => (s === null ? VOID_PIXEL : pixel(report.classes[s.category].color, SEGMENT_ALPHA)));
}

/** Pixel value of each pair of segments, row = ground truth. */
function errorColours(result) {
  const colours = ERROR_TYPES.map((v) => pixel(themeColour(v.color), v.alpha));
  const across = result.prediction.length;
  const out = new Uint32Array(result.truth.length * across);
  for (let t = 0; t < result.truth.length; t++) for (let p = 0; p < across; p++) out[t * across + p] = colours[errorType(result, t, p)];
  return out;
}

/** The map that a view outlines, and its segments. */
function outlinedMap(result, view) {
  return view === "truth" ? [result.truthMap, result.truth] : [result.predictionMap, result.prediction];
}

/**
 * Paint an image onto a canvas of its size.
 * `highlighted`: {map: "truth" or "prediction", index} of a segment while the others are darkened, or null.
 */
function paint(canvas, image, result, view, highlighted) {
  const plain = view === "photo" || isMap(view);
  const background = isMap(view) ? { ...image, photo: result.maps[view] } : image;
  if (plain && !highlighted) return paintLayers(canvas, background, null);
  paintLayers(canvas, background, (out) => {
    if (!plain) {
      paintColours(out, result, view);
      const [map, segments] = outlinedMap(result, view);
      paintOutlines(out, map, segments.map((s) => s !== null && report.classes[s.category].thing), image.width);
    }
    if (highlighted) paintHighlight(out, highlighted.map === "truth" ? result.truthMap : result.predictionMap, highlighted.index, image.width);
  });
}

function paintColours(out, result, view) {
  if (view === "errors") {
    const colours = errorColours(result);
    const { truthMap, predictionMap } = result;
    const across = result.prediction.length;
    for (let k = 0; k < out.length; k++) out[k] = colours[truthMap[k] * across + predictionMap[k]];
    return;
  }
  const [map, segments] = outlinedMap(result, view);
  const colours = segmentColours(segments);
  for (let k = 0; k < out.length; k++) out[k] = colours[map[k]];
}

/** The canvas of an image in one run, with a tooltip of the segments under the pointer. */
class Panel {
  /** `run`: 0, or 1 for the baseline; `onHover(highlighted)`: called with the segment under the pointer, or null. */
  constructor(run, onHover) {
    this.run = run;
    this.highlighted = null;
    this.canvas = make("canvas", { width: 0, height: 0 });
    this.element = make("span.panel", {}, this.canvas, paired ? make("span.tag", {}, report.titles[run]) : null);
    if (!scored) return;
    this.canvas.addEventListener("pointermove", (event) => this.point(event, onHover));
    this.canvas.addEventListener("pointerdown", (event) => this.point(event, onHover));
    this.canvas.addEventListener("pointerleave", () => {
      hideTooltip();
      this.highlight(null);
      if (onHover) onHover(null);
    });
  }

  show(image, view) {
    Object.assign(this, { image, view });
    this.repaint();
  }

  /** Release the pixels. */
  release() {
    this.image = null;
    this.highlighted = null;
    this.canvas.width = this.canvas.height = 0;
  }

  repaint() {
    if (this.image) paint(this.canvas, this.image, this.image.results[this.run], this.view, this.highlighted);
  }

  /** Highlight a segment, `{map, index}`, or none if null. */
  highlight(highlighted) {
    if (highlighted === this.highlighted || (highlighted && this.highlighted && highlighted.map === this.highlighted.map && highlighted.index === this.highlighted.index)) return;
    this.highlighted = highlighted;
    this.repaint();
  }

  /** Indices of the two segments at a point of the window, null outside the image. */
  segmentsAt(clientX, clientY) {
    const at = pixelAt(this.canvas, this.image, clientX, clientY);
    if (at === null) return null;
    const result = this.image.results[this.run];
    return { truth: result.truthMap[at], prediction: result.predictionMap[at] };
  }

  point(event, onHover) {
    const at = this.image ? this.segmentsAt(event.clientX, event.clientY) : null;
    if (!at) return hideTooltip();
    const map = this.view === "truth" || (this.view === "errors" && !at.prediction) ? "truth" : "prediction";
    this.highlight(at[map] ? { map, index: at[map] } : null);
    showTooltip(event, ...tooltipLines(this.image.results[this.run], at));
    if (onHover) onHover(this.highlighted);
  }
}

/** Describe a segment: id, score, IoU, area. */
function describeSegment(segment) {
  const parts = [`id ${segment.id}`];
  if (segment.score !== null) parts.push(`score ${segment.score.toFixed(2)}`);
  if (segment.iou !== null) parts.push(`IoU ${segment.iou.toFixed(2)}`);
  parts.push(`${count(segment.area)} px`);
  return parts.join(" · ");
}

function tooltipLines(result, at) {
  const line = (what, segment, none) =>
    segment === null
      ? make("div", {}, make("span.what", {}, what), none)
      : make("div", {}, make("span.what", {}, what), swatch(css(report.classes[segment.category].color)), named(report.classes[segment.category].name), ` · ${describeSegment(segment)} · ${segment.outcome}`);
  return [
    line("predicted", result.prediction[at.prediction], "void"),
    line("truth", result.truth[at.truth], "void"),
    make("div", {}, make("span.what", {}, "pixel"), ERROR_TYPES[errorType(result, at.truth, at.prediction)].name),
  ];
}
