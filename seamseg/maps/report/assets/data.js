// The data of the page: JSON blocks in the markup, decoded on demand.

const report = JSON.parse(document.querySelector("script.summary").textContent);
const ending = JSON.parse(document.querySelector("script.ending").textContent);
const imageBlocks = document.querySelectorAll("script.image");
/** Whether there is ground truth; else the images are overlays, whose classes have counts in the place of outcomes. */
const scored = report.scored !== false;
const paired = report.titles.length > 1;

function parseSegment([id, category, area, outcome, partner, iou, score]) {
  return { id, category, area, outcome, partner, iou, score };
}

/** Decode the maps and segments of one run; entry 0 of the lists stands for void. */
async function decodeResult(result, first, width, height) {
  const truth = [null, ...result.truth_segments.map(parseSegment)];
  const prediction = [null, ...result.prediction_segments.map(parseSegment)];
  const maps = {};
  for (const [name, data] of Object.entries(result.maps)) if (data) maps[name] = await decodePhoto(data);
  return {
    truth,
    prediction,
    maps,
    truthMap: result.truth === null ? first.truthMap : await decodeIndexMap(result.truth, width, height, truth.length - 1),
    predictionMap: await decodeIndexMap(result.prediction, width, height, prediction.length - 1),
  };
}

/** Decode the image with this number: `{width, height, photo, results}`, one result per run. */
async function decodeImage(number) {
  const { width, height, photo, results } = JSON.parse(imageBlocks[number].textContent);
  const decoded = [];
  for (const result of results) decoded.push(await decodeResult(result, decoded[0], width, height));
  const image = photo === null ? null : await decodePhoto(photo);
  return { width, height, photo: image, results: decoded };
}

/** Release the pixels of a decoded image. */
function closeImage({ photo, results }) {
  for (const bitmap of [photo, ...results.flatMap(({ maps }) => Object.values(maps))]) if (bitmap) bitmap.close();
}
