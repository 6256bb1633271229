// The one tooltip of the page; it follows the pointer and stays inside the window.

const tooltip = byId("tooltip");

function showTooltip(event, ...lines) {
  tooltip.replaceChildren(...lines);
  tooltip.hidden = false;
  const { offsetWidth: width, offsetHeight: height } = tooltip;
  const left = event.clientX + 16 + width > innerWidth ? event.clientX - width - 12 : event.clientX + 16;
  const top = event.clientY + 18 + height > innerHeight ? event.clientY - height - 12 : event.clientY + 18;
  tooltip.style.left = `${Math.max(4, left)}px`;
  tooltip.style.top = `${Math.max(4, top)}px`;
  // an open dialog lies above all else of the page
  const owner = document.querySelector("dialog[open]") || document.body;
  if (tooltip.parentNode !== owner) owner.append(tooltip);
}

function hideTooltip() {
  tooltip.hidden = true;
}
