// The list of segments beside an enlarged picture: the keyboard's way to what the pointer shows.

const OUTCOME_NAMES = { matched: "matched", missed: "missed", false: "false positive", forgiven: "forgiven", crowd: "crowd" };
const GROUPS = [
  { title: "Missed", map: "truth", outcome: "missed" },
  { title: "False positives", map: "prediction", outcome: "false" },
  { title: "Matched", map: "prediction", outcome: "matched" },
  { title: "Forgiven: mostly on void or crowd", map: "prediction", outcome: "forgiven" },
  { title: "Crowds, not counted", map: "truth", outcome: "crowd" },
];

/** Fill `box` with the segments of a run; `light(lit)` is called with the one in focus or under the pointer. */
function listSegments(box, side, title, light) {
  const parts = title === null ? [] : [make("h3.run", {}, title)];
  for (const { title: heading, map, outcome } of GROUPS) {
    const found = side[map].map((segment, index) => ({ segment, index })).filter(({ segment }) => segment && segment.outcome === outcome);
    if (!found.length) continue;
    found.sort((a, b) => b.segment.area - a.segment.area);
    parts.push(make("h3", {}, `${heading} (${found.length})`), make("ul.segments", {}, ...found.map(({ segment, index }) => make("li", {}, segmentButton(segment, { map, index }, light)))));
  }
  if (parts.length === (title === null ? 0 : 1)) parts.push(make("p.soft", {}, "No segment at all."));
  box.append(...parts);
}

function segmentButton(segment, lit, light) {
  const { name, color } = report.classes[segment.category];
  const button = make("button.segment", { type: "button" }, swatch(css(color)), make("span", {}, name),
    make("span", { class: `outcome ${segment.outcome}` }, OUTCOME_NAMES[segment.outcome] || segment.outcome), make("small", {}, segmentWords(segment)));
  button.dataset.segment = `${lit.map} ${lit.index}`;
  for (const event of ["focus", "pointerenter"]) button.addEventListener(event, () => light(lit));
  for (const event of ["blur", "pointerleave"]) button.addEventListener(event, () => light(null));
  return button;
}
