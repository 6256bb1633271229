// Title and headline numbers, with what has changed when two runs are compared.

function showHeadline() {
  byId("title").append(report.titles[0]);
  if (paired) byId("title").append(make("span.other", {}, ` vs. ${report.titles[1]}`));
  const things = report.classes.filter((c) => c.thing).length;
  const images = paired && report.n_images[0] !== report.n_images[1] ? report.n_images.map(count).join(" and ") : count(report.n_images[0]);
  const lost = report.lost ? ` · ${plural(report.lost, "image")} only in one of the runs` : "";
  byId("subtitle").textContent =
    `${images} image${report.n_images[0] === 1 ? "" : "s"} · ${things} things, ${report.classes.length - things} stuff classes${lost}`;
  report.headline.forEach(({ name, values }, k) => {
    const box = make(k === 0 ? "div.figure.main" : "div.figure", {}, make("dt", {}, name), make("dd", {}, percent(values[0])));
    if (paired) {
      const change = difference(values);
      const parts = [make("span", { class: `delta ${trend(change)}` }, signed(change)), make("span.before", {}, ` from ${percent(values[1])}`)];
      box.lastChild.after(make("div", {}, ...parts));
    }
    box.append(make("div.meter", { "--part": `${100 * (values[0] || 0)}%` }));
    byId("figures").append(box);
  });
}
