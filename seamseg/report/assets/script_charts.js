// Histograms as SVG: bars on top of each other, and lines over them.

const CHART = { width: 420, height: 220, left: 40, right: 10, top: 8, bottom: 34 };

/**
 * One chart. `series`: [{name, style, values}] stacked; `lines`: [{name, style, values}] of fractions of the whole
 * height, with `counts` if they stand for counts; `ticks`: [[bin edge, text]]; `label(k)`: the bin in words; `highest`:
 * the least count that the height must hold.
 */
function chart({ title, note, axis, series, lines = [], ticks, label, highest = 1 }) {
  const bins = series[0].values.length;
  const totals = Array.from({ length: bins }, (_, k) => series.reduce((sum, s) => sum + s.values[k], 0));
  highest = Math.max(highest, ...totals);
  const wide = (CHART.width - CHART.left - CHART.right) / Math.max(1, bins);
  const high = CHART.height - CHART.top - CHART.bottom;
  const ground = CHART.top + high;
  const svg = draw("svg", { viewBox: `0 0 ${CHART.width} ${CHART.height}`, role: "img", "aria-label": `${title}. ${totals.map((t, k) => `${label(k)}: ${t}`).join("; ")}` });
  for (const part of [0, 0.5, 1]) {
    const y = ground - part * high;
    svg.append(draw("line", { class: "axis", x1: CHART.left, x2: CHART.width - CHART.right, y1: y, y2: y }));
    if (part === 0 || Number.isInteger(highest * part)) svg.append(draw("text", { x: CHART.left - 6, y: y + 4, "text-anchor": "end" }, count(highest * part)));
  }
  for (let k = 0; k < bins; k++) {
    let y = ground;
    const words = [label(k), ...series.map((s) => `${s.name}: ${count(s.values[k])}`), ...lines.map((l) => `${l.name}: ${l.counts ? count(l.counts[k]) : `${percent(l.values[k])} %`}`)];
    for (const s of series) {
      const size = (s.values[k] / highest) * high;
      if (!size) continue;
      y -= size;
      const bar = draw("rect", { class: s.style, x: CHART.left + k * wide + 1, y, width: Math.max(1, wide - 2), height: size, rx: 1.5 });
      bar.addEventListener("pointermove", (event) => showTooltip(event, ...words.map((word) => make("div", {}, word))));
      bar.addEventListener("pointerleave", hideTooltip);
      svg.append(bar);
    }
  }
  for (const { style, values } of lines) {
    const points = values.map((value, k) => (isNumber(value) ? `${CHART.left + (k + 0.5) * wide},${ground - value * high}` : null)).filter(Boolean);
    svg.append(draw("polyline", { class: style, points: points.join(" ") }));
  }
  for (const [edge, text] of ticks) svg.append(draw("text", { x: CHART.left + edge * wide, y: ground + 15, "text-anchor": "middle" }, text));
  svg.append(draw("text", { x: (CHART.left + CHART.width - CHART.right) / 2, y: CHART.height - 2, "text-anchor": "middle" }, axis));
  const keys = [...series, ...lines].map((s) => make("li", {}, keySign(s), s.name));
  return make("figure.chart", {}, make("h3", {}, title), make("ul.key", {}, ...keys), svg, note ? make("p.hint", {}, note) : null);
}

function keySign({ style }) {
  const fills = { "fill-accent": "accent", "fill-right": "right", "fill-missed": "missed", "fill-false": "false" };
  return make("i", { "--swatch": `var(--${fills[style] || (style === "line-other" ? "soft" : "ink")})` });
}

const fractionTicks = [[0, "0"], [5, "25"], [10, "50"], [15, "75"], [20, "100"]];
const fractionLabel = (k) => `${5 * k} to ${5 * (k + 1)} %`;

function showCharts() {
  const [first, other] = report.histograms;
  const share = (h) => h.area_matched.map((n, k) => (n + h.area_missed[k] ? n / (n + h.area_missed[k]) : null));
  const scored = first.score_matched.some(Boolean) || first.score_false.some(Boolean);
  const highest = Math.max(1, ...first.pq, ...(paired ? other.pq : []));
  const charts = [
    chart({
      title: "Images by PQ", axis: "PQ of the image, percent", ticks: fractionTicks, label: fractionLabel,
      series: [{ name: paired ? report.titles[0] : "images", style: "fill-accent", values: first.pq }],
      lines: paired ? [{ name: report.titles[1], style: "line-other", values: other.pq.map((n) => n / highest), counts: other.pq }] : [],
      highest,
    }),
    chart({
      title: "Segments by size", axis: "pixels of the segment", label: (k) => `${count(2 ** (first.area_from + k))} to ${count(2 ** (first.area_from + k + 1))} pixels`,
      ticks: first.area_matched.map((_, k) => [k, 2 ** (first.area_from + k)]).filter(([k]) => k % 3 === 0).map(([k, n]) => [k, n >= 1048576 ? `${n / 1048576}M` : n >= 1024 ? `${n / 1024}k` : n]),
      series: [{ name: "found", style: "fill-right", values: first.area_matched }, { name: "missed", style: "fill-missed", values: first.area_missed }],
      lines: [{ name: "share found", style: "line-ink", values: share(first) },
        ...(paired && other.area_from === first.area_from && other.area_matched.length === first.area_matched.length ? [{ name: `share found by ${report.titles[1]}`, style: "line-other", values: share(other) }] : [])],
    }),
  ];
  if (scored) {
    charts.push(chart({
      title: "Predictions by score", axis: "score, percent", ticks: fractionTicks, label: fractionLabel,
      note: first.unscored ? `${plural(first.unscored, "prediction")} without a score are left out.` : "",
      series: [{ name: "matched", style: "fill-right", values: first.score_matched }, { name: "false", style: "fill-false", values: first.score_false }],
    }));
  } else {
    charts.push(make("figure.chart", {}, make("h3", {}, "Predictions by score"), make("p.hint", {}, "The predictions have no scores.")));
  }
  byId("charts").append(...charts);
}
