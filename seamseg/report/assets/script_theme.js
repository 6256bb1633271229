// Light, dark, or as the system says; what draws on a canvas listens to changes.

const themes = ["auto", "light", "dark"];
const themeListeners = [];

function setTheme(name) {
  if (name === "auto") delete document.documentElement.dataset.theme;
  else document.documentElement.dataset.theme = name;
  byId("theme").textContent = `Theme: ${name}`;
  themeListeners.forEach((listener) => listener());
}

function startTheme() {
  let now = "auto";
  byId("theme").addEventListener("click", () => {
    now = themes[(themes.indexOf(now) + 1) % themes.length];
    setTheme(now);
  });
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => setTheme(now));
}
