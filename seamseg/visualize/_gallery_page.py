"""Style and script of the gallery page."""

from __future__ import annotations

STYLE = """
:root { color-scheme: light dark; --ground: #f6f5f1; --paper: #fff; --ink: #1d2126; --soft: #5d6670; --line: #dcdad3;
  --accent: #0f6fb5; --bar: #bcdcf2; }
@media (prefers-color-scheme: dark) {
  :root { --ground: #14171a; --paper: #1d2226; --ink: #e9ebed; --soft: #a2abb3; --line: #333a40;
    --accent: #6cbcf5; --bar: #1f4f73; }
}
* { box-sizing: border-box; }
body { margin: 0; background: var(--ground); color: var(--ink); font: 16px/1.5 system-ui, -apple-system, "Segoe UI",
  Roboto, "Helvetica Neue", Arial, sans-serif; }
header, main { max-width: 88rem; margin: 0 auto; padding: 1.2rem clamp(.8rem, 3vw, 2.4rem) 0; }
main { padding: 0 clamp(.8rem, 3vw, 2.4rem) 3rem; }
h1 { font-size: clamp(1.4rem, 4vw, 2.2rem); line-height: 1.2; margin: .4rem 0 1rem; overflow-wrap: anywhere; }
h2 { font-size: 1.15rem; margin: 2rem 0 .7rem; }
h3 { font-size: .9rem; font-weight: 600; margin: 0; overflow-wrap: anywhere; }
.figures { display: grid; grid-template-columns: repeat(auto-fit, minmax(7.5rem, 1fr)); gap: .7rem; margin: 0; }
.figure { background: var(--paper); border: 1px solid var(--line); border-radius: .6rem; padding: .6rem .9rem; }
.figure dt { color: var(--soft); font-size: .85rem; }
.figure dd { margin: 0; font-size: 1.5rem; font-weight: 650; font-variant-numeric: tabular-nums; }
.scroll { overflow-x: auto; background: var(--paper); border: 1px solid var(--line); border-radius: .6rem; }
table { border-collapse: collapse; width: 100%; font-variant-numeric: tabular-nums; font-size: .92rem; }
th, td { padding: .38rem .8rem; text-align: left; border-bottom: 1px solid var(--line); white-space: nowrap; }
thead th { color: var(--soft); font-weight: 600; }
tbody tr:last-child > * { border-bottom: 0; }
tbody th { font-weight: 600; }
.number { position: relative; min-width: 6rem; }
.number span:last-child { position: relative; }
.bar { position: absolute; inset: .25rem auto .25rem .4rem; width: calc(100% - .8rem);
  background: linear-gradient(to right, var(--bar) var(--part), transparent var(--part)); border-radius: .2rem; }
.none, .note { color: var(--soft); }
.note { margin: .1rem 0 0; font-size: .82rem; }
.cards { display: grid; gap: 1rem; grid-template-columns: repeat(auto-fill, minmax(min(100%, 42rem), 1fr));
  align-items: start; }
.card { background: var(--paper); border: 1px solid var(--line); border-radius: .6rem; padding: .8rem; }
.pictures { display: grid; grid-template-columns: repeat(auto-fit, minmax(min(100%, 11rem), 1fr));
  gap: .5rem; margin-top: .5rem; }
figure { margin: 0; }
figcaption { color: var(--soft); font-size: .8rem; }
.open { display: block; width: 100%; padding: 0; border: 0; border-radius: .3rem; background: none; cursor: zoom-in;
  overflow: hidden; }
.open img { display: block; width: 100%; height: auto; transition: transform .15s; }
.card.tall .open img { max-height: 20rem; object-fit: contain; }
.open:hover img { transform: scale(1.03); }
:focus-visible { outline: 3px solid var(--accent); outline-offset: 2px; }
dialog { border: 0; padding: .8rem; border-radius: .6rem; background: var(--paper); color: var(--ink);
  max-width: 98vw; max-height: 98vh; }
dialog::backdrop { background: rgb(0 0 0 / .75); }
dialog img { display: block; max-width: 94vw; max-height: 80vh; width: auto; height: min(80vh, 94vw * var(--ratio, 1));
  object-fit: contain; }
.keys { display: flex; gap: .5rem; justify-content: space-between; margin: .5rem 0 0; }
.keys button { font: inherit; color: inherit; background: var(--ground); border: 1px solid var(--line);
  border-radius: .4rem; padding: .3rem .8rem; cursor: pointer; }
@media (prefers-reduced-motion: reduce) { .open img { transition: none; } }
@media print { .keys, dialog { display: none; } .card { break-inside: avoid; } }
"""

SCRIPT = """
(function () {
  var zoom = document.getElementById("zoom");
  if (!zoom || !zoom.showModal) return;
  var buttons = Array.prototype.slice.call(document.querySelectorAll(".open"));
  var image = zoom.querySelector("img"), caption = zoom.querySelector("figcaption"), at = 0;
  function show(i) {
    at = (i + buttons.length) % buttons.length;
    var source = buttons[at].querySelector("img");
    image.src = source.src;
    image.alt = caption.textContent = source.alt;
    image.style.setProperty("--ratio", source.naturalHeight / source.naturalWidth || 1);
    if (!zoom.open) zoom.showModal();
  }
  buttons.forEach(function (button, i) { button.addEventListener("click", function () { show(i); }); });
  document.getElementById("previous").addEventListener("click", function () { show(at - 1); });
  document.getElementById("next").addEventListener("click", function () { show(at + 1); });
  document.getElementById("close").addEventListener("click", function () { zoom.close(); });
  zoom.addEventListener("click", function (event) { if (event.target === zoom) zoom.close(); });
  zoom.addEventListener("close", function () { buttons[at].focus(); });
  zoom.addEventListener("keydown", function (event) {
    if (event.key === "ArrowLeft") show(at - 1);
    else if (event.key === "ArrowRight") show(at + 1);
    else return;
    event.preventDefault();
  });
})();
"""
