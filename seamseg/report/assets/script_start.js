// Puts the page together.

document.body.classList.toggle("paired", paired);
const notes = [];
if (ending.without_photo) notes.push(`${plural(ending.without_photo, "picture")} without a photo: drawn on grey.`);
if (!paired) notes.push("Choose a picture to see it large, with the list of its segments.");
byId("picture-note").textContent = notes.join(" ");
startTheme();
showHeadline();
showTable();
showCharts();
startConfusion();
fillLegend(byId("legend"));
fillLegend(byId("viewer-legend"));
startFilters(arrangeCards);
startCards();
startViewer();
setView(view);
document.documentElement.dataset.ready = "yes";
