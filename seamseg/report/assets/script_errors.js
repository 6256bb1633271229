// What a pixel tells of the segments that it belongs to.

const VERDICTS = [
  { name: "not counted", help: "void or crowd in the ground truth", color: "void", alpha: 165 },
  { name: "right", help: "the two segments match", color: "right", alpha: 70 },
  { name: "wrong class", help: "the two segments are of different classes", color: "wrong-class", alpha: 205 },
  { name: "wrong segment", help: "the class is right, the segments do not match", color: "wrong-segment", alpha: 190 },
  { name: "missed", help: "of the ground truth, found by no prediction", color: "missed", alpha: 205 },
  { name: "false positive", help: "of a prediction that matches nothing", color: "false", alpha: 210 },
];
const [IGNORED, RIGHT, WRONG_CLASS, WRONG_SEGMENT, MISSED, FALSE_POSITIVE] = VERDICTS.keys();

/** Which verdict (its place in VERDICTS) a pixel gets from its two segments, given by their indices. */
function verdict(side, truthIndex, predictionIndex) {
  const truth = side.truth[truthIndex];
  const prediction = side.prediction[predictionIndex];
  if (!truth || truth.outcome === "crowd") return prediction && prediction.outcome === "false" ? FALSE_POSITIVE : IGNORED;
  if (!prediction) return MISSED;
  if (prediction.outcome === "matched" && prediction.partner === truthIndex) return RIGHT;
  // where one of the two has its match elsewhere, the other is the one to blame
  if (truth.outcome === "missed" && prediction.outcome === "matched") return MISSED;
  if (truth.outcome === "matched" && prediction.outcome === "false") return FALSE_POSITIVE;
  return truth.category === prediction.category ? WRONG_SEGMENT : WRONG_CLASS;
}

function fillLegend(list) {
  list.replaceChildren(...VERDICTS.slice(1).concat(VERDICTS[0]).map((v) => make("li", { title: v.help }, swatch(`var(--${v.color})`), v.name)));
}
