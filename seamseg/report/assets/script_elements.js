// Elements of the page: find them, make them. Text goes in as text, never as markup.

const byId = (id) => document.getElementById(id);

/** A new element: `make("td.count", {title: "..."}, "text", child, ...)`; null children are left out. */
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

/** A new element of an SVG drawing. */
function draw(tag, attributes, ...children) {
  const element = document.createElementNS("http://www.w3.org/2000/svg", tag);
  for (const [name, value] of Object.entries(attributes || {})) element.setAttribute(name, value);
  element.append(...children);
  return element;
}

/** A small square of a colour. */
const swatch = (color) => make("span.swatch", { "--swatch": color });
