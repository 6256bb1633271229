// The data between the markup and this script: inert blocks of JSON, decoded when they are needed.

const report = JSON.parse(document.querySelector("script.summary").textContent);
const ending = JSON.parse(document.querySelector("script.ending").textContent);
const blocks = document.querySelectorAll("script.picture");
const paired = report.titles.length > 1;

function bytesOf(base64) {
  const text = atob(base64);
  const out = new Uint8Array(text.length);
  for (let k = 0; k < text.length; k++) out[k] = text.charCodeAt(k);
  return out;
}

/** An index map, one number a pixel: zlib, each row XOR the one above, one or two bytes a pixel. */
async function unpack(base64, width, height, segments) {
  const wide = segments > 255;
  const stream = new Blob([bytesOf(base64)]).stream().pipeThrough(new DecompressionStream("deflate"));
  const raw = new Uint8Array(await new Response(stream).arrayBuffer());
  const row = width * (wide ? 2 : 1);
  if (raw.length !== row * height) throw new Error("a map is not of its size");
  for (let k = row; k < raw.length; k++) raw[k] ^= raw[k - row];
  if (!wide) return raw;
  const out = new Uint16Array(width * height);
  for (let k = 0; k < out.length; k++) out[k] = raw[2 * k] | (raw[2 * k + 1] << 8);
  return out;
}

function segmentOf([id, category, area, outcome, partner, iou, score]) {
  return { id, category, area, outcome, partner, iou, score };
}

/** One run's view of a picture; entry 0 of the lists is what is no segment. */
async function decodeSide(side, first, width, height) {
  const truth = [null, ...side.truth_segments.map(segmentOf)];
  const prediction = [null, ...side.prediction_segments.map(segmentOf)];
  return {
    truth,
    prediction,
    truthMap: side.truth === null ? first.truthMap : await unpack(side.truth, width, height, truth.length - 1),
    predictionMap: await unpack(side.prediction, width, height, prediction.length - 1),
  };
}

/** Decode the picture with this number: `{width, height, photo, sides}`. */
async function decodePicture(number) {
  const { width, height, photo, sides } = JSON.parse(blocks[number].textContent);
  const decoded = [];
  for (const side of sides) decoded.push(await decodeSide(side, decoded[0], width, height));
  const image = photo === null ? null : await createImageBitmap(new Blob([bytesOf(photo)], { type: "image/jpeg" }));
  return { width, height, photo: image, sides: decoded };
}
