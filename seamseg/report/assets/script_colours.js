// Colours of the style sheet as the canvas needs them, and those of the classes.

const probe = byId("tooltip");

/** Red, green, blue of a variable of the style sheet, in the theme that is on. */
function themeColour(name) {
  const before = probe.style.color;
  probe.style.color = `var(--${name})`;
  const found = getComputedStyle(probe).color.match(/[\d.]+/g).map(Number);
  probe.style.color = before;
  return found.slice(0, 3);
}

const css = (rgb) => `rgb(${rgb.join(" ")})`;

/** A pixel for Uint32 views of canvas data. */
const pixel = (rgb, alpha) => ((alpha << 24) | (rgb[2] << 16) | (rgb[1] << 8) | rgb[0]) >>> 0;
