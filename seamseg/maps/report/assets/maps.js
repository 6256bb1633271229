// Index maps: decoding, painting onto canvases, and the pixel under the pointer. A map has a byte or two per pixel, the
// index of its segment, 0 for void.

function decodeBase64(base64) {
  const text = atob(base64);
  const out = new Uint8Array(text.length);
  for (let k = 0; k < text.length; k++) out[k] = text.charCodeAt(k);
  return out;
}

/** Decode a JPEG in base64. */
const decodePhoto = (base64) => createImageBitmap(new Blob([decodeBase64(base64)], { type: "image/jpeg" }));

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

const GREY = [128, 128, 128];
const VOID_PIXEL = pixel([0, 0, 0], 110);
const SEGMENT_ALPHA = 135;
const offscreen = document.createElement("canvas");

/** Draw an image, grey if null, onto a canvas that gets its size; over it the layer that `fill(pixels)` paints, if any. */
function paintLayers(canvas, { width, height, photo }, fill) {
  if (canvas.width !== width || canvas.height !== height) [canvas.width, canvas.height] = [width, height];
  const context = canvas.getContext("2d");
  if (photo) context.drawImage(photo, 0, 0, width, height);
  else {
    context.fillStyle = css(GREY);
    context.fillRect(0, 0, width, height);
  }
  if (!fill) return;
  const layer = new ImageData(width, height);
  fill(new Uint32Array(layer.data.buffer));
  [offscreen.width, offscreen.height] = [width, height];
  offscreen.getContext("2d").putImageData(layer, 0, 0);
  context.drawImage(offscreen, 0, 0);
}

/** Draw lines between segments: strong around things, faint around stuff. `thing`: whether an index is that of a thing. */
function paintOutlines(out, map, thing, width) {
  const [strong, faint] = [pixel([255, 255, 255], 235), pixel([255, 255, 255], 95)];
  for (let k = 0; k < out.length; k++) {
    const right = (k + 1) % width ? map[k + 1] : map[k];
    const under = k + width < out.length ? map[k + width] : map[k];
    if (right !== map[k] || under !== map[k]) out[k] = thing[map[k]] || thing[right] || thing[under] ? strong : faint;
  }
}

/** Darken all but one segment and outline it. */
function paintHighlight(out, map, index, width) {
  const [shade, line] = [pixel([0, 0, 0], 150), pixel([255, 255, 255], 255)];
  for (let k = 0; k < out.length; k++) {
    const inside = map[k] === index;
    const right = (k + 1) % width ? map[k + 1] === index : inside;
    const under = k + width < out.length ? map[k + width] === index : inside;
    if (inside !== right || inside !== under) out[k] = line;
    else if (!inside) out[k] = shade;
  }
}

/** Number of the pixel of an image at a point of the window, null outside; its canvas has `object-fit: contain`. */
function pixelAt(canvas, { width, height }, clientX, clientY) {
  const box = canvas.getBoundingClientRect();
  // the image is centred in its canvas
  const scale = Math.min(box.width / width, box.height / height);
  const x = Math.floor((clientX - box.left - (box.width - width * scale) / 2) / scale);
  const y = Math.floor((clientY - box.top - (box.height - height * scale) / 2) / scale);
  return x < 0 || y < 0 || x >= width || y >= height ? null : y * width + x;
}
