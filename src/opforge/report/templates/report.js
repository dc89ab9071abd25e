"use strict";

// Sorting: a click on a column's name, largest number first, A to Z for text, then the other way.
const collator = new Intl.Collator(undefined, { numeric: true });

function keyOf(row, column) {
  const cell = row.cells[column];
  const text = cell.textContent.trim();
  return "value" in cell.dataset ? { number: Number(cell.dataset.value), text } : { text };
}

function compareKeys(one, other) {
  if (one.number !== undefined && other.number !== undefined) {
    return one.number - other.number;
  }
  // Numbers stand before text, where a column has both.
  if ((one.number === undefined) !== (other.number === undefined)) {
    return one.number === undefined ? 1 : -1;
  }
  return collator.compare(one.text, other.text);
}

function sortBy(header) {
  const table = header.closest("table");
  const column = header.cellIndex;
  const first = header.classList.contains("number") ? "descending" : "ascending";
  const second = first === "ascending" ? "descending" : "ascending";
  const order = header.getAttribute("aria-sort") === first ? second : first;
  for (const other of header.parentElement.cells) {
    other.removeAttribute("aria-sort");
  }
  header.setAttribute("aria-sort", order);
  const sign = order === "ascending" ? 1 : -1;
  const body = table.tBodies[0];
  const keyed = Array.from(body.rows, (row) => ({ row, key: keyOf(row, column) }));
  keyed.sort((one, other) => sign * compareKeys(one.key, other.key));
  body.append(...keyed.map((one) => one.row));
}

for (const header of document.querySelectorAll("th")) {
  header.querySelector("button").addEventListener("click", () => sortBy(header));
}

// Search: a row stays if it has every word. The address keeps what was searched for.
const input = document.getElementById("search");
const found = document.getElementById("found");

function search() {
  const words = input.value.toLowerCase().split(/\s+/).filter(Boolean);
  let shown = 0;
  let all = 0;
  for (const table of document.querySelectorAll(".table")) {
    let here = 0;
    const rows = table.querySelectorAll(":scope > .scroll tbody tr");
    for (const row of rows) {
      const text = row.textContent.toLowerCase();
      const fits = words.every((word) => text.includes(word));
      row.classList.toggle("filtered", !fits);
      here += fits ? 1 : 0;
    }
    table.classList.toggle("unfound", words.length > 0 && here === 0);
    const count = table.querySelector(".count");
    if (count) {
      count.textContent = here === rows.length ? rows.length : `${here} of ${rows.length}`;
    }
    shown += here;
    all += rows.length;
  }
  found.textContent = words.length ? `${shown} of ${all} rows` : "";
  const hash = words.length ? `#search=${encodeURIComponent(input.value)}` : "";
  if (hash !== location.hash && (hash || location.hash.startsWith("#search="))) {
    history.replaceState(null, "", hash || location.pathname);
  }
}

function searchFromAddress() {
  if (location.hash.startsWith("#search=")) {
    input.value = decodeURIComponent(location.hash.slice("#search=".length));
    search();
  }
}

input.addEventListener("input", search);
window.addEventListener("hashchange", searchFromAddress);
document.addEventListener("keydown", (event) => {
  if (event.key === "/" && document.activeElement !== input) {
    event.preventDefault();
    input.focus();
  }
});
searchFromAddress();
