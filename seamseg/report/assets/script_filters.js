// Which images are shown and in which order: what the controls above the pictures say.

const SORTS = {
  worst: { name: "worst PQ first", by: (image) => image.pq[0] ?? 2 },
  best: { name: "best PQ first", by: (image) => -(image.pq[0] ?? -1) },
  name: { name: "name" },
  misses: { name: "most missed and false", by: (image) => -image.missed[0] - image.false[0] },
};
const CHANGES = {
  change: { name: "most changed first", by: (image) => -Math.abs(difference(image.pq) ?? -1) },
  lost: { name: "most lost first", by: (image) => difference(image.pq) ?? 2 },
  gained: { name: "most gained first", by: (image) => -(difference(image.pq) ?? -2) },
};
const sorts = paired ? { ...CHANGES, ...SORTS } : SORTS;
const numeric = new Intl.Collator("en", { numeric: true });

/** Numbers of the images to show, in their order. */
function wantedImages() {
  const [category, outcome, word] = [byId("by-class").value, Number(byId("by-outcome").value), byId("by-name").value.trim().toLowerCase()];
  const bitsOf = (image) => image.classes[0].filter(([c]) => category === "" || c === Number(category)).reduce((all, [, bits]) => all | bits, 0);
  const fits = (image) => {
    if (!image.name.toLowerCase().includes(word)) return false;
    if (category === "" && !outcome) return true;
    const bits = bitsOf(image);
    return outcome ? (bits & outcome) !== 0 : bits !== 0;
  };
  const { by } = sorts[byId("sort").value];
  const named = (a, b) => numeric.compare(report.images[a].name, report.images[b].name);
  const found = report.images.map((_, k) => k).filter((k) => fits(report.images[k]));
  return found.sort((a, b) => (by ? by(report.images[a]) - by(report.images[b]) : 0) || named(a, b));
}

function startFilters(changed) {
  for (const [key, { name }] of Object.entries(sorts)) byId("sort").append(make("option", { value: key }, name));
  const seen = new Set(report.images.flatMap((image) => image.classes[0].map(([c]) => c)));
  report.classes.forEach((c, k) => { if (seen.has(k)) byId("by-class").append(make("option", { value: k }, c.name)); });
  for (const id of ["sort", "by-class", "by-outcome"]) byId(id).addEventListener("change", changed);
  byId("by-name").addEventListener("input", changed);
  byId("reset").addEventListener("click", () => {
    byId("by-class").value = byId("by-name").value = "";
    byId("by-outcome").value = "0";
    changed();
  });
}

/** From the table: only images with this class, or all again if it was chosen already. */
function chooseClass(index) {
  const select = byId("by-class");
  const again = select.value === String(index);
  if (!again && ![...select.options].some((option) => option.value === String(index))) {
    select.append(make("option", { value: index }, report.classes[index].name));
  }
  select.value = again ? "" : String(index);
  select.dispatchEvent(new Event("change"));
  if (!again) byId("pictures").scrollIntoView();
}
