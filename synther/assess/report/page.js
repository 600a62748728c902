"use strict";

// Sorting: the button in a heading sorts the rows within each group of its table. Rows without a figure stay last.
const key = (row, at) => row.cells[at].dataset.key;

function compare(a, b, sign) {
  if (a === undefined || b === undefined) return (a === undefined) - (b === undefined);
  const difference = Number(a) - Number(b);
  return sign * (Number.isNaN(difference) ? a.localeCompare(b) : difference);
}

function sort(button) {
  const heading = button.closest("th");
  const table = heading.closest("table");
  const now = heading.getAttribute("aria-sort");
  const next = now === "none" ? button.dataset.first : now === "ascending" ? "descending" : "ascending";
  for (const other of table.querySelectorAll("th[aria-sort]")) other.setAttribute("aria-sort", "none");
  heading.setAttribute("aria-sort", next);
  const sign = next === "ascending" ? 1 : -1;
  for (const body of table.tBodies) {
    const rows = [...body.rows].filter((row) => !row.classList.contains("group"));
    rows.sort((a, b) => compare(key(a, heading.cellIndex), key(b, heading.cellIndex), sign));
    body.append(...rows);
  }
}

document.documentElement.classList.add("script");
for (const button of document.querySelectorAll("th button")) button.addEventListener("click", () => sort(button));

// The filter: show the columns with names that contain all words in the box.
const columnRows = [...document.querySelectorAll("table.columns tbody tr")];
const names = [];
for (const row of columnRows) names[row.dataset.at] = row.cells[0].textContent;

const box = document.getElementById("filter");
box?.addEventListener("input", () => {
  const words = box.value.toLowerCase().split(/\s+/);
  let shown = 0;
  for (const row of columnRows) {
    const name = names[row.dataset.at].toLowerCase();
    row.hidden = !words.every((word) => name.includes(word));
    shown += !row.hidden;
  }
  const all = columnRows.length.toLocaleString("en");
  box.closest("p").querySelector("output").value = shown < columnRows.length ? `${shown} of ${all} columns` : `${all} columns`;
});

// Correlations: show the values of the cell under the pointer. They are read from the pixels of the pictures: opacity
// is the size of the correlation, and hue is its sign.
const maps = [...document.querySelectorAll(".maps svg")];

function readable(svg) {
  const picture = svg.querySelector("image");
  const source = new Image();
  const canvas = document.createElement("canvas").getContext("2d", { willReadFrequently: true });
  source.addEventListener("load", () => {
    canvas.canvas.width = canvas.canvas.height = source.naturalWidth;
    canvas.drawImage(source, 0, 0);
  });
  source.src = picture.getAttribute("href");
  return (column, row) => {
    const [red, green, , opacity] = canvas.getImageData(column, row, 1, 1).data;
    return ((red > green ? 1 : -1) * opacity * svg.dataset.most) / 254;
  };
}

function follow(area) {
  const count = Number(area.dataset.columns);
  const readout = area.parentElement.querySelector(".readout");
  const read = maps.map(readable);
  const point = (event) => {
    const svg = event.target.closest("svg");
    const frame = svg?.querySelector("image").getBoundingClientRect();
    if (!frame) return;
    const column = Math.floor(((event.clientX - frame.left) / frame.width) * count);
    const row = Math.floor(((event.clientY - frame.top) / frame.height) * count);
    if (column < 0 || row < 0 || column >= count || row >= count) return;
    const [real, synthetic, difference] = read.map((at) => at(column, row).toFixed(2).replace("-", "\u2212"));
    readout.value = `${names[row]} with ${names[column]}: real ${real}, synthetic ${synthetic}, difference ${difference}`;
    for (const map of maps) cross(map, column, row, count);
  };
  area.addEventListener("pointermove", point);
  area.addEventListener("pointerdown", point);
}

function cross(map, column, row, count) {
  const { x, y, width } = map.querySelector("image");
  const cell = width.baseVal.value / count;
  const [left, top] = [x.baseVal.value + column * cell, y.baseVal.value + row * cell];
  map.querySelector(".cross").setAttribute("d", `M${left} ${top}h${cell}v${cell}h${-cell}z`);
}

for (const area of document.querySelectorAll(".maps[data-columns]")) follow(area);
