// A panel: one run's canvas of a picture, which tells what is under the pointer.

class Panel {
  /** `run`: 0, or 1 for the run that is compared with; `react(at)`: told the segments under the pointer, or null. */
  constructor(run, react) {
    this.run = run;
    this.lit = null;
    this.canvas = make("canvas", { width: 0, height: 0 });
    this.element = make("span.panel", {}, this.canvas, paired ? make("span.tag", {}, report.titles[run]) : null);
    this.canvas.addEventListener("pointermove", (event) => this.point(event, react));
    this.canvas.addEventListener("pointerdown", (event) => this.point(event, react));
    this.canvas.addEventListener("pointerleave", () => {
      hideTooltip();
      this.light(null);
      if (react) react(null);
    });
  }

  show(picture, view) {
    Object.assign(this, { picture, view });
    this.repaint();
  }

  /** Forget the pixels. */
  drop() {
    this.picture = null;
    this.lit = null;
    this.canvas.width = this.canvas.height = 0;
  }

  repaint() {
    if (this.picture) paint(this.canvas, this.picture, this.picture.sides[this.run], this.view, this.lit);
  }

  /** Light a segment, `{map, index}`, or none. */
  light(lit) {
    if (lit === this.lit || (lit && this.lit && lit.map === this.lit.map && lit.index === this.lit.index)) return;
    this.lit = lit;
    this.repaint();
  }

  /** Indices of the two segments at a point of the window, null outside the picture. */
  segmentsAt(clientX, clientY) {
    const { width, height, sides } = this.picture;
    const box = this.canvas.getBoundingClientRect();
    // the picture lies in the middle of its canvas, as `object-fit: contain` puts it
    const scale = Math.min(box.width / width, box.height / height);
    const x = Math.floor((clientX - box.left - (box.width - width * scale) / 2) / scale);
    const y = Math.floor((clientY - box.top - (box.height - height * scale) / 2) / scale);
    if (x < 0 || y < 0 || x >= width || y >= height) return null;
    const side = sides[this.run];
    return { truth: side.truthMap[y * width + x], prediction: side.predictionMap[y * width + x] };
  }

  point(event, react) {
    const at = this.picture ? this.segmentsAt(event.clientX, event.clientY) : null;
    if (!at) return hideTooltip();
    const map = this.view === "truth" || (this.view === "errors" && !at.prediction) ? "truth" : "prediction";
    this.light(at[map] ? { map, index: at[map] } : null);
    showTooltip(event, ...hoverWords(this.picture.sides[this.run], at));
    if (react) react(this.lit);
  }
}

/** What is known of a segment, in words. */
function segmentWords(segment) {
  const known = [`id ${segment.id}`];
  if (segment.score !== null) known.push(`score ${segment.score.toFixed(2)}`);
  if (segment.iou !== null) known.push(`IoU ${segment.iou.toFixed(2)}`);
  known.push(`${count(segment.area)} px`);
  return known.join(" · ");
}

function hoverWords(side, at) {
  const line = (what, segment, none) =>
    segment === null
      ? make("div", {}, make("span.what", {}, what), none)
      : make("div", {}, make("span.what", {}, what), swatch(css(report.classes[segment.category].color)), `${report.classes[segment.category].name} · ${segmentWords(segment)} · ${segment.outcome}`);
  return [
    line("predicted", side.prediction[at.prediction], "nothing"),
    line("truth", side.truth[at.truth], "void"),
    make("div", {}, make("span.what", {}, "pixel"), VERDICTS[verdict(side, at.truth, at.prediction)].name),
  ];
}
