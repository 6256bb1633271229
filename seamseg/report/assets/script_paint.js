// Paints a picture: photo below, and over it the segments of a map or the errors, with outlines.

const VIEWS = [
  { key: "prediction", name: "Prediction" },
  { key: "truth", name: "Ground truth" },
  { key: "errors", name: "Errors" },
  { key: "photo", name: "Photo" },
];
const GREY = [128, 128, 128];
const scratch = document.createElement("canvas");

/** Colours of the segments of a map, as pixels, entry 0 for void. */
function segmentColours(segments) {
  return Uint32Array.from(segments, (s) => (s === null ? pixel([0, 0, 0], 110) : pixel(report.classes[s.category].color, 135)));
}

/** Colours of all pairs of segments, row = ground truth. */
function errorColours(side) {
  const colours = VERDICTS.map((v) => pixel(themeColour(v.color), v.alpha));
  const across = side.prediction.length;
  const out = new Uint32Array(side.truth.length * across);
  for (let t = 0; t < side.truth.length; t++) for (let p = 0; p < across; p++) out[t * across + p] = colours[verdict(side, t, p)];
  return out;
}

/** Which map a view outlines, and the segments on it. */
function mapOf(side, view) {
  return view === "truth" ? [side.truthMap, side.truth] : [side.predictionMap, side.prediction];
}

/**
 * Paint onto a canvas of the picture's size.
 * `lit`: {map: "truth" or "prediction", index} of a segment that the others step back from, or null.
 */
function paint(canvas, picture, side, view, lit) {
  const { width, height } = picture;
  if (canvas.width !== width || canvas.height !== height) [canvas.width, canvas.height] = [width, height];
  const context = canvas.getContext("2d");
  if (picture.photo) context.drawImage(picture.photo, 0, 0, width, height);
  else {
    context.fillStyle = css(GREY);
    context.fillRect(0, 0, width, height);
  }
  if (view === "photo" && !lit) return;
  const layer = new ImageData(width, height);
  const out = new Uint32Array(layer.data.buffer);
  if (view !== "photo") fill(out, side, view);
  if (view !== "photo") outline(out, side, view, width);
  if (lit) light(out, lit.map === "truth" ? side.truthMap : side.predictionMap, lit.index, width);
  [scratch.width, scratch.height] = [width, height];
  scratch.getContext("2d").putImageData(layer, 0, 0);
  context.drawImage(scratch, 0, 0);
}

function fill(out, side, view) {
  if (view === "errors") {
    const colours = errorColours(side);
    const { truthMap, predictionMap } = side;
    const across = side.prediction.length;
    for (let k = 0; k < out.length; k++) out[k] = colours[truthMap[k] * across + predictionMap[k]];
    return;
  }
  const [map, segments] = mapOf(side, view);
  const colours = segmentColours(segments);
  for (let k = 0; k < out.length; k++) out[k] = colours[map[k]];
}

/** A line between segments: strong around things, faint around stuff. */
function outline(out, side, view, width) {
  const [map, segments] = mapOf(side, view);
  const thing = segments.map((s) => s !== null && report.classes[s.category].thing);
  const [strong, faint] = [pixel([255, 255, 255], 235), pixel([255, 255, 255], 95)];
  for (let k = 0; k < out.length; k++) {
    const right = (k + 1) % width ? map[k + 1] : map[k];
    const under = k + width < out.length ? map[k + width] : map[k];
    if (right !== map[k] || under !== map[k]) out[k] = thing[map[k]] || thing[right] || thing[under] ? strong : faint;
  }
}

/** Darken all but one segment, and draw around it. */
function light(out, map, index, width) {
  const [veil, line] = [pixel([0, 0, 0], 150), pixel([255, 255, 255], 255)];
  for (let k = 0; k < out.length; k++) {
    const inside = map[k] === index;
    const right = (k + 1) % width ? map[k + 1] === index : inside;
    const under = k + width < out.length ? map[k + width] === index : inside;
    if (inside !== right || inside !== under) out[k] = line;
    else if (!inside) out[k] = veil;
  }
}
