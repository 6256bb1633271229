// Helpers of the page: elements, number formats, colours and the tooltip. Text is inserted as text, never as markup.

const byId = (id) => document.getElementById(id);

/** Create an element: `make("td.count", {title: "..."}, "text", child, ...)`; null children are skipped. */
function make(what, attributes, ...children) {
  const [tag, ...classes] = what.split(".");
  const element = document.createElement(tag);
  if (classes.length) element.className = classes.join(" ");
  for (const [name, value] of Object.entries(attributes || {})) {
    if (name.startsWith("--")) element.style.setProperty(name, value);
    else if (name === "onclick") element.addEventListener("click", value);
    else element.setAttribute(name, value);
  }
  element.append(...children.filter((child) => child !== null && child !== undefined));
  return element;
}

/** Create an SVG element. */
function draw(tag, attributes, ...children) {
  const element = document.createElementNS("http://www.w3.org/2000/svg", tag);
  for (const [name, value] of Object.entries(attributes || {})) element.setAttribute(name, value);
  element.append(...children);
  return element;
}

/**
 * Create an element for a name that comes from a file. Its direction and its length change nothing beside it: a box of its
 * own ends what characters of bidirectional text begin, and a long name wraps and is cut off after some lines.
 */
const named = (text) => make("bdi.named", text.length > 80 ? { title: text } : {}, text);

/** Create a small square of a colour. */
const swatch = (color) => make("span.swatch", { "--swatch": color });

// Numbers: fractions in percent, counts with thin spaces, a dash for missing values.

const isNumber = (value) => typeof value === "number" && Number.isFinite(value);
const percent = (value, digits = 1) => (isNumber(value) ? (100 * value).toFixed(digits) : "–");
const count = (value) => (Number.isInteger(value) ? String(value).replace(/\B(?=(\d{3})+$)/g, "\u202f") : isNumber(value) ? String(value) : "–");
const plural = (number, one, many = `${one}s`) => `${count(number)} ${number === 1 ? one : many}`;

/** The first value minus the second; null if either is missing. */
const difference = (values) => (isNumber(values[0]) && isNumber(values[1]) ? values[0] - values[1] : null);

/** Format a difference of fractions with its sign, in percentage points. */
function signed(value, digits = 1) {
  if (!isNumber(value)) return "–";
  const text = Math.abs(100 * value).toFixed(digits);
  if (Number(text) === 0) return `±${text}`;
  return (value > 0 ? "+" : "−") + text;
}

/** CSS class of a difference: `better`, `worse`, or empty if it rounds to zero. */
function trend(value) {
  if (!isNumber(value) || Math.abs(value) < 0.0005) return "";
  return value > 0 ? "better" : "worse";
}

// Colours of the style sheet, in the formats that canvases need.

/** Red, green and blue of a variable of the style sheet, in the current theme. */
function themeColour(name) {
  const before = tooltip.style.color;
  tooltip.style.color = `var(--${name})`;
  const found = getComputedStyle(tooltip).color.match(/[\d.]+/g).map(Number);
  tooltip.style.color = before;
  return found.slice(0, 3);
}

const css = (rgb) => `rgb(${rgb.join(" ")})`;

/** A pixel value for Uint32 views of canvas data. */
const pixel = (rgb, alpha) => ((alpha << 24) | (rgb[2] << 16) | (rgb[1] << 8) | rgb[0]) >>> 0;

// The tooltip follows the pointer and stays inside the window.

const tooltip = byId("tooltip");

function showTooltip(event, ...lines) {
  tooltip.replaceChildren(...lines);
  tooltip.hidden = false;
  const { offsetWidth: width, offsetHeight: height } = tooltip;
  const left = event.clientX + 16 + width > innerWidth ? event.clientX - width - 12 : event.clientX + 16;
  const top = event.clientY + 18 + height > innerHeight ? event.clientY - height - 12 : event.clientY + 18;
  tooltip.style.left = `${Math.max(4, left)}px`;
  tooltip.style.top = `${Math.max(4, top)}px`;
  // an open dialog is drawn above the rest of the page, so the tooltip must be inside it
  const owner = document.querySelector("dialog[open]") || document.body;
  if (tooltip.parentNode !== owner) owner.append(tooltip);
}

function hideTooltip() {
  tooltip.hidden = true;
}
