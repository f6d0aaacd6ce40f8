// Tables of results can be sorted: a click on a heading, or Enter, sorts by that column; again, the other way.
const number = (text) => {
  const found = text.replace(/−/g, "-").replace(/(\d),(?=\d{3})/g, "$1").match(/^[-+]?\d+(\.\d+)?(e[-+]?\d+)?/);
  return found ? Number(found[0]) : NaN;
};

function compare(a, b, sign) {
  const [x, y] = [number(a), number(b)];
  if (Number.isNaN(x) !== Number.isNaN(y)) return Number.isNaN(x) ? 1 : -1; // words after numbers, either way
  return sign * (Number.isNaN(x) ? a.localeCompare(b) : x - y);
}

function sort(table, column, head) {
  const descending = head.getAttribute("aria-sort") === "ascending", sign = descending ? -1 : 1;
  const body = table.tBodies[0];
  const text = (row) => row.cells[column]?.textContent.trim() ?? "";
  const rows = [...body.rows].sort((a, b) => compare(text(a), text(b), sign));
  body.append(...rows);
  for (const other of table.tHead.rows[0].cells) other.removeAttribute("aria-sort");
  head.setAttribute("aria-sort", descending ? "descending" : "ascending");
}

document.addEventListener("DOMContentLoaded", () => {
  for (const cell of document.querySelectorAll("article td")) { // "97.53 ± 0.86", "+0.02 (-0.49 to +0.52)" stay on one line
    if (/^[-+−]?[\d.]+( [±(%×]|$)/.test(cell.textContent) && cell.textContent.length < 30) cell.classList.add("number");
  }
  if (!location.pathname.includes("/results/")) return;
  for (const table of document.querySelectorAll("article table")) {
    if (!table.tHead || !table.tBodies.length || table.tBodies[0].rows.length < 3) continue;
    [...table.tHead.rows[0].cells].forEach((head, column) => {
      const button = document.createElement("button");
      button.append(...head.childNodes);
      button.title = "sort by this column";
      button.addEventListener("click", () => sort(table, column, head));
      head.append(button);
    });
  }
});
