// The data of the page: JSON blocks in the markup, decoded on demand.

const report = JSON.parse(document.querySelector("script.summary").textContent);
const ending = JSON.parse(document.querySelector("script.ending").textContent);
const imageBlocks = document.querySelectorAll("script.image");
const paired = report.titles.length > 1;

function decodeBase64(base64) {
  const text = atob(base64);
  const out = new Uint8Array(text.length);
  for (let k = 0; k < text.length; k++) out[k] = text.charCodeAt(k);
  return out;
}

/** Decode an index map: base64 of zlib of rows, each XORed with the row above, one or two bytes per pixel. */
async function decodeIndexMap(base64, width, height, segments) {
  const wide = segments > 255;
  const stream = new Blob([decodeBase64(base64)]).stream().pipeThrough(new DecompressionStream("deflate"));
  const raw = new Uint8Array(await new Response(stream).arrayBuffer());
  const row = width * (wide ? 2 : 1);
  if (raw.length !== row * height) throw new Error("an index map has the wrong size");
  for (let k = row; k < raw.length; k++) raw[k] ^= raw[k - row];
  if (!wide) return raw;
  const out = new Uint16Array(width * height);
  for (let k = 0; k < out.length; k++) out[k] = raw[2 * k] | (raw[2 * k + 1] << 8);
  return out;
}

function parseSegment([id, category, area, outcome, partner, iou, score]) {
  return { id, category, area, outcome, partner, iou, score };
}

/** Decode the maps and segments of one run; entry 0 of the lists stands for void. */
async function decodeResult(result, first, width, height) {
  const truth = [null, ...result.truth_segments.map(parseSegment)];
  const prediction = [null, ...result.prediction_segments.map(parseSegment)];
  return {
    truth,
    prediction,
    truthMap: result.truth === null ? first.truthMap : await decodeIndexMap(result.truth, width, height, truth.length - 1),
    predictionMap: await decodeIndexMap(result.prediction, width, height, prediction.length - 1),
  };
}

/** Decode the image with this number: `{width, height, photo, results}`, one result per run. */
async function decodeImage(number) {
  const { width, height, photo, results } = JSON.parse(imageBlocks[number].textContent);
  const decoded = [];
  for (const result of results) decoded.push(await decodeResult(result, decoded[0], width, height));
  const image = photo === null ? null : await createImageBitmap(new Blob([decodeBase64(photo)], { type: "image/jpeg" }));
  return { width, height, photo: image, results: decoded };
}
